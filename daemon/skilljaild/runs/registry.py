"""All runs that the daemon knows: those under way and, for some time, those that are over."""

import asyncio
import datetime
import re
import secrets
import time
from collections.abc import Callable

import structlog

from skilljaild.errors import Reason, Refusal
from skilljaild.runs.events import Outcome
from skilljaild.runs.run import Run

__all__ = ["RunRegistry"]

log = structlog.get_logger()


class RunRegistry:
    """Owns the runs and their tasks. A tenant sees its own runs only."""

    def __init__(self, remembered_runs: int) -> None:
        """`remembered_runs`: finished runs that are kept; the oldest go first."""
        self._remembered_runs = remembered_runs
        self._runs: dict[str, Run] = {}
        self._by_request: dict[tuple[str, str], str] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closing = False
        self._newest = 0

    def start(self, tenant: str, request_id: str, make: Callable[[str], Run]) -> Run:
        """Makes a run with a new id and lets it go. `make` may raise Refusal; nothing is kept then.

        Raises Refusal REQUEST_ID_IN_USE or SHUTTING_DOWN.
        """
        self.check_request_id(tenant, request_id)
        run = make(self._run_id())
        run_id = run.run_id
        self._runs[run_id] = run
        if request_id:
            self._by_request[tenant, request_id] = run_id
        task = asyncio.create_task(run.execute(), name=f"supervise {run_id}")
        self._tasks[run_id] = task
        task.add_done_callback(lambda _: self._over(run))
        return run

    def _run_id(self) -> str:
        """Not to be guessed, and sorted as the runs were created, also within a millisecond: pages rely on it."""
        self._newest = max(self._newest + 1, time.time_ns() // 1_000_000)
        return f"{self._newest:012x}{secrets.token_hex(10)}"

    def check_request_id(self, tenant: str, request_id: str) -> None:
        """Raises Refusal when a run with this request id cannot be started."""
        if self._closing:
            raise Refusal(
                Reason.SHUTTING_DOWN,
                "this daemon is being stopped; try again when it is back",
                retry_seconds=5,
            )
        if request_id and (known := self._by_request.get((tenant, request_id))) is not None:
            raise Refusal(
                Reason.REQUEST_ID_IN_USE,
                f"request_id: {request_id} was used for run {known}; ask GetRun about that one, or use a new id",
                field="request_id",
                run_id=known,
            )

    def _over(self, run: Run) -> None:
        del self._tasks[run.run_id]
        result = run.result
        log.info(
            "run finished",
            run=run.run_id,
            tenant=run.tenant,
            interpreter=run.policy.interpreter,
            outcome=result.outcome.name if result else None,
            refused=run.refusal.reason if run.refusal else None,
            exit_code=result.exit_code if result else None,
        )
        if run.refusal is not None:
            # Nothing ran, and the caller was told to try again: it may, under the same name.
            self._by_request.pop((run.tenant, run.request_id), None)
        # Those that finished last are remembered, not those that began last.
        finished = sorted((one for one in self._runs.values() if one.finished is not None), key=_finish_time)
        for old in finished[: max(0, len(finished) - self._remembered_runs)]:
            del self._runs[old.run_id]
            if self._by_request.get((old.tenant, old.request_id)) == old.run_id:
                del self._by_request[old.tenant, old.request_id]

    def get(self, tenant: str, run_id: str) -> Run:
        """A run of this tenant. Raises Refusal RUN_NOT_FOUND, also for somebody else's."""
        run = self._runs.get(run_id)
        if run is None or run.tenant != tenant:
            raise Refusal(
                Reason.RUN_NOT_FOUND,
                "run_id: there is no such run; finished runs are forgotten after a while",
                field="run_id",
            )
        return run

    def page(self, tenant: str, size: int, before: str) -> tuple[list[Run], str]:
        """Runs of this tenant, newest first, older than the run id `before` ("" for the newest), and the next token.

        Raises Refusal PAGE_TOKEN_INVALID when `before` is no run id.
        """
        if before and not re.fullmatch(r"[0-9a-f]{32}", before):
            raise Refusal(
                Reason.PAGE_TOKEN_INVALID,
                "page_token: it is not one that ListRuns gave; leave it empty for the first page",
                field="page_token",
            )
        mine = [
            run for run in reversed(self._runs.values()) if run.tenant == tenant and (not before or run.run_id < before)
        ]
        page = mine[:size]
        return page, page[-1].run_id if len(mine) > size else ""

    def under_way(self) -> frozenset[str]:
        """Ids of the runs that may have a sandbox."""
        return frozenset(self._tasks)

    async def close(self, grace_seconds: float) -> None:
        """Takes no more runs, lets those under way go on for a while, and ends the rest with SHUTDOWN."""
        self._closing = True
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_seconds)
        for run_id in list(self._tasks):
            if (run := self._runs.get(run_id)) is not None:
                run.end(Outcome.SHUTDOWN)
        if self._tasks:
            await asyncio.wait(self._tasks.values())


def _finish_time(run: Run) -> datetime.datetime:
    return run.finished or run.created
