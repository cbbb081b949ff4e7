"""init's standard input and output over Docker's attach stream.

The engine multiplexes: 8 bytes of header (1 stdout, 2 stderr; length, big-endian) before each piece. Only stdout
speaks frames; what init writes to standard error is dropped.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import socket
import struct
import threading
from typing import Any

from skilljaild.engines.base import EngineError

__all__ = ["AttachStream"]

HEADER = struct.Struct(">BxxxI")
RECEIVE_BYTES = 256 * 1024
BUFFER_BYTES = 1024 * 1024
"""Read ahead at most so much; then the sandbox waits."""


class Demultiplexer:
    """Cuts the engine's stream into standard output and standard error. Never holds more than it was fed."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._kind = 0
        self._left = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Returns pieces as (1 for stdout or 2 for stderr, bytes)."""
        pieces = []
        position = 0
        while position < len(data):
            if self._left:
                piece = data[position : position + self._left]
                pieces.append((self._kind, piece))
                position += len(piece)
                self._left -= len(piece)
                continue
            needed = HEADER.size - len(self._header)
            self._header += data[position : position + needed]
            position += needed
            if len(self._header) == HEADER.size:
                self._kind, self._left = HEADER.unpack(self._header)
                self._header.clear()
        return pieces


class AttachStream:
    """A `ByteStream` over an attach socket. A thread reads: the socket may be TLS or a pipe of ssh, which no event
    loop takes over."""

    def __init__(
        self, attached: Any, loop: asyncio.AbstractEventLoop, closers: concurrent.futures.ThreadPoolExecutor
    ) -> None:
        """`attached`: what the docker package's `attach_socket` returned; `closers`: threads that close it."""
        self._attached = attached
        self._socket: Any = getattr(attached, "_sock", attached)
        self._loop = loop
        self._closers = closers
        # Its own: a sandbox that takes nothing may hold a write up for as long as it lives, and must hold up no other.
        self._writer = concurrent.futures.ThreadPoolExecutor(1, "attach-write")
        self._pieces: collections.deque[bytes] = collections.deque()
        self._buffered = 0
        self._ended = False
        self._room = threading.Condition()
        """Guards the three above; the reading thread waits on it while too much is buffered."""
        self._changed = asyncio.Event()
        # The package gives the attach socket the timeout of a plain call; a script may well be silent for longer.
        with contextlib.suppress(AttributeError, OSError):
            self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._receive, name="attach", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        demultiplexer = Demultiplexer()
        try:
            while data := self._socket.recv(RECEIVE_BYTES):
                for kind, piece in demultiplexer.feed(data):
                    if kind == 1:
                        self._append(piece)
        except (OSError, ValueError):
            pass  # the other end is gone, or we closed it: the stream is over either way
        self._end()

    def _append(self, piece: bytes) -> None:
        with self._room:
            self._room.wait_for(lambda: self._buffered < BUFFER_BYTES or self._ended)
            if self._ended:
                return
            self._pieces.append(piece)
            self._buffered += len(piece)
        self._wake()

    def _end(self) -> None:
        with self._room:
            self._ended = True
            self._room.notify_all()
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._changed.set)

    @property
    def buffered_bytes(self) -> int:
        """What was read ahead and waits for `read`."""
        with self._room:
            return self._buffered

    async def read(self) -> bytes:
        while True:
            self._changed.clear()
            with self._room:
                data = b"".join(self._pieces)
                self._pieces.clear()
                self._buffered = 0
                self._room.notify_all()
                if data or self._ended:
                    return data
            await self._changed.wait()

    async def write(self, data: bytes) -> None:
        try:
            await self._loop.run_in_executor(self._writer, self._socket.sendall, data)
        except (OSError, ValueError, RuntimeError) as error:  # the last: no write is begun after the end
            raise EngineError(f"the sandbox's stream is closed ({error})") from error

    async def close(self) -> None:
        self._end()
        await self._loop.run_in_executor(self._closers, self.shut)

    def shut(self) -> None:
        """Closes the socket; safe from any thread. What was not read is dropped, and the reading thread ends."""
        with self._room:
            self._ended = True
            self._pieces.clear()
            self._buffered = 0
            self._room.notify_all()
        self._wake()
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._socket.close()
        with contextlib.suppress(OSError, AttributeError):
            self._attached.close()
        self._writer.shutdown(wait=False)
