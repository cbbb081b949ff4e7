"""When self-tests are done, and what follows from them; on an engine in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import structlog
from skilljaild.catalogue import Catalogue
from skilljaild.config import CeilingLimits, ImagesConfig
from skilljaild.engines.base import EngineError, EngineReport, EngineUnavailable, Image, IsolationError
from skilljaild.engines.finding import Finding, Severity
from skilljaild.errors import Reason, Refusal
from skilljaild.interpreters import INTERPRETERS
from skilljaild.posture import examiner as module
from skilljaild.posture import self_test as self_test_module
from skilljaild.posture.examiner import Examiner
from skilljaild.posture.posture import Demands
from skilljaild.posture.self_test import SelfTest
from skilljaild.runs.admission import Admission
from skilljaild.runs.level import IsolationLevel

from .facts import good_facts, gvisor_facts
from .fake_engine import FINDING, REPORT, Box, FakeEngine
from .probed import at_level, probed

CONTAINER, GVISOR, VM = IsolationLevel
IMAGES = {name: f"skilljail/{name}" for name in INTERPRETERS}
DIGESTS = {name: "sha256:" + str(number) * 64 for number, name in enumerate(INTERPRETERS)}
BOOT_ID = good_facts()["kernel"]["boot_id"]


class Bench:
    """An engine with an image for each interpreter, and an examiner."""

    def __init__(self, places: int = 4, queued: int = 4, minimum: IsolationLevel = CONTAINER, **demands: Any) -> None:
        self.engine = FakeEngine(probed())
        self.engine.images = {IMAGES[name]: Image(IMAGES[name], DIGESTS[name], {}) for name in INTERPRETERS}
        self.admission = Admission(places, queued)
        self.examiner = Examiner(
            self.engine,
            Catalogue(ImagesConfig(**IMAGES), self.engine),
            self.admission,
            SelfTest(self.engine, "owner", CeilingLimits().limits(), self.admission),
            Demands(minimum, demands.get("strict", False)),
        )

    def image(self, name: str = "python") -> Image:
        """The image of an interpreter."""
        assert self.engine.images is not None
        return self.engine.images[IMAGES[name]]

    async def refused(self, name: str = "python") -> Refusal:
        """Why an image may not run scripts."""
        with pytest.raises(Refusal) as caught:
            await self.examiner.admit(name, self.image(name), 0)
        return caught.value

    def check_clean(self) -> None:
        """Nothing is left of any self-test."""
        assert self.engine.live == {}
        assert self.examiner.under_way() == frozenset()
        assert len(self.admission._free) == 4 or not self.admission._waiting


@pytest.fixture(autouse=True)
def own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes show the daemon's kernel, unless a test says otherwise."""
    for place in (module, self_test_module):
        monkeypatch.setattr(place, "own_boot_id", lambda: BOOT_ID)


@pytest.fixture
async def benches() -> AsyncIterator[Callable[..., Bench]]:
    """Makes benches and looks at them at the end."""
    made: list[Bench] = []

    def make(*arguments: Any, **demands: Any) -> Bench:
        made.append(Bench(*arguments, **demands))
        return made[-1]

    yield make
    for one in made:
        one.check_clean()
        await one.engine.close()


def report(*findings: Finding, missing: tuple[str, ...] = ()) -> EngineReport:
    """What an engine says."""
    return EngineReport("docker", "Docker", "29.7.0", "runc", "1.3.4", "6.18", 2, missing, findings)


# At start


async def test_at_start_every_image_that_is_there_is_tested_at_the_same_time(benches: Callable[..., Bench]) -> None:
    bench = benches()
    assert bench.engine.images is not None
    del bench.engine.images[IMAGES["pwsh"]]
    together = asyncio.Event()

    async def init(box: Box) -> None:
        if len(bench.engine.live) == 3:
            together.set()
        await together.wait()
        await probed()(box)

    bench.engine.init = init
    async with asyncio.timeout(20):
        posture = await bench.examiner.at_start(REPORT, 4)
    assert [(test.interpreter, test.passed) for test in posture.images] == [
        ("python", True),
        ("node", True),
        ("bash", True),
    ]
    assert len({spec.place for spec in bench.engine.specs}) == 3
    assert (posture.level, posture.faults, posture.findings) == (CONTAINER, (), (FINDING,))
    assert bench.examiner.level is CONTAINER


async def test_at_start_no_more_are_tested_at_once_than_runs_may_be_under_way(benches: Callable[..., Bench]) -> None:
    bench = benches(1, 0)
    most: list[int] = []

    async def init(box: Box) -> None:
        most.append(len(bench.engine.live))
        await probed()(box)

    bench.engine.init = init
    posture = await bench.examiner.at_start(REPORT, 1)
    assert len(posture.images) == 4
    assert max(most) == 1


async def test_an_engine_that_goes_away_at_start_is_told_as_such(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.engine.faults["create"] = EngineUnavailable("away")
    with pytest.raises(EngineUnavailable, match="away"):
        await bench.examiner.at_start(REPORT, 4)


# What follows: faults keep the daemon from starting

BAD = Finding(Severity.KNOWN_BAD, "runc 1.1.5", "it leaks; update to 1.1.12", "CVE-2024-21626")
STRICT_FAULT = f"isolation.strict is set, and this is known to be bad: {BAD.text}"


@pytest.mark.parametrize(
    ("minimum", "strict", "seen", "findings", "faults"),
    [
        (CONTAINER, False, CONTAINER, (), []),
        (CONTAINER, False, CONTAINER, (BAD, FINDING), []),
        (CONTAINER, True, CONTAINER, (FINDING,), []),
        (
            CONTAINER,
            True,
            CONTAINER,
            (BAD, FINDING),
            [STRICT_FAULT],
        ),
        (CONTAINER, False, GVISOR, (), []),
        (GVISOR, False, GVISOR, (), []),
        (GVISOR, False, CONTAINER, (), ["its isolation is container, and isolation.minimum is gvisor; name a runtime"]),
        (VM, False, GVISOR, (), ["its isolation is gvisor, and isolation.minimum is vm; name a runtime"]),
        (VM, True, CONTAINER, (BAD,), ["its isolation is container, and isolation.minimum is vm", BAD.text]),
    ],
)
async def test_the_daemon_starts_only_where_what_is_demanded_holds(
    benches: Callable[..., Bench],
    monkeypatch: pytest.MonkeyPatch,
    minimum: IsolationLevel,
    strict: bool,
    seen: IsolationLevel,
    findings: tuple[Finding, ...],
    faults: list[str],
) -> None:
    bench = benches(minimum=minimum, strict=strict)
    if seen is GVISOR:
        monkeypatch.setattr("skilljaild.runs.sandbox.check_from_inside", lambda *_: ())
        bench.engine.init = at_level(None)
    posture = await bench.examiner.at_start(report(*findings), 4)
    assert posture.level is seen
    assert len(posture.faults) == len(faults)
    assert all(part in line for part, line in zip(faults, posture.faults, strict=True))


async def test_what_gvisor_shows_of_init_is_a_finding_that_strict_does_not_take(
    benches: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skilljaild.runs.sandbox.check_from_inside", lambda *_: ())
    for strict in (False, True):
        bench = benches(minimum=GVISOR, strict=strict)
        bench.engine.init = at_level(None, init_s_stream_cannot_be_opened="it worked ('fd/4')")
        posture = await bench.examiner.at_start(report(), 4)
        (finding,) = posture.findings
        assert (finding.severity, finding.subject) == (Severity.KNOWN_BAD, "gVisor")
        assert finding.message.startswith("this does not hold: init's stream cannot be opened. A script can forge")
        assert len(posture.faults) == strict
        # Also for an image that comes after the start.
        assert ("isolation.strict is set" in bench.examiner.fault(bench.image())) is strict


async def test_each_failing_control_is_named_with_what_was_seen_and_the_mend(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.engine.init = probed(no_bpf="it worked (3)", no_mount="it worked (42)")
    (fault,) = (await bench.examiner.at_start(report(), 4)).faults
    assert fault.startswith(
        "python (skilljail/python), node (skilljail/node), bash (skilljail/bash), pwsh (skilljail/pwsh): "
        "in its sandbox this does not hold: no mount (seen: it worked (42)); no bpf (seen: it worked (3)). To mend it: "
    )
    assert "skilljail images build" in fault


async def test_without_an_image_the_posture_is_unproven_and_a_demand_is_not_met(benches: Callable[..., Bench]) -> None:
    for minimum, faults in ((CONTAINER, 0), (GVISOR, 1), (VM, 1)):
        bench = benches(minimum=minimum)
        bench.engine.images = {}
        posture = await bench.examiner.at_start(report(), 4)
        assert (posture.level, posture.images, bench.examiner.level) == (None, (), None)
        assert [one.subject for one in posture.findings] == ["posture unproven"]
        assert len(posture.faults) == faults
        assert all(
            "without an image nothing can be proven; run `skilljail images build`" in one for one in posture.faults
        )


async def test_findings_come_worst_first_and_what_the_engine_lacks_is_among_them(benches: Callable[..., Bench]) -> None:
    bench = benches()
    posture = await bench.examiner.at_start(report(FINDING, BAD, missing=("seccomp: use another",)), 4)
    assert [one.text for one in posture.findings] == ["engine: it lacks seccomp: use another", BAD.text, FINDING.text]


# Before a run


async def test_an_image_that_was_tested_is_not_tested_again(benches: Callable[..., Bench]) -> None:
    bench = benches()
    await bench.examiner.at_start(REPORT, 4)
    made = len(bench.engine.specs)
    await bench.examiner.admit("python", bench.image(), 0)
    assert len(bench.engine.specs) == made


async def test_an_image_that_is_new_is_tested_once_for_all_runs_that_wait_in_the_first_ones_place(
    benches: Callable[..., Bench],
) -> None:
    bench = benches()
    await asyncio.gather(*(bench.examiner.admit("python", bench.image(), place) for place in (2, 0, 1)))
    assert [spec.place for spec in bench.engine.specs] == [2]
    assert bench.examiner.level is CONTAINER
    assert len(bench.admission._free) == 4


async def test_a_run_that_ends_while_it_tests_leaves_the_test_to_the_next_one(benches: Callable[..., Bench]) -> None:
    bench = benches()
    began = asyncio.Event()

    async def stuck(box: Box) -> None:
        began.set()

    bench.engine.init = stuck
    first = asyncio.create_task(bench.examiner.admit("python", bench.image(), 0))
    await began.wait()
    second = asyncio.create_task(bench.examiner.admit("python", bench.image(), 1))
    bench.engine.init = probed()
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    async with asyncio.timeout(20):
        await second
    assert [spec.place for spec in bench.engine.specs] == [0, 1]


async def test_no_script_runs_in_an_image_that_failed(benches: Callable[..., Bench]) -> None:
    bench = benches()
    assert bench.examiner.fault(bench.image()) == ""
    bench.engine.init = probed(no_setuid_or_setgid_file="/usr/bin/su")
    with structlog.testing.capture_logs() as logs:
        refusal = await bench.refused()
    (warning,) = [one for one in logs if one["log_level"] == "warning"]
    assert (warning["image"], warning["digest"]) == ("skilljail/python", DIGESTS["python"])
    assert "/usr/bin/su" in warning["fault"]
    assert (refusal.reason, refusal.metadata) == (Reason.ISOLATION_POSTURE, {"interpreter": "python"})
    assert refusal.message.startswith(
        "python scripts cannot run here: skilljail/python: in its sandbox this does not hold: no setuid or setgid file "
        "(seen: /usr/bin/su). To mend it: "
    )
    assert bench.examiner.fault(bench.image()) in refusal.message
    # It is known now; another image is another matter.
    await bench.refused()
    assert len(bench.engine.specs) == 1
    bench.engine.init = probed()
    await bench.examiner.admit("bash", bench.image("bash"), 0)


async def test_no_script_runs_below_the_demanded_level(benches: Callable[..., Bench]) -> None:
    refusal = await benches(minimum=GVISOR).refused()
    assert "its isolation is container, and isolation.minimum is gvisor" in refusal.message


async def test_a_test_that_could_not_be_done_is_done_again_after_a_while(
    benches: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benches()
    bench.engine.faults["create"] = EngineError("the engine refused: no space left")
    assert "its self-test could not be done: the engine refused: no space left" in (await bench.refused()).message
    bench.engine.faults.clear()
    await bench.refused()
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    await bench.examiner.admit("python", bench.image(), 0)


async def test_an_engine_that_is_away_decides_nothing(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.engine.faults["create"] = EngineUnavailable("away")
    with pytest.raises(EngineUnavailable):
        await bench.examiner.admit("python", bench.image(), 0)
    bench.engine.faults.clear()
    await bench.examiner.admit("python", bench.image(), 0)


async def test_only_so_many_images_are_remembered(
    benches: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX", 2)
    bench = benches()
    for name in ("python", "node", "bash", "python"):
        await bench.examiner.admit(name, bench.image(name), 0)
    assert len(bench.engine.specs) == 4
    assert list(bench.examiner._tests) == [DIGESTS["bash"], DIGESTS["python"]]


@pytest.mark.parametrize(
    ("minimum", "facts", "passes"),
    [
        (CONTAINER, good_facts(), True),
        (GVISOR, gvisor_facts(), True),
        (GVISOR, good_facts(), False),
        (VM, gvisor_facts(), False),
        (VM, good_facts(), False),
        (VM, good_facts() | {"kernel": {"boot_id": "1" * 8 + BOOT_ID[8:]}}, True),
        (VM, good_facts() | {"kernel": {}}, False),
    ],
)
def test_a_runs_own_sandbox_is_looked_at_too(minimum: IsolationLevel, facts: dict[str, Any], passes: bool) -> None:
    examiner = Bench(minimum=minimum).examiner
    if passes:
        examiner.check(facts)
        return
    with pytest.raises(IsolationError, match=r"and isolation\.minimum is .* Nothing was run\."):
        examiner.check(facts)


# When an operator asks


async def test_an_operator_gets_a_new_test_of_every_image_one_after_the_other(benches: Callable[..., Bench]) -> None:
    bench = benches()
    await bench.examiner.at_start(REPORT, 4)
    most: list[int] = []

    async def init(box: Box) -> None:
        most.append(len(bench.engine.live))
        await probed(no_mount="it worked (42)")(box)

    bench.engine.init = init
    posture = await bench.examiner.examine()
    assert [test.passed for test in posture.images] == [False] * 4
    assert most == [1] * 4
    assert posture.report is REPORT
    assert bench.engine.calls.count("probe") == 1
    assert "no mount" in (await bench.refused()).message  # what it showed counts for runs from now on


async def test_a_self_test_waits_for_its_place_among_the_runs(benches: Callable[..., Bench]) -> None:
    bench = benches(1, 1)
    run = bench.admission.admit()
    task = asyncio.create_task(bench.examiner.examine())
    await asyncio.sleep(0.05)
    assert bench.engine.specs == []
    bench.admission.release(run)
    async with asyncio.timeout(20):
        assert len((await task).images) == 4


async def test_a_full_queue_is_told_to_the_operator_and_nothing_is_kept(benches: Callable[..., Bench]) -> None:
    bench = benches(1, 0)
    run = bench.admission.admit()
    with pytest.raises(Refusal) as caught:
        await bench.examiner.examine()
    assert caught.value.reason is Reason.QUEUE_FULL
    bench.admission.release(run)
    assert len((await bench.examiner.examine()).images) == 4


async def test_one_at_a_time_and_only_so_many_wait(benches: Callable[..., Bench]) -> None:
    bench = benches()
    gate = bench.engine.gates["create"] = asyncio.Event()
    tasks = [asyncio.create_task(bench.examiner.examine()) for _ in range(module.WAITING_MAX)]
    await bench.engine.reached["create"].wait()
    with pytest.raises(Refusal) as caught:
        await bench.examiner.examine()
    assert (caught.value.reason, caught.value.retry_seconds) == (Reason.QUEUE_FULL, 5)
    assert len(bench.engine.specs) == 1
    for task in tasks[1:]:
        task.cancel()
    gate.set()
    async with asyncio.timeout(20):
        assert len((await tasks[0]).images) == 4
        await asyncio.wait(tasks)
    assert len((await bench.examiner.examine()).images) == 4  # nobody is counted who has gone


async def test_a_caller_that_goes_away_leaves_no_sandbox_and_no_place_taken(benches: Callable[..., Bench]) -> None:
    bench = benches()
    began = asyncio.Event()

    async def stuck(box: Box) -> None:
        began.set()

    bench.engine.init = stuck
    task = asyncio.create_task(bench.examiner.examine())
    await began.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert bench.engine.live == {}
    assert len(bench.admission._free) == 4


@pytest.mark.parametrize("call", ["probe", "image", "create"])
async def test_an_engine_that_is_away_is_told_to_the_operator(benches: Callable[..., Bench], call: str) -> None:
    bench = benches()
    bench.engine.faults[call] = EngineUnavailable("away")
    with pytest.raises(Refusal) as caught:
        await bench.examiner.examine()
    assert caught.value.reason is Reason.ENGINE_UNAVAILABLE
