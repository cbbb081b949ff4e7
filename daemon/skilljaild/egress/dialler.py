"""How the proxy reaches the world: names to addresses, addresses to connections, and which addresses it may reach."""

import asyncio
import concurrent.futures
import ipaddress
import socket
from typing import Protocol

from skilljaild.egress import addresses

__all__ = ["Dialler", "SystemDialler"]

RESOLVERS_MAX = 4


class Dialler(Protocol):
    """The seam between the proxy and the network."""

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of `host`, best first. Raises OSError when it has none."""

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects by TCP to exactly this address. Raises OSError."""

    def is_public(self, address: str) -> bool:
        """Whether a script may be connected to `address`."""


class SystemDialler:
    """The daemon's host: its resolver and its network. One for each run."""

    def __init__(self) -> None:
        # A resolver cannot be interrupted. Threads of the run's own, so that a run that asks for names whose servers
        # never answer holds up nobody but itself; they end with the object.
        self._threads = concurrent.futures.ThreadPoolExecutor(RESOLVERS_MAX, thread_name_prefix="egress-resolver")

    async def resolve(self, host: str, port: int) -> list[str]:
        """As `Dialler.resolve`. The name is taken as absolute: the host's search domains would make another of it."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(f"{host}.", port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As `Dialler.connect`."""
        return await asyncio.open_connection(address, port, flags=socket.AI_NUMERICHOST)

    def is_public(self, address: str) -> bool:
        """Public, and not this host itself: what listens here may trust its own address."""
        return addresses.is_public(address) and not _is_own(address)


def _is_own(address: str) -> bool:
    """Whether this host has `address`. A connected datagram socket, which sends nothing, would be bound to it."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False  # no route: nobody will get there
