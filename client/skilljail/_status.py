"""Turns what gRPC reports into the exceptions of this package."""

import grpc
from google.protobuf import message as protobuf_message
from google.rpc import error_details_pb2, status_pb2

from skilljail._address import Address
from skilljail._errors import (
    BundleMissing,
    DaemonFault,
    DaemonUnavailable,
    EngineUnavailable,
    InterpreterUnavailable,
    InterpreterUnknown,
    InvalidRequest,
    IsolationRefused,
    LimitAboveCeiling,
    NetworkNotAllowed,
    OperatorOnly,
    QueueFull,
    RequestIdInUse,
    RunCancelled,
    RunNotFound,
    ScriptNotFound,
    SecretNotGranted,
    SecretUnavailable,
    ShuttingDown,
    SkillInvalid,
    SkilljailError,
    StoreFull,
    StreamBroken,
    Unauthenticated,
    Violation,
)
from skilljail._transcript import broken

__all__ = ["error_from_rpc"]

_DOMAIN = "skilljail"
_DETAILS_KEY = "grpc-status-details-bin"

_BY_REASON: dict[str, type[SkilljailError]] = {
    "PATH_INVALID": InvalidRequest,
    "ARGUMENT_INVALID": InvalidRequest,
    "ENVIRONMENT_INVALID": InvalidRequest,
    "LIMIT_INVALID": InvalidRequest,
    "LIMIT_ABOVE_CEILING": LimitAboveCeiling,
    "REQUEST_INVALID": InvalidRequest,
    "SKILL_INVALID": SkillInvalid,
    "SCRIPT_NOT_FOUND": ScriptNotFound,
    "INTERPRETER_UNKNOWN": InterpreterUnknown,
    "INTERPRETER_UNAVAILABLE": InterpreterUnavailable,
    "BUNDLE_MISSING": BundleMissing,
    "REQUEST_ID_IN_USE": RequestIdInUse,
    "QUEUE_FULL": QueueFull,
    "ENGINE_UNAVAILABLE": EngineUnavailable,
    "SANDBOX_UNAVAILABLE": EngineUnavailable,
    "ISOLATION_POSTURE": IsolationRefused,
    "RUN_NOT_FOUND": RunNotFound,
    "PAGE_TOKEN_INVALID": InvalidRequest,
    "BLOB_INVALID": SkillInvalid,
    "STORE_FULL": StoreFull,
    "SHUTTING_DOWN": ShuttingDown,
    "INTERNAL": DaemonFault,
    "UNAUTHENTICATED": Unauthenticated,
    "NOT_READ": StreamBroken,
    "NETWORK_INVALID": InvalidRequest,
    "NETWORK_NOT_ALLOWED": NetworkNotAllowed,
    "SECRET_NOT_GRANTED": SecretNotGranted,
    "SECRET_UNAVAILABLE": SecretUnavailable,
    "OPERATOR_ONLY": OperatorOnly,
}


def error_from_rpc(
    error: grpc.RpcError, address: Address, *, run_id: str = "", started: bool = False
) -> SkilljailError:
    """The exception for a call that failed.

    `run_id` names the run whose stream it was, once one is known. `started`: its script may have run, so whatever the
    daemon says, this is no "could not run" any more.
    """
    details = _details(error)
    if details is not None:
        return broken(f"the daemon gave the run up: {details}", run_id) if started else details
    code, text = _code(error), _text(error)
    where = address.target
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return Unauthenticated(f"the daemon at {where} does not accept this caller: {text}")
    if run_id:
        return broken(f"the connection to the daemon at {where} was lost ({code.name}: {text})", run_id)
    return _without_details(code, text, address)


def _without_details(code: grpc.StatusCode, text: str, address: Address) -> SkilljailError:
    """The exception for a status that did not come from a daemon, or not from one that was well."""
    where = address.target
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            denial = address.denial()
            if denial is not None:
                return DaemonUnavailable(denial)
            cause = text.rpartition("last error: ")[2]
            if where.startswith("unix:"):
                cause = cause.rpartition(": ")[2]  # what gRPC says before is the address, up to three times
            return DaemonUnavailable(
                f"no skilljail daemon answers at {where} ({cause}); start it with `skilljaild serve`, or set "
                "SKILLJAIL_ADDRESS to where it listens"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DaemonUnavailable(f"the daemon at {where} did not answer in time; see what its log says")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "Concurrent RPC limit" in text:
            return QueueFull(f"the daemon at {where} has as many calls as it takes at one time; try again later")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in text:
            return InvalidRequest(
                f"the request is larger than one call to the daemon may be ({text}); pass large inputs as input files"
            )
        case grpc.StatusCode.CANCELLED:
            return RunCancelled("this client dropped the call before it was answered")
        case grpc.StatusCode.UNIMPLEMENTED:
            return DaemonFault(
                f"what listens at {where} does not know this call of skilljail.v1; "
                "correct the address, or bring daemon and client to the same version"
            )
        case _:
            return DaemonFault(f"the daemon at {where} answered {code.name}: {text}", reason=code.name)


def _details(error: grpc.RpcError) -> SkilljailError | None:
    """The daemon's own error, when the status carries one."""
    status = _status(error)
    if status is None:
        return None
    info: error_details_pb2.ErrorInfo | None = None
    violations: list[Violation] = []
    retry_after_seconds: float | None = None
    for detail in status.details:
        message = _unpack(detail)
        if isinstance(message, error_details_pb2.ErrorInfo) and message.domain == _DOMAIN:
            info = message
        elif isinstance(message, error_details_pb2.RetryInfo):
            retry_after_seconds = message.retry_delay.seconds + message.retry_delay.nanos / 1e9
        else:
            violations += _violations(message)
    if info is None:
        return None
    return _BY_REASON.get(info.reason, DaemonFault)(
        status.message or info.reason,
        reason=info.reason,
        metadata=dict(info.metadata),
        violations=violations,
        retry_after_seconds=retry_after_seconds,
    )


_DETAIL_TYPES: tuple[type[protobuf_message.Message], ...] = (
    error_details_pb2.ErrorInfo,
    error_details_pb2.RetryInfo,
    error_details_pb2.BadRequest,
    error_details_pb2.PreconditionFailure,
    error_details_pb2.QuotaFailure,
)


def _unpack(detail: "status_pb2.any__pb2.Any") -> protobuf_message.Message | None:
    for kind in _DETAIL_TYPES:
        message = kind()
        try:
            if detail.Is(kind.DESCRIPTOR) and detail.Unpack(message):
                return message
        except protobuf_message.DecodeError:
            return None
    return None


def _violations(message: protobuf_message.Message | None) -> list[Violation]:
    match message:
        case error_details_pb2.BadRequest():
            return [Violation(one.field, one.description) for one in message.field_violations]
        case error_details_pb2.PreconditionFailure():
            return [Violation(one.subject, one.description, one.type) for one in message.violations]
        case error_details_pb2.QuotaFailure():
            return [Violation(one.subject, one.description) for one in message.violations]
        case _:
            return []


def _status(error: grpc.RpcError) -> status_pb2.Status | None:
    trailing_metadata = getattr(error, "trailing_metadata", None)
    for key, value in (trailing_metadata() or ()) if callable(trailing_metadata) else ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except protobuf_message.DecodeError:
                return None
    return None


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    code = getattr(error, "code", None)
    value = code() if callable(code) else None
    return value if isinstance(value, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def _text(error: grpc.RpcError) -> str:
    details = getattr(error, "details", None)
    return str((details() if callable(details) else None) or error).strip()
