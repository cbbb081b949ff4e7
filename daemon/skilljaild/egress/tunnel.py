"""One connection of the script, as the proxy sees it: two opposite streams of bytes, from wherever they come."""

from typing import Protocol

__all__ = ["Tunnel", "TunnelClosed"]


class TunnelClosed(Exception):
    """The script's end of the connection is gone."""


class Tunnel(Protocol):
    """A connection that the script made. Everything read from it is hostile."""

    async def read(self) -> bytes:
        """The next bytes; b"" at the script's end of file. Raises TunnelClosed when the connection was reset."""

    async def write(self, data: bytes) -> None:
        """Sends to the script and waits while it reads slowly. Raises TunnelClosed when its end is gone."""

    async def end(self) -> None:
        """No more data for the script; it may go on sending. Raises TunnelClosed when its end is gone."""

    async def reset(self) -> None:
        """Drops the connection at once. Never raises; dropping it twice, or after both ends of file, does nothing."""
