"""Lives and deaths: of clients, daemons, sandboxes and the engine; queues, crowds, and what is remembered of runs.

What a caller does through its client to end a run is in `tests/conformance/test_ends.py`.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import docker
import grpc
import pytest
import skilljail
from attack_table import Seen
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from harness import Daemon, MakeSkill, owned_containers, running_daemon, start_daemon, wait_until
from skilljail import Limits, Outcome, RunState
from skilljail.v1 import script_runner_pb2, script_runner_pb2_grpc
from skilljaild import images
from skilljaild.runs.delivery import LAST_WORD_SECONDS, WALL_GRACE_SECONDS

MIB = 1024 * 1024
PROMPTLY_SECONDS = 15.0
"""A second is promised for the end of a sandbox; the rest is the engine's, on a busy host."""

SLEEP = {"x.py": "import os, time\nos.write(1, b'up\\n')\ntime.sleep(600)"}
FLOOD = {"x.py": "import os\nwhile True: os.write(1, bytes(65536))"}

SERVICES = ("skilljail.v1.ScriptRunnerService", "skilljail.v1.BundleStoreService", "skilljail.v1.AdminService")


@contextlib.contextmanager
def under_way(client: skilljail.Client, skill: pathlib.Path, **options: object) -> Iterator[skilljail.RunStream]:
    """A run whose script has written something."""
    with client.stream(skill, "x.py", **options) as stream:  # type: ignore[arg-type]
        for event in stream:
            if isinstance(event, skilljail.Output):
                break
        yield stream


@pytest.fixture
def narrow() -> Iterator[Daemon]:
    """A daemon for one run at a time, with one place to wait."""
    with running_daemon("--set", "admission.concurrent_runs=1", "--set", "admission.queued_runs=1") as one:
        yield one


@pytest.fixture
def channel(daemon: Daemon) -> Iterator[grpc.Channel]:
    """A bare connection to the daemon that tests share."""
    with grpc.insecure_channel(daemon.address) as one:
        yield one


def inline_request(files: dict[str, str], **fields: object) -> script_runner_pb2.RunScriptRequest:
    """A request that needs no upload."""
    request = script_runner_pb2.RunScriptRequest(script_path="x.py", **fields)  # type: ignore[arg-type]
    request.files.add(path="SKILL.md", content=b"---\nname: x\ndescription: x\n---\n")
    for path, content in files.items():
        request.files.add(path=path, content=content.encode())
    return request


def memory_bytes(daemon: Daemon, field: str = "VmRSS") -> int:
    """Resident memory of a daemon's process; `VmHWM` is the most that it ever had."""
    status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(field + ":"))


def sandbox_of(engine_api: docker.APIClient, daemon: Daemon) -> str:
    """The name of the only sandbox that a daemon has."""
    (name,) = owned_containers(engine_api, daemon.owner)
    return str(name).removeprefix("/")


def is_running(engine_api: docker.APIClient, container: str) -> bool:
    """Whether a container is there and runs."""
    try:
        return bool(engine_api.inspect_container(container)["State"]["Running"])
    except docker.errors.NotFound:
        return False


# Clients


@pytest.mark.attack(30, "a client that is killed", expected="CLIENT_DISCONNECTED")
def test_a_client_that_is_killed_takes_its_sandbox_with_it(
    daemon: Daemon, make_skill: MakeSkill, engine_api: docker.APIClient, client: skilljail.Client, seen: Seen
) -> None:
    """Nobody is there to say good-bye."""
    code = (
        "import skilljail, sys\n"
        "with skilljail.Client(sys.argv[1]).stream(sys.argv[2], 'x.py') as stream:\n"
        "    for event in stream: print(stream.run_id, type(event).__name__, flush=True)\n"
    )
    command = [sys.executable, "-c", code, daemon.address, str(make_skill(SLEEP))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        run_id = next(line.split()[0] for line in caller.stdout if "Output" in line)
        container = sandbox_of(engine_api, daemon)
        assert is_running(engine_api, container)
        caller.kill()
        wait_until(lambda: owned_containers(engine_api, daemon.owner) == [], PROMPTLY_SECONDS)
    wait_until(lambda: client.get_run(run_id).state is RunState.FINISHED, PROMPTLY_SECONDS)
    result = client.get_run(run_id).result
    assert result is not None
    assert (result.outcome, result.exit_code) == (Outcome.CLIENT_DISCONNECTED, None)
    seen(result.outcome)


@pytest.mark.attack(30, "cancelling a run", expected="CANCELLED, no sandbox")
def test_a_cancelled_run_has_no_sandbox_when_the_call_returns(
    client: skilljail.Client, daemon: Daemon, make_skill: MakeSkill, engine_api: docker.APIClient, seen: Seen
) -> None:
    """Whoever cancels may rely on it; and cancelling twice changes nothing."""
    with under_way(client, make_skill(SLEEP)) as stream:
        started = time.monotonic()
        run = client.cancel_run(stream.run_id)
        seconds = time.monotonic() - started
        assert owned_containers(engine_api, daemon.owner) == []
        result = stream.wait()
    assert (run.state, result.outcome, result.exit_code) == (RunState.FINISHED, Outcome.CANCELLED, None)
    assert client.cancel_run(stream.run_id) == run
    assert seconds < PROMPTLY_SECONDS
    seen(result.outcome)


@pytest.mark.attack(85, "callers that read nothing", expected="the wall time holds, memory too")
def test_a_caller_that_reads_nothing_does_not_keep_its_sandbox(engine_api: docker.APIClient, seen: Seen) -> None:
    """Wall time and a moment, and the daemon's memory stays as it is; other callers are served."""
    with running_daemon("--set", "admission.concurrent_runs=4") as own, grpc.insecure_channel(own.address) as channel:
        stub = script_runner_pb2_grpc.ScriptRunnerServiceStub(channel)
        limits = Limits(wall_seconds=3, output_bytes=64 * MIB).to_wire()
        before = memory_bytes(own)
        calls = [stub.RunScript(inline_request(FLOOD, limits=limits)) for _ in range(4)]
        run_ids = [next(call).event.run_id for call in calls]
        wait_until(lambda: len(owned_containers(engine_api, own.owner)) == 4, 30)
        with skilljail.Client(own.address) as client:
            wait_until(lambda: all(client.get_run(one).state is RunState.FINISHED for one in run_ids), 60)
            runs = [client.get_run(one) for one in run_ids]
        assert owned_containers(engine_api, own.owner) == []
        grown = memory_bytes(own, "VmHWM") - before
        for call in calls:
            call.cancel()
    for run in runs:
        assert run.result is not None
        assert run.result.outcome in {Outcome.CLIENT_DISCONNECTED, Outcome.WALL_TIMEOUT}
        assert run.result.exit_code is None
        assert run.start_time is not None
        assert run.finish_time is not None
        # The daemon's own patience with init, once the wall time is over, comes on top.
        patience = WALL_GRACE_SECONDS + LAST_WORD_SECONDS
        assert (run.finish_time - run.start_time).total_seconds() < 3 + patience + PROMPTLY_SECONDS
    assert grown < 64 * MIB, grown
    seen({run.result.outcome for run in runs if run.result})


@pytest.mark.attack(85, "a caller that reads slowly", expected="everything arrives")
def test_a_caller_that_reads_slowly_gets_everything(
    client: skilljail.Client, make_skill: MakeSkill, seen: Seen
) -> None:
    """Its script waits for it."""
    script = "import os\nfor number in range(200): os.write(1, bytes([number]) * 65536)"
    received = bytearray()
    with client.stream(make_skill({"x.py": script}), "x.py", limits=Limits(output_bytes=16 * MIB)) as stream:
        for count, event in enumerate(stream):
            if isinstance(event, skilljail.Output):
                received += event.data
                if count < 100:
                    time.sleep(0.02)
    assert received == b"".join(bytes([number]) * 65536 for number in range(200))
    assert stream.result is not None
    assert (stream.result.outcome, stream.result.exit_code) == (Outcome.EXITED, 0)
    seen(stream.result.outcome)


@pytest.mark.attack(12, "four floods of output", expected="OUTPUT_LIMIT, bounded memory")
def test_floods_do_not_grow_the_daemon(engine_api: docker.APIClient, make_skill: MakeSkill, seen: Seen) -> None:
    """A quarter of a gigabyte passes through, read as fast as it comes."""
    skill = make_skill(FLOOD)
    with running_daemon() as own, skilljail.Client(own.address) as client:
        before = memory_bytes(own)

        def flood() -> tuple[Outcome, int]:
            size = 0
            with client.stream(skill, "x.py", limits=Limits(output_bytes=64 * MIB)) as stream:
                for event in stream:
                    size += len(event.data) if isinstance(event, skilljail.Output) else 0
            assert stream.result is not None
            return stream.result.outcome, size

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            ends = list(pool.map(lambda _: flood(), range(4)))
        grown = memory_bytes(own, "VmHWM") - before
        assert owned_containers(engine_api, own.owner) == []
    assert ends == [(Outcome.OUTPUT_LIMIT, 64 * MIB)] * 4
    assert grown < 64 * MIB, grown
    seen({outcome for outcome, _ in ends})


# Crowds and queues


@pytest.mark.attack(85, "fifty runs at once", expected="all end well")
def test_fifty_runs_at_once_all_end_well(
    client: skilljail.Client, daemon: Daemon, make_skill: MakeSkill, engine_api: docker.APIClient, seen: Seen
) -> None:
    """They wait for each other, and none is lost or mixed up."""
    skill = make_skill({"x.py": "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[1]))"})
    most = client.capabilities().concurrent_runs_max
    at_once: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            at_once.add(len(owned_containers(engine_api, daemon.owner)))
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        results = list(pool.map(lambda number: client.run(skill, "x.py", [str(number)]), range(50)))
    done.set()
    watcher.join()
    assert [(one.outcome, one.exit_code, one.stdout) for one in results] == [
        (Outcome.EXITED, number, f"{number}\n".encode()) for number in range(50)
    ]
    assert len({one.run_id for one in results}) == 50
    assert max(at_once) <= most
    assert owned_containers(engine_api, daemon.owner) == []
    seen({one.outcome for one in results}, f"{max(at_once)} sandboxes at once")


@pytest.mark.attack(85, "more runs than the queue takes", expected="QUEUE_FULL")
def test_a_run_that_has_to_wait_is_told_so_and_beyond_the_queue_is_refused(
    narrow: Daemon, make_skill: MakeSkill, seen: Seen
) -> None:
    """QUEUE_FULL, with a time to come again; and what was refused never ran."""
    skill = make_skill(SLEEP)
    with skilljail.Client(narrow.address) as client, under_way(client, skill) as first:
        with client.stream(skill, "x.py") as second:
            queued = next(iter(second))
            assert isinstance(queued, skilljail.Queued)
            assert client.get_run(second.run_id).state is RunState.QUEUED
            with pytest.raises(skilljail.QueueFull) as caught:
                client.run(skill, "x.py")
            assert caught.value.retry_after_seconds
            first.cancel()
            assert isinstance(next(iter(second)), skilljail.Started)
            assert [run.run_id for run in client.list_runs()] == [second.run_id, first.run_id]
        assert queued.position == 1
    seen(caught.value.reason)


def test_a_run_that_can_start_at_once_is_told_so(narrow: Daemon, make_skill: MakeSkill) -> None:
    with skilljail.Client(narrow.address) as client, client.stream(make_skill({"x.py": ""}), "x.py") as stream:
        queued = next(iter(stream))
        assert isinstance(queued, skilljail.Queued)
        assert queued.position == 0


@pytest.mark.attack(30, "leaving the queue", expected="never started")
@pytest.mark.parametrize("how", ["cancelled", "left"])
def test_a_run_that_leaves_the_queue_makes_room_and_never_starts(
    narrow: Daemon, make_skill: MakeSkill, engine_api: docker.APIClient, how: str, seen: Seen
) -> None:
    """While it waits."""
    skill = make_skill(SLEEP)
    with skilljail.Client(narrow.address) as client, under_way(client, skill):
        with client.stream(skill, "x.py") as waiting:
            next(iter(waiting))
            if how == "cancelled":
                run = client.cancel_run(waiting.run_id)
                assert run.state is RunState.FINISHED
                assert run.result is not None
                assert (run.result.outcome, run.result.exit_code) == (Outcome.CANCELLED, None)
                assert run.start_time is None
        wait_until(lambda: client.get_run(waiting.run_id).state is RunState.FINISHED, PROMPTLY_SECONDS)
        assert client.get_run(waiting.run_id).start_time is None
        with client.stream(skill, "x.py") as another:
            assert isinstance(next(iter(another)), skilljail.Queued)
            assert len(owned_containers(engine_api, narrow.owner)) == 1
    seen(how)


# Request ids


@pytest.mark.attack(86, "a request id again", expected="refused")
def test_a_request_id_runs_once(client: skilljail.Client, make_skill: MakeSkill, seen: Seen) -> None:
    """Again, with another body, and after its end."""
    name = f"once-{secrets.token_hex(4)}"
    skill, other = make_skill({"x.py": "print('ran')"}), make_skill({"x.py": "print('another')"})
    result = client.run(skill, "x.py", request_id=name)
    for again, argv in ((skill, []), (skill, ["different"]), (other, [])):
        with pytest.raises(skilljail.RequestIdInUse) as caught:
            client.run(again, "x.py", argv, request_id=name)
        assert caught.value.run_id == result.run_id
    run = client.get_run(result.run_id)
    assert (run.request_id, run.state) == (name, RunState.FINISHED)
    assert [one.run_id for one in client.list_runs() if one.request_id == name] == [result.run_id]
    seen(caught.value.reason)


@pytest.mark.attack(86, "a request id twelve times at once", expected="one runs")
def test_a_request_id_runs_once_however_many_ask_at_the_same_time(
    client: skilljail.Client, make_skill: MakeSkill, seen: Seen
) -> None:
    """One is served, all others are told which."""
    name = f"race-{secrets.token_hex(4)}"
    skill = make_skill({"x.py": "import time; time.sleep(0.5); print('ran')"})

    def ask(_: int) -> tuple[str, str]:
        try:
            return "ran", client.run(skill, "x.py", request_id=name).run_id
        except skilljail.RequestIdInUse as error:
            return "refused", error.run_id

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    assert sorted(answer for answer, _ in answers) == ["ran"] + ["refused"] * 11
    assert len({run_id for _, run_id in answers}) == 1
    assert len([one for one in client.list_runs() if one.request_id == name]) == 1
    seen(f"{[answer for answer, _ in answers].count('ran')} ran")


@pytest.mark.attack(86, "a refused request's id again", expected="it runs")
def test_a_request_that_was_refused_did_not_use_up_its_id(
    client: skilljail.Client, make_skill: MakeSkill, seen: Seen
) -> None:
    """A mended request may keep its name."""
    name = f"mended-{secrets.token_hex(4)}"
    skill = make_skill({"x.py": "print('ran')"})
    with pytest.raises(skilljail.LimitAboveCeiling):
        client.run(skill, "x.py", request_id=name, limits=Limits(wall_seconds=1e6))
    result = client.run(skill, "x.py", request_id=name)
    assert result.stdout == b"ran\n"
    seen(result.outcome)


# Sandboxes and the engine


KILLS: dict[str, Callable[[docker.APIClient, str], object]] = {
    "killed": lambda api, container: api.kill(container),
    "removed": lambda api, container: api.remove_container(container, force=True),
    "restarted": lambda api, container: api.restart(container, timeout=0),
    "stopped": lambda api, container: api.stop(container, timeout=0),
}


@pytest.mark.attack(32, "a sandbox killed from outside", expected="SANDBOX_ERROR, no exit code")
@pytest.mark.parametrize("how", KILLS)
def test_a_sandbox_that_is_lost_has_no_exit_code(
    client: skilljail.Client, daemon: Daemon, make_skill: MakeSkill, engine_api: docker.APIClient, how: str, seen: Seen
) -> None:
    """Whoever takes it away; never an exit code that nobody gave."""
    with under_way(client, make_skill(SLEEP)) as stream:
        container = sandbox_of(engine_api, daemon)
        with contextlib.suppress(docker.errors.APIError):  # the daemon may be faster to remove it than the engine here
            KILLS[how](engine_api, container)
        result = stream.wait()
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.SANDBOX_ERROR, None, None)
    assert result.stdout == b"up\n"
    assert "lost" in result.message
    wait_until(lambda: owned_containers(engine_api, daemon.owner) == [], PROMPTLY_SECONDS)
    seen(result.outcome, result.exit_code)


@pytest.mark.attack(32, "a frozen sandbox", expected="WALL_TIMEOUT")
def test_a_sandbox_that_is_frozen_does_not_evade_the_wall_time(
    client: skilljail.Client, daemon: Daemon, make_skill: MakeSkill, engine_api: docker.APIClient, seen: Seen
) -> None:
    """Init cannot tell any more; the daemon's own clock does."""
    with under_way(client, make_skill(SLEEP), limits=Limits(wall_seconds=2)) as stream:
        container = sandbox_of(engine_api, daemon)
        engine_api.pause(container)
        started = time.monotonic()
        result = stream.wait()
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.WALL_TIMEOUT, None, b"up\n")
    assert time.monotonic() - started < 2 + 2 * PROMPTLY_SECONDS
    wait_until(lambda: owned_containers(engine_api, daemon.owner) == [], PROMPTLY_SECONDS)
    seen(result.outcome)


class EngineProxy:
    """Stands between a daemon and its engine, and can go away as a restarting engine does."""

    def __init__(self, path: pathlib.Path, target: str) -> None:
        self.path = path
        self._target = target
        self._sockets: list[socket.socket] = []
        self._server: socket.socket | None = None

    def open(self) -> None:
        """Listens."""
        self.path.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.path))
        self._server.listen(64)
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def close(self) -> None:
        """Goes away, and every connection with it."""
        self.path.unlink(missing_ok=True)
        for one in [self._server, *self._sockets]:
            if one is not None:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
        self._sockets.clear()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = server.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._sockets += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._relay, args=(source, target), daemon=True).start()

    @staticmethod
    def _relay(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@pytest.mark.attack(32, "the engine goes away", expected="SANDBOX_ERROR, then ENGINE_UNAVAILABLE")
def test_an_engine_that_goes_away_is_told_and_is_used_again_when_it_is_back(
    make_skill: MakeSkill, engine_api: docker.APIClient, tmp_path: pathlib.Path, seen: Seen
) -> None:
    """A run under way has no exit code, a new one is refused for now, and no sandbox is left."""
    engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    proxy = EngineProxy(tmp_path / "engine.sock", engine)
    proxy.open()
    skill = make_skill(SLEEP)
    with running_daemon("--engine-url", f"unix://{proxy.path}") as own, skilljail.Client(own.address) as client:
        with under_way(client, skill) as stream:
            container = sandbox_of(engine_api, own)
            proxy.close()
            result = stream.wait()
        assert (result.outcome, result.exit_code, result.stdout) == (Outcome.SANDBOX_ERROR, None, b"up\n")
        # Its stream is closed: init has seen the end of it.
        wait_until(lambda: not is_running(engine_api, container), PROMPTLY_SECONDS)
        with pytest.raises(skilljail.EngineUnavailable):
            client.run(skill, "x.py")
        proxy.open()
        assert client.run(make_skill({"x.py": "print('back')"}), "x.py").stdout == b"back\n"
        own.stop()  # sweeps
        assert owned_containers(engine_api, own.owner) == []
    proxy.close()
    seen(result.outcome)


# Daemons


@contextlib.contextmanager
def left_containers(engine_api: docker.APIClient, *owners: str) -> Iterator[list[str]]:
    """A container of each owner as a daemon leaves it that is killed between creation and start."""
    made: list[str] = []
    try:
        made.extend(_create(engine_api, owner) for owner in owners)
        yield made
    finally:
        for one in made:
            with contextlib.suppress(docker.errors.NotFound):
                engine_api.remove_container(one, force=True)


@pytest.mark.attack(31, "the daemon is killed", expected="its sandboxes die, the rest is swept")
def test_a_daemon_that_is_killed_leaves_no_sandbox_and_finds_what_it_left(
    make_skill: MakeSkill, engine_api: docker.APIClient, tmp_path: pathlib.Path, seen: Seen
) -> None:
    """What runs dies by itself; what is left is removed at the next start, and nothing of anybody else's."""
    with contextlib.ExitStack() as stack:
        own = start_daemon(tmp_path)
        stack.callback(own.stop)
        owner = own.owner
        client = stack.enter_context(skilljail.Client(own.address))
        stream = stack.enter_context(under_way(client, make_skill(SLEEP)))
        container = sandbox_of(engine_api, own)
        _, foreign = stack.enter_context(left_containers(engine_api, owner, "somebody-else"))
        own.process.kill()
        own.process.wait()
        with pytest.raises(skilljail.SkilljailError) as caught:
            stream.wait()
        assert isinstance(caught.value, skilljail.StreamBroken | skilljail.DaemonUnavailable)
        wait_until(lambda: not is_running(engine_api, container), PROMPTLY_SECONDS)

        again = start_daemon(tmp_path)
        stack.callback(again.stop)
        assert again.owner == owner
        left = owned_containers(engine_api, owner)
        assert left == []
        seen(type(caught.value).__name__, f"{len(left)} left")
        assert engine_api.inspect_container(foreign)["Id"] == foreign
        another = stack.enter_context(skilljail.Client(again.address))
        with pytest.raises(skilljail.RunNotFound):
            another.get_run(stream.run_id)
        assert another.run(make_skill({"x.py": "print('on')"}), "x.py").stdout == b"on\n"


def _create(engine_api: docker.APIClient, owner: str) -> str:
    """A container with a daemon's labels, never started. Returns its id."""
    labels = {
        "io.skilljail.owner": owner,
        "io.skilljail.run": secrets.token_hex(8),
        "io.skilljail.deadline": str(int(time.time()) + 600),
    }
    name = f"skilljail-{labels['io.skilljail.run']}"
    found: dict[str, str] = engine_api.create_container(images.reference("bash"), name=name, labels=labels)
    return found["Id"]


def test_one_daemon_for_each_state_directory_and_each_address(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    """The second one says which of the two is taken, and touches nothing."""
    command = [sys.executable, "-m", "skilljaild", "serve"]
    state = subprocess.run(
        [*command, "--listen", f"unix:{tmp_path}/sock", "--state-dir", str(daemon.directory / "state")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert state.returncode == 3
    assert f"{daemon.directory / 'state'}: another daemon uses it" in state.stderr
    address = subprocess.run(
        [*command, "--listen", daemon.address, "--state-dir", f"{tmp_path}/state"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert address.returncode == 3
    assert "another daemon listens on" in address.stderr
    with skilljail.Client(daemon.address) as client:
        assert client.capabilities().daemon_version


def test_a_daemon_that_is_stopped_lets_runs_end_takes_no_more_and_says_so(make_skill: MakeSkill) -> None:
    """NOT_SERVING as soon as it drains, so that a balancer sends nobody; what runs may end well."""
    # It ends when its caller has read everything, and not before.
    script = "import os\nos.write(1, b'up\\n')\nfor _ in range(512): os.write(1, bytes(65_536))\nprint('done')"
    skill, options = make_skill({"x.py": script}), {"limits": Limits(output_bytes=64 * MIB)}
    with (
        running_daemon("--set", "shutdown_grace_seconds=60") as own,
        skilljail.Client(own.address) as client,
        grpc.insecure_channel(own.address) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)

        def states() -> list[int]:
            return [health.Check(health_pb2.HealthCheckRequest(service=one)).status for one in ("", *SERVICES)]

        assert states() == [health_pb2.HealthCheckResponse.SERVING] * (1 + len(SERVICES))
        with under_way(client, skill, **options) as stream:
            own.process.send_signal(signal.SIGTERM)
            wait_until(lambda: states() == [health_pb2.HealthCheckResponse.NOT_SERVING] * (1 + len(SERVICES)))
            with pytest.raises(skilljail.ShuttingDown):
                client.run(skill, "x.py")
            result = stream.wait()
        assert own.process.wait(30) == 0
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert result.stdout == b"up\n" + bytes(32 * MIB) + b"done\n"


def test_health_of_a_service_that_is_not_there_is_not_found(channel: grpc.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="nothing"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_lists_the_services(channel: grpc.Channel) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    (answer,) = reflection.ServerReflectionInfo(iter([request]))
    assert {one.name for one in answer.list_services_response.service} == {
        *SERVICES,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


# What is remembered


def test_runs_are_listed_newest_first_in_pages_and_the_oldest_are_forgotten(make_skill: MakeSkill) -> None:
    skill = make_skill({"x.py": "import sys; sys.exit(int(sys.argv[1]))"})
    with running_daemon("--set", "admission.remembered_runs=7") as own, skilljail.Client(own.address) as client:
        made = [client.run(skill, "x.py", [str(number)], labels={"number": str(number)}).run_id for number in range(10)]
        newest = made[:2:-1]
        for page_size in (1, 2, 3, 7, 500):
            assert [run.run_id for run in client.list_runs(page_size=page_size)] == newest
        with pytest.raises(skilljail.RunNotFound):
            client.get_run(made[0])
        run = client.get_run(made[-1])
        assert (run.labels, run.script_path, run.state) == ({"number": "9"}, "x.py", RunState.FINISHED)
        assert run.result is not None
        assert (run.result.outcome, run.result.exit_code) == (Outcome.EXITED, 9)
        # A page goes on where it ended, also when there are new runs meanwhile.
        with grpc.insecure_channel(own.address) as channel:
            stub = script_runner_pb2_grpc.ScriptRunnerServiceStub(channel)
            first = stub.ListRuns(script_runner_pb2.ListRunsRequest(page_size=3))
            client.run(skill, "x.py", ["0"])
            request = script_runner_pb2.ListRunsRequest(page_size=2, page_token=first.next_page_token)
            second = stub.ListRuns(request)
    assert [one.run_id for one in first.runs] == newest[:3]
    assert [one.run_id for one in second.runs] == newest[3:5]


def test_a_page_token_that_was_not_given_out_is_refused(channel: grpc.Channel) -> None:
    stub = script_runner_pb2_grpc.ScriptRunnerServiceStub(channel)
    for token in ("zzz", "../../x", "\0", "0" * 10_000):
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListRuns(script_runner_pb2.ListRunsRequest(page_token=token))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        metadata: Any = caught.value.trailing_metadata()
        assert b"PAGE_TOKEN_INVALID" in dict(metadata)["grpc-status-details-bin"]


@pytest.mark.attack(87, "a run that nobody made", expected="RUN_NOT_FOUND")
def test_a_run_that_nobody_made_is_not_found(client: skilljail.Client, seen: Seen) -> None:
    """To be asked for or cancelled."""
    for run_id in ("", "nothing", "../x", "0" * 32):
        with pytest.raises(skilljail.RunNotFound):
            client.get_run(run_id)
        with pytest.raises(skilljail.RunNotFound) as caught:
            client.cancel_run(run_id)
        seen(caught.value.reason)
