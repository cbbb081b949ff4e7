"""What `skilljail run` says about a run, for a person and for a program."""

import base64
import collections
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from skilljail import Artifact, ArtifactRefused, EgressDecisionInfo, Outcome, RunResult, SkilljailError, Usage

__all__ = ["error_json", "error_line", "lines", "result_json"]

_SKIPPED_SHOWN = 20
_REFUSED_SHOWN = 20


def error_line(error: SkilljailError) -> str:
    """What went wrong, with the option of `skilljail run` that mends it."""
    if error.reason == "ARTIFACT_EXISTS":
        return f"{error} (here: --overwrite)"
    if error.reason == "NETWORK_INVALID":
        return f"{error} (here: --network, --allow-host)"
    if error.reason == "INTERPRETER_UNKNOWN":
        return f"{error} (here: --interpreter NAME)"
    return str(error)


def lines(result: RunResult, saved: Sequence[pathlib.Path], patterns: Sequence[str] = ()) -> Iterator[str]:
    """One line for each saved or skipped file and each refused connection, and the outcome at the end unless the script
    simply succeeded.

    `patterns`: those that the caller named; when the script ended and nothing matches them, a line says so.
    """
    for path in saved:
        yield f"saved {path}"
    for skipped in result.skipped_artifacts[:_SKIPPED_SHOWN]:
        if skipped.path == ".":
            yield f"the search for artifacts ended early ({skipped.reason}); some may be missing"
        else:
            yield f"not brought back: {skipped.path} ({skipped.reason})"
    more = len(result.skipped_artifacts[_SKIPPED_SHOWN:]) + result.skipped_artifacts_omitted
    if more:
        yield f"not brought back: {more} more files"
    nothing = not (result.artifacts or result.skipped_artifacts or result.skipped_artifacts_omitted)
    if patterns and nothing and result.outcome is Outcome.EXITED:
        yield "no new or changed file matches " + " or ".join(f"'{one}'" for one in patterns)
    yield from _refused(result)
    if result.usage.output_truncated:
        yield "the output was cut at its limit; ask for more with --output-limit"
    if not result.ok:
        yield f"{result.outcome}: {_sentence(result)}"
    elif met := _limits_met(result.usage):
        yield f"the script ended with status 0, but {' and '.join(met)}"


def _refused(result: RunResult) -> Iterator[str]:
    """One line for each connection that was refused or cut, whatever the script made of it."""
    refused = collections.Counter(one.message for one in result.egress_decisions if not one.allowed)
    for message, count in list(refused.items())[:_REFUSED_SHOWN]:
        yield message if count == 1 else f"{message} ({_times(count)})"
    more = sum(list(refused.values())[_REFUSED_SHOWN:])
    if more:
        yield f"{more} more connections were refused or cut"
    if result.egress_decisions_omitted:
        yield f"what was decided on {result.egress_decisions_omitted} more connections was not kept"


def _limits_met(usage: Usage) -> list[str]:
    """The limits that a script ran into, with how to ask for more: its result may lack what they took away."""
    met: list[str] = []
    if usage.oom_kills:
        met.append(f"memory ran out {_times(usage.oom_kills)} (--memory)")
    if usage.pids_limit_hits:
        met.append(f"a new process or thread was refused {_times(usage.pids_limit_hits)} (--pids)")
    if usage.disk_full:
        met.append("the work directory was full (--disk)")
    return met


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _sentence(result: RunResult) -> str:
    if result.message:
        return result.message
    if result.outcome is Outcome.EXITED:
        return f"the script ended with status {result.exit_code}"
    return "the daemon gave no reason"


def result_json(result: RunResult, saved: Sequence[pathlib.Path], refusals: Sequence[ArtifactRefused] = ()) -> str:
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
        "not_saved": [_refusal(one) for one in refusals],
        "skipped_artifacts": [dataclasses.asdict(one) for one in result.skipped_artifacts],
        "skipped_artifacts_omitted": result.skipped_artifacts_omitted,
        "egress_decisions": [_decision(one) for one in result.egress_decisions],
        "egress_decisions_omitted": result.egress_decisions_omitted,
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


def _refusal(error: ArtifactRefused) -> dict[str, str]:
    return {"path": error.metadata["path"], "reason": error.reason, "message": str(error)}


def _decision(decision: EgressDecisionInfo) -> dict[str, Any]:
    return dataclasses.asdict(decision) | {"time": decision.time.isoformat()}


def _artifact(artifact: Artifact) -> dict[str, Any]:
    return {
        "path": artifact.path,
        "size_bytes": artifact.size_bytes,
        "digest": artifact.digest,
        "media_type": artifact.media_type,
        "executable": artifact.executable,
    }
