"""Why something could not run. The tree is drawn in the docstring of the package."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

__all__ = [
    "ArtifactRefused",
    "BundleMissing",
    "DaemonFault",
    "DaemonUnavailable",
    "EngineUnavailable",
    "InterpreterUnavailable",
    "InterpreterUnknown",
    "InvalidAddress",
    "InvalidRequest",
    "IsolationRefused",
    "LimitAboveCeiling",
    "NetworkNotAllowed",
    "OperatorOnly",
    "QueueFull",
    "RequestIdInUse",
    "RunCancelled",
    "RunNotFound",
    "ScriptNotFound",
    "SecretNotGranted",
    "SecretUnavailable",
    "ShuttingDown",
    "SkillInvalid",
    "SkilljailError",
    "StoreFull",
    "StreamBroken",
    "Unauthenticated",
    "Unavailable",
    "Violation",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong with a request."""

    subject: str
    """What is wrong: a field of the request, the digest of a blob, or who is over a quota."""
    description: str
    """What is wrong with it, for a person."""
    kind: str = ""
    """The kind of a failed precondition, such as `MISSING`; empty for a field."""


class SkilljailError(Exception):
    """The root of the tree. The message names the thing and the mend."""

    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        """`reason`: the daemon's name for what went wrong; empty takes the class's own."""
        super().__init__(message)
        self.reason: str = reason or self.default_reason
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))
        self.violations: tuple[Violation, ...] = tuple(violations)
        self.retry_after_seconds: float | None = retry_after_seconds


class InvalidRequest(SkilljailError, ValueError):
    """The request is wrong. Nothing ran, and trying again unchanged is useless."""

    default_reason = "REQUEST_INVALID"


class InvalidAddress(InvalidRequest):
    """The address, or the way to speak to it, is not one that leads to a daemon."""

    default_reason = "ADDRESS_INVALID"


class SkillInvalid(InvalidRequest):
    """The skill folder cannot be staged as it is. Nothing was sent."""

    default_reason = "SKILL_INVALID"


class ScriptNotFound(InvalidRequest):
    """The skill has no such file."""

    default_reason = "SCRIPT_NOT_FOUND"


class InterpreterUnknown(InvalidRequest):
    """Neither shebang nor suffix names an interpreter that skilljail has."""

    default_reason = "INTERPRETER_UNKNOWN"


class LimitAboveCeiling(InvalidRequest):
    """A limit is above what the operator allows; `metadata` has `limit`, `asked` and `ceiling`."""

    default_reason = "LIMIT_ABOVE_CEILING"


class Unavailable(SkilljailError):
    """Nothing ran. Trying again later may help."""

    default_reason = "UNAVAILABLE"


class DaemonUnavailable(Unavailable):
    """Nobody answers at the daemon's address."""

    default_reason = "DAEMON_UNAVAILABLE"


class EngineUnavailable(Unavailable):
    """The daemon answers, but its engine does not or could not make a sandbox."""

    default_reason = "ENGINE_UNAVAILABLE"


class QueueFull(Unavailable):
    """Too many runs wait already; `retry_after_seconds` says when to come again, where the daemon told."""

    default_reason = "QUEUE_FULL"


class ShuttingDown(Unavailable):
    """The daemon is being stopped."""

    default_reason = "SHUTTING_DOWN"


class InterpreterUnavailable(SkilljailError):
    """The interpreter is known, but the daemon has no image for it."""

    default_reason = "INTERPRETER_UNAVAILABLE"


class IsolationRefused(SkilljailError):
    """A required control did not hold on the sandbox, so nothing was run in it."""

    default_reason = "ISOLATION_POSTURE"


class NetworkNotAllowed(SkilljailError):
    """The operator does not grant the network, or the host, that was asked for."""

    default_reason = "NETWORK_NOT_ALLOWED"


class SecretNotGranted(SkilljailError):
    """The operator has not granted the secret to this skill of this caller, or has no such secret."""

    default_reason = "SECRET_NOT_GRANTED"


class SecretUnavailable(SkilljailError):
    """The secret is granted, but the operator's source of it gave no value."""

    default_reason = "SECRET_UNAVAILABLE"


class OperatorOnly(SkilljailError):
    """The call is for operators, and this caller is none."""

    default_reason = "OPERATOR_ONLY"


class Unauthenticated(SkilljailError):
    """The daemon does not accept this caller."""

    default_reason = "UNAUTHENTICATED"


class BundleMissing(SkilljailError):
    """The daemon dropped the skill's content each time it was uploaded."""

    default_reason = "BUNDLE_MISSING"


class StoreFull(SkilljailError):
    """A blob is larger than the daemon takes, or its store is full of blobs in use."""

    default_reason = "STORE_FULL"


class RequestIdInUse(SkilljailError):
    """The request id was used before, and a name runs once."""

    default_reason = "REQUEST_ID_IN_USE"

    @property
    def run_id(self) -> str:
        """The run that has the name; "" when the daemon did not tell."""
        return self.metadata.get("run_id", "")


class RunNotFound(SkilljailError):
    """There is no such run, or it is not the caller's."""

    default_reason = "RUN_NOT_FOUND"


class RunCancelled(SkilljailError):
    """This client dropped the run, or the call, before there was a result. No daemon reports it.

    A run that the daemon cancelled has a result, with `Outcome.CANCELLED`.
    """

    default_reason = "RUN_DROPPED"


class StreamBroken(SkilljailError):
    """The stream of a run ended, or broke its own rules or limits, or went on for too long, before there was a result.

    The script may have run in part, or to its end. `get_run(run_id)` tells what the daemon knows.
    """

    default_reason = "STREAM_BROKEN"

    @property
    def run_id(self) -> str:
        """The run; "" when the stream broke before its first event."""
        return self.metadata.get("run_id", "")


class DaemonFault(SkilljailError):
    """A fault of the daemon itself, or an answer that this client does not know."""

    default_reason = "INTERNAL"


class ArtifactRefused(SkilljailError):
    """An artifact cannot be written: its path is unsafe, or something is in the way. `metadata` has its `path`."""

    default_reason = "ARTIFACT_REFUSED"

    _saved: tuple[pathlib.Path, ...] = ()
    _refusals: tuple["ArtifactRefused", ...] = ()

    @property
    def saved(self) -> tuple[pathlib.Path, ...]:
        """What `save_artifacts` saved all the same."""
        return self._saved

    @property
    def refusals(self) -> tuple["ArtifactRefused", ...]:
        """One for each artifact that was not saved; for a single artifact it is this one."""
        return self._refusals or (self,)

    @classmethod
    def together(cls, refusals: Sequence["ArtifactRefused"], saved: Sequence[pathlib.Path]) -> "ArtifactRefused":
        """One error for at least one refusal, with the first one's words."""
        first, more = refusals[0], len(refusals) - 1
        rest = f" (and {more} more {'was' if more == 1 else 'were'} not saved; {len(saved)} were)" if more else ""
        error = cls(f"{first}{rest}", reason=first.reason, metadata=first.metadata)
        error._saved, error._refusals = tuple(saved), tuple(refusals)
        return error
