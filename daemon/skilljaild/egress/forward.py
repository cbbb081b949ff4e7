"""Carries one HTTP/1 request to a host and its response back, both as streams."""

import asyncio
import contextlib
from collections.abc import Iterator

import h11

from skilljaild.egress.front import Front
from skilljaild.egress.target import Target
from skilljaild.egress.upstream import Upstream

__all__ = ["Back", "BackFailed", "forward", "plain_errors"]

HEAD_BYTES_MAX = 64 * 1024
INFORMATIONAL_MAX = 16
"""1xx responses to one request. Servers send one or two."""

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""They are between the script and the proxy, RFC 9110, 7.6.1. What frames a body is written anew."""
FRAMING = frozenset({b"content-length", b"host"})
"""A Connection header can name headers that are not to be passed on, but not these."""


class BackFailed(Exception):
    """The host sent no valid response. The message says what happened, as the end of a sentence."""


class Back:
    """The proxy as an HTTP/1 client, on one connection to a host."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)

    async def send(self, event: h11.Event) -> None:
        """Sends and waits while the host reads slowly. Raises OSError or BudgetUsedUp."""
        data = self._http.send(event)
        if data:
            await self.upstream.send(data)

    async def next(self) -> h11.Event:
        """The next part of the response. Raises BackFailed or BudgetUsedUp."""
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self.upstream.receive())
                    continue
            except h11.RemoteProtocolError as error:
                what = "closed the connection too early" if self.upstream.at_end else "did not answer in HTTP/1"
                raise BackFailed(f"the host {what}.") from error
            except OSError as error:
                raise BackFailed("the host dropped the connection.") from error
            if isinstance(event, h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage):
                return event
            raise BackFailed("the host closed the connection before it answered.")

    def next_cycle(self) -> bool:
        """Makes ready for the next request; False when there can be none on this connection."""
        # Bytes behind a response belong to no request: they must not answer the next one.
        if self.upstream.at_end or self._http.trailing_data[0]:
            return False
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False


async def forward(front: Front, back: Back, request: h11.Request, target: Target) -> None:
    """Carries `request` and its response. Raises what Front and Back raise.

    A host may answer before it has the whole request; what is left of the request is then not read.
    """
    headers = [(b"Host", target.authority.encode()), *_passed_on(request)]
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        headers.append((b"Transfer-Encoding", b"chunked"))
    try:
        await back.send(h11.Request(method=request.method, target=target.path, headers=headers))
    except OSError as error:
        raise BackFailed("the host dropped the connection.") from error
    with plain_errors():
        async with asyncio.TaskGroup() as group:
            upload = group.create_task(_upload(front, back))
            await _download(front, back)
            upload.cancel()


async def _upload(front: Front, back: Back) -> None:
    # OSError: the host takes no more. It may have answered all the same, so the other direction goes on.
    with contextlib.suppress(OSError):
        while piece := await front.body():
            await back.send(h11.Data(data=piece))
            await asyncio.sleep(0)  # many small pieces can be there at once: others get their turn
        await back.send(h11.EndOfMessage())


async def _download(front: Front, back: Back) -> None:
    informational = 0
    while True:
        event = await back.next()
        if isinstance(event, h11.InformationalResponse):
            informational += 1
            if informational > INFORMATIONAL_MAX:
                raise BackFailed(f"the host sent more than {INFORMATIONAL_MAX} informational responses.")
            if front.takes_informational:
                await front.send(h11.InformationalResponse(status_code=event.status_code, headers=_passed_on(event)))
        elif isinstance(event, h11.Response):
            await front.send(
                h11.Response(status_code=event.status_code, reason=event.reason, headers=_passed_on(event))
            )
        elif isinstance(event, h11.Data):
            await front.send(h11.Data(data=event.data))
        else:
            await front.send(h11.EndOfMessage())
            return
        await asyncio.sleep(0)  # as in an upload


def _passed_on(message: h11.Request | h11.InformationalResponse | h11.Response) -> list[tuple[bytes, bytes]]:
    """The headers of a message without those that end here."""
    dropped = set(HOP_BY_HOP)
    chunked = False
    for name, value in message.headers:
        if name == b"connection":
            dropped |= {one.strip().lower() for one in value.split(b",")} - FRAMING
        chunked = chunked or name == b"transfer-encoding"
    if chunked:
        dropped.add(b"content-length")
    if isinstance(message, h11.Request):
        dropped.add(b"host")
        if message.http_version == b"1.0":
            dropped.add(b"expect")
    return [(name, value) for name, value in message.headers.raw_items() if name.lower() not in dropped]


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """A task group's first error instead of the group; a cancellation from outside comes before it."""
    try:
        yield
    except BaseExceptionGroup as group:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from group
        raise group.exceptions[0] from None
