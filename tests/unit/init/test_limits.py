"""The limits that init itself holds, and the kernel's records that it reports."""

# ruff: noqa: S101

import pathlib
import time
from collections.abc import Iterator

import pytest
from harness import wait_until
from skilljail_init.frames import FrameType

from .driver import INIT, InitProcess, python

INIT_WITH_OTHER_GROUP = """
import sys
sys.path.insert(0, {init!r})
from skilljail_init import cgroup, main
real = cgroup.ControlGroup
main.ControlGroup = lambda: real({process!r})
main.main(sys.argv[1:])
"""


@pytest.fixture
def group(tmp_path: pathlib.Path) -> pathlib.Path:
    """Files as those of a control group of version 2."""
    folder = tmp_path / "group"
    folder.mkdir()
    for name, content in {
        "cgroup.events": "populated 1\nfrozen 0\n",
        "cpu.stat": "usage_usec 7000000\nuser_usec 1\n",
        "memory.events": "low 0\nmax 3\noom 1\noom_kill 2\n",
        "memory.peak": "5000\n",
        "pids.events": "max 40\n",
    }.items():
        (folder / name).write_text(content)
    return folder


@pytest.fixture
def grouped(tmp_path: pathlib.Path, group: pathlib.Path) -> Iterator[InitProcess]:
    """An init that takes `group` for its control group."""
    process = tmp_path / "process"
    process.mkdir()
    (process / "cgroup").write_text("0::/\n")
    (process / "mountinfo").write_text(f"30 20 0:26 / {group} ro,nosuid shared:9 - cgroup2 cgroup rw\n")
    program = tmp_path / "init.py"
    program.write_text(INIT_WITH_OTHER_GROUP.format(init=str(INIT), process=str(process)))
    work = tmp_path / "work"
    work.mkdir()
    with InitProcess(work, init=program) as init:
        yield init


def writes(size: int, more: str = "") -> list[str]:
    """A script that writes so many bytes, one half to each stream."""
    return python(f"import os, sys; os.write(1, b'o' * {size // 2}); os.write(2, b'e' * {size - size // 2}); {more}")


def test_output_up_to_the_limit_is_no_offence(init: InitProcess) -> None:
    result = init.run(writes(1000), output_bytes=1000)
    assert (len(result.stdout), len(result.stderr), result.ended) == (500, 500, ("exited", 0, None))
    assert result.exit["output_truncated"] is False


@pytest.mark.parametrize("more", ["", "import time; time.sleep(600)"], ids=["ends at once", "goes on"])
def test_one_byte_too_much_is_cut_and_ends_the_script(init: InitProcess, more: str) -> None:
    result = init.run(writes(1001, more), output_bytes=1000)
    assert len(result.stdout) + len(result.stderr) == 1000
    assert result.exit["cause"] == "output_limit"
    assert result.exit["output_truncated"] is True


def test_too_much_output_is_an_offence_even_of_a_script_that_is_gone(init: InitProcess) -> None:
    # A pipe of 1 MiB takes it all while nobody reads, and the script succeeds.
    source = "import fcntl, os; fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20); os.write(1, b'x' * 1_000_000)"
    began = time.monotonic()
    init.start(python(source + "; os.close(os.open('end', os.O_CREAT)); os._exit(0)"), output_bytes=900_000)
    wait_until((init.skill / "end").exists)
    time.sleep(2)
    seconds = time.monotonic() - began
    result = init.finish()
    assert result.stdout == b"x" * 900_000
    assert result.ended == ("output_limit", 0, None)
    assert result.exit["output_truncated"] is True
    assert result.exit["wall_seconds"] < seconds - 1  # the time in which nobody read is not its own


def test_endless_output_is_delivered_to_the_last_byte_of_the_limit(init: InitProcess) -> None:
    result = init.run(["cat", "/dev/zero"], output_bytes=1_234_567)
    assert result.stdout == b"\0" * 1_234_567
    assert result.ended == ("output_limit", None, 9)
    assert result.exit["output_truncated"] is True


def test_no_output_may_be_allowed(init: InitProcess) -> None:
    assert init.run(["true"], output_bytes=0).ended == ("exited", 0, None)
    result = init.run(["sh", "-c", "echo; sleep 600"], output_bytes=0)
    assert (result.stdout, result.ended) == (b"", ("output_limit", None, 9))


def test_a_daemon_that_does_not_read_stops_the_script_and_not_the_clock(init: InitProcess) -> None:
    counter = "import os\nwhile True:\n os.write(1, b'x' * 65536)\n open('count', 'a').write('x')"
    init.start(python(counter), output_bytes=1 << 40, wall_seconds=3)
    wait_until((init.skill / "count").exists)
    written = -1
    while written != (written := (init.skill / "count").stat().st_size):
        time.sleep(0.5)
    assert 0 < written * 65_536 < 2_000_000
    time.sleep(3)  # until it is killed, with nobody reading
    result = init.finish()
    assert result.ended == ("wall_timeout", None, 9)
    assert result.exit["wall_seconds"] < 20
    assert result.exit["output_truncated"] is False
    assert set(result.stdout) == {ord("x")}


def test_cancel_reaches_a_script_whose_output_nobody_reads(init: InitProcess) -> None:
    source = "import os\nopen('up', 'w').close()\nos.execvp('cat', ['cat', '/dev/zero'])"
    began = time.monotonic()
    init.start(python(source), output_bytes=1 << 30)
    wait_until((init.skill / "up").exists)
    init.send(FrameType.CANCEL)
    time.sleep(3)
    seconds = time.monotonic() - began
    result = init.finish()
    assert result.ended == ("cancelled", None, 9)
    assert result.exit["wall_seconds"] < seconds - 1  # it was dead before anybody read


def test_cpu_time_of_all_processes_counts(init: InitProcess) -> None:
    source = "import os\nos.fork()\nos.fork()\nwhile True: pass"
    result = init.run(python(source), cpu_seconds=0.5)
    assert result.ended == ("cpu_timeout", None, 9)
    assert 0.5 < result.exit["cpu_seconds"] < 20


def test_sleeping_uses_no_cpu_time(init: InitProcess) -> None:
    result = init.run(["sleep", "0.6"], cpu_seconds=0.3)
    assert result.ended == ("exited", 0, None)
    assert result.exit["cpu_seconds"] < 0.3


def test_the_kernels_records_are_counted_from_the_start_of_the_script(
    grouped: InitProcess, group: pathlib.Path
) -> None:
    records = {"cpu.stat": "usage_usec 7250000", "memory.events": "oom_kill 5", "pids.events": "max 47"}
    commands = [f"echo {content} >{group / name}" for name, content in records.items()]
    result = grouped.run(["sh", "-c", ";".join([*commands, f"echo 9000 >{group}/memory.peak", "sleep 0.2"])])
    assert result.ended == ("exited", 0, None)
    reported = {key: result.exit[key] for key in ("cpu_seconds", "oom_kills", "pids_limit_hits", "peak_memory_bytes")}
    assert reported == {"cpu_seconds": 0.25, "oom_kills": 3, "pids_limit_hits": 7, "peak_memory_bytes": 9000}
    # the next run starts from there
    assert grouped.run(["true"]).exit["oom_kills"] == 0


def test_the_groups_cpu_account_ends_a_script(grouped: InitProcess, group: pathlib.Path) -> None:
    result = grouped.run(["sh", "-c", f"echo usage_usec 9100000 >{group}/cpu.stat; sleep 600"], cpu_seconds=2)
    assert result.ended == ("cpu_timeout", None, 9)
    assert result.exit["cpu_seconds"] == pytest.approx(2.1)


@pytest.mark.parametrize(("hits", "cause", "seconds"), [(100, "exited", 0.5), (101, "pids_storm", 600)])
def test_a_script_that_is_refused_processes_without_end_is_killed(
    grouped: InitProcess, group: pathlib.Path, hits: int, cause: str, seconds: float
) -> None:
    result = grouped.run(["sh", "-c", f"echo max {40 + hits} >{group}/pids.events; sleep {seconds}"])
    assert (result.exit["cause"], result.exit["pids_limit_hits"]) == (cause, hits)


def test_records_that_the_kernel_does_not_keep_are_null(grouped: InitProcess, group: pathlib.Path) -> None:
    broken = " ".join(str(group / name) for name in ("memory.events", "memory.peak", "pids.events", "cpu.stat"))
    result = grouped.run(["sh", "-c", f"for file in {broken}; do : >$file; done"])
    assert result.ended == ("exited", 0, None)
    assert [result.exit[key] for key in ("oom_kills", "pids_limit_hits", "peak_memory_bytes")] == [None] * 3


@pytest.mark.parametrize(
    ("options", "fill"),
    [
        ("size=1m", "head -c 2m /dev/zero >file"),
        ("size=1m,nr_inodes=50", "for i in $(seq 100); do touch $i; done"),
    ],
    ids=["bytes", "inodes"],
)
def test_a_full_work_directory_is_noticed_at_the_end(tmp_path: pathlib.Path, options: str, fill: str) -> None:
    with InitProcess(tmp_path, tmpfs=options) as init:
        assert init.run(["sh", "-c", "echo x >small"]).exit["disk_full"] is False
        result = init.run(["sh", "-c", f"{fill} 2>/dev/null; exit 5"])
        assert (result.ended, result.exit["disk_full"]) == (("exited", 5, None), True)


def test_a_work_directory_that_was_full_is_noticed_after_it_was_emptied(tmp_path: pathlib.Path) -> None:
    with InitProcess(tmp_path, tmpfs="size=1m") as init:
        source = "head -c 2m /dev/zero >file 2>/dev/null; sleep 2; rm file; exit 5"
        assert init.run(["sh", "-c", source]).exit["disk_full"] is True
        assert init.run(["true"]).exit["disk_full"] is False
