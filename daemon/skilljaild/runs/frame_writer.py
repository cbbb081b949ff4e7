"""Writes to a sandbox's stream, one piece after the other, whoever writes and whoever is cancelled meanwhile."""

import asyncio

from skilljaild.engines.base import ByteStream

__all__ = ["FrameWriter"]


class FrameWriter:
    """The one way to a sandbox's standard input.

    A piece that was begun is written to its end: half a frame would make nonsense of all that follows. So a write goes
    on when its caller is cancelled; it ends with the stream at the latest.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._turn = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()

    async def write(self, data: bytes) -> None:
        """Writes all of `data`, which is whole frames. Raises EngineError when the other end is gone."""
        write = asyncio.ensure_future(self._write(data))
        self._writes.add(write)
        write.add_done_callback(self._written)
        await asyncio.shield(write)

    async def _write(self, data: bytes) -> None:
        async with self._turn:
            await self._stream.write(data)

    def _written(self, write: asyncio.Task[None]) -> None:
        self._writes.discard(write)
        _ = write.cancelled() or write.exception()  # retrieved: whoever still waits for it is told
