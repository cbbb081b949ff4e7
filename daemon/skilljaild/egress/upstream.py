"""The connection to a host that was allowed."""

import asyncio

from skilljaild.egress.budget import Budget, BudgetUsedUp

__all__ = ["Upstream"]

READ_BYTES = 64 * 1024
CLOSE_SECONDS = 10.0


class Upstream:
    """One TCP connection. What goes over it comes out of the run's budget."""

    def __init__(
        self,
        host: str,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        budget: Budget,
    ) -> None:
        self.host = host
        self.port = port
        self._reader = reader
        self._writer = writer
        self._budget = budget

    async def send(self, data: bytes) -> None:
        """Sends and waits while the host reads slowly. Raises OSError or BudgetUsedUp."""
        granted = self._budget.take_sent(len(data))
        self._writer.write(data[:granted])
        await self._writer.drain()
        if granted < len(data):
            raise BudgetUsedUp

    async def receive(self) -> bytes:
        """The next bytes, at most 64 KiB; b"" at end of file. Raises OSError or BudgetUsedUp."""
        data = await self._reader.read(READ_BYTES)
        granted = self._budget.take_received(len(data))
        if data and not granted:
            raise BudgetUsedUp
        return data[:granted]

    @property
    def at_end(self) -> bool:
        """Whether the host has closed its side and everything from it was read."""
        return self._reader.at_eof()

    def end(self) -> None:
        """No more data for the host; it may go on sending. Raises OSError."""
        self._writer.write_eof()

    async def close(self) -> None:
        """Closes when the host has taken what was sent, or did not take it for some seconds."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        except OSError:
            self.abort()

    def abort(self) -> None:
        """Closes at once. Doing it twice does nothing."""
        self._writer.transport.abort()
