"""The daemon as a whole, over an engine in memory: whether it starts."""

import asyncio
import contextlib
import dataclasses
import os
import pathlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from skilljaild.config import Config, load
from skilljaild.daemon import PostureError, serve
from skilljaild.engines.base import EngineReport, EngineUnavailable
from skilljaild.engines.finding import Finding, Severity

from .fake_engine import REPORT, Box, FakeEngine
from .probed import probed

BAD = Finding(Severity.KNOWN_BAD, "runc 1.1.5", "it leaks; update to 1.1.12", "CVE-2024-21626")


class Engine(FakeEngine):
    """An engine that knows something bad about itself."""

    async def probe(self) -> EngineReport:
        return dataclasses.replace(REPORT, findings=(BAD,))


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeEngine]:
    """The engine of every daemon here."""
    one = Engine(probed())
    monkeypatch.setattr("skilljaild.daemon.make_engine", lambda _: one)
    yield one
    assert one.live == {}


def config(directory: pathlib.Path, **settings: Any) -> Config:
    """A daemon's configuration."""
    place = {"listen": f"unix:{directory}/s.sock", "state_directory": str(directory / "state")}
    return load(None, place | settings)


@contextlib.asynccontextmanager
async def started(directory: pathlib.Path, **settings: Any) -> AsyncIterator[None]:
    """A daemon that listens, and is stopped as an operator does it."""
    daemon = asyncio.create_task(serve(config(directory, **settings)))
    try:
        async with asyncio.timeout(20):
            while not os.path.exists(directory / "s.sock"):  # noqa: ASYNC240, PTH110  # a socket's name is all there is
                assert not daemon.done()
                await asyncio.sleep(0.01)
        yield
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await daemon


async def refused(directory: pathlib.Path, **settings: Any) -> list[str]:
    """The lines that say why a daemon does not start. It does not listen then."""
    with pytest.raises(PostureError) as caught:
        await serve(config(directory, **settings))
    assert not (directory / "s.sock").exists()
    return str(caught.value).splitlines()


async def test_it_starts_when_the_walls_hold_and_tells_the_posture_and_all_that_is_bad(
    engine: FakeEngine, tmp_path: pathlib.Path
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with started(tmp_path):
            pass
    posture, bad, *_ = [one for one in logs if one["event"] == "posture"]
    assert (posture["log_level"], posture["isolation"], posture["passed"], posture["failed"]) == (
        "info",
        "container",
        ["python", "node", "bash", "pwsh"],
        [],
    )
    assert (bad["log_level"], bad["finding"]) == ("warning", BAD.text)
    assert [one["event"] for one in logs].index("posture") < [one["event"] for one in logs].index("listening")


async def test_it_does_not_start_when_a_wall_is_missing(engine: FakeEngine, tmp_path: pathlib.Path) -> None:
    engine.init = probed(no_ptrace="it worked (0)")
    first, line = await refused(tmp_path)
    assert first == "This host does not hold what scripts need. `skilljaild doctor` tells more."
    assert "in its sandbox this does not hold: no ptrace (seen: it worked (0)). To mend it: update the engine" in line


@pytest.mark.parametrize("minimum", ["gvisor", "vm"])
async def test_it_does_not_start_below_the_level_that_is_demanded(
    engine: FakeEngine, tmp_path: pathlib.Path, minimum: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, line = await refused(tmp_path, isolation={"minimum": minimum})
    assert f"its isolation is container, and isolation.minimum is {minimum}; name a runtime that gives it" in line


async def test_strict_it_does_not_start_on_what_is_known_to_be_bad(engine: FakeEngine, tmp_path: pathlib.Path) -> None:
    _, line = await refused(tmp_path, isolation={"strict": True})
    assert line == f"  isolation.strict is set, and this is known to be bad: {BAD.text}"


async def test_without_any_image_it_starts_unproven_unless_a_level_is_demanded(
    engine: FakeEngine, tmp_path: pathlib.Path
) -> None:
    engine.images = {}
    with structlog.testing.capture_logs() as logs:
        async with started(tmp_path):
            pass
    assert [one["isolation"] for one in logs if "isolation" in one] == ["unproven"]
    assert [one["finding"].split(":")[0] for one in logs if "finding" in one] == ["runc 1.1.5", "posture unproven"]
    _, line = await refused(tmp_path, isolation={"minimum": "gvisor"})
    assert "without an image nothing can be proven" in line


async def test_an_engine_that_goes_away_meanwhile_is_told(engine: FakeEngine, tmp_path: pathlib.Path) -> None:
    for call in ("image", "create"):
        engine.faults = {call: EngineUnavailable("it went away; start it")}
        with pytest.raises(EngineUnavailable, match="it went away; start it"):
            await serve(config(tmp_path))


async def test_it_can_be_stopped_in_the_middle_of_its_self_test(engine: FakeEngine, tmp_path: pathlib.Path) -> None:
    began = asyncio.Event()

    async def stuck(box: Box) -> None:
        began.set()

    engine.init = stuck
    daemon = asyncio.create_task(serve(config(tmp_path)))
    async with asyncio.timeout(20):
        await began.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await daemon
    assert engine.live == {}
