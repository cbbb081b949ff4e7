"""Refusals as gRPC statuses."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest
from google.protobuf import message as protobuf_message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st
from skilljail import _errors, _status
from skilljaild.errors import Reason, Refusal, Violation
from skilljaild.service.status import abort, refusing_stream, refusing_unary

INVALID = {
    Reason.PATH_INVALID,
    Reason.ARGUMENT_INVALID,
    Reason.ENVIRONMENT_INVALID,
    Reason.LIMIT_INVALID,
    Reason.LIMIT_ABOVE_CEILING,
    Reason.REQUEST_INVALID,
    Reason.SKILL_INVALID,
    Reason.SCRIPT_NOT_FOUND,
    Reason.INTERPRETER_UNKNOWN,
    Reason.PAGE_TOKEN_INVALID,
    Reason.BLOB_INVALID,
}
CODES = {
    **dict.fromkeys(INVALID, grpc.StatusCode.INVALID_ARGUMENT),
    Reason.INTERPRETER_UNAVAILABLE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.BUNDLE_MISSING: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.ISOLATION_POSTURE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.REQUEST_ID_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.STORE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.NOT_READ: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.NETWORK_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.SECRET_NOT_GRANTED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.SECRET_UNAVAILABLE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.NETWORK_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.OPERATOR_ONLY: grpc.StatusCode.PERMISSION_DENIED,
    Reason.ENGINE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.SANDBOX_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    Reason.RUN_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
}
"""What the contract says of each reason."""
METADATA_BYTES = 8 * 1024
"""What gRPC peers take by default."""


class Aborted(grpc.aio.AbortError):
    """What `context.abort` raises."""


class FakeContext:
    """A call that records how it was ended."""

    def __init__(self, *, cancelled: bool = False) -> None:
        self.code: grpc.StatusCode | None = None
        self.message = ""
        self.trailing: dict[str, bytes] = {}
        self.written: list[str] = []
        self._cancelled = cancelled

    def cancelled(self) -> bool:
        return self._cancelled

    async def write(self, answer: str) -> None:
        self.written.append(answer)

    def set_trailing_metadata(self, metadata: tuple[tuple[str, bytes], ...]) -> None:
        self.trailing = dict(metadata)

    async def abort(self, code: grpc.StatusCode, message: str) -> None:
        assert self.code is None
        self.code, self.message = code, message
        raise Aborted

    def details(self) -> dict[str, protobuf_message.Message]:
        """The details by their type's name, after a check of the status around them."""
        assert self.code is not None
        status = status_pb2.Status.FromString(self.trailing["grpc-status-details-bin"])
        assert status.code == getattr(code_pb2, self.code.name) == self.code.value[0]
        assert status.message == self.message
        found = {}
        for packed in status.details:
            name = packed.TypeName().removeprefix("google.rpc.")
            found[name] = getattr(error_details_pb2, name)()
            assert packed.Unpack(found[name])
        return found

    def metadata_bytes(self) -> int:
        """What the end of the call takes as HTTP/2 headers: details in base64, the message with percent signs."""
        message = sum(
            1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in self.message.encode(errors="replace")
        )
        return message + sum(len(name) + len(value) * 4 // 3 + 40 for name, value in self.trailing.items()) + 100


def aborted(refusal: Refusal) -> FakeContext:
    """A call that was ended with a refusal."""
    context: Any = FakeContext()

    async def call() -> None:
        with pytest.raises(Aborted):
            await abort(context, refusal)

    asyncio.run(call())
    ended: FakeContext = context
    return ended


def test_every_reason_has_a_code() -> None:
    assert set(CODES) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_becomes_the_status_of_its_reason_and_the_clients_exception(reason: Reason) -> None:
    context = aborted(Refusal(reason, "what and how", run_id="r1", limit="pids"))
    assert (context.code, context.message) == (CODES[reason], "what and how")
    metadata = {"run_id": "r1", "limit": "pids"}
    expected = error_details_pb2.ErrorInfo(reason=reason.value, domain="skilljail", metadata=metadata)
    assert context.details() == {"ErrorInfo": expected}
    assert issubclass(_status._BY_REASON[reason.value], _errors.SkilljailError)


def test_a_field_at_fault_comes_as_bad_request() -> None:
    details = aborted(Refusal(Reason.PATH_INVALID, "script_path: empty", field="script_path")).details()
    violation = error_details_pb2.BadRequest.FieldViolation(field="script_path", description="script_path: empty")
    assert details["BadRequest"] == error_details_pb2.BadRequest(field_violations=[violation])


def test_when_to_come_again_comes_as_retry_info() -> None:
    details = aborted(Refusal(Reason.QUEUE_FULL, "full", retry_seconds=1.25)).details()
    retry = details["RetryInfo"]
    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 1_250


def test_missing_blobs_come_as_precondition_failure() -> None:
    missing = tuple(Violation(f"sha256:{number:064x}", "not on this daemon") for number in range(3))
    details = aborted(Refusal(Reason.BUNDLE_MISSING, "missing", missing=missing)).details()
    violation = error_details_pb2.PreconditionFailure.Violation
    assert details["PreconditionFailure"] == error_details_pb2.PreconditionFailure(
        violations=[violation(type="MISSING", subject=one.subject, description=one.description) for one in missing]
    )


def test_more_missing_blobs_than_metadata_takes_are_cut_not_dropped() -> None:
    missing = tuple(Violation(f"sha256:{number:064x}", "not on this daemon") for number in range(1_000))
    context = aborted(Refusal(Reason.BUNDLE_MISSING, "1000 blobs", missing=missing))
    failure = context.details()["PreconditionFailure"]
    assert isinstance(failure, error_details_pb2.PreconditionFailure)
    subjects = [one.subject for one in failure.violations]
    assert 20 < len(subjects) < 100
    assert subjects == [one.subject for one in missing[: len(subjects)]]
    assert context.metadata_bytes() <= METADATA_BYTES


@given(
    st.text(max_size=400).flatmap(lambda text: st.integers(0, 40).map(lambda times: text * times)),
    st.sampled_from([None, "script_path"]),
)
def test_a_refusal_fits_into_metadata_whatever_the_request_held(message: str, field: str | None) -> None:
    """Above 8 KiB a peer drops the call with an error of its own, and the caller never learns the reason."""
    message = message.encode(errors="replace").decode()
    context = aborted(Refusal(Reason.SCRIPT_NOT_FOUND, message, field=field, interpreter="\U0001f98a" * 64))
    assert context.metadata_bytes() <= METADATA_BYTES
    assert message.startswith(context.message)
    assert len(message) == len(context.message) or len(context.message) > 100
    details = context.details()
    if field is not None:
        assert isinstance(bad := details["BadRequest"], error_details_pb2.BadRequest)
        assert bad.field_violations[0].description == context.message


class Servicer:
    """Methods that end in every way."""

    @refusing_unary
    async def unary(self, request: object, context: Any) -> str:
        del context
        if isinstance(request, BaseException):
            raise request
        return f"{request}"

    @refusing_stream
    async def stream(self, request: object, context: Any) -> AsyncGenerator[str, None]:
        del context
        yield "first"
        if isinstance(request, BaseException):
            raise request
        yield f"{request}"


async def call(request: object, *, stream: bool, cancelled: bool = False) -> tuple[FakeContext, list[str]]:
    """Calls a method; what it answered and how it ended. `cancelled`: by the caller."""
    context: Any = FakeContext(cancelled=cancelled)
    answers: list[str] = context.written
    try:
        if stream:
            await Servicer().stream(request, context)
        else:
            answers.append(await Servicer().unary(request, context))
    except Aborted:
        pass
    return context, answers


@pytest.mark.parametrize("stream", [False, True])
async def test_a_good_call_passes_unchanged(stream: bool) -> None:
    context, answers = await call("answer", stream=stream)
    assert (context.code, answers) == (None, ["first", "answer"] if stream else ["answer"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_ends_the_call_with_its_status(stream: bool) -> None:
    context, answers = await call(Refusal(Reason.RUN_NOT_FOUND, "no such run"), stream=stream)
    assert (context.code, context.message) == (grpc.StatusCode.NOT_FOUND, "no such run")
    assert answers == (["first"] if stream else [])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_of_ours_is_internal_and_tells_no_secret(stream: bool) -> None:
    context, _ = await call(KeyError("token=secret"), stream=stream)
    assert (context.code, context.message) == (
        grpc.StatusCode.INTERNAL,
        "the daemon has a fault (KeyError); its log tells more",
    )
    info = context.details()["ErrorInfo"]
    assert info == error_details_pb2.ErrorInfo(reason="INTERNAL", domain="skilljail")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_end_that_was_decided_is_not_ended_again(stream: bool) -> None:
    context, _ = await call(Aborted(), stream=stream)
    assert context.code is None


@pytest.mark.parametrize("stream", [False, True])
async def test_cancellation_passes(stream: bool) -> None:
    with pytest.raises(asyncio.CancelledError):
        await call(asyncio.CancelledError(), stream=stream, cancelled=True)


async def test_a_stream_that_we_end_because_nobody_reads_has_a_status() -> None:
    context, answers = await call(asyncio.CancelledError(), stream=True)
    assert (context.code, answers) == (grpc.StatusCode.DEADLINE_EXCEEDED, ["first"])
    assert context.details()["ErrorInfo"] == error_details_pb2.ErrorInfo(reason="NOT_READ", domain="skilljail")
