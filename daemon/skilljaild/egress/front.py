"""The script's side of an HTTP/1 connection, read strictly.

h11 parses; what it forgives, bare line feeds and folded headers, is refused here. Nothing that was read is passed on as
it came: what a host gets is written anew from what was understood.
"""

import asyncio
import re

import h11

from skilljaild.egress.tunnel import Tunnel

__all__ = ["Front", "MessageInvalid"]

HEAD_SECONDS = 10.0
"""From the first byte of a request to the end of its header."""
HEAD_BYTES_MAX = 32 * 1024
HEADERS_MAX = 100
_HEAD_END = re.compile(rb"\n\r?\n")
_BARE = re.compile(rb"(?<!\r)\n|\r(?=[^\n])")
_FOLDED = re.compile(rb"\n[ \t]")


class MessageInvalid(Exception):
    """What came is no HTTP/1 request. The message says why, without repeating any of it."""


class Front:
    """The proxy as an HTTP/1 server, on one connection of the script."""

    def __init__(self, tunnel: Tunnel, data: bytes = b"") -> None:
        """`data`: what was read from the tunnel already."""
        self._tunnel = tunnel
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        if data:
            self._http.receive_data(data)
        self._method = b""

    async def request(self) -> h11.Request | None:
        """The next request, without its body; None at the end. Raises MessageInvalid or TunnelClosed."""
        if not self.unread and not await self._fill():
            return None
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = await self._head()
        except TimeoutError as error:
            raise MessageInvalid(f"the header was not complete after {HEAD_SECONDS:.0f} seconds") from error
        self._method = request.method
        _check(request)
        return request

    async def _head(self) -> h11.Request:
        checked = 0
        while True:
            data = self.unread
            _check_lines(data, checked)
            checked = len(data)
            event = self._next()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                raise MessageInvalid("the connection ended in the middle of a request")
            await self._fill()

    async def body(self) -> bytes:
        """The next piece of the request's body; b"" at its end. Raises MessageInvalid or TunnelClosed."""
        while True:
            event = self._next()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return b""
            if event is not h11.NEED_DATA:
                raise MessageInvalid("the connection ended in the middle of a request")
            await self._fill()

    async def _fill(self) -> bool:
        data = await self._tunnel.read()
        self._http.receive_data(data)
        return bool(data)

    def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            # h11's words repeat what came, which may be secret.
            raise MessageInvalid("it is no well-formed HTTP/1 message") from error

    @property
    def unread(self) -> bytes:
        """What came behind the messages that were read."""
        return self._http.trailing_data[0]

    @property
    def answerable(self) -> bool:
        """Whether a response can be sent, and none has begun."""
        return self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}

    @property
    def takes_informational(self) -> bool:
        """Whether the script understands 1xx responses; HTTP/1.0 knows none."""
        return self._http.their_http_version != b"1.0"

    async def send(self, event: h11.Event) -> None:
        """Sends and waits while the script reads slowly. Raises TunnelClosed."""
        data = self._http.send(event)
        if data:
            await self._tunnel.write(data)

    async def answer(self, status: int, reason: str, text: str, header: tuple[str, str] | None = None) -> None:
        """Sends a whole response of the proxy's own, the last one on this connection. Raises TunnelClosed."""
        body = text.encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        if header is not None:
            headers.append(header)
        await self.send(h11.Response(status_code=status, reason=reason.encode(), headers=headers))
        if self._method != b"HEAD":
            await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    def next_cycle(self) -> bool:
        """Makes ready for the next request; False when there can be none on this connection."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False


def _check_lines(data: bytes, checked: int) -> None:
    """Refuses what h11 forgives in a header, of which `data` may be the beginning only. Raises MessageInvalid.

    `checked`: how many of the bytes were looked at before, without reaching the header's end.
    """
    start = max(checked - 2, 0)  # what is looked for is at most three bytes long
    end = _HEAD_END.search(data, start)
    length = end.end() if end else len(data)
    if length > HEAD_BYTES_MAX:
        raise MessageInvalid(f"the header has more than {HEAD_BYTES_MAX:,} bytes")
    if _BARE.search(data, start, length):
        raise MessageInvalid("a line of the header does not end with CR LF")
    if _FOLDED.search(data, start, length):
        raise MessageInvalid("a line of the header is folded")


def _check(request: h11.Request) -> None:
    """Refuses what two parsers may read differently. Raises MessageInvalid."""
    if request.http_version not in {b"1.0", b"1.1"}:
        raise MessageInvalid("only HTTP/1.0 and HTTP/1.1 are spoken here")
    if len(request.headers) > HEADERS_MAX:
        raise MessageInvalid(f"the header has more than {HEADERS_MAX} fields")
    names = [name for name, _ in request.headers]
    if names.count(b"content-length") and names.count(b"transfer-encoding"):
        raise MessageInvalid("it has both Content-Length and Transfer-Encoding")
    if request.http_version == b"1.0" and b"transfer-encoding" in names:
        raise MessageInvalid("HTTP/1.0 knows no Transfer-Encoding")
