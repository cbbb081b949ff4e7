"""Lives and deaths of real runs, daemons and engines, in any order and at any moment."""

import threading
import time
from collections.abc import Callable, Iterator

import grpc
from harness import wait_until
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from skilljail.v1 import bundle_store_pb2, bundle_store_pb2_grpc, run_pb2
from skilljaild.bundles.digest import digest_of

from . import hunt
from .lives import KINDS, Caller, World, reason_of
from .own_engine import OwnEngine

MILLISECONDS = st.sampled_from(range(401))


class Lives(RuleBasedStateMachine):
    """Whatever is done to runs, their callers, the daemon and the engine."""

    def __init__(self, engine: OwnEngine) -> None:
        super().__init__()
        self.world = World(engine)
        self.engine_was_killed = False

    @precondition(lambda self: self.world.daemon is not None)
    @rule(
        kind=st.sampled_from(sorted(KINDS)),
        pause=st.sampled_from([0.0, 0.0, 0.0, 0.3, 30.0]),
        deadline=st.sampled_from([None, None, None, 0.2, 1.0]),
        milliseconds=MILLISECONDS,
    )
    def start(self, kind: str, pause: float, deadline: float | None, milliseconds: int) -> None:
        """Somebody runs a script, and reads fast, slowly or almost never."""
        caller = Caller(self.world, kind, pause_seconds=pause, deadline_seconds=deadline)
        if not self.world.has_engine:
            caller.excuses.add(0)
        self.world.callers.append(caller)
        time.sleep(milliseconds / 1_000)

    @precondition(lambda self: self.world.callers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """CancelRun."""
        self.world.cancel(self._one(data))

    @precondition(lambda self: self.world.callers)
    @rule(data=st.data(), by=st.sampled_from(["cancel", "connection"]))
    def leave(self, data: st.DataObject, by: str) -> None:
        """A caller goes away."""
        self._one(data).leave(by=by)

    @precondition(lambda self: self.world.callers)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        """GetRun, and what was seen so far."""
        caller = self._one(data)
        self.world.ask(caller)
        caller.check()

    @rule(milliseconds=MILLISECONDS)
    def wait(self, milliseconds: int) -> None:
        """Some time."""
        time.sleep(milliseconds / 1_000)

    @precondition(lambda self: self.world.daemon is not None and self.world.callers)
    @rule(milliseconds=MILLISECONDS)
    def kill_daemon(self, milliseconds: int) -> None:
        """SIGKILL, after a moment."""
        time.sleep(milliseconds / 1_000)
        self.world.kill()

    @precondition(lambda self: self.world.daemon is not None and self.world.callers)
    @rule()
    def stop_daemon(self) -> None:
        """SIGTERM."""
        self.world.stop()

    @precondition(lambda self: self.world.daemon is None and self.world.has_engine)
    @rule()
    def start_daemon(self) -> None:
        """On the same state directory. What the one before left behind is gone when it answers."""
        self.world.start()

    @precondition(lambda self: not self.engine_was_killed and self.world.callers)
    @rule(milliseconds=MILLISECONDS)
    def kill_engine(self, milliseconds: int) -> None:
        """SIGKILL for dockerd, after a moment. Once: it takes ten seconds to come back."""
        time.sleep(milliseconds / 1_000)
        self.engine_was_killed = True
        self.world.kill_engine()

    @precondition(lambda self: not self.world.has_engine)
    @rule()
    def start_engine(self) -> None:
        """It comes back."""
        self.world.start_engine()

    def _one(self, data: st.DataObject) -> Caller:
        return self.world.callers[data.draw(st.integers(0, len(self.world.callers) - 1))]

    def teardown(self) -> None:
        """Nothing may be left."""
        self.world.settle()


@hunt.machine(examples=3, steps=12, share=8, real=True)
def test_in_whatever_order_lives_end_each_has_one_outcome_and_nothing_is_left(
    own_engine: OwnEngine,
) -> Callable[[], Lives]:
    return lambda: Lives(own_engine)


KILLS = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), MILLISECONDS), min_size=10, max_size=10)


# The first example would be ten times the same.
@hunt.target(kills=KILLS.filter(lambda kills: len(set(kills)) > 5), examples=1, share=4, real=True)
def test_a_daemon_that_is_killed_at_any_moment_of_a_run_leaves_nothing_after_the_next_start(
    own_engine: OwnEngine, kills: list[tuple[str, int]]
) -> None:
    world = World(own_engine)
    try:
        for kind, milliseconds in kills:
            world.callers.append(Caller(world, kind))
            time.sleep(milliseconds / 1_000)
            world.kill()
            world.start()
            world.check_nothing_is_left()
    finally:
        world.settle()


@hunt.target(milliseconds=st.sampled_from(range(1, 1_000)), examples=1, real=True)
def test_a_daemon_that_is_killed_while_it_starts_starts_again(own_engine: OwnEngine, milliseconds: int) -> None:
    world = World(own_engine)
    assert world.daemon is not None
    owner = world.daemon.owner
    world.kill()
    world.start_and_kill(milliseconds / 1_000)
    world.start()
    assert world.daemon.owner == owner
    world.settle()


def test_an_engine_that_is_killed_under_a_run_is_told_and_nothing_is_left_when_it_is_back(
    own_engine: OwnEngine,
) -> None:
    world = World(own_engine)
    try:
        under_way = Caller(world, "sleeps")
        world.callers.append(under_way)
        wait_until(lambda: any(event.HasField("output") for event in under_way.events))
        world.kill_engine()
        wait_until(lambda: under_way.has_ended)
        result = under_way.events[-1].finished.result
        assert (result.outcome, result.HasField("exit_code")) == (run_pb2.OUTCOME_SANDBOX_ERROR, False)
        refused = Caller(world, "ends")
        world.callers.append(refused)
        wait_until(lambda: refused.has_ended)
        assert reason_of(refused.error) == "ENGINE_UNAVAILABLE"
        assert refused.error.code() is grpc.StatusCode.UNAVAILABLE
        world.start_engine()
        served = Caller(world, "ends")
        world.callers.append(served)
        wait_until(lambda: served.has_ended)
        assert served.events[-1].finished.result.exit_code == 3
    finally:
        world.settle()


@hunt.target(pieces=st.sampled_from(range(1, 60)), examples=1, real=True)
def test_a_daemon_that_is_killed_while_it_stores_leaves_no_half_blob(own_engine: OwnEngine, pieces: int) -> None:
    world = World(own_engine)
    content = bytes(65_536) * 64
    sent, killed = threading.Event(), threading.Event()

    def upload() -> Iterator[bundle_store_pb2.UploadRequest]:
        header = bundle_store_pb2.BlobHeader(digest=digest_of(content), size_bytes=len(content))
        yield bundle_store_pb2.UploadRequest(header=header)
        for _ in range(pieces):
            yield bundle_store_pb2.UploadRequest(data=content[:65_536])
        sent.set()
        killed.wait(30)

    with grpc.insecure_channel(world.address) as channel:
        call = bundle_store_pb2_grpc.BundleStoreServiceStub(channel).Upload.future(upload(), timeout=30)
        assert sent.wait(30)
        world.kill()
        killed.set()
        assert call.exception(timeout=30) is not None
    world.settle()
