"""How the proxy reaches the world: names to addresses, addresses to connections, and which addresses it may reach."""

import asyncio
import errno
import ipaddress
import pathlib
import socket
from typing import Protocol

from skilljaild.egress import addresses
from skilljaild.egress.resolver import Resolver

__all__ = ["Dialler", "SystemDialler"]

NONLOCAL_BIND = "/proc/sys/net/ipv{version}/ip_nonlocal_bind"


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
        self._resolver = Resolver()

    async def resolve(self, host: str, port: int) -> list[str]:
        """As `Dialler.resolve`. The name is taken as absolute: the host's search domains would make another of it."""
        return await self._resolver.addresses(f"{host}.", port)

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As `Dialler.connect`."""
        reader, writer = await asyncio.open_connection(address, port, flags=socket.AI_NUMERICHOST)
        peer, own = (writer.get_extra_info(name) for name in ("peername", "sockname"))
        if peer is None or own is None or peer[0] == own[0]:
            writer.transport.abort()
            raise ConnectionRefusedError("the address is this host's own")
        return reader, writer

    def is_public(self, address: str) -> bool:
        """Public, and not this host itself: what listens here may trust its own address."""
        return addresses.is_public(address) and not _is_own(address)


def _is_own(address: str) -> bool:
    """Whether this host has `address`. Yes, when that cannot be found out."""
    version = ipaddress.ip_address(address).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            return _sends_from(probe, address) if _binds_all(version) else _binds(probe, address)
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT  # such as a host without IPv6: nobody will get there


def _binds(probe: socket.socket, address: str) -> bool:
    """Only an address of the host's own can be bound."""
    try:
        probe.bind((address, 0))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return False
        raise
    return True


def _sends_from(probe: socket.socket, address: str) -> bool:
    """To its own address a host sends from it. A connected datagram socket, which sends nothing, is bound to it.

    An address that is not an interface's first one is not found so.
    """
    try:
        probe.connect((address, 9))
    except OSError:
        return False  # no route: nobody will get there
    return bool(probe.getsockname()[0] == address)


def _binds_all(version: int) -> bool:
    """Whether the host lets every address be bound, as some do that stand in for others."""
    try:
        return pathlib.Path(NONLOCAL_BIND.format(version=version)).read_text().strip() != "0"
    except OSError:
        return False
