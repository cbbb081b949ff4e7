"""Destroys sandboxes that nobody wants any more: of a daemon that was killed, of a call that the engine lost."""

import asyncio
import time
from typing import Protocol

import structlog

from skilljaild.engines.base import Engine, EngineError, EngineUnavailable
from skilljaild.runs.admission import Admission

__all__ = ["Reaper"]

PERIOD_SECONDS = 30.0
LOST_PERIOD_SECONDS = 2.0
"""The same while a sandbox that could not be destroyed holds up a place."""

log = structlog.get_logger()


class Owner(Protocol):
    """Who has sandboxes: the registry of runs, the examiner."""

    def under_way(self) -> frozenset[str]:
        """Ids of the runs, and of what else a sandbox is made for, that may have one now."""
        ...


class Reaper:
    """Looks after the sandboxes with this daemon's label. Nothing else on the engine is ever touched."""

    def __init__(self, engine: Engine, owner: str, admission: Admission, *owners: Owner) -> None:
        """`owner`: for the label; `admission`: whose lost places come back; `owners`: whose sandboxes are wanted."""
        self._engine = engine
        self._owner = owner
        self._admission = admission
        self._owners = owners

    async def sweep(self) -> int:
        """Destroys each sandbox without a run, or past its deadline. Returns how many. May raise EngineError."""
        lost = self._admission.lost()  # before the list: one that is lost meanwhile may not be in it
        # The list first: a run that starts meanwhile is in the set, whose sandbox may not be in the list.
        sandboxes = await self._engine.list_owned(self._owner)
        runs = frozenset[str]().union(*(one.under_way() for one in self._owners))
        unwanted = [one for one in sandboxes if one.run_id not in runs or one.deadline < time.time()]
        left = {one.run_id for one in sandboxes}
        for sandbox in unwanted:
            log.warning("destroying an orphaned sandbox", sandbox=sandbox.sandbox_id, run=sandbox.run_id)
            try:
                await self._engine.destroy(sandbox.sandbox_id)
            except EngineUnavailable:
                raise
            except EngineError as error:  # one that is stuck must not keep the others alive
                log.warning("sandbox not destroyed", sandbox=sandbox.sandbox_id, error=str(error))
            else:
                left.discard(sandbox.run_id)
        self._admission.regain(lost - left)
        return len(unwanted)

    async def watch(self) -> None:
        """Sweeps for ever, also when the engine is away now and then."""
        while True:
            await asyncio.sleep(LOST_PERIOD_SECONDS if self._admission.lost() else PERIOD_SECONDS)
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001  it must go on looking, whatever an engine answers
                log.warning("cannot look for orphaned sandboxes", error=str(error))
