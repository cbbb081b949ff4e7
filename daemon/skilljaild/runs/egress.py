"""The egress of one run: the proxy that decides and dials, and what is kept and told of its decisions."""

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import AsyncIterator

from skilljaild.egress.decision import EgressDecision
from skilljaild.egress.dialler import Dialler
from skilljaild.egress.proxy import EgressProxy
from skilljaild.egress.rules import EgressRules
from skilljaild.network import Network
from skilljaild.runs.events import EffectivePolicy, RunResult
from skilljaild.runs.pipe import EventPipe
from skilljaild.runs.tunnels import Tunnels, Write
from skilljaild.secrets.mask_decision import DecisionMask

__all__ = ["RunEgress"]

DECISIONS_BYTES = 100 * 1024
"""What the decisions that are kept may take in memory: about 200, with messages of usual length.

A finished run is remembered for long: 1,000 of them with as many decisions as there is room for take 100 MB.
`RunResult.egress_decisions` promises no more than 1,000.
"""
DECISION_BYTES = 200
"""What one takes besides its texts, measured, rounded up."""


class RunEgress:
    """Made for a run whose policy has a network. A run without one has none of this."""

    def __init__(
        self, policy: EffectivePolicy, events: EventPipe, dialler: Dialler, mask: DecisionMask | None = None
    ) -> None:
        """`mask`: of what is kept and told, where that was asked for."""
        rules = EgressRules("open" if policy.network is Network.OPEN else "allowlist", policy.allowed_hosts)
        self._proxy = EgressProxy(
            rules,
            bytes_max=policy.limits.egress_bytes,
            connections_max=policy.limits.egress_connections,
            decided=self._decided,
            dialler=dialler,
        )
        self._events = events
        self._mask = mask
        self._telling = asyncio.Lock()
        self._decisions: list[EgressDecision] = []
        self._bytes = 0
        self._omitted = 0

    @contextlib.asynccontextmanager
    async def tunnels(self, write: Write) -> AsyncIterator[Tunnels]:
        """Serves the script's connections until the block is left, however it is left."""
        tunnels = Tunnels(write, self._proxy.serve)
        try:
            yield tunnels
        finally:
            await tunnels.close()

    def told_in(self, result: RunResult) -> RunResult:
        """The result of the run with what it did over its egress."""
        usage = dataclasses.replace(
            result.usage,
            egress_sent_bytes=self._proxy.sent_bytes,
            egress_received_bytes=self._proxy.received_bytes,
            egress_connections=self._proxy.connections,
        )
        return dataclasses.replace(
            result, usage=usage, egress_decisions=tuple(self._decisions), egress_decisions_omitted=self._omitted
        )

    async def _decided(self, decision: EgressDecision) -> None:
        """Keeps a decision and tells the caller, in the same order. The connection waits for a caller who is slow."""
        if self._mask is not None:
            decision = self._mask.masked(decision)
        size = DECISION_BYTES + sum(map(sys.getsizeof, (decision.host, decision.address, decision.message)))
        # Once one is left out all others are: what is kept is the beginning, without a gap.
        if self._omitted or self._bytes + size > DECISIONS_BYTES:
            self._omitted += 1
        else:
            self._bytes += size
            self._decisions.append(decision)
        async with self._telling:
            await self._events.put(decision)
