"""Sandboxes that nobody wants any more."""

import asyncio
import contextlib
import time
from typing import Any

import pytest
from skilljaild import reaper as module
from skilljaild.engines.base import EngineError, EngineUnavailable, OwnedSandbox
from skilljaild.reaper import Reaper
from skilljaild.runs.admission import Admission

from .fake_engine import FakeEngine

SOON, PAST = int(time.time()) + 86_400, int(time.time()) - 1


class Registry:
    """Runs under way, as the reaper sees them."""

    def __init__(self, *run_ids: str) -> None:
        self.run_ids = frozenset(run_ids)

    def under_way(self) -> frozenset[str]:
        return self.run_ids


def reaper(engine: FakeEngine, registry: Any) -> Reaper:
    """A reaper of the owner `mine`."""
    return Reaper(engine, "mine", Admission(1, 1), registry)


async def test_only_what_nobody_wants_is_destroyed() -> None:
    engine = FakeEngine()
    engine.owned = [
        OwnedSandbox("going", "run-1", SOON),
        OwnedSandbox("overdue", "run-2", PAST),
        OwnedSandbox("orphan", "run-3", SOON),
        OwnedSandbox("old orphan", "run-4", 0),
    ]
    assert await reaper(engine, Registry("run-1", "run-2")).sweep() == 3
    assert engine.destroyed == ["overdue", "orphan", "old orphan"]


async def test_only_sandboxes_of_this_daemon_are_asked_for() -> None:
    engine = FakeEngine()
    assert await reaper(engine, Registry()).sweep() == 0
    assert engine.calls == ["list_owned mine"]


async def test_a_run_that_starts_while_the_engine_is_asked_keeps_its_sandbox() -> None:
    engine, registry = FakeEngine(), Registry()
    engine.owned = [OwnedSandbox("new", "run-1", SOON)]
    engine.gates["list_owned mine"] = asyncio.Event()
    sweep = asyncio.create_task(reaper(engine, registry).sweep())
    await engine.reached["list_owned mine"].wait()
    registry.run_ids = frozenset({"run-1"})
    engine.gates["list_owned mine"].set()
    assert await sweep == 0
    assert engine.destroyed == []


async def test_the_watch_goes_on_after_the_engine_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD_SECONDS", 0.005)
    engine = FakeEngine()
    engine.faults["list_owned mine"] = EngineUnavailable("away")
    watch = asyncio.create_task(reaper(engine, Registry()).watch())
    while len(engine.calls) < 3:
        await asyncio.sleep(0.005)
    engine.owned = [OwnedSandbox("orphan", "run-1", SOON)]
    del engine.faults["list_owned mine"]
    async with asyncio.timeout(30):
        while not engine.destroyed:
            await asyncio.sleep(0.005)
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch
    assert set(engine.destroyed) == {"orphan"}


async def test_a_sandbox_that_cannot_be_destroyed_does_not_keep_the_others_alive() -> None:
    engine = FakeEngine()
    engine.owned = [OwnedSandbox(name, name, SOON) for name in ("stuck", "orphan")]
    engine.faults["destroy"] = EngineError("the engine refused: device busy")
    await reaper(engine, Registry()).sweep()
    assert engine.destroyed == ["stuck", "orphan"]


async def test_an_engine_that_goes_away_meanwhile_is_not_asked_again_and_again() -> None:
    engine = FakeEngine()
    engine.owned = [OwnedSandbox(name, name, SOON) for name in ("one", "two")]
    engine.faults["destroy"] = EngineUnavailable("away")
    with pytest.raises(EngineUnavailable):
        await reaper(engine, Registry()).sweep()
    assert engine.destroyed == ["one"]


async def test_an_engine_that_is_away_at_the_start_is_told() -> None:
    engine = FakeEngine()
    engine.faults["list_owned mine"] = EngineUnavailable("away")
    with pytest.raises(EngineUnavailable):
        await reaper(engine, Registry()).sweep()


async def test_what_any_owner_wants_is_kept() -> None:
    engine = FakeEngine()
    engine.owned = [OwnedSandbox(name, name, SOON) for name in ("run", "self-test", "orphan")]
    first: Any = Registry("run")
    second: Any = Registry("self-test")
    assert await Reaper(engine, "mine", Admission(1, 1), first, second).sweep() == 1
    assert engine.destroyed == ["orphan"]


async def test_a_place_comes_back_when_its_sandbox_is_gone_and_not_before() -> None:
    engine, admission = FakeEngine(), Admission(2, 2)
    one = Reaper(engine, "mine", admission, Registry())
    ticket = admission.admit()
    admission.lose(ticket.place, "run-1")
    admission.release(ticket)
    engine.owned = [OwnedSandbox("stuck", "run-1", SOON)]
    engine.faults["destroy"] = EngineError("it is frozen")
    await one.sweep()
    assert admission.lost() == {"run-1"}
    engine.faults.clear()
    await one.sweep()
    assert admission.lost() == frozenset()


async def test_a_place_that_is_lost_while_the_engine_is_asked_stays_lost() -> None:
    engine, admission = FakeEngine(), Admission(1, 1)
    engine.gates["list_owned mine"] = asyncio.Event()
    sweep = asyncio.create_task(Reaper(engine, "mine", admission, Registry()).sweep())
    await engine.reached["list_owned mine"].wait()
    admission.lose(0, "run-1")
    engine.gates["list_owned mine"].set()
    await sweep
    assert admission.lost() == {"run-1"}
