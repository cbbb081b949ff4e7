"""One connection of the script, from its first byte to its end."""

import asyncio

import h11

from skilljaild.egress.decision import EgressRefusal, Refused
from skilljaild.egress.doorkeeper import Doorkeeper
from skilljaild.egress.forward import Back, BackFailed, forward
from skilljaild.egress.front import Front, MessageInvalid
from skilljaild.egress.hello import ClientHello, HelloInvalid, HelloParser
from skilljaild.egress.hosts import HostInvalid, normalised
from skilljaild.egress.relay import relay
from skilljaild.egress.target import Target, absolute_target, connect_target, origin_target
from skilljaild.egress.tunnel import Tunnel, TunnelClosed
from skilljaild.egress.upstream import Upstream

__all__ = ["Connection"]

FIRST_BYTES_SECONDS = 10.0
"""From the answer to a CONNECT to a whole ClientHello. Whoever waits for the host to speak first waits in vain."""
DISCARDED_BYTES_MAX = 1024 * 1024
TLS_HANDSHAKE = 22
TLS_UNRECOGNIZED_NAME = b"\x15\x03\x03\x00\x02\x02\x70"
"""A fatal alert (RFC 8446, 6): clients turn it into a better error than a lost connection."""

STATUSES = {
    EgressRefusal.PROTOCOL_INVALID: (400, "Bad Request"),
    EgressRefusal.NAME_NOT_RESOLVED: (502, "Bad Gateway"),
    EgressRefusal.CONNECT_FAILED: (502, "Bad Gateway"),
}
"""Every other refusal is 403."""


class Connection:
    """One connection of the script: an HTTP proxy's client, and then whatever it tunnels."""

    def __init__(self, doorkeeper: Doorkeeper, tunnel: Tunnel) -> None:
        self._doorkeeper = doorkeeper
        self._tunnel = tunnel
        self._front = Front(tunnel)
        self._upstream: Upstream | None = None
        self._back: Back | None = None
        self._tunnelling = False
        """Whether a CONNECT was answered."""
        self._named_other = False
        """Whether it ended with a ClientHello for another server."""
        self._counted = True
        """Whether the connection that is asked for next was counted already: the first one was when it came."""

    async def run(self) -> None:
        """Serves it to its end. Raises Refused, TunnelClosed, OSError or BudgetUsedUp."""
        try:
            while (request := await self._request()) is not None:
                if request.method == b"CONNECT":
                    await self._connect(request)
                    return
                target = absolute_target(request)
                await self._forward(await self._back_to(target), request, target)
                if not self._front.next_cycle():
                    break
            await self.finish(None)
        finally:
            if self._upstream is not None:
                self._upstream.abort()

    def used_up(self) -> Refused:
        """What is told when the run's bytes are used up while this is open."""
        if self._upstream is None:
            return self._doorkeeper.used_up("", 0)
        return self._doorkeeper.used_up(self._upstream.host, self._upstream.port, cut=True)

    async def refuse(self, refused: Refused) -> bool:
        """Tells the script why, if it can be told now. Raises TunnelClosed."""
        if self._front.answerable:
            status, reason = STATUSES.get(refused.refusal, (403, "Forbidden"))
            await self._front.answer(
                status,
                # Most clients show nothing of a refused CONNECT but this line.
                f"{reason} by skilljail: {refused.refusal}" + (f" {refused.host}" if refused.host else ""),
                f"skilljail: {refused.message}\n",
                ("X-Skilljail-Refusal", refused.refusal.value),
            )
            return True
        if self._named_other:
            await self._tunnel.write(TLS_UNRECOGNIZED_NAME)
            return True
        return False

    async def finish(self, seconds: float | None) -> None:
        """Ends the tunnel when all was said, and waits for the script's end, so that it can read what was said.

        Raises TunnelClosed, also when the script goes on for `seconds` or sends without end.
        """
        await self._tunnel.end()
        discarded = 0
        try:
            async with asyncio.timeout(seconds):
                while data := await self._tunnel.read():
                    discarded += len(data)
                    if discarded > DISCARDED_BYTES_MAX:
                        raise TunnelClosed
        except TimeoutError:
            raise TunnelClosed from None

    async def _request(self) -> h11.Request | None:
        try:
            return await self._front.request()
        except MessageInvalid as error:
            upstream = self._upstream if self._tunnelling else None
            raise self._protocol_invalid(str(error), upstream) from error

    async def _open(self, target: Target) -> Upstream:
        if not self._counted:
            self._doorkeeper.admit(target.host, target.port)
        self._counted = False
        self._upstream = await self._doorkeeper.open(target.host, target.port)
        return self._upstream

    async def _back_to(self, target: Target) -> Back:
        """The connection that is open already, if it goes to the target and can be used again, or a new one."""
        back, self._back = self._back, None
        if back is not None:
            upstream = back.upstream
            if (upstream.host, upstream.port) == (target.host, target.port) and back.next_cycle():
                self._back = back
                return back
            upstream.abort()
            self._upstream = None
        self._back = Back(await self._open(target))
        return self._back

    async def _forward(self, back: Back, request: h11.Request, target: Target) -> None:
        try:
            await forward(self._front, back, request, target)
        except MessageInvalid as error:
            raise self._protocol_invalid(str(error), back.upstream) from error
        except BackFailed as error:
            # Not a decision of ours: the script is told, and that is all.
            if not self._front.answerable:
                raise ConnectionAbortedError from error
            text = f"skilljail: the connection to {target.host}:{target.port} was allowed, but failed: {error}\n"
            await self._front.answer(502, "Bad Gateway", text)

    async def _connect(self, request: h11.Request) -> None:
        target = connect_target(request)
        await self._read_no_body()
        upstream = await self._open(target)
        await self._front.send(h11.Response(status_code=200, reason=b"Connection established", headers=[]))
        self._tunnelling = True
        data = await self._first_bytes(self._front.unread, target)
        if not data:
            await self.finish(None)
        elif data[0] == TLS_HANDSHAKE:
            await relay(self._tunnel, upstream, data)
        else:
            await self._serve_http(Back(upstream), data, target)

    async def _read_no_body(self) -> None:
        try:
            body = await self._front.body()
        except MessageInvalid as error:
            raise self._protocol_invalid(str(error), None) from error
        if body:
            raise self._protocol_invalid("a CONNECT has no body", None)

    async def _first_bytes(self, data: bytes, target: Target) -> bytes:
        """What the script sends first, once it is known to be for the target if it is TLS; b"" when it sends nothing.

        Until then nothing of it reaches the host. Raises Refused.
        """
        parser = HelloParser()
        seen = bytearray()
        try:
            async with asyncio.timeout(FIRST_BYTES_SECONDS):
                piece = data
                while not (piece and self._is_known(parser, piece, target, first=not seen)):
                    seen += piece
                    piece = await self._tunnel.read()
                    if not piece and not seen:
                        return b""
                    if not piece:
                        raise self._protocol_invalid("the connection ended in a ClientHello", self._upstream)
        except HelloInvalid as error:
            raise self._protocol_invalid(str(error), self._upstream) from error
        except TimeoutError as error:
            why = f"neither a ClientHello nor an HTTP request came within {FIRST_BYTES_SECONDS:.0f} seconds"
            raise self._protocol_invalid(why, self._upstream) from error
        return bytes(seen + piece)

    def _is_known(self, parser: HelloParser, piece: bytes, target: Target, *, first: bool) -> bool:
        if first and piece[0] != TLS_HANDSHAKE:
            if not chr(piece[0]).isalpha():
                raise HelloInvalid("what came is neither TLS nor HTTP/1")
            return True
        hello = parser.feed(piece)
        if hello is not None:
            self._check_hello(hello, target)
        return hello is not None

    def _check_hello(self, hello: ClientHello, target: Target) -> None:
        try:
            same = hello.server_name is not None and normalised(hello.server_name) == target.host
        except HostInvalid:
            same = False
        if same and not hello.encrypted:
            return
        self._named_other = True
        if hello.server_name is None:
            why = "TLS names no server (SNI). Have the client send the host's name."
        elif not same:
            why = "TLS names another server (SNI) than the one that was asked for."
        else:
            why = "TLS hides which server it is for (encrypted ClientHello). Switch that off in the client."
        raise Refused(EgressRefusal.HOST_MISMATCH, target.host, target.port, why, cut=True)

    async def _serve_http(self, back: Back, data: bytes, tunnelled: Target) -> None:
        """Plain HTTP inside of a CONNECT, as Node's clients do it: every request must be for the same host."""
        self._front = Front(self._tunnel, data)
        while (request := await self._request()) is not None:
            await self._forward(back, request, origin_target(request, tunnelled.host, tunnelled.port))
            if not (self._front.next_cycle() and back.next_cycle()):
                break
        await self.finish(None)

    @staticmethod
    def _protocol_invalid(why: str, upstream: Upstream | None) -> Refused:
        """`upstream`: where the connection was allowed to go, if it had been."""
        what = f"{why}. Only TLS and HTTP/1 are carried."
        if upstream is None:
            return Refused(EgressRefusal.PROTOCOL_INVALID, "", 0, what)
        return Refused(EgressRefusal.PROTOCOL_INVALID, upstream.host, upstream.port, what, cut=True)
