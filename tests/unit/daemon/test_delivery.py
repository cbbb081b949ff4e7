"""Output on its way to the caller: however it comes, it leaves the event loop to others in between."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from skilljaild.runs.conversation import Exit, ProtocolError
from skilljaild.runs.delivery import Delivery
from skilljaild.runs.events import Output
from skilljaild.runs.outlet import Outlet
from skilljaild.runs.pipe import EventPipe
from skilljaild.secrets.automaton import Automaton

VALUE = b"canary-0123456789" * 1_000


async def there_already(pieces: list[bytes]) -> AsyncIterator[Output | Exit]:
    """Output that nobody ever waits for, and no end."""
    offset = 0
    for piece in pieces:
        yield Output(1, offset, piece)
        offset += len(piece)


@pytest.mark.parametrize("automaton", [Automaton([VALUE]), None], ids=["masked", "as it is"])
@pytest.mark.parametrize(
    ("pieces", "turns"), [([VALUE[:1]] * 6_400, 100), ([b"x" * 65_536] * 10, 10)], ids=["many", "large"]
)
async def test_others_have_their_turn_while_output_comes(
    automaton: Automaton | None, pieces: list[bytes], turns: int
) -> None:
    had = itertools.count()

    async def other() -> None:
        while next(had) < 1_000_000:
            await asyncio.sleep(0)

    events = EventPipe()
    await events.abandon()  # so that nobody waits for a reader either
    task = asyncio.create_task(other())
    with pytest.raises(ProtocolError, match="without an end"):
        await Delivery(events, Outlet(automaton), 60).pass_on(there_already(pieces))
    task.cancel()
    assert next(had) >= turns
