"""Every outcome that a limit can cause, produced in a real sandbox and read from the kernel's own record."""

import threading

import pytest
import skilljail
from attack_table import Seen
from harness import MakeSkill, on, running_daemon, wait_until
from skilljail import Limits, Outcome, RunResult

MIB = 1024 * 1024
AT_ONCE = "to the host's kernel a sandbox on gVisor is one process: it ends as a whole, and nobody is left to count"
COUNTED = "gVisor refuses nothing and keeps no record: init counts, and ends whom it sees to have too many"


def run(client: skilljail.Client, make_skill: MakeSkill, script: str, limits: Limits | None = None) -> RunResult:
    """Runs a Python script; what it printed before its end must have arrived whatever ended it."""
    skill = make_skill({"scripts/x.py": "print('partial')\n" + script})
    return client.run(skill, "scripts/x.py", limits=limits)


def test_exit_code_zero_is_exited(client: skilljail.Client, make_skill: MakeSkill) -> None:
    result = run(client, make_skill, "")
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.EXITED, 0, None)
    assert (result.stdout, result.stderr) == (b"partial\n", b"")


def test_exit_code_is_carried(client: skilljail.Client, make_skill: MakeSkill) -> None:
    result = run(client, make_skill, "import sys; print('why', file=sys.stderr); sys.exit(37)")
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.EXITED, 37, None)
    assert (result.stdout, result.stderr) == (b"partial\n", b"why\n")


def test_a_signal_that_no_limit_explains_is_signaled(client: skilljail.Client, make_skill: MakeSkill) -> None:
    result = run(client, make_skill, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.SIGNALED, None, 11)
    assert result.stdout == b"partial\n"
    assert "SIGSEGV" in result.message


def test_exit_code_137_is_not_taken_for_a_kill(client: skilljail.Client, make_skill: MakeSkill) -> None:
    result = run(client, make_skill, "raise SystemExit(137)")
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.EXITED, 137, None)


@pytest.mark.attack(16, "sleeping past the wall time", expected="WALL_TIMEOUT")
def test_sleep_past_the_wall_time_is_wall_timeout(client: skilljail.Client, make_skill: MakeSkill, seen: Seen) -> None:
    result = run(client, make_skill, "import time; time.sleep(600)", Limits(wall_seconds=1))
    assert (result.outcome, result.exit_code) == (Outcome.WALL_TIMEOUT, None)
    assert result.stdout == b"partial\n"
    assert 1.0 <= result.usage.wall_seconds < 20
    assert "1 s (wall_time)" in result.message
    seen(result.outcome)


@pytest.mark.attack(22, 23, "ignored signals, detached children", expected="WALL_TIMEOUT")
def test_ignored_signals_and_detached_children_do_not_outlive_the_wall_time(
    client: skilljail.Client, make_skill: MakeSkill, seen: Seen
) -> None:
    script = """
import os, signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(1)
time.sleep(600)
"""
    result = run(client, make_skill, script, Limits(wall_seconds=1))
    assert (result.outcome, result.stdout) == (Outcome.WALL_TIMEOUT, b"partial\n")
    seen(result.outcome)


def test_a_stopped_script_does_not_evade_the_wall_time(client: skilljail.Client, make_skill: MakeSkill) -> None:
    result = run(client, make_skill, "import os, signal; os.kill(0, signal.SIGSTOP)", Limits(wall_seconds=1))
    assert (result.outcome, result.stdout) == (Outcome.WALL_TIMEOUT, b"partial\n")


@pytest.mark.attack(15, "a busy loop", expected="CPU_TIMEOUT")
def test_a_busy_loop_is_cpu_timeout(client: skilljail.Client, make_skill: MakeSkill, seen: Seen) -> None:
    result = run(client, make_skill, "while True: pass", Limits(cpu_seconds=1, wall_seconds=100))
    assert (result.outcome, result.exit_code) == (Outcome.CPU_TIMEOUT, None)
    assert result.stdout == b"partial\n"
    assert result.usage.cpu_seconds is not None
    assert 1.0 <= result.usage.cpu_seconds < 20
    seen(result.outcome)


@pytest.mark.attack(15, "a busy loop on all processors", expected="CPU_TIMEOUT")
def test_cpu_time_of_all_processes_counts_together(client: skilljail.Client, make_skill: MakeSkill, seen: Seen) -> None:
    script = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    result = run(client, make_skill, script, Limits(cpu_seconds=1, wall_seconds=100))
    assert result.outcome is Outcome.CPU_TIMEOUT
    seen(result.outcome)


@pytest.mark.attack(15, "a quarter of a processor", expected="throttled")
def test_the_cpu_share_slows_the_script_down(client: skilljail.Client, make_skill: MakeSkill, seen: Seen) -> None:
    script = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    result = run(client, make_skill, script, Limits(cpus=0.25))
    assert result.outcome is Outcome.EXITED
    assert result.usage.wall_seconds > on(runc=1.5, gvisor=0.75, why="it counts time that a process waits for its turn")
    seen(result.outcome)


@pytest.mark.attack(4, "a memory bomb", expected="OOM_KILLED")
def test_a_memory_bomb_is_oom_killed(client: skilljail.Client, make_skill: MakeSkill, seen: Seen) -> None:
    result = run(client, make_skill, "held = [bytearray(1 << 20) for _ in range(1000)]", _memory(64))
    assert (result.outcome, result.exit_code) == (Outcome.OOM_KILLED, None)
    assert result.stdout == b"partial\n"
    assert result.usage.oom_kills == on(runc=1, gvisor=None, why=AT_ONCE)
    peak = result.usage.peak_memory_bytes
    assert on(runc=False, gvisor=peak is None, why=AT_ONCE) or 32 * MIB < (peak or 0) <= 64 * MIB
    seen(result.outcome, f"{result.usage.oom_kills} kill")


@pytest.mark.attack(5, "memory spread over processes", expected="OOM_KILLED")
def test_memory_of_many_processes_counts_together(client: skilljail.Client, make_skill: MakeSkill, seen: Seen) -> None:
    script = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(20 << 20); held[::4096] = b"x" * len(held[::4096]); time.sleep(600)
raise SystemExit(os.wait()[1] != 0)
"""
    result = run(client, make_skill, script, _memory(96))
    assert (result.outcome, result.exit_code) == (Outcome.OOM_KILLED, on(runc=1, gvisor=None, why=AT_ONCE))
    assert on(runc=False, gvisor=result.usage.oom_kills is None, why=AT_ONCE) or (result.usage.oom_kills or 0) >= 1
    seen(result.outcome)


@pytest.mark.attack(6, "files in memory", expected="OOM_KILLED")
@pytest.mark.parametrize("path", ["/work/tmp/fill", "/dev/shm/fill"])
def test_files_in_memory_count_as_memory(
    client: skilljail.Client, make_skill: MakeSkill, path: str, seen: Seen
) -> None:
    limits = Limits(memory_bytes=48 * MIB, disk_bytes=47 * MIB)
    script = f"""
with open({path!r}, "wb") as file:
    for _ in range(60): file.write(bytes(1 << 20)); file.flush()
"""
    result = run(client, make_skill, script, limits)
    assert result.outcome is Outcome.OOM_KILLED
    assert result.stdout == b"partial\n"
    seen(result.outcome)


def test_a_child_that_the_kernel_killed_for_memory_is_told_even_when_the_script_copes(
    client: skilljail.Client, make_skill: MakeSkill
) -> None:
    script = """
import os
if os.fork() == 0:
    held = [bytearray(1 << 20) for _ in range(1000)]
os.wait()
"""
    result = run(client, make_skill, script, _memory(64))
    expected = on(runc=(Outcome.EXITED, 0, 1), gvisor=(Outcome.OOM_KILLED, None, None), why=AT_ONCE)
    assert (result.outcome, result.exit_code, result.usage.oom_kills) == expected


@pytest.mark.attack(3, "processes beyond the pids limit", expected="PIDS_LIMIT")
def test_too_many_processes_is_pids_limit(client: skilljail.Client, make_skill: MakeSkill, seen: Seen) -> None:
    script = "import subprocess\nheld = [subprocess.Popen(['sleep', '30']) for _ in range(40)]"
    result = run(client, make_skill, script, Limits(pids=16))
    assert (result.outcome, result.exit_code) == (Outcome.PIDS_LIMIT, on(runc=1, gvisor=None, why=COUNTED))
    assert on(runc=b"BlockingIOError", gvisor=b"", why=COUNTED) in result.stderr
    assert result.usage.pids_limit_hits
    assert result.stdout == b"partial\n"
    seen(result.outcome)


def test_a_script_that_copes_with_the_pids_limit_goes_on(client: skilljail.Client, make_skill: MakeSkill) -> None:
    script = """
import subprocess
held = []
try:
    while True: held.append(subprocess.Popen(["sleep", "30"]))
except BlockingIOError:
    print("coped")
"""
    result = run(client, make_skill, script, Limits(pids=16))
    expected = on(
        runc=(Outcome.EXITED, 0, b"partial\ncoped\n"), gvisor=(Outcome.PIDS_LIMIT, None, b"partial\n"), why=COUNTED
    )
    assert (result.outcome, result.exit_code, result.stdout) == expected
    assert result.usage.pids_limit_hits


@pytest.mark.attack(1, "a fork bomb of its own processes", expected="PIDS_LIMIT")
def test_a_fork_bomb_is_pids_limit_long_before_the_wall_time(
    client: skilljail.Client, make_skill: MakeSkill, seen: Seen
) -> None:
    script = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""
    result = run(client, make_skill, script, Limits(pids=32, wall_seconds=100, cpu_seconds=100))
    assert (result.outcome, result.exit_code) == (Outcome.PIDS_LIMIT, None)
    assert result.usage.wall_seconds < 50
    assert result.stdout == b"partial\n"
    seen(result.outcome)


@pytest.mark.attack(9, "a full work directory", expected="DISK_LIMIT")
@pytest.mark.parametrize(
    ("what", "script"),
    [
        ("bytes", "with open('big', 'wb') as file:\n    while True: file.write(bytes(1 << 16))"),
        ("inodes", "import itertools\nfor number in itertools.count(): open(f'{number}', 'w').close()"),
    ],
)
def test_a_full_work_directory_is_disk_limit(
    client: skilljail.Client, make_skill: MakeSkill, what: str, script: str, seen: Seen
) -> None:
    result = run(client, make_skill, script, Limits(disk_bytes=4 * MIB, disk_inodes=256))
    counted = on(
        runc=False, gvisor=what == "inodes" and result.exit_code is None, why="older releases do not limit them"
    )
    assert (result.outcome, result.exit_code) == (Outcome.DISK_LIMIT, None if counted else 1), what
    assert counted or b"OSError" in result.stderr
    assert result.usage.disk_full
    assert result.stdout == b"partial\n"
    seen(result.outcome)


def test_a_file_beyond_the_size_of_the_work_directory_ends_by_the_kernels_signal(
    client: skilljail.Client, make_skill: MakeSkill
) -> None:
    skill = make_skill({"scripts/x.sh": "echo partial; exec truncate -s 64M big"})
    result = client.run(skill, "scripts/x.sh", limits=Limits(disk_bytes=4 * MIB))
    assert (result.outcome, result.signal) == (Outcome.SIGNALED, 25)
    assert result.message == "The script was ended by SIGXFSZ. A file may have grown to the limit of disk_bytes."
    assert result.stdout == b"partial\n"


@pytest.mark.attack(17, "descriptors beyond the limit", expected="EMFILE")
def test_open_files_end_at_the_limit_inside(client: skilljail.Client, make_skill: MakeSkill, seen: Seen) -> None:
    script = """
held = []
try:
    while True: held.append(open("/dev/null"))
except OSError as error:
    print(error.errno, len(held))
"""
    result = run(client, make_skill, script, Limits(open_files=64))
    assert (result.outcome, result.stdout) == (Outcome.EXITED, b"partial\n24 61\n")
    seen(result.outcome, f"errno {result.stdout_text.split()[1]}")


@pytest.mark.attack(12, "a flood of output", expected="OUTPUT_LIMIT")
def test_an_output_flood_is_output_limit_and_cut_exactly(
    client: skilljail.Client, make_skill: MakeSkill, seen: Seen
) -> None:
    result = run(client, make_skill, "while True: print('x' * 999)", Limits(output_bytes=100_000))
    assert (result.outcome, result.exit_code) == (Outcome.OUTPUT_LIMIT, None)
    assert len(result.stdout) == 100_000
    assert result.stdout.startswith(b"partial\nxxx")
    assert result.usage.output_truncated
    seen(result.outcome)


def test_output_of_exactly_the_limit_is_not_cut(client: skilljail.Client, make_skill: MakeSkill) -> None:
    result = run(client, make_skill, "print('x' * 991)", Limits(output_bytes=1_000))
    assert (result.outcome, len(result.stdout), result.usage.output_truncated) == (Outcome.EXITED, 1_000, False)


def test_cancel_run_is_cancelled(client: skilljail.Client, make_skill: MakeSkill) -> None:
    skill = make_skill({"scripts/x.py": "import os, time; os.write(1, b'partial\\n'); time.sleep(600)"})
    with client.stream(skill, "scripts/x.py") as stream:
        for event in stream:
            if isinstance(event, skilljail.Output):
                threading.Thread(target=stream.cancel).start()
        result = stream.result
    assert result is not None
    assert (result.outcome, result.exit_code) == (Outcome.CANCELLED, None)
    assert result.stdout == b"partial\n"


@pytest.mark.attack(30, "a caller that leaves", expected="CLIENT_DISCONNECTED")
def test_a_caller_that_leaves_is_client_disconnected(
    client: skilljail.Client, make_skill: MakeSkill, seen: Seen
) -> None:
    skill = make_skill({"scripts/x.py": "import os, time; os.write(1, b'partial\\n'); time.sleep(600)"})
    with client.stream(skill, "scripts/x.py") as stream:
        for event in stream:
            if isinstance(event, skilljail.Output):
                break
        run_id = stream.run_id
    wait_until(lambda: client.get_run(run_id).result is not None)
    result = client.get_run(run_id).result
    assert result is not None
    assert (result.outcome, result.exit_code) == (Outcome.CLIENT_DISCONNECTED, None)
    assert result.usage.stdout_bytes == len(b"partial\n")
    seen(result.outcome)


def test_a_daemon_that_is_stopped_is_shutdown(make_skill: MakeSkill) -> None:
    skill = make_skill({"scripts/x.py": "import os, time; os.write(1, b'partial\\n'); time.sleep(600)"})
    with running_daemon("--set", "shutdown_grace_seconds=0.2") as own, skilljail.Client(own.address) as client:
        with client.stream(skill, "scripts/x.py") as stream:
            for event in stream:
                if isinstance(event, skilljail.Output):
                    own.process.terminate()
            result = stream.result
        assert own.process.wait(30) == 0
    assert result is not None
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.SHUTDOWN, None, b"partial\n")


def _memory(mebibytes: int) -> Limits:
    return Limits(memory_bytes=mebibytes * MIB, disk_bytes=8 * MIB)
