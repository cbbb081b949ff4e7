"""What a call may send, and how long it may be open without sending anything."""

import asyncio
import collections
import contextlib
import dataclasses
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc

from skilljaild.errors import Reason, Refusal
from skilljaild.service.bundle_store import DIGESTS_MAX
from skilljaild.service.decoding import decoded
from skilljaild.service.status import abort

__all__ = ["REQUEST_BYTES_MAX", "BoundedCalls"]

REQUEST_BYTES_MAX = 10 * 1024 * 1024
"""What the bounds of a request add up to (standard input, inputs, arguments: 4 + 4 + 1 MiB), and room for the rest."""
IDLE_SECONDS_MAX = 60.0
"""How long a call may owe a message."""
STANDING_CALLS_MAX = 64
"""Calls of one method that nothing but the caller ends."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Bounds:
    fields_max: int = 64
    bytes_max: int = 64 * 1024
    mend: str = ""
    """For a method whose calls nothing but the caller ends: what else the caller can do."""


_BOUNDS = {
    # Arguments that fit into 1 MiB, each with its pointer and its NUL, are about 116,000.
    "/skilljail.v1.ScriptRunnerService/RunScript": _Bounds(150_000, REQUEST_BYTES_MAX),
    # Above what may be asked for, so that a list that is somewhat too long is told by its name.
    "/skilljail.v1.BundleStoreService/FindMissing": _Bounds(2 * DIGESTS_MAX, REQUEST_BYTES_MAX),
    "/skilljail.v1.BundleStoreService/Upload": _Bounds(bytes_max=REQUEST_BYTES_MAX),
    "/grpc.health.v1.Health/Watch": _Bounds(mend="ask with Check"),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _Bounds(mend="end another one first"),
}
"""By method. The others take a name or two."""


class BoundedCalls(grpc.aio.ServerInterceptor):
    """Decodes the messages of every call within bounds, and bounds the calls that could stay open for ever.

    gRPC itself waits without end for the message of a call, and answers what it cannot decode without details. So
    every method gets its messages from here, those that take a single one, too; on the wire both kinds are the same.
    """

    def __init__(self) -> None:
        self._standing: collections.Counter[str] = collections.Counter()

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """The method, with bounds. None for a method that there is not."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self._bounded(handler_call_details.method, handler)

    def _bounded(self, method: str, handler: Any) -> Any:
        bounds = _BOUNDS.get(method, _Bounds())
        behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

        async def respond(raw_messages: AsyncIterator[bytes], context: Context) -> Any:
            try:
                with self._stood(method, bounds.mend):
                    messages = _messages(raw_messages, handler.request_deserializer, bounds)
                    request = messages if handler.request_streaming else await _only(messages)
                    answer = behaviour(request, context)
                    if not inspect.isasyncgen(answer):
                        return await answer
                    async with contextlib.aclosing(answer) as responses:
                        async for response in responses:
                            await context.write(response)
            except Refusal as refusal:
                await abort(context, refusal)

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(respond, None, handler.response_serializer)
        return grpc.stream_unary_rpc_method_handler(respond, None, handler.response_serializer)

    @contextlib.contextmanager
    def _stood(self, method: str, mend: str) -> Iterator[None]:
        """The place of a call. Raises Refusal QUEUE_FULL where all are taken."""
        if mend and self._standing[method] >= STANDING_CALLS_MAX:
            raise Refusal(
                Reason.QUEUE_FULL,
                f"{STANDING_CALLS_MAX} calls of {method} are open, as many as are taken at one time; {mend}",
            )
        self._standing[method] += 1
        try:
            yield
        finally:
            self._standing[method] -= 1


async def _messages(
    raw_messages: AsyncIterator[bytes], deserialize: Callable[[bytes], Any], bounds: _Bounds
) -> AsyncGenerator[Any, None]:
    """The messages of a call. Raises Refusal REQUEST_INVALID when one is wrong or does not come."""
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS_MAX):
                raw = await anext(raw_messages)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refusal(
                Reason.REQUEST_INVALID,
                f"the call sent nothing for {IDLE_SECONDS_MAX:g} seconds; call again, and send the request at once",
            ) from None
        message = decoded(raw, deserialize, bounds.fields_max, bounds.bytes_max)
        del raw  # the call may go on for long
        yield message


async def _only(messages: AsyncGenerator[Any, None]) -> Any:
    """The message of a call that takes one. Raises Refusal REQUEST_INVALID."""
    async with contextlib.aclosing(messages):
        async for message in messages:
            return message
    raise Refusal(Reason.REQUEST_INVALID, "the call ended without a request; send one")
