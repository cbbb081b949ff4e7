"""Brings a script's output to the caller, for as long as the script may run."""

import asyncio
from collections.abc import AsyncIterator

from skilljaild.runs.conversation import Exit, ProtocolError
from skilljaild.runs.events import Output
from skilljaild.runs.outlet import Outlet
from skilljaild.runs.pipe import EventPipe
from skilljaild.runs.sandbox import uninterrupted

__all__ = ["LAST_WORD_SECONDS", "WALL_GRACE_SECONDS", "Delivery"]

WALL_GRACE_SECONDS = 1.0
"""init ends a run at its wall time. When its word has not come by then, the caller may just be reading slowly: from
then on nobody waits for the caller any more."""
LAST_WORD_SECONDS = 5.0
"""How long init then has to say what was held up by the caller."""

TURN_WORK = 65_536
"""After so much work, in bytes, others have their turn."""
PIECE_WORK = 1_024
"""What a piece of output costs besides its bytes, about, as if it were more of them."""


class Delivery:
    """The output of one run. `pass_on` is called once."""

    def __init__(self, events: EventPipe, outlet: Outlet, wall_seconds: float) -> None:
        """`events`: to the caller; `wall_seconds`: how long the script may run, from now on."""
        self._events = events
        self._outlet = outlet
        self._wall_seconds = wall_seconds
        self.stdout_bytes = 0
        """What was handed over, and no more: the caller compares. So also `stderr_bytes`."""
        self.stderr_bytes = 0

    async def pass_on(self, output: AsyncIterator[Output | Exit]) -> Exit:
        """Passes output on until init tells the end, and what the outlet still has then, however it ends.

        `output`: of the conversation, whose errors are raised. Raises TimeoutError when the end does not come in time.
        """
        try:
            return await self._until_the_end(output)
        finally:
            self._outlet.end()
            while self._outlet.pending:
                # Not waited for: it is little, and nobody may be there any more to make room.
                await uninterrupted(self._events.put(self._outlet.pending[0], waiting=False))
                self._count(self._outlet.pending.popleft())

    async def _until_the_end(self, output: AsyncIterator[Output | Exit]) -> Exit:
        """A caller that reads slowly slows the script down, but only for as long as the script may run: what is left
        then, no more than the output limit, waits here and not in the sandbox."""
        clock = asyncio.get_running_loop().time
        patience = clock() + self._wall_seconds + WALL_GRACE_SECONDS
        work = 0
        async with asyncio.timeout_at(patience) as timeout:
            async for event in output:
                if isinstance(event, Exit):
                    return event
                timeout.reschedule(patience + LAST_WORD_SECONDS)  # it is the caller who is waited for, not init
                self._outlet.take(event)
                while self._outlet.pending:
                    await self._hand_over(self._outlet.pending[0], patience)
                    self._count(self._outlet.pending.popleft())
                if clock() < patience:
                    timeout.reschedule(patience)
                work += PIECE_WORK + len(event.data)
                if work >= TURN_WORK:
                    # Neither reading nor handing over need wait, so nothing else may let others have their turn.
                    await asyncio.sleep(0)
                    work = 0
        raise ProtocolError("the output ended without an end")

    async def _hand_over(self, event: Output, patience: float) -> None:
        """Waits for the caller until `patience` (the loop's time), and not at all after it."""
        try:
            async with asyncio.timeout_at(patience):
                await self._events.put(event)
        except TimeoutError:
            await self._events.put(event, waiting=False)

    def _count(self, event: Output) -> None:
        so_far = event.offset + len(event.data)
        if event.stream == 1:
            self.stdout_bytes = so_far
        else:
            self.stderr_bytes = so_far
