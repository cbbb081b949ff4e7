"""A run's events on their way to whoever listens."""

import asyncio

from skilljaild.runs.events import Event, Finished, Outcome, Queued, RunResult
from skilljaild.runs.pipe import EVENTS_MAX, EventPipe

LAST = Finished(RunResult(Outcome.EXITED, "m", exit_code=0))


async def filled() -> EventPipe:
    """A pipe with no room."""
    pipe = EventPipe()
    for number in range(EVENTS_MAX):
        await pipe.put(Queued(number))
    return pipe


async def drained(pipe: EventPipe) -> list[Event]:
    """Everything that comes out, to the end."""
    found: list[Event] = []
    while (event := await pipe.get()) is not None:
        found.append(event)
    return found


async def test_events_come_out_as_they_went_in_and_then_the_end() -> None:
    pipe = EventPipe()
    await pipe.put(Queued(1))
    await pipe.put(Queued(2))
    await pipe.close(LAST)
    assert await drained(pipe) == [Queued(1), Queued(2), LAST]
    assert await pipe.get() is None


async def test_a_reader_waits_for_the_next_event() -> None:
    pipe = EventPipe()
    reader = asyncio.create_task(pipe.get())
    await asyncio.sleep(0)
    assert not reader.done()
    await pipe.put(Queued(1))
    assert await asyncio.wait_for(reader, 30) == Queued(1)


async def test_a_slow_reader_holds_the_writer_up() -> None:
    pipe = await filled()
    writer = asyncio.create_task(pipe.put(Queued(99)))
    await asyncio.sleep(0.01)
    assert not writer.done()
    assert await pipe.get() == Queued(0)
    await asyncio.wait_for(writer, 30)


async def test_a_writer_that_cannot_wait_adds_to_what_is_there() -> None:
    pipe = await filled()
    await asyncio.wait_for(pipe.put(Queued(99), waiting=False), 30)
    await pipe.close(LAST)
    assert await drained(pipe) == [*(Queued(number) for number in range(EVENTS_MAX)), Queued(99), LAST]


async def test_a_reader_that_leaves_sets_the_writer_free_and_nothing_is_kept() -> None:
    pipe = await filled()
    writer = asyncio.create_task(pipe.put(Queued(99)))
    await asyncio.sleep(0)
    await pipe.abandon()
    await asyncio.wait_for(writer, 30)
    await pipe.put(Queued(100), waiting=False)
    await pipe.close(LAST)
    assert await pipe.get() is None


async def test_the_last_event_is_delivered_also_when_there_is_no_room() -> None:
    pipe = await filled()
    await pipe.close(LAST)
    assert await drained(pipe) == [*(Queued(number) for number in range(EVENTS_MAX)), LAST]


async def test_closing_sets_a_writer_free_that_waits() -> None:
    pipe = await filled()
    writer = asyncio.create_task(pipe.put(Queued(99)))
    await asyncio.sleep(0)
    await pipe.close()
    await asyncio.wait_for(writer, 30)
    assert await drained(pipe) == [Queued(number) for number in range(EVENTS_MAX)]


async def test_what_comes_after_the_end_is_dropped() -> None:
    pipe = EventPipe()
    await pipe.close()
    await pipe.put(Queued(1))
    assert await pipe.get() is None


async def test_a_reader_that_gives_up_loses_no_event() -> None:
    pipe = EventPipe()
    reader = asyncio.create_task(pipe.get())
    await asyncio.sleep(0)
    reader.cancel()
    await pipe.put(Queued(1))
    assert await pipe.get() == Queued(1)
