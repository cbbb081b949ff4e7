"""How a run ended, as one value, so that a test asserts all of it and not the part it thought of."""

import dataclasses
from collections.abc import Mapping

from skilljail import Outcome, RunResult

__all__ = ["Ending"]


@dataclasses.dataclass(frozen=True)
class Ending:
    """Everything about a result that a script decides. The defaults are a silent success."""

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = 0
    outcome: Outcome = Outcome.EXITED
    signal: int | None = None
    output_truncated: bool = False
    disk_full: bool = False
    artifacts: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    """Content by path."""
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Reason by path."""

    @classmethod
    def of(cls, result: RunResult) -> "Ending":
        """The same of a result, whose account of itself must be consistent."""
        assert result.usage.stdout_bytes == len(result.stdout)
        assert result.usage.stderr_bytes == len(result.stderr)
        assert result.skipped_artifacts_omitted == 0
        assert len(result.artifacts) == len({one.path for one in result.artifacts})
        return cls(
            stdout=result.stdout,
            stderr=result.stderr,
            exit_code=result.exit_code,
            outcome=result.outcome,
            signal=result.signal,
            output_truncated=result.usage.output_truncated,
            disk_full=result.usage.disk_full,
            artifacts={one.path: one.content for one in result.artifacts},
            skipped={one.path: str(one.reason) for one in result.skipped_artifacts},
        )
