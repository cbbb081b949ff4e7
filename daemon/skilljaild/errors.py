"""Why a call was refused. The service turns these into gRPC statuses; nothing else knows about gRPC codes."""

import dataclasses
import enum

__all__ = ["Reason", "Refusal", "Violation"]


class Reason(enum.StrEnum):
    """`google.rpc.ErrorInfo.reason`. The names are those of `ErrorReason` in `script_runner.proto`."""

    PATH_INVALID = "PATH_INVALID"
    ARGUMENT_INVALID = "ARGUMENT_INVALID"
    ENVIRONMENT_INVALID = "ENVIRONMENT_INVALID"
    LIMIT_INVALID = "LIMIT_INVALID"
    LIMIT_ABOVE_CEILING = "LIMIT_ABOVE_CEILING"
    REQUEST_INVALID = "REQUEST_INVALID"
    SKILL_INVALID = "SKILL_INVALID"
    SCRIPT_NOT_FOUND = "SCRIPT_NOT_FOUND"
    INTERPRETER_UNKNOWN = "INTERPRETER_UNKNOWN"
    INTERPRETER_UNAVAILABLE = "INTERPRETER_UNAVAILABLE"
    BUNDLE_MISSING = "BUNDLE_MISSING"
    REQUEST_ID_IN_USE = "REQUEST_ID_IN_USE"
    QUEUE_FULL = "QUEUE_FULL"
    ENGINE_UNAVAILABLE = "ENGINE_UNAVAILABLE"
    SANDBOX_UNAVAILABLE = "SANDBOX_UNAVAILABLE"
    ISOLATION_POSTURE = "ISOLATION_POSTURE"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    PAGE_TOKEN_INVALID = "PAGE_TOKEN_INVALID"  # noqa: S105
    BLOB_INVALID = "BLOB_INVALID"
    STORE_FULL = "STORE_FULL"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    INTERNAL = "INTERNAL"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    NOT_READ = "NOT_READ"
    NETWORK_INVALID = "NETWORK_INVALID"
    NETWORK_NOT_ALLOWED = "NETWORK_NOT_ALLOWED"
    SECRET_NOT_GRANTED = "SECRET_NOT_GRANTED"  # noqa: S105
    SECRET_UNAVAILABLE = "SECRET_UNAVAILABLE"  # noqa: S105
    OPERATOR_ONLY = "OPERATOR_ONLY"


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong: a field of the request, or a blob that is missing."""

    subject: str
    description: str


class Refusal(Exception):
    """A call that is refused before anything ran. The message names the thing and the mend."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        field: str | None = None,
        missing: tuple[Violation, ...] = (),
        retry_seconds: float | None = None,
        **metadata: str,
    ) -> None:
        """`field`: the request's field at fault. `missing`: blobs to upload. `retry_seconds`: when to come again."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.missing = missing
        self.retry_seconds = retry_seconds
        self.metadata = metadata
