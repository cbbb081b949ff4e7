"""What an operator should know about an engine and its host."""

import dataclasses
import enum

__all__ = ["Finding", "Severity"]


class Severity(enum.IntEnum):
    """How much a finding weighs. The names and numbers are those of `Severity` in `posture.proto`."""

    INFO = 1
    WARNING = 2
    """A wall is thinner than it could be."""
    KNOWN_BAD = 3
    """Something with a known hole, or whose version nobody tells. With `isolation.strict` the daemon does not start."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an operator should know."""

    severity: Severity
    subject: str
    """What it is about, such as `runc 1.1.5`."""
    message: str
    """What is wrong, and the mend."""
    source: str = ""
    """Where that is known from, such as `CVE-2025-31133`."""

    @property
    def text(self) -> str:
        """All of it in one sentence."""
        return f"{self.subject}: {self.message}" + (f" ({self.source})" if self.source else "")
