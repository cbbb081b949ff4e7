"""Refusals as gRPC statuses with `google.rpc` details (AIP-193)."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from skilljaild.errors import Reason, Refusal
from skilljaild.fault import traced

__all__ = ["DOMAIN", "abort", "refusing_stream", "refusing_unary"]

DOMAIN = "skilljail"
_DETAILS_KEY = "grpc-status-details-bin"
_METADATA_BYTES_MAX = 6_000
"""gRPC peers take 8 KiB of metadata; details that do not fit are cut."""
_MESSAGE_BYTES_MAX = 1_500

log = structlog.get_logger()

_CODES = {
    Reason.BUNDLE_MISSING: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.INTERPRETER_UNAVAILABLE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.ISOLATION_POSTURE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.REQUEST_ID_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.STORE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.ENGINE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.SANDBOX_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    Reason.RUN_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
    Reason.NOT_READ: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.NETWORK_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.SECRET_NOT_GRANTED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.SECRET_UNAVAILABLE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.OPERATOR_ONLY: grpc.StatusCode.PERMISSION_DENIED,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
}
"""Every reason that is not here is INVALID_ARGUMENT: the request itself is wrong."""

Context = grpc.aio.ServicerContext[Any, Any]
Request = TypeVar("Request")
Response = TypeVar("Response")
Servicer = TypeVar("Servicer")


async def abort(context: Context, refusal: Refusal) -> NoReturn:
    """Ends the call with the refusal's status and details."""
    code = _CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
    message = _fitting(refusal.message)
    number = getattr(code_pb2, code.name)
    status = status_pb2.Status(code=number, message=message, details=_details(refusal))
    context.set_trailing_metadata(((_DETAILS_KEY, status.SerializeToString()),))
    await context.abort(code, message)


def _details(refusal: Refusal) -> list[any_pb2.Any]:
    messages: list[Any] = [
        error_details_pb2.ErrorInfo(reason=refusal.reason.value, domain=DOMAIN, metadata=refusal.metadata)
    ]
    if refusal.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=refusal.field, description=_fitting(refusal.message)
        )
        messages.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if refusal.missing:
        messages.append(_missing(refusal))
    if refusal.retry_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(refusal.retry_seconds * 1000))
        messages.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for message in messages:
        packed.append(any_pb2.Any())
        packed[-1].Pack(message)
    return packed


def _fitting(message: str) -> str:
    """As much of a message as metadata has room for: it carries all but printable ASCII as three bytes for one."""
    room = _MESSAGE_BYTES_MAX
    for index, character in enumerate(message):
        room -= 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if room < 0:
            return message[:index]
    return message


def _missing(refusal: Refusal) -> error_details_pb2.PreconditionFailure:
    """As many violations as fit; the caller finds the others with FindMissing."""
    failure = error_details_pb2.PreconditionFailure()
    for violation in refusal.missing:
        failure.violations.add(type="MISSING", subject=violation.subject, description=violation.description)
        if failure.ByteSize() > _METADATA_BYTES_MAX // 2:
            break
    return failure


def refusing_unary(
    method: Callable[[Servicer, Request, Context], Awaitable[Response]],
) -> Callable[[Servicer, Request, Context], Awaitable[Response]]:
    """For a method that returns one message: a Refusal becomes a status, a fault of ours INTERNAL without details."""

    @functools.wraps(method)
    async def wrapped(self: Servicer, request: Request, context: Context) -> Response:
        try:
            return await method(self, request, context)
        except Refusal as refusal:
            await abort(context, refusal)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001
            await abort(context, _fault(error))

    return wrapped


def refusing_stream(
    method: Callable[[Servicer, Request, Context], AsyncGenerator[Response, None]],
) -> Callable[[Servicer, Request, Context], Awaitable[None]]:
    """The same for a method that streams messages."""

    @functools.wraps(method)
    async def wrapped(self: Servicer, request: Request, context: Context) -> None:
        try:
            # Closed by us and not by the garbage collector: what a method does at its end must not wait for that.
            async with contextlib.aclosing(method(self, request, context)) as responses:
                async for response in responses:
                    await context.write(response)
        except asyncio.CancelledError:
            if context.cancelled():
                raise
            # Ended by us: a caller who does not read gets a status all the same, and no silence.
            await abort(
                context,
                Refusal(
                    Reason.NOT_READ,
                    "the run is over, and the caller did not read the rest of its events; GetRun has the result",
                ),
            )
        except Refusal as refusal:
            await abort(context, refusal)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001
            await abort(context, _fault(error))

    return wrapped


def _fault(error: Exception) -> Refusal:
    log.error("call failed", **traced(error))
    return Refusal(Reason.INTERNAL, f"the daemon has a fault ({type(error).__name__}); its log tells more")
