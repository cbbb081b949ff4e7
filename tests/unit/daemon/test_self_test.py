"""The self-test of one image, on an engine in memory."""

import itertools
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from skilljail_init.frames import FrameType
from skilljaild.config import CeilingLimits
from skilljaild.engines.base import EngineError, EngineUnavailable, Image, IsolationError
from skilljaild.engines.floor import container_floor
from skilljaild.posture import kernels, probe
from skilljaild.posture import self_test as module
from skilljaild.posture.kernels import boot_id_of
from skilljaild.posture.self_test import ImageTest, SelfTest
from skilljaild.posture.sight import Control
from skilljaild.runs.admission import Admission
from skilljaild.runs.level import IsolationLevel

from .facts import good_facts
from .fake_engine import Box, FakeEngine, ready, serve_script, staged
from .probed import GOOD, at_level, printed, probed

IMAGE = Image("skilljail/python", "sha256:" + "a" * 64, {})
PROBE = pathlib.Path(probe.__file__).read_bytes()
ONE, OTHER = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeEngine]:
    """An engine in whose sandboxes every wall holds, on the daemon's own kernel."""
    monkeypatch.setattr(module, "own_boot_id", lambda: good_facts()["kernel"]["boot_id"])
    one = FakeEngine(probed())
    yield one
    assert one.live == {}
    await one.close()


async def tested(engine: FakeEngine, **ceiling: Any) -> ImageTest:
    """Tests the image."""
    return await SelfTest(engine, "owner", CeilingLimits(**ceiling).limits(), Admission(4, 4)).run("python", IMAGE, 3)


async def test_a_sandbox_is_made_as_a_run_gets_it_and_the_probe_runs_in_it_as_a_script(engine: FakeEngine) -> None:
    test = await tested(engine)
    assert (test.passed, test.fault, test.failing) == (True, "", ())
    assert (test.interpreter, test.image, test.level) == ("python", IMAGE, IsolationLevel.CONTAINER)
    assert engine.calls == ["create", "verify", "stream", "destroy"]
    (spec,) = engine.specs
    assert (spec.owner, spec.image_digest, spec.place) == ("owner", IMAGE.digest, 3)
    (box,) = engine.boxes
    assert box.files == {"probe.py": PROBE}
    start = box.orders["start"]
    assert start["argv"] == ["/usr/bin/python3", "-I", "-S", "probe.py", *container_floor().masked_paths]
    names = {control.name for control in test.controls}
    assert set(GOOD) < names
    assert "a read-only root" in names  # as init read it


async def test_it_takes_little_of_the_host_and_never_more_than_a_run_may(engine: FakeEngine) -> None:
    await tested(engine)
    await tested(engine, memory_bytes=64 << 20, pids=8, disk_bytes=128 << 10, output_bytes=10, wall_seconds=0.1)
    usual, small = (spec.limits for spec in engine.specs)
    assert (usual.memory_bytes, usual.pids, usual.disk_bytes) == (128 << 20, 32, 1 << 20)
    assert (small.memory_bytes, small.pids, small.disk_bytes) == (64 << 20, 8, 128 << 10)
    # What scripts may say, and how long they may take, is no matter of the host.
    assert (small.output_bytes, small.wall_seconds) == (usual.output_bytes, usual.wall_seconds)


async def test_a_wall_that_is_missing_fails_the_image(engine: FakeEngine) -> None:
    engine.init = probed(no_ptrace="it worked (0)")
    test = await tested(engine)
    assert not test.passed
    assert [(one.name, one.seen) for one in test.failing] == [("no ptrace", "it worked (0)")]


async def speechless(box: Box) -> None:
    """Another program than init."""
    box.stream.put(b"hello from another entrypoint\n")
    box.stream.end()


async def gone(box: Box) -> None:
    """Dies before it is there."""
    box.stream.end()


async def unstartable(box: Box) -> None:
    """Has no Python that can be executed."""
    await staged(box)
    await box.hear(FrameType.START)
    box.say(FrameType.FAILED, {"errno": 13, "message": "Permission denied"})


async def weak(box: Box) -> None:
    """A sandbox with a capability."""
    facts = good_facts(box.spec.limits, box.spec.place)
    facts["capabilities"]["effective"] = 1
    box.say(FrameType.READY, {"isolation": facts})


@pytest.mark.parametrize(
    ("init", "fault"),
    [
        (speechless, "its init does not do what it must"),
        (gone, "its init does not do what it must (the sandbox's stream ended); build the image"),
        (weak, "seen from inside the sandbox, this does not hold: no capability"),
        (unstartable, "the probe could not be started: Permission denied"),
        (serve_script(end=True), "its init does not do what it must (the sandbox's stream ended)"),
        (printed(b"not json"), "the probe printed something else than JSON"),
        (printed(b"x" * 70_000), "its init does not do what it must (more output than init may pass on)"),
        (printed(json.dumps(GOOD).encode(), exit_code=1), "the probe did not end by itself and well"),
    ],
)
async def test_an_image_that_cannot_be_tested_has_not_passed(engine: FakeEngine, init: Any, fault: str) -> None:
    engine.init = init
    test = await tested(engine)
    assert not test.passed
    assert test.fault.startswith(fault)


@pytest.mark.parametrize("error", [EngineError("full"), IsolationError("the engine did not apply: seccomp")])
async def test_what_the_engine_cannot_do_is_the_fault(engine: FakeEngine, error: EngineError) -> None:
    engine.faults["verify"] = error
    test = await tested(engine)
    assert (test.passed, test.fault, test.level) == (False, str(error), None)


async def test_an_engine_that_is_away_is_no_fault_of_the_image(engine: FakeEngine) -> None:
    engine.faults["create"] = EngineUnavailable("away")
    with pytest.raises(EngineUnavailable):
        await tested(engine)


async def test_a_sandbox_that_does_nothing_is_given_up(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TEST_SECONDS", 0.2)
    engine.init = ready
    assert (await tested(engine)).fault == "it took longer than 0.2 s; is the host overloaded?"


async def test_its_sandbox_is_wanted_while_it_is_there(engine: FakeEngine) -> None:
    self_test = SelfTest(engine, "owner", CeilingLimits().limits(), Admission(4, 4))
    seen: list[frozenset[str]] = []

    async def init(box: Box) -> None:
        seen.append(self_test.under_way())
        await probed()(box)

    engine.init = init
    await self_test.run("python", IMAGE, 0)
    assert seen == [frozenset({engine.specs[0].run_id})]
    assert self_test.under_way() == frozenset()


# Whose kernel


async def test_gvisor_is_seen_and_judged_by_what_says_something_there(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skilljaild.runs.sandbox.check_from_inside", lambda *_: ())
    engine.init = at_level(None)
    test = await tested(engine)
    assert (test.passed, test.level, len(engine.specs)) == (True, IsolationLevel.GVISOR, 1)


@pytest.mark.parametrize(("boot_id", "passes"), [(None, True), (lambda: ONE, False)])
async def test_what_gvisor_shows_of_init_is_told_apart_and_fails_an_image_anywhere_else(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, boot_id: Any, passes: bool
) -> None:
    monkeypatch.setattr("skilljaild.runs.sandbox.check_from_inside", lambda *_: ())
    engine.init = at_level(boot_id, init_s_stream_cannot_be_opened="it worked ('fd/4')")
    test = await tested(engine)
    weak = Control("init's stream cannot be opened", holds=False, seen="it worked ('fd/4')")
    assert test.passed is passes
    assert test.weak == ((weak,) if passes else ())
    assert test.failing == (() if passes else (weak,))
    assert (weak in test.controls) is not passes


async def test_two_sandboxes_with_kernels_of_their_own_are_virtual_machines(engine: FakeEngine) -> None:
    ids = itertools.cycle([ONE, OTHER])
    engine.init = at_level(lambda: next(ids))
    test = await SelfTest(engine, "owner", CeilingLimits().limits(), Admission(4, 4)).run("python", IMAGE, 0)
    assert (test.level, len(engine.specs)) == (IsolationLevel.VM, 2)


async def test_two_sandboxes_with_the_same_kernel_are_containers_wherever_the_engine_is(engine: FakeEngine) -> None:
    engine.init = at_level(lambda: ONE)
    test = await SelfTest(engine, "owner", CeilingLimits().limits(), Admission(4, 4)).run("python", IMAGE, 0)
    assert (test.level, len(engine.specs)) == (IsolationLevel.CONTAINER, 2)


async def test_the_daemons_own_kernel_needs_no_second_sandbox(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "own_boot_id", lambda: ONE)
    engine.init = at_level(lambda: ONE)
    test = await SelfTest(engine, "owner", CeilingLimits().limits(), Admission(4, 4)).run("python", IMAGE, 0)
    assert (test.level, len(engine.specs)) == (IsolationLevel.CONTAINER, 1)


def test_a_boot_id_that_something_else_than_the_kernel_tells_proves_nothing() -> None:
    facts = good_facts()
    facts["kernel"]["boot_id"] = ONE
    assert boot_id_of(facts) == ONE
    for path in (kernels.PATH, "/proc/sys/kernel/random", "/proc/sys"):
        covered = facts | {"mounts": [*facts["mounts"], {"path": path, "type": "tmpfs", "options": ["ro"]}]}
        assert boot_id_of(covered) == ""


@pytest.mark.parametrize("kernel", [None, {}, [], {"boot_id": None}, {"boot_id": 1}, {"boot_id": "x"}, {"boot_id": ""}])
def test_a_broken_boot_id_is_none(kernel: object) -> None:
    assert boot_id_of(good_facts() | {"kernel": kernel}) == ""
    assert boot_id_of({}) == ""


def test_the_daemons_own_boot_id_is_the_kernels() -> None:
    assert kernels.own_boot_id() == pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_the_probe_does_nothing_as_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It tries to kill PID 1."""
    monkeypatch.setattr(probe.os, "geteuid", lambda: 0)
    monkeypatch.setattr(probe, "_ATTEMPTS", {})
    monkeypatch.setattr(probe, "_LOOKS", {})
    with pytest.raises(SystemExit, match="not for root"):
        probe.main()
    assert capsys.readouterr().out == ""
