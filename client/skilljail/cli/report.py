"""What `skilljail run` says about a run, for a person and for a program."""

import base64
import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from skilljail import Artifact, Outcome, RunResult, SkilljailError

__all__ = ["error_json", "lines", "result_json"]

_SKIPPED_SHOWN = 20


def lines(result: RunResult, saved: list[pathlib.Path]) -> Iterator[str]:
    """One line for each saved or skipped file, and the outcome at the end unless the script simply succeeded."""
    for path in saved:
        yield f"saved {path}"
    for skipped in result.skipped_artifacts[:_SKIPPED_SHOWN]:
        yield f"not brought back: {skipped.path} ({skipped.reason})"
    more = len(result.skipped_artifacts[_SKIPPED_SHOWN:]) + result.skipped_artifacts_omitted
    if more:
        yield f"not brought back: {more} more files"
    if result.usage.output_truncated:
        yield "the output was cut at its limit; ask for more with --output-limit"
    if not result.ok:
        yield f"{result.outcome}: {_sentence(result)}"


def _sentence(result: RunResult) -> str:
    if result.message:
        return result.message
    if result.outcome is Outcome.EXITED:
        return f"the script ended with status {result.exit_code}"
    return "the daemon gave no reason"


def result_json(result: RunResult, saved: list[pathlib.Path]) -> str:
    """The whole result as one JSON object. Bytes that are not UTF-8 come as base64 besides."""
    fields: dict[str, Any] = {
        "run_id": result.run_id,
        "outcome": str(result.outcome),
        "exit_code": result.exit_code,
        "signal": result.signal,
        "message": result.message,
        **_output("stdout", result.stdout),
        **_output("stderr", result.stderr),
        "usage": dataclasses.asdict(result.usage),
        "phases": dataclasses.asdict(result.phases),
        "policy": dataclasses.asdict(result.started.policy) if result.started else None,
        "artifacts": [_artifact(one) for one in result.artifacts],
        "saved": [str(path) for path in saved],
        "skipped_artifacts": [dataclasses.asdict(one) for one in result.skipped_artifacts],
        "skipped_artifacts_omitted": result.skipped_artifacts_omitted,
    }
    return json.dumps(fields, indent=2)


def error_json(error: SkilljailError) -> str:
    """Why it could not run, as one JSON object."""
    fields = {
        "error": {
            "reason": error.reason,
            "message": str(error),
            "metadata": dict(error.metadata),
            "violations": [dataclasses.asdict(one) for one in error.violations],
            "retry_after_seconds": error.retry_after_seconds,
        }
    }
    return json.dumps(fields, indent=2)


def _output(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {
            name: data.decode(errors="replace"),
            f"{name}_base64": base64.b64encode(data).decode("ascii"),
        }


def _artifact(artifact: Artifact) -> dict[str, Any]:
    return {
        "path": artifact.path,
        "size_bytes": artifact.size_bytes,
        "digest": artifact.digest,
        "media_type": artifact.media_type,
        "executable": artifact.executable,
    }
