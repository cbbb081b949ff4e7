"""Decides when a run may start: so many at a time, so many waiting, first come, first served."""

import asyncio
import collections
import heapq
from collections.abc import Iterable

from skilljaild.errors import Reason, Refusal

__all__ = ["Admission", "Ticket"]


HELD_BYTES_MAX = 512 * 1024 * 1024
"""What all requests under way, waiting ones included, may hold in memory."""


class Ticket:
    """A place in the queue, taken when the run was admitted."""

    def __init__(self, position: int, size: int) -> None:
        self.size = size
        self.position = position
        """Its place in the queue when it was admitted: 1 is next, 0 starts at once."""
        self.place = 0
        """From its turn on: a number below the concurrent runs that no other run has meanwhile."""
        self._called = asyncio.Event()

    def call(self, place: int) -> None:
        """Its turn has come."""
        self.place = place
        self._called.set()

    async def turn(self) -> None:
        """Waits for its turn."""
        await self._called.wait()


class Admission:
    """A queue with a bounded number of places in front of a bounded number of runs."""

    def __init__(self, concurrent_runs: int, queued_runs: int) -> None:
        self._concurrent_runs = concurrent_runs
        self._free = list(range(concurrent_runs))
        self._held: set[int] = set()
        """Places whose ticket was not given back."""
        self._lost: dict[str, int] = {}
        """Places whose sandbox could not be destroyed, by its run: nobody gets the place, and so its user, before it
        is gone."""
        self._queued_runs = queued_runs
        self._held_bytes = 0
        self._waiting: collections.deque[Ticket] = collections.deque()

    def admit(self, size: int = 0) -> Ticket:
        """Takes a place. `size`: bytes that the run's request holds in memory.

        Raises Refusal QUEUE_FULL. Whoever gets a ticket must give it to `release` at the end.
        """
        if self._held_bytes + size > HELD_BYTES_MAX:
            raise Refusal(
                Reason.QUEUE_FULL,
                f"the requests under way hold {self._held_bytes:,} bytes already; try again in a moment, with smaller "
                "skills, or with large inputs uploaded instead of sent inline",
                retry_seconds=1,
            )
        if not self._free and len(self._waiting) >= self._queued_runs:
            raise Refusal(
                Reason.QUEUE_FULL,
                f"{len(self._waiting)} runs wait already; try again in a moment, or have the operator raise "
                "admission.queued_runs or admission.concurrent_runs",
                retry_seconds=1,
            )
        ticket = Ticket(0 if self._free else len(self._waiting) + 1, size)
        self._waiting.append(ticket)
        self._held_bytes += size
        self._call_next()
        return ticket

    def release(self, ticket: Ticket) -> None:
        """Gives a ticket back, whether its turn had come or not."""
        self._held_bytes -= ticket.size
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        else:
            self._held.discard(ticket.place)
            self._give_back(ticket.place)

    def lose(self, place: int, run_id: str) -> None:
        """Keeps a place from everybody: the sandbox of this run could not be destroyed.

        A self-test at start may have a place that no run ever gets.
        """
        self._lost[run_id] = place
        if place in self._free:
            self._free.remove(place)
            heapq.heapify(self._free)

    def lost(self) -> frozenset[str]:
        """The runs whose sandboxes could not be destroyed."""
        return frozenset(self._lost)

    def regain(self, run_ids: Iterable[str]) -> None:
        """Gives back the places of runs whose sandboxes are gone in the end."""
        for run_id in run_ids:
            place = self._lost.pop(run_id, None)
            if place is not None:
                self._give_back(place)

    def _give_back(self, place: int) -> None:
        if place < self._concurrent_runs and place not in self._held and place not in self._lost.values():
            heapq.heappush(self._free, place)
            self._call_next()

    def _call_next(self) -> None:
        while self._free and self._waiting:
            place = heapq.heappop(self._free)
            self._held.add(place)
            self._waiting.popleft().call(place)
