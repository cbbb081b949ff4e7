"""Decides on a connection to a host, and makes it: pattern, port, one resolution, every address, the dial."""

import asyncio
import dataclasses
import datetime
from collections.abc import Awaitable, Callable

from skilljaild.egress.budget import Budget
from skilljaild.egress.decision import EgressDecision, EgressRefusal, Refused
from skilljaild.egress.dialler import Dialler
from skilljaild.egress.rules import EgressRules
from skilljaild.egress.upstream import Upstream

__all__ = ["Doorkeeper"]

RESOLVE_SECONDS = 5.0
DIAL_SECONDS = 10.0
"""For all addresses that are tried together."""
ADDRESSES_TRIED_MAX = 4


@dataclasses.dataclass(slots=True)
class Doorkeeper:
    """What all connections of one run share. `asked`: connections that were asked for, refused ones included."""

    rules: EgressRules
    dialler: Dialler
    budget: Budget
    connections_max: int
    decided: Callable[[EgressDecision], Awaitable[None]]
    asked: int = 0

    def admit(self, host: str = "", port: int = 0) -> None:
        """Counts a connection that is asked for. Raises Refused when there are too many, or no bytes are left.

        `host`, `port`: where to, as far as that is known.
        """
        self.asked += 1
        if self.asked > self.connections_max:
            raise Refused(
                EgressRefusal.CONNECTION_LIMIT,
                host,
                port,
                f"this run may ask for {self.connections_max:,} connections and has done so. Ask for more "
                "egress_connections, or use connections again.",
            )
        if self.budget.left <= 0:
            raise self.used_up(host, port)

    def used_up(self, host: str, port: int, *, cut: bool = False) -> Refused:
        """What is told when the run's bytes are used up."""
        return Refused(
            EgressRefusal.BYTE_LIMIT,
            host,
            port,
            f"this run has sent and received the {self.budget.bytes_max:,} bytes that it may. Ask for more "
            "egress_bytes.",
            cut=cut,
        )

    async def open(self, host: str, port: int) -> Upstream:
        """Connects to `host`, which is normalised, and tells that it was allowed. Raises Refused, and tells nothing.

        The name is resolved once, and exactly an address that was checked is dialled: a name server that answers
        differently the next time (DNS rebinding) is not asked a next time.
        """
        refusal = self.rules.refusal(host, port)
        if refusal is not None:
            raise Refused(refusal[0], host, port, refusal[1])
        addresses = await self._resolve(host, port)
        for address in addresses:
            # One that is not public is enough: a name that has both is a trick, or a mistake in its zone.
            if not self.dialler.is_public(address):
                raise Refused(
                    EgressRefusal.ADDRESS_NOT_PUBLIC,
                    host,
                    port,
                    "the host's name leads to an address that is not public. Only public hosts can be reached.",
                )
            await asyncio.sleep(0)  # a name can have thousands: others get their turn
        upstream, address = await self._dial(host, port, addresses[:ADDRESSES_TRIED_MAX])
        try:
            # Told before a byte flows.
            await self.decided(
                EgressDecision(
                    time=datetime.datetime.now(datetime.UTC),
                    host=host,
                    port=port,
                    allowed=True,
                    address=address,
                    refusal=None,
                    message=f"the connection to {host}:{port} was allowed",
                )
            )
        except BaseException:
            upstream.abort()
            raise
        return upstream

    async def _resolve(self, host: str, port: int) -> list[str]:
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                addresses = await self.dialler.resolve(host, port)
        except OSError:  # TimeoutError is one
            addresses = []
        if not addresses:
            raise Refused(
                EgressRefusal.NAME_NOT_RESOLVED,
                host,
                port,
                "the host's name could not be resolved. Check its spelling, or try again in a moment.",
            )
        return addresses

    async def _dial(self, host: str, port: int, addresses: list[str]) -> tuple[Upstream, str]:
        deadline = asyncio.get_running_loop().time() + DIAL_SECONDS
        for index, address in enumerate(addresses):
            left = deadline - asyncio.get_running_loop().time()
            try:
                # An address that does not answer leaves time for the others.
                async with asyncio.timeout(left / (len(addresses) - index)):
                    reader, writer = await self.dialler.connect(address, port)
            except OSError:
                continue
            return Upstream(host, port, reader, writer, self.budget), address
        raise Refused(
            EgressRefusal.CONNECT_FAILED,
            host,
            port,
            "the host did not accept the connection. Check the port, or try again in a moment.",
        )
