"""A world for the proxy: a script that speaks over a tunnel in memory, and hosts that are servers on loopback."""

import asyncio
import collections
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator, Awaitable, Callable

from skilljaild.egress import EgressDecision, EgressProxy, EgressRules, HostPattern, TunnelClosed
from skilljaild.egress.addresses import is_public

PUBLIC = "93.184.215.14"
PUBLIC_TWO = "93.184.215.15"
WINDOW = 64 * 1024
SECONDS = 20.0
"""Longer than anything takes."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Pipe:
    """Bytes in one direction, with a window."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ended = False
        self.broken = False
        self._changed = asyncio.Condition()

    async def write(self, data: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.broken or len(self._data) < WINDOW)
            if self.broken:
                raise TunnelClosed
            self._data += data
            self._changed.notify_all()

    @property
    def holds(self) -> int:
        """Bytes that were not read yet."""
        return len(self._data)

    async def end(self) -> None:
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def break_off(self) -> None:
        async with self._changed:
            self.broken = True
            self._changed.notify_all()

    async def read(self, count: int = 65_536) -> bytes:
        async with self._changed:
            await self._changed.wait_for(lambda: self.broken or self._data or self._ended)
            if self.broken:
                raise TunnelClosed
            data = bytes(self._data[:count])
            del self._data[:count]
            self._changed.notify_all()
            return data


class Script:
    """The script's end of one connection. `to_proxy`, `from_proxy`: the two directions."""

    def __init__(self) -> None:
        self.to_proxy = Pipe()
        self.from_proxy = Pipe()
        self.was_reset = False
        self._read = bytearray()
        self.task: asyncio.Task[None] | None = None

    async def send(self, data: bytes) -> None:
        await self.to_proxy.write(data)

    async def finish(self) -> None:
        await self.to_proxy.end()

    async def vanish(self) -> None:
        await self.to_proxy.break_off()
        await self.from_proxy.break_off()

    async def until(self, end: bytes) -> bytes:
        """All up to `end`, which must come."""
        async with asyncio.timeout(SECONDS):
            while end not in self._read:
                data = await self.from_proxy.read()
                assert data, f"ended after {bytes(self._read)!r}"
                self._read += data
        position = self._read.index(end) + len(end)
        found = bytes(self._read[:position])
        del self._read[:position]
        return found

    async def exactly(self, count: int) -> bytes:
        async with asyncio.timeout(SECONDS):
            while len(self._read) < count:
                data = await self.from_proxy.read()
                assert data, f"ended after {bytes(self._read)!r}"
                self._read += data
        found = bytes(self._read[:count])
        del self._read[:count]
        return found

    async def rest(self) -> bytes:
        """All up to the end of file. Raises TunnelClosed when the proxy reset the connection."""
        async with asyncio.timeout(SECONDS):
            while data := await self.from_proxy.read():
                self._read += data
        found = bytes(self._read)
        self._read.clear()
        return found

    async def until_reset(self) -> int:
        """Reads until the proxy resets the connection; how many bytes came before."""
        count = len(self._read)
        async with asyncio.timeout(SECONDS):
            try:
                while data := await self.from_proxy.read():
                    count += len(data)
            except TunnelClosed:
                return count
        raise AssertionError("the connection ended in peace")

    async def send_until_reset(self, data: bytes) -> None:
        """Sends `data` again and again until the proxy resets the connection."""
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(TunnelClosed):
                while True:
                    await self.send(data)

    async def served(self) -> None:
        """Waits until the proxy is done with this connection."""
        assert self.task is not None
        async with asyncio.timeout(SECONDS):
            await self.task

    async def refused(self) -> bytes:
        """The proxy's whole answer, after which it has ended the connection."""
        found = await self.rest()
        await self.finish()
        await self.served()
        return found


class MemoryTunnel:
    """The proxy's end of the same."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def read(self) -> bytes:
        return await self._script.to_proxy.read()

    async def write(self, data: bytes) -> None:
        await self._script.from_proxy.write(data)

    async def end(self) -> None:
        await self._script.from_proxy.end()

    async def reset(self) -> None:
        self._script.was_reset = True
        await self._script.vanish()


@dataclasses.dataclass
class World:
    """Names, addresses and servers. `names`: what each resolution in turn answers; the last answer stays."""

    names: dict[str, list[list[str]]] = dataclasses.field(default_factory=dict)
    servers: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    resolved: list[str] = dataclasses.field(default_factory=list)
    dialled: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    decisions: list[EgressDecision] = dataclasses.field(default_factory=list)
    accepted: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    _writers: list[asyncio.StreamWriter] = dataclasses.field(default_factory=list)
    _scripts: list[Script] = dataclasses.field(default_factory=list)
    _closing: contextlib.AsyncExitStack = dataclasses.field(default_factory=contextlib.AsyncExitStack)

    async def serve(self, serve: Serve, host: str = "example.com", port: int = 80, address: str = PUBLIC) -> None:
        """Puts a server where `host` is."""
        sessions: set[asyncio.Task[None]] = set()

        async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            sessions.add(task)
            self.accepted[port] += 1
            try:
                with contextlib.suppress(ConnectionError, asyncio.CancelledError):  # the end of the test cancels it
                    await serve(reader, writer)
            finally:
                sessions.discard(task)
                writer.close()

        server = await asyncio.start_server(session, "127.0.0.1", 0)
        self.names.setdefault(host, [[address]])
        self.servers[address, port] = server.sockets[0].getsockname()[1]

        async def stop() -> None:
            server.close()
            for task in list(sessions):
                task.cancel()
            await asyncio.gather(*sessions, return_exceptions=True)

        self._closing.push_async_callback(stop)

    # The proxy's Dialler.

    async def resolve(self, host: str, port: int) -> list[str]:  # noqa: ARG002
        self.resolved.append(host)
        if host not in self.names:
            raise OSError("no such name")
        answers = self.names[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.dialled.append((address, port))
        if (address, port) not in self.servers:
            raise ConnectionRefusedError
        reader, writer = await asyncio.open_connection("127.0.0.1", self.servers[address, port])
        self._writers.append(writer)
        return reader, writer

    def is_public(self, address: str) -> bool:
        return is_public(address)

    def proxy(
        self,
        *hosts: str,
        network: str = "allowlist",
        bytes_max: int = 1_000_000_000,
        connections_max: int = 1_000,
        decided: Callable[[EgressDecision], Awaitable[None]] | None = None,
    ) -> EgressProxy:
        """A proxy into this world."""

        async def keep(decision: EgressDecision) -> None:
            self.decisions.append(decision)

        rules = EgressRules(network, tuple(HostPattern.parse(host) for host in hosts))  # type: ignore[arg-type]
        return EgressProxy(
            rules, bytes_max=bytes_max, connections_max=connections_max, decided=decided or keep, dialler=self
        )

    def connection(self, proxy: EgressProxy) -> Script:
        """A connection of the script to `proxy`, being served."""
        script = Script()
        script.task = asyncio.create_task(proxy.serve(MemoryTunnel(script)))
        self._scripts.append(script)
        return script

    async def ask(self, proxy: EgressProxy, data: bytes) -> bytes:
        """Sends `data` on a new connection, ends it, and returns all that comes back."""
        script = self.connection(proxy)
        await script.send(data)
        await script.finish()
        found = await script.rest()
        await script.served()
        return found

    async def connected(self, proxy: EgressProxy, host: str = "example.com", port: int = 443) -> Script:
        """A connection of the script on which a CONNECT was answered with 200."""
        script = self.connection(proxy)
        await script.send(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        answer = await script.until(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        return script

    def verdicts(self) -> list[str]:
        """The decisions as short words: `allowed` or the reason of the refusal."""
        return [decision.refusal.value if decision.refusal else "allowed" for decision in self.decisions]

    async def end(self) -> None:
        """Ends all, and looks whether the proxy left a task or a socket of a connection that it was done with."""
        for script in self._scripts:
            assert script.task is not None
            script.task.cancel()
            await asyncio.wait([script.task])
            if not script.task.cancelled():
                script.task.result()
            assert script.was_reset or (script.from_proxy._ended and script.to_proxy._ended)
        await asyncio.sleep(0)
        for writer in self._writers:
            assert writer.get_extra_info("socket").fileno() == -1, "a socket was left open"
        await self._closing.aclose()


@contextlib.asynccontextmanager
async def new_world() -> AsyncIterator[World]:
    """A world that is looked over at its end, if the test itself was well."""
    world = World()
    yield world
    await world.end()


async def answer_requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A host that answers each request with its own head and body, as it came over the wire."""
    while head := await _head(reader):
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        body = await reader.readexactly(int(length[1])) if length else b""
        seen = head + body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(seen) + seen)
        await writer.drain()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A host that sends back what it gets, and then its end."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A host that reads and never answers."""
    while await reader.read(65_536):
        pass
    await asyncio.Event().wait()
