"""What runs at the same time, and the daemon that serves them: nobody is watched, starved or deceived by another."""

import contextlib
import pathlib
import random
import re
import threading

import docker
import grpc
import pytest
import skilljail
from attack_table import Seen
from harness import Daemon, on, owned_containers, running_daemon, wait_until
from skilljail import Limits, Outcome, RunState
from skilljail.v1 import script_runner_pb2, script_runner_pb2_grpc

from isolation.attacks import Attacks

MIB = 1024 * 1024


@pytest.mark.attack(102, "all pseudo-terminals of the machine", expected="none can be made")
def test_no_pseudo_terminal_can_be_made(attacks: Attacks, seen: Seen) -> None:
    """The kernel counts them for the whole machine: one run could take them from everybody."""
    found = attacks.report("""
import json, os
from attempt import attempt
print(json.dumps([attempt(os.openpty), attempt(lambda: os.ttyname(os.open("/dev/ptmx", os.O_RDWR)))]))
""")
    made = any(one.startswith("done") for one in found)
    assert not made or on(runc=False, gvisor=True, why="they are the sandbox's own there, and no other has fewer")
    seen(found)


@pytest.mark.attack(103, "inotify on files that all sandboxes share", expected="no event of a neighbour")
def test_what_a_neighbour_opens_and_runs_cannot_be_watched(attacks: Attacks, seen: Seen) -> None:
    """The image's files, the devices, /proc and /sys are there in every sandbox; who uses them is nobody's business."""
    watcher = """
import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(os.O_NONBLOCK)
ALL = 0xFFF
for path in ("/usr/bin", "/usr/bin/python3", "/usr/bin/bash", "/opt/skilljail/init", "/etc", "/etc/passwd", "/dev",
    "/dev/null", "/dev/zero", "/dev/urandom", "/dev/pts", "/dev/shm", "/proc", "/proc/sys/kernel", "/sys/fs/cgroup"):
    libc.inotify_add_watch(fd, path.encode(), ALL)
def events():
    try: return len(os.read(fd, 1 << 20))
    except BlockingIOError: return 0
events()
os.write(1, b"watching\\n")
sys.stdin.read()  # at its end at once
end = time.monotonic() + 3
noticed = 0
while time.monotonic() < end:
    time.sleep(0.2)
    noticed += events()
own = open("/etc/passwd").read()
print(f"of others {noticed}, of its own {events() > 0}")
"""
    busy = """
for _ in 1 2 3; do
    /usr/bin/python3 -c 'open("/etc/passwd").read(); open("/dev/urandom", "rb").read(9)'
    cat /dev/null; ls /proc /sys/fs/cgroup >/dev/null
done
"""
    with attacks.under_way(watcher) as stream:
        for _ in range(2):
            assert attacks.run(busy, "x.sh").outcome is Outcome.EXITED
        result = stream.wait()
    of_others = on(runc=rb"0", gvisor=rb"\d+", why="init shows itself; no file is shared, so nobody else can")
    assert re.fullmatch(rb"watching\nof others " + of_others + rb", of its own True\n", result.stdout)
    seen(result.stdout_text.splitlines()[1])


@pytest.mark.attack(104, "init's share of the processor used up by its script", expected="WALL_TIMEOUT all the same")
def test_a_script_that_starves_its_own_init_ends_at_its_time(attacks: Attacks, seen: Seen) -> None:
    """A tenth of a processor for sixty busy processes and init; if init is too late, the daemon's clock is not."""
    script = """
import os, time
os.write(1, b"partial\\n")
for _ in range(60):
    if os.fork() == 0:
        while True: pass
time.sleep(600)
"""
    limits = Limits(cpus=0.1, wall_seconds=3, cpu_seconds=100, pids=128)
    result = attacks.run(script, limits=limits)
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.WALL_TIMEOUT, None, b"partial\n")
    assert result.usage.wall_seconds < 60
    seen(result.outcome)


@pytest.mark.attack(12, 105, "output in single bytes that nobody reads", expected="bounded memory, others served")
def test_output_in_single_bytes_does_not_grow_the_daemon(seen: Seen) -> None:
    """A frame and an event for each byte: a small output, and as many objects as there can be."""
    script = "import os\nwhile True:\n    os.write(1, b'a')\n    os.write(2, b'b')\n"
    request = script_runner_pb2.RunScriptRequest(
        script_path="x.py", limits=Limits(wall_seconds=5, cpu_seconds=100, output_bytes=64 * MIB).to_wire()
    )
    request.files.add(path="SKILL.md", content=b"---\nname: x\ndescription: x\n---\n")
    request.files.add(path="x.py", content=script.encode())
    with (
        running_daemon("--set", "admission.concurrent_runs=4") as own,
        skilljail.Client(own.address) as client,
        grpc.insecure_channel(own.address) as channel,
    ):
        before = _memory_bytes(own)
        stub = script_runner_pb2_grpc.ScriptRunnerServiceStub(channel)
        calls = [stub.RunScript(request) for _ in range(3)]
        runs = [next(call).event.run_id for call in calls]
        assert client.list_runs() is not None
        wait_until(lambda: all(client.get_run(one).state is RunState.FINISHED for one in runs), 90)
        outcomes = {run.result.outcome for run in map(client.get_run, runs) if run.result}
        grown = _memory_bytes(own) - before
        for call in calls:
            call.cancel()
    assert outcomes <= {Outcome.WALL_TIMEOUT, Outcome.CLIENT_DISCONNECTED}
    assert grown < 64 * MIB, grown
    seen(outcomes, f"{grown // MIB} MiB more")


@pytest.mark.attack(30, 106, "cancelling at any moment", expected="one end, no sandbox")
def test_a_run_that_is_cancelled_at_any_moment_has_one_end_and_no_sandbox(
    attacks: Attacks, daemon: Daemon, engine_api: docker.APIClient, seen: Seen
) -> None:
    """While it is created, started, staged, runs, is collected or destroyed."""
    script = "import os, time\nos.write(1, b'up')\ntime.sleep(0.2)\nopen('made', 'wb').write(bytes(1 << 20))\n"
    skill = attacks.make_skill({"x.py": script})
    chance = random.Random(47)
    ends: list[Outcome] = []
    for _ in range(16):
        with attacks.client.stream(skill, "x.py", artifacts=["made"]) as stream:
            timer = threading.Timer(chance.uniform(0.02, 0.9), _cancel, [attacks.client, stream])
            timer.start()
            finished = [event for event in stream if isinstance(event, skilljail.Finished)]
            timer.cancel()
            timer.join()
        assert len(finished) == 1
        assert stream.result is not None
        run = attacks.client.get_run(stream.run_id)
        assert run.result is not None
        assert run.result.outcome is stream.result.outcome
        assert stream.result.outcome in {Outcome.CANCELLED, Outcome.EXITED}
        assert (stream.result.exit_code == 0) is (stream.result.outcome is Outcome.EXITED)
        ends.append(stream.result.outcome)
    assert owned_containers(engine_api, daemon.owner) == []
    assert Outcome.CANCELLED in ends
    seen(ends)


def _cancel(client: skilljail.Client, stream: skilljail.RunStream) -> None:
    with contextlib.suppress(skilljail.SkilljailError):
        client.cancel_run(stream.run_id)


@pytest.mark.attack(107, "a hidden upper half of a process number", expected="EPERM")
def test_the_upper_half_of_a_process_number_does_not_hide_init(attacks: Attacks, seen: Seen) -> None:
    """The filter keeps these calls from process 1; the kernel looks at 32 bits of the number."""
    found = attacks.report("""
import ctypes, json
from kernel import call
high, room = 1 << 32, ctypes.create_string_buffer(bytes(64))
limit = ctypes.create_string_buffer((64).to_bytes(8, "little") * 2)
mask = ctypes.create_string_buffer(b"\\x01" + bytes(127))
idle = ctypes.create_string_buffer((48).to_bytes(4, "little") + (5).to_bytes(4, "little") + bytes(40))
print(json.dumps({
    "prlimit64": call("prlimit64", high | 1, 7, limit, room),
    "sched_setaffinity": call("sched_setaffinity", high | 1, 128, mask),
    "sched_setattr": call("sched_setattr", high | 1, idle, 0),
    "sched_setparam": call("sched_setparam", high | 1, room),
    "sched_setscheduler": call("sched_setscheduler", high | 1, 5, room),
    "setpriority": call("setpriority", high, high | 1, 5),
}))
""")
    missing = on(runc=set(), gvisor={"ENOSYS"}, why="older releases have not all of these calls")
    assert {"EPERM"} <= set(found.values()) <= {"EPERM"} | missing, found
    seen(found)


@pytest.mark.attack(108, "a memory file, deleted files and descriptors of /proc as programs", expected="no privilege")
def test_a_program_without_a_name_has_no_more_rights_than_any_other(attacks: Attacks, seen: Seen) -> None:
    """`noexec` is not what protects: what is executed from memory is confined like everything else."""
    found = attacks.report("""
import json, os, shutil, subprocess
fd = os.memfd_create("program")
with open("/bin/cat", "rb") as source: shutil.copyfileobj(source, os.fdopen(os.dup(fd), "wb"))
os.fchmod(fd, 0o6755)
done = subprocess.run([f"/proc/self/fd/{fd}", "/proc/self/status"], pass_fds=[fd], capture_output=True, text=True)
lines = dict(line.split(":", 1) for line in done.stdout.splitlines())
names = ("Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
print(json.dumps({name: lines.get(name, "untold").split() for name in names}))
""")
    assert len(set(found["Uid"])) == 1
    assert int(found["Uid"][0]) >= 60_100
    assert (found["CapEff"], found["CapBnd"]) == (["0000000000000000"], ["0000000000000000"])
    told = on(runc=["1"], gvisor=["untold"], why="gVisor does not write it; init asks by prctl(2)")
    assert (found["NoNewPrivs"], found["Seccomp"]) == (told, ["2"])
    seen(f"Uid {'its own' if int(found['Uid'][0]) else 0}", f"CapEff {int(found['CapEff'][0], 16)}")


@pytest.mark.attack(109, "the same user for two sandboxes that are alive", expected="each its own")
def test_sandboxes_that_are_alive_together_have_users_of_their_own(attacks: Attacks, seen: Seen) -> None:
    """What the kernel counts by user is then counted by sandbox."""
    script = "import os, time\nos.write(1, b'%d' % os.getuid())\ntime.sleep(600)"
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(attacks.under_way(script)) for _ in range(3)]
        for stream in streams:
            stream.cancel()
        users = [int(stream.wait().stdout) for stream in streams]
    assert len(set(users)) == 3
    assert all(60_100 <= user < 60_612 for user in users)
    seen(f"{len(set(users))} users")


def _memory_bytes(daemon: Daemon) -> int:
    """The most memory that a daemon's process ever had."""
    status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


@pytest.mark.attack(110, "sync, syncfs, fsync, fdatasync without end", expected="done, and nothing reaches a disk")
def test_no_call_makes_the_hosts_disks_write_out(attacks: Attacks, seen: Seen) -> None:
    """Who waits for a disk waits for what others make it flush."""
    before = _flushes()
    found = attacks.report("""
import json, os
from attempt import attempt
fd = os.open("/", os.O_RDONLY)
calls = {"sync": os.sync, "fsync": lambda: os.fsync(fd), "fdatasync": lambda: os.fdatasync(fd)}
answers = {name: attempt(act) for name, act in calls.items()}
for _ in range(20_000): os.fsync(fd)
print(json.dumps(answers))
""")
    assert found == dict.fromkeys(("sync", "fsync", "fdatasync"), "done None")
    flushed = _flushes() - before
    reaches = on(runc=False, gvisor=True, why="fsync of a file of the image goes on to the host there")
    assert reaches or flushed < 10_000  # others use the disk, too
    seen("done", f"{flushed} flushes")


def _flushes() -> int:
    """Flushes of all disks of this host so far (Documentation/admin-guide/iostats.rst, field 16)."""
    lines = [line.split() for line in pathlib.Path("/proc/diskstats").read_text().splitlines()]
    return sum(int(words[18]) for words in lines if len(words) > 18)
