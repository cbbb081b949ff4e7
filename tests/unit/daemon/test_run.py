"""A run from admission to its single outcome, on an engine in memory."""

import asyncio
import dataclasses
import pathlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from skilljail_init.frames import FrameType
from skilljaild.bundles.bundle import BundleFile
from skilljaild.bundles.digest import digest_of
from skilljaild.bundles.store import BlobStore
from skilljaild.engines.base import (
    EngineError,
    EngineUnavailable,
    Image,
    ImageMissing,
    IsolationError,
    SandboxSpec,
    SandboxStats,
)
from skilljaild.errors import Reason, Refusal
from skilljaild.limits import Limits
from skilljaild.runs import collection, death, delivery
from skilljaild.runs import run as module
from skilljaild.runs import sandbox as sandbox_module
from skilljaild.runs.admission import Admission
from skilljaild.runs.events import (
    Artifact,
    ArtifactChunk,
    Event,
    Finished,
    Outcome,
    Output,
    Phases,
    Queued,
    RunResult,
    RunState,
    SkippedArtifact,
    Started,
    Usage,
)
from skilljaild.runs.isolation import check_from_inside
from skilljaild.runs.pipe import EVENTS_MAX
from skilljaild.runs.run import Run, RunContext

from .facts import LIMITS, good_facts
from .fake_engine import EXITED, REPORT, Box, FakeEngine, Init, ready, serve_script, staged
from .open_gate import OpenGate
from .orders import SKILL_MD, make_order, put

IMAGE = Image("skilljail/python", "sha256:" + "a" * 64, {})
HELLO = (FrameType.STDOUT, b"hello\n")
EXIT = (FrameType.EXIT, EXITED)
DONE = (FrameType.DONE, b"")


@dataclasses.dataclass
class Bench:
    """An engine, a store and an admission; `run` makes a run on them."""

    engine: FakeEngine
    store: BlobStore
    admission: Admission
    gate: OpenGate = dataclasses.field(default_factory=OpenGate)

    def run(self, limits: Limits = LIMITS, files: list[BundleFile] | None = None, **fields: Any) -> Run:
        """A run that was admitted and does not go yet."""
        context = RunContext(self.engine, REPORT, "owner", self.admission, self.gate)
        return Run("run-1", "me", make_order(limits, files, **fields), IMAGE, self.store, context)

    def check_clean(self) -> None:
        """Nothing of any run is left: every sandbox that was made is destroyed once, every place is free again."""
        assert self.engine.live == {}
        assert len(self.engine.destroyed) == len(set(self.engine.destroyed)) == self.engine.calls.count("create")
        assert self.admission._free == [0]
        assert not self.admission._waiting
        assert all(blob.pins == 0 for blob in self.store._blobs.values())


@pytest.fixture
async def bench(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A daemon for one run at a time, two waiting."""
    monkeypatch.setattr(death, "DEATH_SECONDS", 0.3)
    one = Bench(FakeEngine(), BlobStore(tmp_path, 1 << 20), Admission(1, 2))
    yield one
    await one.engine.close()


async def finished(run: Run, seconds: float = 30) -> list[Event]:
    """Executes a run with somebody who listens, and returns its events."""
    execution = asyncio.create_task(run.execute())
    return await listened(run, execution, seconds)


async def listened(run: Run, execution: Awaitable[None], seconds: float = 30) -> list[Event]:
    """The events of a run that goes already."""
    events: list[Event] = []
    async with asyncio.timeout(seconds):
        while (event := await run.events.get()) is not None:
            events.append(event)
        await execution
    return events


def result_of(run: Run, events: list[Event]) -> RunResult:
    """The result of a run that was not refused: it comes once and last, and is what the run remembers."""
    assert run.refusal is None
    assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.result is run.result
    assert run.state is RunState.FINISHED
    assert run.over.is_set()
    assert run.finished is not None
    return last.result


def refusal_of(run: Run, events: list[Event]) -> Refusal:
    """Why a run was refused: then nothing follows what was told before, and the record says so too."""
    assert run.refusal is not None
    assert not any(isinstance(event, Finished | Started) for event in events)
    assert run.result is not None
    assert (run.result.outcome, run.result.message) == (Outcome.SANDBOX_ERROR, run.refusal.message)
    assert (run.result.exit_code, run.started) == (None, None)
    assert run.over.is_set()
    return run.refusal


# A run that goes well


async def test_a_run_tells_everything_in_order_and_leaves_nothing(bench: Bench) -> None:
    artifact = {"path": "out/a.txt", "size": 3, "executable": False}
    bench.engine.init = serve_script(
        HELLO,
        (FrameType.STDERR, b"why"),
        (FrameType.EXIT, EXITED | {"exit_code": 3}),
        (FrameType.ARTIFACT, artifact),
        (FrameType.DATA, b"abc"),
        (FrameType.SKIPPED, {"path": "link", "reason": "not_a_regular_file"}),
        (FrameType.DONE, {"skipped_omitted": 4}),
    )
    run = bench.run(argv=("--x",), env={"A": "1"}, stdin=b"in", artifact_patterns=("**",))
    assert run.state is RunState.QUEUED
    policy = run.order.policy
    events = await finished(run)
    result = result_of(run, events)
    verified = check_from_inside(good_facts(), LIMITS)
    assert events[:-1] == [
        Queued(0),
        Started(policy, IMAGE.digest, "skilljail-run-1", "runc", verified),
        Output(1, 0, b"hello\n"),
        Output(2, 0, b"why"),
        ArtifactChunk("out/a.txt", 0, b"abc"),
    ]
    assert dataclasses.replace(result, phases=Phases()) == RunResult(
        Outcome.EXITED,
        "The script exited with code 3.",
        exit_code=3,
        usage=Usage(0.5, 0.25, 1_000, 6, 3, output_truncated=False, oom_kills=0, pids_limit_hits=0, disk_full=False),
        artifacts=(Artifact("out/a.txt", 3, digest_of(b"abc"), "text/plain", executable=False),),
        skipped=(SkippedArtifact("link", "not_a_regular_file"),),
        skipped_omitted=4,
    )
    phases = dataclasses.astuple(result.phases)
    assert all(isinstance(seconds, float) and 0 <= seconds < 60 for seconds in phases)
    assert run.started is not None
    assert run.finished is not None
    assert run.created <= run.started <= run.finished
    assert bench.engine.calls == ["create", "verify", "stream", "stats", "destroy"]
    bench.check_clean()


async def test_init_is_told_what_to_stage_and_to_run(bench: Bench) -> None:
    uploaded = put(bench.store, b"from the store")
    file = BundleFile("data/big", uploaded, 14, executable=True)
    run = bench.run(files=[file], argv=("", "a b"), env={"A": "1"}, stdin=b"in", working_directory="data")
    env = run.order.env
    await finished(run)
    (box,) = bench.engine.boxes
    assert box.files == {"SKILL.md": SKILL_MD, "scripts/run.py": b"print(1)\n", "data/big": b"from the store"}
    assert box.orders["stage"]["directories"] == ["data", "scripts"]
    assert box.orders["stage"]["files"][2] == {
        "path": "data/big",
        "size": 14,
        "executable": True,
        "sha256": uploaded.removeprefix("sha256:"),
    }
    assert box.orders["start"] == {
        "argv": ["python3", "/work/skill/scripts/run.py", "", "a b"],
        "env": env,
        "cwd": "data",
        "wall_seconds": 10.0,
        "cpu_seconds": 5.0,
        "output_bytes": 1_000,
        "open_files": 256,
        "disk_bytes": LIMITS.disk_bytes,
        "pids": LIMITS.pids,
        "cpus": LIMITS.cpus,
        "disk_inodes": LIMITS.disk_inodes,
        "egress": False,
        "artifact_patterns": [],
        "artifact_count": 3,
        "artifact_bytes": 100_000,
        "stdin_bytes": 2,
    }
    assert box.stdin == b"in"
    bench.check_clean()


async def test_a_sandbox_carries_its_owner_its_run_and_a_deadline_beyond_the_run(bench: Bench) -> None:
    await finished(bench.run())
    (spec,) = bench.engine.specs
    assert dataclasses.replace(spec, deadline=0) == SandboxSpec("owner", "run-1", 0, IMAGE.digest, LIMITS)
    longest = LIMITS.wall_seconds + collection.COLLECT_SECONDS
    assert time.time() + longest < spec.deadline < time.time() + longest + 300


@pytest.mark.parametrize(
    ("fields", "engine_oom", "outcome", "exit_code", "number"),
    [
        ({"exit_code": 1, "oom_kills": 1}, False, Outcome.OOM_KILLED, 1, None),
        ({"cause": "signaled", "exit_code": None, "signal": 9}, True, Outcome.OOM_KILLED, None, 9),
        ({"cause": "signaled", "exit_code": None, "signal": 11}, False, Outcome.SIGNALED, None, 11),
        ({"cause": "wall_timeout", "exit_code": None, "signal": 9}, False, Outcome.WALL_TIMEOUT, None, 9),
        # It ended by itself while init was about to kill it: the exit code says nothing then.
        ({"cause": "wall_timeout", "exit_code": 0}, False, Outcome.WALL_TIMEOUT, None, None),
        ({"cause": "output_limit", "exit_code": 0}, False, Outcome.OUTPUT_LIMIT, None, None),
        ({"exit_code": 1, "pids_limit_hits": 5}, False, Outcome.PIDS_LIMIT, 1, None),
    ],
)
async def test_the_end_that_init_tells_becomes_the_result(
    bench: Bench,
    fields: dict[str, object],
    engine_oom: bool,
    outcome: Outcome,
    exit_code: int | None,
    number: int | None,
) -> None:
    bench.engine.oom_killed = engine_oom
    bench.engine.init = serve_script(HELLO, (FrameType.EXIT, EXITED | fields), DONE)
    run = bench.run()
    result = result_of(run, await finished(run))
    assert (result.outcome, result.exit_code, result.signal) == (outcome, exit_code, number)
    assert result.usage.stdout_bytes == 6
    bench.check_clean()


# Could not run: a refusal, and nothing ran


async def gone(box: Box) -> None:
    """Ends its stream at once."""
    box.stream.end()


async def fatal(box: Box) -> None:
    """Gives up at once."""
    box.say(FrameType.FATAL, {"message": "no memory"})


async def exposed(box: Box) -> None:
    """Comes up in a sandbox with a network."""
    box.say(FrameType.READY, {"isolation": good_facts(box.spec.limits) | {"interfaces": ["lo", "eth0"]}})


async def does_not_stage(box: Box) -> None:
    """Comes up, and dies while it takes the skill."""
    await ready(box)
    await box.hear(FrameType.STAGE)
    box.stream.end()


async def stages_badly(box: Box) -> None:
    """Comes up, and gives up on the skill."""
    await ready(box)
    await box.hear(FrameType.STAGE)
    box.say(FrameType.FATAL, {"message": "disk full"})


@pytest.mark.parametrize(
    ("init", "reason", "message"),
    [
        (gone, Reason.SANDBOX_UNAVAILABLE, "the sandbox failed before the script started: the sandbox's stream ended"),
        (fatal, Reason.SANDBOX_UNAVAILABLE, "the sandbox failed before the script started: init gave up: no memory"),
        (
            exposed,
            Reason.ISOLATION_POSTURE,
            "seen from inside the sandbox, this does not hold: no network interface but loopback. Nothing was run.",
        ),
        (
            does_not_stage,
            Reason.SANDBOX_UNAVAILABLE,
            "the sandbox failed before the script started: the sandbox's stream ended",
        ),
        (
            stages_badly,
            Reason.SANDBOX_UNAVAILABLE,
            "the sandbox failed before the script started: init gave up: disk full",
        ),
    ],
)
async def test_a_sandbox_that_fails_before_the_script_is_a_refusal(
    bench: Bench, init: Init, reason: Reason, message: str
) -> None:
    bench.engine.init = init
    run = bench.run()
    refusal = refusal_of(run, await finished(run))
    assert (refusal.reason, refusal.message) == (reason, message)
    assert refusal.retry_seconds == (5 if reason is Reason.SANDBOX_UNAVAILABLE else None)
    bench.check_clean()


@pytest.mark.parametrize("method", ["create", "verify", "stream"])
@pytest.mark.parametrize(
    ("fault", "reason", "retry_seconds"),
    [
        (EngineUnavailable("no engine answers"), Reason.ENGINE_UNAVAILABLE, 5),
        (EngineError("the engine refused"), Reason.SANDBOX_UNAVAILABLE, 5),
        (ImageMissing("no such image"), Reason.INTERPRETER_UNAVAILABLE, None),
        (IsolationError("the engine did not apply: no swap"), Reason.ISOLATION_POSTURE, None),
    ],
)
async def test_an_engine_that_fails_before_the_script_is_a_refusal(
    bench: Bench, method: str, fault: Exception, reason: Reason, retry_seconds: float | None
) -> None:
    bench.engine.faults[method] = fault
    run = bench.run()
    refusal = refusal_of(run, await finished(run))
    assert (refusal.reason, refusal.message, refusal.retry_seconds) == (reason, str(fault), retry_seconds)
    # What could not be made is not destroyed; what was made is.
    assert bench.engine.destroyed == ([] if method == "create" else ["skilljail-run-1"])
    assert bench.engine.live == {}
    assert bench.admission._free == [0]


async def test_a_fault_of_ours_is_internal_and_tells_only_its_kind(bench: Bench) -> None:
    bench.engine.faults["verify"] = ZeroDivisionError("secret")
    run = bench.run()
    refusal = refusal_of(run, await finished(run))
    assert (refusal.reason, refusal.message) == (
        Reason.INTERNAL,
        "the daemon has a fault (ZeroDivisionError); its log tells more",
    )
    bench.check_clean()


async def test_a_sandbox_that_does_not_come_up_in_time_is_a_refusal(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "READY_SECONDS", 0.05)
    bench.engine.init = lambda _: asyncio.sleep(0)
    run = bench.run()
    refusal = refusal_of(run, await finished(run))
    assert refusal.reason is Reason.SANDBOX_UNAVAILABLE
    assert refusal.message == "the sandbox did not come up within 0.05 s; is the host overloaded?"
    bench.check_clean()


async def test_a_skill_that_was_dropped_while_the_run_waited_is_missing_and_nothing_is_made(bench: Bench) -> None:
    file = BundleFile("x", digest_of(b"gone"), 4, executable=False)
    run = bench.run(files=[file])
    refusal = refusal_of(run, await finished(run))
    assert refusal.reason is Reason.BUNDLE_MISSING
    assert [one.subject for one in refusal.missing] == [digest_of(b"gone")]
    assert bench.engine.calls == []
    bench.check_clean()


async def test_a_blob_that_the_disk_spoilt_is_missing(bench: Bench) -> None:
    digest = put(bench.store, b"good")
    (bench.store._directory / digest.removeprefix("sha256:")).write_bytes(b"bad!")
    run = bench.run(files=[BundleFile("x", digest, 4, executable=False)])
    refusal = refusal_of(run, await finished(run))
    assert refusal.reason is Reason.BUNDLE_MISSING
    bench.check_clean()


async def test_a_sandbox_that_cannot_be_destroyed_does_not_change_the_result(bench: Bench) -> None:
    bench.engine.faults["destroy"] = EngineUnavailable("away")
    run = bench.run()
    assert result_of(run, await finished(run)).outcome is Outcome.EXITED
    assert bench.engine.destroyed == ["skilljail-run-1"]


# Ran and failed: a result


async def test_a_command_that_cannot_be_executed_is_start_failed(bench: Bench) -> None:
    async def init(box: Box) -> None:
        await staged(box)
        await box.hear(FrameType.START)
        box.say(FrameType.FAILED, {"errno": 2, "message": "No such file or directory"})

    bench.engine.init = init
    run = bench.run()
    result = result_of(run, await finished(run))
    assert (result.outcome, result.exit_code) == (Outcome.START_FAILED, None)
    assert result.message == "python3 could not be started in the sandbox: No such file or directory"
    bench.check_clean()


@pytest.mark.parametrize(
    ("after", "what"),
    [
        ([HELLO], "the sandbox's stream ended"),
        ([HELLO, (FrameType.DATA, b"x")], "DATA frame where STDOUT/STDERR/EXIT was due"),
        ([HELLO, (FrameType.STDOUT, b"x" * 995)], "more output than init may pass on"),
        ([HELLO, (FrameType.FATAL, {"message": "why"})], "init gave up: why"),
        ([HELLO, (FrameType.EXIT, EXITED | {"exit_code": 999})], "an EXIT frame with an impossible status"),
    ],
)
async def test_a_sandbox_that_is_lost_while_the_script_runs_is_sandbox_error_without_an_exit_code(
    bench: Bench, after: list[Any], what: str
) -> None:
    bench.engine.init = serve_script(*after, end=True)
    run = bench.run()
    result = result_of(run, await finished(run))
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.SANDBOX_ERROR, None, None)
    assert result.message == f"The sandbox was lost while the script ran: {what}."
    assert result.usage.stdout_bytes == 6
    bench.check_clean()


async def test_a_sandbox_that_died_of_memory_is_oom_killed(bench: Bench) -> None:
    bench.engine.oom_killed = True
    bench.engine.init = serve_script(HELLO, end=True)
    run = bench.run()
    result = result_of(run, await finished(run))
    assert (result.outcome, result.exit_code) == (Outcome.OOM_KILLED, None)
    assert result.message == (
        "The script needed more memory than 268,435,456 bytes (memory_bytes); the whole sandbox died."
    )
    bench.check_clean()


async def test_an_engine_that_tells_of_a_death_of_memory_a_moment_later_is_asked_again(bench: Bench) -> None:
    async def late(sandbox_id: str) -> SandboxStats:
        assert sandbox_id == "skilljail-run-1"
        bench.engine.calls.append("stats")
        return SandboxStats(running=False, oom_killed=bench.engine.calls.count("stats") == 3)

    bench.engine.stats = late  # type: ignore[method-assign]
    bench.engine.init = serve_script(HELLO, end=True)
    run = bench.run()
    assert result_of(run, await finished(run)).outcome is Outcome.OOM_KILLED
    assert bench.engine.calls.count("stats") == 3
    bench.check_clean()


@pytest.mark.parametrize("end", [False, True])
async def test_an_engine_that_cannot_tell_about_memory_accuses_nobody(bench: Bench, end: bool) -> None:
    bench.engine.faults["stats"] = EngineUnavailable("away")
    bench.engine.init = serve_script(HELLO, end=True) if end else serve_script(HELLO, EXIT, DONE)
    run = bench.run()
    outcome = result_of(run, await finished(run)).outcome
    assert outcome is (Outcome.SANDBOX_ERROR if end else Outcome.EXITED)
    bench.check_clean()


@pytest.mark.parametrize(
    "after",
    [
        [],
        [EXIT],
        [(FrameType.ARTIFACT, {"path": "../x", "size": 1})],
        [(FrameType.ARTIFACT, {"path": "x", "size": 10**9})],
        [(FrameType.FATAL, {"message": "why"})],
    ],
)
async def test_artifacts_that_cannot_be_collected_are_told_and_leave_the_end_of_the_script_as_it_was(
    bench: Bench, after: list[Any]
) -> None:
    bench.engine.init = serve_script(HELLO, EXIT, *after, end=True)
    run = bench.run()
    result = result_of(run, await finished(run))
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert result.message.startswith("The script exited with code 0. Its artifacts could not all be delivered: ")
    assert (result.artifacts, result.skipped) == ((), (SkippedArtifact(".", "unreadable"),))
    assert (result.usage.wall_seconds, result.usage.stdout_bytes) == (0.5, 6)
    bench.check_clean()


async def test_artifacts_that_came_before_the_fault_are_delivered(bench: Bench) -> None:
    bench.engine.init = serve_script(
        EXIT,
        (FrameType.ARTIFACT, {"path": "a", "size": 1}),
        (FrameType.DATA, b"x"),
        (FrameType.ARTIFACT, {"path": "b", "size": 2}),
        (FrameType.DATA, b"y"),
        end=True,
    )
    run = bench.run()
    result = result_of(run, await finished(run))
    assert [one.path for one in result.artifacts] == ["a"]
    assert result.skipped == (SkippedArtifact(".", "unreadable"),)


async def test_collecting_without_end_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "COLLECT_SECONDS", 0.05)
    monkeypatch.setattr(collection, "COLLECT_BYTES_PER_SECOND", 1e12)
    bench.engine.init = serve_script(EXIT)
    run = bench.run()
    result = result_of(run, await finished(run))
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert result.message.endswith("Its artifacts could not all be delivered: the caller took too long to take them.")
    assert result.skipped == (SkippedArtifact(".", "time_limit"),)
    bench.check_clean()


SHORT = dataclasses.replace(LIMITS, wall_seconds=0.05, output_bytes=10_000_000)


async def test_an_init_that_does_not_end_the_script_in_time_is_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "WALL_GRACE_SECONDS", 0.02)
    monkeypatch.setattr(delivery, "LAST_WORD_SECONDS", 0.05)
    bench.engine.init = serve_script(HELLO)
    run = bench.run(SHORT)
    result = result_of(run, await finished(run))
    assert (result.outcome, result.exit_code) == (Outcome.WALL_TIMEOUT, None)
    assert result.message == "The script ran longer than 0.05 s (wall_time) and its sandbox was killed."
    assert result.usage.stdout_bytes == 6
    bench.check_clean()


async def test_a_caller_that_reads_slowly_gets_everything_and_the_true_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "WALL_GRACE_SECONDS", 0.02)
    bench.engine.init = serve_script(*[HELLO] * (3 * EVENTS_MAX), EXIT, DONE)
    run = bench.run(SHORT)
    # Nobody reads until it is over: the sandbox does not wait for that.
    await asyncio.wait_for(run.execute(), 30)
    bench.check_clean()
    result = result_of(run, events := await listened(run, asyncio.sleep(0)))
    assert (result.outcome, result.usage.stdout_bytes) == (Outcome.EXITED, 6 * 3 * EVENTS_MAX)
    output = [event for event in events if isinstance(event, Output)]
    assert [event.offset for event in output] == list(range(0, 6 * 3 * EVENTS_MAX, 6))


# Cancelled, at every stage


def at_gate(method: str) -> Callable[[Bench], asyncio.Event]:
    """The run stands in a call to the engine, whose work is done and whose answer is on its way."""

    def prepare(bench: Bench) -> asyncio.Event:
        bench.engine.gates[method] = asyncio.Event()
        return bench.engine.reached[method]

    return prepare


def at_init(make: Callable[[Init], Init]) -> Callable[[Bench], asyncio.Event]:
    """The run waits for init."""

    def prepare(bench: Bench) -> asyncio.Event:
        reached = asyncio.Event()

        async def reach(_: Box) -> None:
            reached.set()

        bench.engine.init = make(reach)
        return reached

    return prepare


def silent(reach: Init) -> Init:
    """Does not come up."""
    return reach


def while_staging(reach: Init) -> Init:
    """Comes up and does not take the skill."""

    async def init(box: Box) -> None:
        await ready(box)
        await box.hear(FrameType.STAGE)
        await reach(box)

    return init


def before_started(reach: Init) -> Init:
    """Takes the skill and does not start the script."""

    async def init(box: Box) -> None:
        await staged(box)
        await box.hear(FrameType.START)
        await reach(box)

    return init


def while_running(reach: Init) -> Init:
    """Starts the script, which writes and goes on."""

    async def hook(box: Box) -> None:
        box.say(*HELLO)
        await asyncio.sleep(0.02)
        await reach(box)

    return serve_script(hook=hook)


def while_collecting(reach: Init) -> Init:
    """Ends the script and does not send what it made."""

    async def hook(box: Box) -> None:
        box.say(*HELLO)
        box.say(*EXIT)
        await asyncio.sleep(0.02)
        await reach(box)

    return serve_script(hook=hook)


STAGES: dict[str, tuple[Callable[[Bench], asyncio.Event], RunState, tuple[str, ...]]] = {
    "creating": (at_gate("create"), RunState.STARTING, ("queued",)),
    "verifying": (at_gate("verify"), RunState.STARTING, ("queued",)),
    "attaching": (at_gate("stream"), RunState.STARTING, ("queued",)),
    "coming up": (at_init(silent), RunState.STARTING, ("queued",)),
    "staging": (at_init(while_staging), RunState.STARTING, ("queued", "claimed")),
    "starting": (at_init(before_started), RunState.RUNNING, ("queued", "claimed", "staged", "running")),
    "running": (at_init(while_running), RunState.RUNNING, ("queued", "claimed", "staged", "running")),
    "collecting": (at_init(while_collecting), RunState.COLLECTING, ("queued", "claimed", "staged", "running")),
}
INTERRUPTIONS = {
    Outcome.CANCELLED: "The run was cancelled.",
    Outcome.CLIENT_DISCONNECTED: "The caller went away.",
    Outcome.SHUTDOWN: "The daemon was stopped.",
}


@pytest.mark.parametrize("outcome", INTERRUPTIONS)
@pytest.mark.parametrize("stage", STAGES)
async def test_a_run_can_be_ended_at_every_stage_and_leaves_nothing(bench: Bench, stage: str, outcome: Outcome) -> None:
    prepare, state, phases = STAGES[stage]
    reached = prepare(bench)
    run = bench.run()
    execution = asyncio.create_task(run.execute())
    await asyncio.wait_for(reached.wait(), 30)
    await asyncio.sleep(0.02)
    assert run.state is state
    run.end(outcome)
    run.end(Outcome.SHUTDOWN)  # the first one counts
    await asyncio.sleep(0)
    for gate in bench.engine.gates.values():
        gate.set()
    result = result_of(run, await listened(run, execution))
    assert (result.outcome, result.message) == (outcome, INTERRUPTIONS[outcome])
    assert (result.exit_code, result.signal, result.artifacts) == (None, None, ())
    assert result.usage.stdout_bytes == (6 if stage in {"running", "collecting"} else 0)
    assert tuple(name for name, value in dataclasses.asdict(result.phases).items() if value is not None) == phases
    bench.check_clean()


async def test_a_run_that_is_ended_in_the_queue_makes_nothing(bench: Bench) -> None:
    ahead = bench.admission.admit()
    run = bench.run()
    execution = asyncio.create_task(run.execute())
    assert await run.events.get() == Queued(1)
    run.end(Outcome.CANCELLED)
    result = result_of(run, await listened(run, execution))
    assert (result.outcome, result.usage) == (Outcome.CANCELLED, Usage())
    assert dataclasses.astuple(result.phases) == (None,) * 5
    assert bench.engine.calls == []
    bench.admission.release(ahead)
    bench.check_clean()


async def test_a_run_that_is_ended_before_it_goes_makes_nothing(bench: Bench) -> None:
    run = bench.run()
    run.end(Outcome.SHUTDOWN)
    result = result_of(run, await finished(run))
    assert result.outcome is Outcome.SHUTDOWN
    assert bench.engine.calls == []
    bench.check_clean()


async def test_ending_a_run_that_is_over_changes_nothing(bench: Bench) -> None:
    run = bench.run()
    result = result_of(run, await finished(run))
    run.end(Outcome.CANCELLED)
    assert run.result is result
    assert result.outcome is Outcome.EXITED


async def test_a_sandbox_whose_making_fails_after_a_cancel_is_not_destroyed(bench: Bench) -> None:
    bench.engine.gates["create"] = asyncio.Event()
    bench.engine.faults["create"] = EngineError("failed late")
    run = bench.run()
    execution = asyncio.create_task(run.execute())
    await bench.engine.reached["create"].wait()
    run.end(Outcome.CANCELLED)
    await asyncio.sleep(0)
    bench.engine.gates["create"].set()
    assert result_of(run, await listened(run, execution)).outcome is Outcome.CANCELLED
    assert bench.engine.destroyed == []


async def test_a_run_is_over_only_when_its_sandbox_is_destroyed(bench: Bench) -> None:
    bench.engine.gates["destroy"] = asyncio.Event()
    run = bench.run()
    execution = asyncio.create_task(run.execute())
    await asyncio.wait_for(bench.engine.reached["destroy"].wait(), 30)
    await asyncio.sleep(0.02)
    assert not run.over.is_set()
    # Nobody can hurry that: the sandbox is dead first.
    run.end(Outcome.CANCELLED)
    await asyncio.sleep(0.02)
    assert not run.over.is_set()
    bench.engine.gates["destroy"].set()
    # How the script ended was known before, and stays.
    result = result_of(run, await listened(run, execution))
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    bench.check_clean()


async def test_a_run_that_is_over_keeps_nothing_of_its_request(bench: Bench) -> None:
    run = bench.run(env={"TOKEN": "secret"}, argv=("--token=secret",), stdin=b"secret")
    await finished(run)
    with pytest.raises(RuntimeError):
        _ = run.order
    assert run.policy.command == ()
    assert run.policy.limits == LIMITS


async def test_the_next_run_starts_when_the_one_before_is_over(bench: Bench) -> None:
    first, second = bench.run(), bench.run()
    second.run_id = "run-2"
    bench.engine.gates["destroy"] = asyncio.Event()
    executions = [asyncio.create_task(one.execute()) for one in (first, second)]
    await asyncio.wait_for(bench.engine.reached["destroy"].wait(), 30)
    assert await second.events.get() == Queued(1)
    await asyncio.sleep(0.02)
    assert (second.state, bench.engine.calls.count("create")) == (RunState.QUEUED, 1)
    bench.engine.gates["destroy"].set()
    assert result_of(first, await listened(first, executions[0])).outcome is Outcome.EXITED
    result = result_of(second, await listened(second, executions[1]))
    assert result.outcome is Outcome.EXITED
    assert result.phases.queued is not None
    assert result.phases.queued >= 0.02
    bench.check_clean()


async def test_a_fault_of_ours_after_the_start_is_a_result_and_no_refusal(bench: Bench) -> None:
    """Something ran: the caller must not be told to try again under the same name."""

    async def broken(sandbox_id: str) -> SandboxStats:
        raise ZeroDivisionError(sandbox_id)

    bench.engine.stats = broken  # type: ignore[method-assign]
    bench.engine.init = serve_script(HELLO, EXIT, DONE)
    run = bench.run()
    result = result_of(run, await finished(run))
    assert (result.outcome, result.exit_code, result.usage.stdout_bytes) == (Outcome.SANDBOX_ERROR, None, 6)
    assert result.message == "the daemon has a fault (ZeroDivisionError); its log tells more"
    bench.check_clean()


async def test_the_names_of_skipped_files_are_bounded_together(bench: Bench) -> None:
    """A finished run is remembered for long, and a hostile script chooses its names."""
    skipped = [(FrameType.SKIPPED, {"path": f"{number:01000}", "reason": "unsafe_name"}) for number in range(100)]
    bench.engine.init = serve_script(EXIT, *skipped, DONE)
    run = bench.run()
    result = result_of(run, await finished(run))
    assert (len(result.skipped), result.skipped_omitted) == (65, 35)


async def test_a_request_counts_with_its_unfolded_bundle(bench: Bench) -> None:
    files = [BundleFile(f"file-{number}", put(bench.store, b"x"), 1, executable=False) for number in range(50)]
    assert make_order(files=files).size > make_order().size + 50 * 500


@pytest.mark.parametrize("stage", ["staging", "starting"])
async def test_a_sandbox_that_does_not_answer_is_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(module, "STAGE_SECONDS", 0.1)
    STAGES[stage][0](bench)
    run = bench.run()
    events = await finished(run)
    if stage == "staging":
        refusal = refusal_of(run, events)
        assert refusal.reason is Reason.SANDBOX_UNAVAILABLE
        assert refusal.message == "staging the skill took longer than 0.1 s; is the host overloaded?"
    else:
        result = result_of(run, events)
        assert (result.outcome, result.exit_code) == (Outcome.SANDBOX_ERROR, None)
        assert "starting the script took longer than 0.1 s" in result.message
    bench.check_clean()


async def test_the_gate_is_asked_in_the_runs_own_place_before_anything_is_made(bench: Bench) -> None:
    run = bench.run()
    result = result_of(run, await finished(run))
    assert result.outcome is Outcome.EXITED
    assert bench.gate.asked == [("python", IMAGE.digest, 0)]
    bench.check_clean()


async def test_what_the_gate_refuses_is_not_run(bench: Bench) -> None:
    bench.gate.refusal = Refusal(Reason.ISOLATION_POSTURE, "its self-test failed")
    run = bench.run()
    assert [type(event) for event in await finished(run)] == [Queued]
    assert run.refusal is bench.gate.refusal
    assert bench.engine.specs == []
    bench.check_clean()


async def test_a_sandbox_below_the_demanded_level_runs_nothing(bench: Bench) -> None:
    bench.gate.below = "its isolation is container. Nothing was run."
    run = bench.run()
    assert [type(event) for event in await finished(run)] == [Queued]
    assert run.refusal is not None
    assert (run.refusal.reason, run.refusal.message) == (Reason.ISOLATION_POSTURE, bench.gate.below)
    assert bench.engine.boxes[0].files == {}
    bench.check_clean()


async def test_a_sandbox_that_is_not_destroyed_keeps_its_place_and_its_user(bench: Bench) -> None:
    bench.engine.faults["destroy"] = EngineError("it is frozen")
    run = bench.run()
    await finished(run)
    assert bench.admission.lost() == {run.run_id}
    assert bench.admission.admit().position == 1
