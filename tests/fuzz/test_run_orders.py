"""A run's life in any order: an engine that fails or hangs at any call, an init that says anything, callers that leave.

All in one thread with a clock of its own, so that thousands of lives take seconds and each can be lived again.
"""

import asyncio
import concurrent.futures
import dataclasses
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from skilljail_init.frames import FrameType
from skilljaild.bundles.bundle import BundleFile
from skilljaild.bundles.digest import digest_of
from skilljaild.bundles.store import BlobStore
from skilljaild.engines.base import (
    ByteStream,
    EngineError,
    EngineUnavailable,
    Image,
    ImageMissing,
    IsolationError,
    OwnedSandbox,
    SandboxSpec,
    SandboxStats,
)
from skilljaild.errors import Reason, Refusal
from skilljaild.reaper import Reaper
from skilljaild.runs.admission import Admission
from skilljaild.runs.events import Event, Finished, Outcome, Queued, RunResult, RunState, Started
from skilljaild.runs.outcome import WITH_EXIT_CODE
from skilljaild.runs.registry import RunRegistry
from skilljaild.runs.run import Run, RunContext
from unit.daemon.facts import LIMITS, good_facts
from unit.daemon.fake_engine import EXITED, REPORT, FakeStream
from unit.daemon.open_gate import OpenGate
from unit.daemon.orders import make_order, put

from . import hunt
from .conversations import FROM_INIT
from .mutation import Said, framed, mutated_frames

T = TypeVar("T")

CONCURRENT, QUEUED, REMEMBERED = 2, 2, 3
TURNS = 60
"""Of the loop after each step: more than any chain of awaits between two things that a rule decides."""
IMAGE = Image("skilljail/python", digest_of(b"image"), {})
FAULTS: list[Exception] = [
    EngineError("the engine refused"),
    EngineUnavailable("no engine answers"),
    ImageMissing("no such image"),
    IsolationError("no swap limit"),
    ZeroDivisionError("a fault of ours"),
]
INTERRUPTIONS = {Outcome.CANCELLED, Outcome.CLIENT_DISCONNECTED, Outcome.SHUTDOWN}


class AtOnce(concurrent.futures.ThreadPoolExecutor):
    """Does in place what is meant for a thread."""

    def submit(self, fn: Callable[..., T], /, *arguments: Any, **fields: Any) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            future.set_result(fn(*arguments, **fields))
        except Exception as error:  # noqa: BLE001  as an executor does
            future.set_exception(error)
        return future


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__()
        self.set_default_executor(AtOnce())

    def time(self) -> float:
        return self.now


@dataclasses.dataclass
class Call:
    """A call to the engine that waits for its answer."""

    method: str
    sandbox_id: str
    answer: "asyncio.Future[None]"


class SlowEngine:
    """An engine each of whose calls a rule answers."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.live: dict[str, SandboxSpec] = {}
        self.created: list[str] = []
        self.destroyed: set[str] = set()
        self.streams: dict[str, FakeStream] = {}
        self.oom_killed = False
        self.faults: list[str] = []
        """What should not have been asked for. An exception would be one of the engine's many."""

    async def _called(self, method: str, sandbox_id: str) -> None:
        call = Call(method, sandbox_id, asyncio.get_running_loop().create_future())
        self.calls.append(call)
        try:
            await call.answer
        finally:
            if call in self.calls:
                self.calls.remove(call)

    async def create(self, spec: SandboxSpec) -> str:
        sandbox_id = f"skilljail-{spec.run_id}"
        if sandbox_id in self.created or spec.place in {one.place for one in self.live.values()}:
            self.faults.append(f"a second sandbox of {sandbox_id} or of place {spec.place}")
        await self._called("create", sandbox_id)
        self.live[sandbox_id] = spec
        self.created.append(sandbox_id)
        return sandbox_id

    async def verify(self, sandbox_id: str, spec: SandboxSpec) -> None:
        if self.live.get(sandbox_id) is not spec:
            self.faults.append(f"{sandbox_id} is verified as another than it was made")
        await self._called("verify", sandbox_id)

    async def stream(self, sandbox_id: str) -> ByteStream:
        await self._called("stream", sandbox_id)
        self.streams[sandbox_id] = FakeStream()
        return self.streams[sandbox_id]

    async def stats(self, sandbox_id: str) -> SandboxStats:
        await self._called("stats", sandbox_id)
        return SandboxStats(running=sandbox_id in self.live, oom_killed=self.oom_killed)

    async def destroy(self, sandbox_id: str) -> None:
        self.destroyed.add(sandbox_id)
        try:
            await self._called("destroy", sandbox_id)
        except asyncio.CancelledError:
            self.faults.append(f"nobody waits for the end of {sandbox_id}")
            raise
        self.live.pop(sandbox_id, None)
        if sandbox_id in self.streams:
            self.streams.pop(sandbox_id).end()

    async def list_owned(self, owner: str) -> tuple[OwnedSandbox, ...]:
        await self._called("list_owned", owner)
        return tuple(OwnedSandbox(name, spec.run_id, spec.deadline) for name, spec in self.live.items())


@dataclasses.dataclass
class Caller:
    """Somebody who started a run, and what was seen of it."""

    run: Run
    said: list[Said]
    """What init will say."""
    events: list[Event | None] = dataclasses.field(default_factory=list)
    reading: "asyncio.Task[Event | None] | None" = None
    left: bool = False
    asked_to_end: set[Outcome] = dataclasses.field(default_factory=set)
    result: RunResult | None = None
    state: RunState = RunState.QUEUED
    exit_codes: set[int] = dataclasses.field(default_factory=set)
    """What init told."""


class Orders(RuleBasedStateMachine):
    """The daemon's runs between callers and an engine."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="skilljail-test-"))
        self.store = BlobStore(self.directory, 1 << 20)
        self.blob = put(self.store, b"content")
        self.engine = SlowEngine()
        self.admission = Admission(CONCURRENT, QUEUED)
        self.registry = RunRegistry(REMEMBERED)
        self.reaper = Reaper(self.engine, "owner", self.admission, self.registry)  # type: ignore[arg-type]
        self.context = RunContext(self.engine, REPORT, "owner", self.admission, OpenGate())  # type: ignore[arg-type]
        self.callers: list[Caller] = []
        self.sweeps: list[asyncio.Task[int]] = []
        self.closing: asyncio.Task[None] | None = None
        self.faults: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, fault: self.faults.append(fault))

    def turn(self, seconds: float = 0.0) -> None:
        """Lets everything happen that can, after so much time."""
        self.loop.now += seconds

        async def spin() -> None:
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self.loop.run_until_complete(spin())
        for caller in self.callers:
            if caller.reading is not None and caller.reading.done():
                caller.events.append(caller.reading.result())
                caller.reading = None

    def task(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Starts something."""
        return self.loop.create_task(work)

    @initialize(memory=st.booleans())
    def begin(self, memory: bool) -> None:
        """Whether the engine says that sandboxes ran out of memory."""
        self.engine.oom_killed = memory

    # Callers

    @rule(
        scene=st.sampled_from([0, 0, 0, *range(len(FROM_INIT))]),
        dropped=st.integers(0, 9),
        name=st.sampled_from(["", "", "", "a"]),
    )
    def start(self, scene: int, dropped: int, name: str) -> None:
        """Somebody asks for a run."""
        digest = digest_of(b"was dropped") if dropped == 9 else self.blob
        order = make_order(LIMITS, [BundleFile("data", digest, 7, executable=False)], request_id=name, stdin=b"in")

        async def begin() -> Run:
            return self.registry.start(
                "me", name, lambda run_id: Run(run_id, "me", order, IMAGE, self.store, self.context)
            )

        under_way = [one for one in self.callers if not one.run.over.is_set()]
        try:
            run = self.loop.run_until_complete(begin())
        except Refusal as refusal:
            match refusal.reason:
                case Reason.QUEUE_FULL:
                    assert len(under_way) >= CONCURRENT + QUEUED
                case Reason.REQUEST_ID_IN_USE:
                    assert any(one.run.request_id == name for one in self.callers)
                case reason:
                    assert (reason, self.closing is not None) == (Reason.SHUTTING_DOWN, True)
            self.turn()
            return
        self.callers.append(Caller(run, list(FROM_INIT[scene])))
        self.turn()

    @precondition(lambda self: self.callers)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """A caller takes the next event, or waits for it."""
        caller = self.callers[data.draw(st.integers(0, len(self.callers) - 1))]
        if caller.reading is None and not caller.left and None not in caller.events:
            caller.reading = self.task(caller.run.events.get())
        self.turn()

    @precondition(lambda self: self.callers)
    @rule(data=st.data(), outcome=st.sampled_from(sorted(INTERRUPTIONS, key=lambda one: one.value)))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        """A run is cancelled, its caller leaves, or the daemon gives it up."""
        caller = self.callers[data.draw(st.integers(0, len(self.callers) - 1))]
        if not caller.run.over.is_set():
            caller.asked_to_end.add(outcome)
        caller.run.end(outcome)
        if outcome is Outcome.CLIENT_DISCONNECTED:
            caller.left = True
            if caller.reading is not None:
                caller.reading.cancel()
                caller.reading = None
            self.task(caller.run.events.abandon())
        if data.draw(st.booleans()):
            self.turn()

    # The engine

    @rule(steps=st.integers(1, 15))
    def go_on(self, steps: int) -> None:
        """All is well for some steps: the engine answers, and the inits say what comes next."""
        for _ in range(steps):
            for call in list(self.engine.calls):
                self._answer(call)
            for caller in self.callers:
                if f"skilljail-{caller.run.run_id}" in self.engine.streams:
                    self._say(caller, 1)
            self.turn()

    @precondition(lambda self: self.engine.calls)
    @rule(data=st.data(), fault=st.none() | st.none() | st.none() | st.sampled_from(FAULTS))
    def answer(self, data: st.DataObject, fault: Exception | None) -> None:
        """The engine answers a call."""
        self._answer(self.engine.calls[data.draw(st.integers(0, len(self.engine.calls) - 1))], fault)
        self.turn()

    def _answer(self, call: Call, fault: Exception | None = None) -> None:
        if call.answer.done():
            return
        # What the reaper is promised: only what the engine itself may raise there.
        if fault is not None and (call.method != "destroy" or isinstance(fault, EngineError)):
            call.answer.set_exception(fault)
        else:
            call.answer.set_result(None)

    @rule()
    def sweep(self) -> None:
        """The reaper looks around."""
        self.sweeps.append(self.task(self.reaper.sweep()))
        self.turn()

    # init

    @precondition(lambda self: self.engine.streams)
    @rule(data=st.data(), count=st.integers(1, 12))
    def speak(self, data: st.DataObject, count: int) -> None:
        """An init says what comes next."""
        self._say(self._speaker(data)[0], count)
        self.turn()

    def _say(self, caller: Caller, count: int) -> None:
        stream = self.engine.streams[f"skilljail-{caller.run.run_id}"]
        for _ in range(min(count, len(caller.said))):
            kind, value = caller.said.pop(0)
            if kind is FrameType.READY:
                spec = self.engine.live[f"skilljail-{caller.run.run_id}"]
                value = {"isolation": good_facts(spec.limits, spec.place)}
            if kind is FrameType.EXIT and isinstance(value, dict) and value["exit_code"] is not None:
                caller.exit_codes.add(value["exit_code"])
            stream.put(framed([(kind, value)]))

    @precondition(lambda self: self.engine.streams)
    @rule(data=st.data(), said=mutated_frames([FROM_INIT[0][3:], [(FrameType.EXIT, EXITED | {"exit_code": 3})]]))
    def speak_wrongly(self, data: st.DataObject, said: bytes) -> None:
        """An init says something else."""
        caller, stream = self._speaker(data)
        caller.exit_codes |= set(range(256))
        stream.put(said)
        self.turn()

    @precondition(lambda self: self.engine.streams)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        """A sandbox dies."""
        self._speaker(data)[1].end()
        self.turn()

    def _speaker(self, data: st.DataObject) -> tuple[Caller, FakeStream]:
        name = data.draw(st.sampled_from(sorted(self.engine.streams)))
        caller = next(one for one in self.callers if name == f"skilljail-{one.run.run_id}")
        return caller, self.engine.streams[name]

    # Time and the daemon

    @rule(seconds=st.sampled_from([0.06, 0.06, 0.4, 0.4, 2.5, 2.5, 12.0, 70.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.turn(seconds)

    @precondition(lambda self: self.closing is None)
    @rule(grace_seconds=st.sampled_from([0.0, 5.0]), sure=st.integers(0, 9))
    def stop(self, grace_seconds: float, sure: int) -> None:
        """The daemon is stopped, not often."""
        if sure == 9:
            for caller in self.callers:
                caller.asked_to_end.add(Outcome.SHUTDOWN)
            self.closing = self.task(self.registry.close(grace_seconds))
        self.turn()

    # What must hold

    @invariant()
    def one_outcome(self) -> None:
        """A result is there once, and stays; a run only goes on."""
        for caller in self.callers:
            run = caller.run
            assert run.state >= caller.state
            caller.state = run.state
            if caller.result is None:
                caller.result = run.result
            assert run.result is caller.result
            assert (run.result is not None) == run.over.is_set() == (run.state is RunState.FINISHED)
            if run.result is not None:
                self._check_result(caller, run.result)
            self._check_events(caller)

    def _check_result(self, caller: Caller, result: RunResult) -> None:
        if result.outcome in INTERRUPTIONS:
            assert result.outcome in caller.asked_to_end
        if result.exit_code is not None:
            assert result.outcome in WITH_EXIT_CODE
            assert result.exit_code in caller.exit_codes, "an exit code that nobody told"
        if result.outcome is Outcome.EXITED:
            assert result.exit_code is not None
        if caller.run.refusal is not None:
            assert (result.outcome, result.exit_code, caller.run.started) == (Outcome.SANDBOX_ERROR, None, None)

    def _check_events(self, caller: Caller) -> None:
        events = [event for event in caller.events if event is not None]
        kinds = [type(event) for event in events]
        assert kinds[:1] in ([], [Queued])
        assert kinds.count(Queued) <= 1
        assert kinds.count(Started) <= 1
        assert None not in caller.events[:-1]
        ends = [event for event in events if isinstance(event, Finished)]
        if ends:
            assert ends == events[-1:]
            assert ends[0].result is caller.run.result
        if None in caller.events:
            assert bool(ends) == (caller.run.refusal is None)

    @invariant()
    def places_are_kept(self) -> None:
        """No more sandboxes than there are places, and each is somebody's."""
        free = self.admission._free
        assert len(free) == len(set(free))
        assert set(free) <= set(range(CONCURRENT))
        assert len(self.admission._waiting) <= QUEUED
        assert self.admission._held_bytes >= 0
        assert not [*self.faults, *self.engine.faults]
        assert len(self.registry._runs) <= REMEMBERED + CONCURRENT + QUEUED

    def teardown(self) -> None:
        """Everything is given up; then nothing may be left."""
        try:
            self._settle()
            self.one_outcome()
            self.places_are_kept()
            assert all(caller.run.over.is_set() for caller in self.callers)
            assert sorted(self.admission._free) == list(range(CONCURRENT))
            assert (len(self.admission._waiting), self.admission._held_bytes) == (0, 0)
            assert not self.registry.under_way()
            assert all(blob.pins == 0 for blob in self.store._blobs.values())
            assert set(self.engine.created) <= self.engine.destroyed
            assert self.engine.live == {}, "the reaper left something"
            assert [task.get_name() for task in asyncio.all_tasks(self.loop)] == []
        finally:
            self.loop.close()
            shutil.rmtree(self.directory)

    def _settle(self) -> None:
        closing = self.closing or self.task(self.registry.close(0))
        for caller in self.callers:
            caller.asked_to_end.add(Outcome.SHUTDOWN)
        self._answer_all(60)
        for caller in self.callers:
            if caller.reading is None and not caller.left and None not in caller.events:
                while None not in caller.events:
                    caller.events.append(self.loop.run_until_complete(caller.run.events.get()))
        assert closing.done(), "it does not stop"
        # A sandbox that the engine would not destroy is the reaper's.
        last = self.task(self.reaper.sweep())
        self._answer_all(10)
        assert last.done()
        assert last.exception() is None
        for sweep in self.sweeps:
            assert sweep.done()
            assert sweep.exception() is None or isinstance(sweep.exception(), EngineError | ZeroDivisionError)

    def _answer_all(self, rounds: int) -> None:
        for _ in range(rounds):
            for call in list(self.engine.calls):
                self._answer(call)
            self.turn(1.0)


@hunt.machine(examples=150, steps=40, share=4)
def test_in_whatever_order_things_happen_a_run_has_one_outcome_and_leaves_nothing() -> Callable[[], Orders]:
    return Orders
