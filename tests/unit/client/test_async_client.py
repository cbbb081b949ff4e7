"""The asynchronous client: several loops, cancellation, and nothing that blocks the loop."""

import asyncio
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import skilljail
from skilljail._bundle import Bundle
from skilljail.v1 import run_pb2

from .fake_daemon import RUN_ID, FakeDaemon, Refusal, events, finished, output, queued, started
from .test_stream import beats_for_ever, endless, silent_for_ever


async def test_run_is_the_same_as_with_the_blocking_client(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = lambda *_: events(b"out", b"err", exit_code=3, artifacts={"a": b"b"})
    async with skilljail.AsyncClient(fake.address) as client:
        result = await client.run(skill, "scripts/run.py", ["x"], env={"A": "b"})
    with skilljail.Client(fake.address) as blocking:
        assert blocking.run(skill, "scripts/run.py", ["x"], env={"A": "b"}) == result
    assert fake.requests[0] == fake.requests[1]
    assert fake.calls == ["FindMissing", "Upload", "RunScript", "FindMissing", "RunScript"]


async def test_dropped_bundle_is_uploaded_again(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.before_run = lambda attempt: fake.blobs.clear() if attempt == 1 else None
    async with skilljail.AsyncClient(fake.address) as client:
        assert (await client.run(skill, "scripts/run.py")).ok
    assert fake.calls == ["FindMissing", "Upload", "RunScript", "FindMissing", "Upload", "RunScript"]


async def test_errors_are_the_same(fake: FakeDaemon, skill: pathlib.Path) -> None:
    def refuse(*_: object) -> None:
        raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "full", retry_seconds=2)

    async with skilljail.AsyncClient(fake.address) as client:
        fake.script = refuse  # type: ignore[assignment]
        with pytest.raises(skilljail.QueueFull, match="full") as caught:
            await client.run(skill, "scripts/run.py")
        assert caught.value.retry_after_seconds == 2
        fake.script = lambda *_: [queued(), started()]
        with pytest.raises(skilljail.StreamBroken, match="ended before"):
            await client.run(skill, "scripts/run.py")
        fake.script = lambda *_: [queued(), started(), finished(), queued()]
        with pytest.raises(skilljail.StreamBroken, match="after the last one"):
            await client.run(skill, "scripts/run.py")
        with pytest.raises(skilljail.InvalidRequest, match="got str"):
            await client.run(skill, "scripts/run.py", "abc")
    async with skilljail.AsyncClient("unix:/nowhere/x.sock") as client:
        with pytest.raises(skilljail.DaemonUnavailable, match="skilljaild serve"):
            await client.run(skill, "scripts/run.py")


async def test_cancelling_the_task_kills_the_run_at_once(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = endless
    async with skilljail.AsyncClient(fake.address) as client:
        task = asyncio.create_task(client.run(skill, "scripts/run.py"))
        assert await asyncio.to_thread(fake.running.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(fake.dropped.wait, 30)
        fake.script = lambda *_: events(b"still usable")
        assert (await client.run(skill, "scripts/run.py")).stdout == b"still usable"


@pytest.mark.parametrize("script", [beats_for_ever, silent_for_ever])
async def test_run_that_never_ends_is_given_up(
    fake: FakeDaemon, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch, script: Any
) -> None:
    monkeypatch.setattr("skilljail._patience.GRACE_SECONDS", 0.4)
    fake.script = script
    async with skilljail.AsyncClient(fake.address) as client:
        with pytest.raises(skilljail.StreamBroken, match=r"has not ended the run 0\.5 s after its start") as caught:
            async with asyncio.timeout(30):
                await client.run(skill, "scripts/run.py")
        assert caught.value.run_id == RUN_ID
        assert await asyncio.to_thread(fake.dropped.wait, 30)


async def test_timeout_of_the_caller_kills_the_run(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = endless
    async with skilljail.AsyncClient(fake.address) as client:
        task = asyncio.create_task(client.run(skill, "scripts/run.py"))
        assert await asyncio.to_thread(fake.running.wait, 30)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 0.5)
        assert await asyncio.to_thread(fake.dropped.wait, 30)


async def test_leaving_the_block_kills_the_run(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = endless
    async with skilljail.AsyncClient(fake.address) as client:
        async with client.stream(skill, "scripts/run.py") as stream:
            async for event in stream:
                if isinstance(event, skilljail.Output):
                    break
        assert await asyncio.to_thread(fake.dropped.wait, 30)
        with pytest.raises(skilljail.StreamBroken, match="closed before"):
            await stream.wait()


async def test_cancel_goes_on_to_the_result(fake: FakeDaemon, skill: pathlib.Path) -> None:
    def until_cancelled(*_: object) -> Iterator[run_pb2.RunEvent]:
        yield queued()
        yield started()
        yield output(b"so far", 0)
        while not fake.cancelled:
            time.sleep(0.01)
        yield finished(run_pb2.OUTCOME_CANCELLED, None, stdout_bytes=6)

    fake.script = until_cancelled
    async with skilljail.AsyncClient(fake.address) as client, client.stream(skill, "scripts/run.py") as stream:
        async for event in stream:
            if isinstance(event, skilljail.Output):
                await stream.cancel()
    assert fake.cancelled == [RUN_ID]
    assert (stream.result.outcome, stream.result.stdout) == ("CANCELLED", b"so far")


async def test_stream_that_another_task_drops_says_so(
    fake: FakeDaemon, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script = endless

    async def refuse(_run_id: str) -> None:
        raise skilljail.DaemonFault("no")

    async with skilljail.AsyncClient(fake.address) as client, client.stream(skill, "scripts/run.py") as stream:
        monkeypatch.setattr(client, "cancel_run", refuse)
        await anext(stream)
        reader = asyncio.create_task(stream.wait())
        await asyncio.sleep(0.1)
        await stream.cancel()
        with pytest.raises(skilljail.RunCancelled):
            await reader
    assert await asyncio.to_thread(fake.dropped.wait, 30)


def test_one_client_serves_several_loops(fake: FakeDaemon, skill: pathlib.Path) -> None:
    client = skilljail.AsyncClient(fake.address)

    async def several() -> list[bool]:
        results = await asyncio.gather(*(client.run(skill, "scripts/run.py") for _ in range(3)))
        return [one.ok for one in results]

    assert asyncio.run(several()) == [True] * 3
    assert asyncio.run(several()) == [True] * 3
    assert fake.calls.count("Upload") >= 1


async def test_disk_work_does_not_hold_up_the_loop(
    fake: FakeDaemon, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Bundle.read
    reading, loop_went_on = threading.Event(), threading.Event()
    held_up: list[bool] = []

    def slow(*arguments: object) -> Bundle:
        reading.set()
        held_up.append(not loop_went_on.wait(30))
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Bundle, "read", slow)

    async def go_on() -> None:
        while not reading.is_set():
            await asyncio.sleep(0.01)
        loop_went_on.set()

    other = asyncio.create_task(go_on())
    async with skilljail.AsyncClient(fake.address) as client:
        assert (await client.run(skill, "scripts/run.py")).ok
    await other
    assert held_up == [False]
