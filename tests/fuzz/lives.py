"""A real daemon on a real engine with callers of every kind, and what must be true of them whatever happens."""

import contextlib
import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from harness import Daemon, start_daemon, wait_until
from skilljail.v1 import run_pb2, script_runner_pb2, script_runner_pb2_grpc

from .own_engine import OwnEngine

__all__ = ["KINDS", "Caller", "World", "reason_of"]

SETTLED_SECONDS = 60.0
SWEPT_SECONDS = 15.0
"""The reaper comes after 30 s: what is gone by then was swept at the start."""
WALL_SECONDS = 8
FLAGS = {
    "admission.concurrent_runs": 3,
    "admission.queued_runs": 3,
    "shutdown_grace_seconds": 0.5,
    "limits.default.wall_seconds": WALL_SECONDS,
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A script, and how it ends when nobody disturbs it."""

    script: str
    outcome: int
    exit_code: int | None = None
    output_bytes: int = 0
    stdin: bytes = b""
    patterns: tuple[str, ...] = ()
    wall_seconds: int = 0


KINDS = {
    "ends": Kind("echo done; exit 3", run_pb2.OUTCOME_EXITED, 3),
    "sleeps": Kind("echo up; sleep 60", run_pb2.OUTCOME_WALL_TIMEOUT),
    "overdue": Kind("trap '' TERM INT HUP; echo up; while :; do :; done", run_pb2.OUTCOME_WALL_TIMEOUT, wall_seconds=1),
    "floods": Kind("while :; do printf '%065536d' 0; done", run_pb2.OUTCOME_OUTPUT_LIMIT, output_bytes=2 << 20),
    "forks": Kind("for n in 1 2 3; do (trap '' TERM; setsid sleep 60 &); done; exit 4", run_pb2.OUTCOME_EXITED, 4),
    "writes": Kind("head -c 700000 /dev/zero > out; exit 5", run_pb2.OUTCOME_EXITED, 5, patterns=("**",)),
    "reads": Kind("cat | wc -c; exit 6", run_pb2.OUTCOME_EXITED, 6, stdin=bytes(3 << 20)),
    "dies": Kind("echo up; kill -SEGV $$", run_pb2.OUTCOME_SIGNALED),
}

REFUSALS = {"QUEUE_FULL", "ENGINE_UNAVAILABLE", "SANDBOX_UNAVAILABLE", "SHUTTING_DOWN"}
WITH_EXIT_CODE = {
    run_pb2.OUTCOME_EXITED,
    run_pb2.OUTCOME_OOM_KILLED,
    run_pb2.OUTCOME_PIDS_LIMIT,
    run_pb2.OUTCOME_DISK_LIMIT,
}


class Caller:
    """Somebody who runs a script, in a thread, and writes down what comes."""

    def __init__(
        self, world: "World", kind: str, *, pause_seconds: float = 0.0, deadline_seconds: float | None = None
    ) -> None:
        """`pause_seconds`: between two reads."""
        self.kind = KINDS[kind]
        self.generation = world.generation
        self.events: list[run_pb2.RunEvent] = []
        self.error: grpc.RpcError | None = None
        self.result: run_pb2.RunResult | None = None
        """As GetRun told it."""
        self.excuses: set[int] = set()
        """Outcomes that something that was done to it explains."""
        self.may_break = False
        """Whether the daemon was taken from it."""
        if deadline_seconds is not None or pause_seconds:
            self.excuses |= {run_pb2.OUTCOME_CLIENT_DISCONNECTED, run_pb2.OUTCOME_WALL_TIMEOUT}
        self._pause_seconds = pause_seconds
        self._left = threading.Event()
        self._channel = grpc.insecure_channel(world.address)
        stub = script_runner_pb2_grpc.ScriptRunnerServiceStub(self._channel)
        request = script_runner_pb2.RunScriptRequest(
            script_path="x.sh", stdin=self.kind.stdin, artifact_patterns=self.kind.patterns
        )
        if self.kind.output_bytes:
            request.limits.output_bytes = self.kind.output_bytes
        if self.kind.wall_seconds:
            request.limits.wall_time.seconds = self.kind.wall_seconds
        request.files.add(path="SKILL.md", content=b"---\nname: x\ndescription: x\n---\n")
        request.files.add(path="x.sh", content=self.kind.script.encode())
        self._call = stub.RunScript(request, timeout=deadline_seconds)
        self._thread = threading.Thread(target=self._read, name=f"caller {kind}")
        self._thread.start()

    def _read(self) -> None:
        try:
            for response in self._call:
                self.events.append(response.event)
                self._left.wait(self._pause_seconds)
        except grpc.RpcError as error:
            self.error = error

    @property
    def run_id(self) -> str:
        """Empty until the first event."""
        return self.events[0].run_id if self.events else ""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return not self._thread.is_alive()

    def leave(self, *, by: str = "cancel") -> None:
        """Drops the call, or the whole connection."""
        self.excuses.add(run_pb2.OUTCOME_CLIENT_DISCONNECTED)
        self.may_break = True
        self._left.set()
        if by == "cancel":
            self._call.cancel()
        else:
            self._channel.close()

    def close(self) -> None:
        """Waits for the end of the stream."""
        self._left.set()
        self._thread.join(SETTLED_SECONDS)
        assert not self._thread.is_alive(), f"the stream of run {self.run_id!r} does not end"
        self._channel.close()

    def check(self) -> None:
        """What was seen is one life with one end."""
        events = list(self.events)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert len({event.run_id for event in events}) <= 1
        kinds = [event.WhichOneof("event") for event in events]
        assert kinds[:1] in ([], ["queued"])
        assert kinds.count("started") <= 1
        assert "finished" not in kinds[:-1]
        finished = events[-1].finished.result if kinds[-1:] == ["finished"] else None
        if not self.has_ended:
            return
        if self.error is None:
            assert finished is not None, "a stream that ends well without a result"
        else:
            self._check_error(self.error, started="started" in kinds)
        for result in filter(None, (finished, self.result)):
            self._check_result(result, "started" in kinds)
        if finished is not None and self.result is not None:
            assert finished == self.result, "two results of one run"

    def _check_error(self, error: Any, *, started: bool) -> None:
        reason = reason_of(error)
        if reason:
            assert reason in REFUSALS, (reason, error.details())
            assert not started, f"{reason} of a script that had started"
            return
        codes = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
        assert error.code() in codes, (error.code(), error.details())
        assert self.may_break or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, (error.code(), error.details())

    def _check_result(self, result: run_pb2.RunResult, started: bool) -> None:
        name = run_pb2.Outcome.Name(result.outcome)
        refused = self.error is not None and reason_of(self.error) and result.outcome == run_pb2.OUTCOME_SANDBOX_ERROR
        if not refused:
            assert result.outcome in self.excuses | {self.kind.outcome}, (name, result.message, self.excuses)
        if result.HasField("exit_code"):
            assert result.outcome in WITH_EXIT_CODE, name
            assert result.exit_code == self.kind.exit_code, "an exit code that no script gave"
        if result.outcome == run_pb2.OUTCOME_EXITED:
            assert result.HasField("exit_code")
            assert started or self.error is not None or self.may_break


def reason_of(error: Any) -> str:
    """ErrorInfo's reason; empty when there is none."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(details).details if details else ():
        if detail.Unpack(info):
            return str(info.reason)
    return ""


class World:
    """A daemon, its state, its callers, and the engine below."""

    def __init__(self, engine: OwnEngine) -> None:
        self.engine = engine
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="skilljail-test-"))
        self.address = f"unix:{self.directory}/sock"
        self.generation = 0
        """How often the daemon was started."""
        self.callers: list[Caller] = []
        self.daemon: Daemon | None = None
        self.has_engine = True
        self._engine_was_killed = False
        self._forgotten = engine.cgroups()
        """Containers that an engine forgot when it was killed."""
        self.start()

    @property
    def flags(self) -> list[str]:
        """Of the daemon."""
        return [f"--engine-url={self.engine.url}", *(f"--set={name}={value}" for name, value in FLAGS.items())]

    def start(self) -> None:
        """Starts the daemon, which sweeps before it answers."""
        self.generation += 1
        self.daemon = start_daemon(self.directory, *self.flags)

    def start_and_kill(self, seconds: float) -> None:
        """Starts a daemon and kills it before it may have got anywhere."""
        self.generation += 1
        command = ["-m", "skilljaild", "serve", f"--listen={self.address}", f"--state-dir={self.directory}/state"]
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen([sys.executable, *command, *self.flags], stdout=log, stderr=log)
        time.sleep(seconds)
        process.kill()
        process.wait()

    def stub(self) -> tuple[Any, grpc.Channel]:
        """To ask the daemon, and its connection."""
        channel = grpc.insecure_channel(self.address)
        return script_runner_pb2_grpc.ScriptRunnerServiceStub(channel), channel

    def kill(self) -> None:
        """SIGKILL for the daemon."""
        assert self.daemon is not None
        for caller in self.callers:
            caller.may_break = True
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.daemon = None

    def stop(self) -> None:
        """SIGTERM for the daemon, which ends well, with nothing left behind if the engine is there."""
        assert self.daemon is not None
        for caller in self.callers:
            caller.excuses.add(run_pb2.OUTCOME_SHUTDOWN)
            caller.may_break = True
        assert self.daemon.stop() == 0, self.tail()
        self.daemon = None
        assert not (self.directory / "sock").exists()
        if self.has_engine:
            assert self.engine.containers() == []

    def kill_engine(self) -> None:
        """SIGKILL for the engine."""
        for caller in self.callers:
            caller.excuses.add(run_pb2.OUTCOME_SANDBOX_ERROR)
        self.engine.kill()
        self.has_engine = False

    def start_engine(self) -> None:
        """The engine comes back."""
        self.engine.start()
        self.has_engine = True
        self._engine_was_killed = True

    def ask(self, caller: Caller) -> None:
        """What GetRun says: once there is a result, always the same; and nothing of a daemon before."""
        if self.daemon is None or not caller.run_id:
            return
        stub, channel = self.stub()
        with channel:
            try:
                run = stub.GetRun(script_runner_pb2.GetRunRequest(run_id=caller.run_id), timeout=30).run
            except grpc.RpcError as error:
                assert reason_of(error) == "RUN_NOT_FOUND"
                assert caller.generation != self.generation, "a run is forgotten"
                return
        assert caller.generation == self.generation, "a run of a daemon that was killed"
        self.told(caller, run)

    @staticmethod
    def told(caller: Caller, run: run_pb2.Run) -> None:
        """Keeps what the daemon says about a run."""
        assert (run.state == run_pb2.RUN_STATE_FINISHED) == run.HasField("result")
        if run.HasField("result"):
            if caller.result is not None:
                assert caller.result == run.result, "a result that was changed"
            caller.result = run.result
        else:
            assert caller.result is None, "a result that was taken back"

    def cancel(self, caller: Caller) -> None:
        """CancelRun, which returns when the run is over."""
        if self.daemon is None or not caller.run_id:
            return
        caller.excuses.add(run_pb2.OUTCOME_CANCELLED)
        stub, channel = self.stub()
        with channel:
            try:
                run = stub.CancelRun(script_runner_pb2.CancelRunRequest(run_id=caller.run_id), timeout=60).run
            except grpc.RpcError as error:
                assert reason_of(error) == "RUN_NOT_FOUND"
                assert caller.generation != self.generation
                return
        assert run.state == run_pb2.RUN_STATE_FINISHED
        self.told(caller, run)

    def settle(self) -> None:
        """Everything comes to its end; after the next start nothing is left of it."""
        try:
            if not self.has_engine:
                self.start_engine()
            if self.daemon is not None:
                self._end_callers()
                self.stop()
            self.start()
            self.check_nothing_is_left()
            self._end_callers()
            self.stop()
            left = {entry.name for entry in self.directory.iterdir()}
            assert left == {"state", "log"}, left
        except BaseException:
            print(self.tail())
            raise
        finally:
            self._take_down()

    def _end_callers(self) -> None:
        for caller in self.callers:
            if "sleep" in caller.kind.script:  # it would for its whole wall time
                self.cancel(caller)
            caller.close()
            self.ask(caller)
            caller.check()

    def check_nothing_is_left(self) -> None:
        """No container, volume, cgroup, process, and in the state directory nothing but blobs and the identity."""
        # What the engine was about to make when the daemon was killed may come a moment after the sweep.
        wait_until(lambda: self.engine.containers() == [], SWEPT_SECONDS)
        assert self.engine.volumes() == []
        if self._engine_was_killed:
            # dockerd forgets a container that it was about to start: runc waits in it for a word that will not come.
            # Nothing of ours was executed there, and nobody who speaks to dockerd can find it.
            self._forgotten |= {container for container, waits in self.engine.processes().values() if waits}
        wait_until(lambda: self.engine.cgroups() <= self._forgotten, SETTLED_SECONDS)
        assert {container for container, _ in self.engine.processes().values()} <= self._forgotten
        state = self.directory / "state"
        files = {str(path.relative_to(state)) for path in state.rglob("*") if not path.is_dir()}
        foreign = {name for name in files if not re.fullmatch(r"instance|blobs/[0-9a-f]{32}/[0-9a-f]{64}", name)}
        assert foreign == set()
        assert re.fullmatch("[0-9a-f]{32}", (state / "instance").read_text())

    def tail(self) -> str:
        """The end of the daemon's log."""
        return (self.directory / "log").read_text(errors="replace")[-6_000:]

    def _take_down(self) -> None:
        for caller in self.callers:
            with contextlib.suppress(ValueError):
                caller.leave()
        if self.daemon is not None:
            self.daemon.process.kill()
            self.daemon.process.wait()
        if not self.has_engine:
            self.start_engine()
        shutil.rmtree(self.directory)
