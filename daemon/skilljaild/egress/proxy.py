"""The proxy of one run: serves the connections of its script, within the run's limits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import structlog

from skilljaild.egress.budget import Budget, BudgetUsedUp
from skilljaild.egress.connection import Connection
from skilljaild.egress.decision import EgressDecision, EgressRefusal, Refused
from skilljaild.egress.dialler import Dialler, SystemDialler
from skilljaild.egress.doorkeeper import Doorkeeper
from skilljaild.egress.rules import EgressRules
from skilljaild.egress.tunnel import Tunnel, TunnelClosed
from skilljaild.fault import traced

__all__ = ["EgressProxy"]

OPEN_MAX = 32
"""Connections of one run at one time; each may hold some hundred KiB."""
SERVED_MAX = 128
"""With those that are just being refused. What comes above it is dropped: telling why would take memory without end."""
REFUSED_SECONDS = 5.0
"""How long a script has to read why it was refused."""

log = structlog.get_logger()


class EgressProxy:
    """Everything that leaves one run's sandbox, and everything that comes in."""

    def __init__(
        self,
        rules: EgressRules,
        *,
        bytes_max: int,
        connections_max: int,
        decided: Callable[[EgressDecision], Awaitable[None]],
        dialler: Dialler | None = None,
    ) -> None:
        """`bytes_max`: both directions together. `decided`: called once for each decision, and waited for."""
        self._budget = Budget(bytes_max, self._cut_all)
        self._doorkeeper = Doorkeeper(rules, dialler or SystemDialler(), self._budget, connections_max, decided)
        self._cuts: set[asyncio.Timeout] = set()
        self._served = 0
        self._open = 0

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to hosts."""
        return self._budget.sent

    @property
    def received_bytes(self) -> int:
        """Bytes received from hosts."""
        return self._budget.received

    @property
    def connections(self) -> int:
        """Connections that the script asked for, refused ones included."""
        return self._doorkeeper.asked

    async def serve(self, tunnel: Tunnel) -> None:
        """Serves one connection of the script to its end. Raises nothing but CancelledError."""
        ended = False
        self._served += 1
        try:
            ended = await self._serve(Connection(self._doorkeeper, tunnel))
        except (TunnelClosed, OSError):
            pass  # one end broke: so does the other
        except Exception as error:  # noqa: BLE001  a fault of ours ends this connection, not the run
            log.error("egress connection failed", **traced(error))  # noqa: TRY400
        finally:
            self._served -= 1
            if not ended:
                await tunnel.reset()

    async def _serve(self, connection: Connection) -> bool:
        """Whether the tunnel was ended in peace."""
        try:
            async with self._until_used_up():
                with self._place():
                    await connection.run()
                return True
        except Refused as error:
            refused = error
        except BudgetUsedUp:
            refused = connection.used_up()
        if self._served > SERVED_MAX:
            return False
        await self._doorkeeper.decided(refused.decision())
        if not await connection.refuse(refused):
            return False
        await connection.finish(REFUSED_SECONDS)
        return True

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        self._doorkeeper.admit()
        if self._open >= OPEN_MAX:
            raise Refused(
                EgressRefusal.CONNECTION_LIMIT,
                "",
                0,
                f"this run has {OPEN_MAX} connections open, and may not have more at one time. Close some first.",
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    @contextlib.asynccontextmanager
    async def _until_used_up(self) -> AsyncIterator[None]:
        """Ends the block with BudgetUsedUp, whatever it waits for, when any connection has used the bytes up."""
        try:
            async with asyncio.timeout(None) as cut:
                self._cuts.add(cut)
                try:
                    yield
                finally:
                    self._cuts.discard(cut)
        except TimeoutError as error:
            if cut.expired():
                raise BudgetUsedUp from error
            raise

    def _cut_all(self) -> None:
        cuts, self._cuts = self._cuts, set()
        for cut in cuts:
            cut.reschedule(asyncio.get_running_loop().time())
