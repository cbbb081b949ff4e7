"""However a script resists, its end is the end of every process that it made."""

# ruff: noqa: S101

import pathlib
import time

import pytest
from skilljail_init.frames import FrameType

from .driver import InitProcess, python

HEARTBEAT = """
import os, sys, time, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
while True:
    with open("heartbeat", "a") as file: file.write("x")
    time.sleep(0.01)
"""
DAEMONIZE = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {{}}
        exec({HEARTBEAT!r})
    os._exit(0)
while not os.path.exists("heartbeat") or not os.path.getsize("heartbeat"): time.sleep(0.01)
"""
SILENT = "os.dup2(os.open('/dev/null', os.O_RDWR), 1); os.dup2(1, 2)"

PROMPTLY_SECONDS = 20.0
"""Well below what a script or a child of it would take by itself."""

COUNT = "import os; print(sum(name.isdecimal() for name in os.listdir('/proc')))"
"""Prints how many processes there are: init and itself."""


def assert_heart_stands_still(skill: pathlib.Path) -> None:
    """Whatever wrote the heartbeat is dead."""
    size = (skill / "heartbeat").stat().st_size
    assert size > 0
    time.sleep(0.1)
    assert (skill / "heartbeat").stat().st_size == size


@pytest.mark.parametrize("silence", [SILENT, "pass"], ids=["silent", "holds the output"])
def test_a_daemonized_child_dies_with_the_script_and_does_not_delay_its_end(init: InitProcess, silence: str) -> None:
    result = init.run(python(DAEMONIZE.format(silence) + "print('bye')"))
    assert (result.stdout, result.stderr, result.ended) == (b"bye\n", b"", ("exited", 0, None))
    assert result.seconds < PROMPTLY_SECONDS
    assert_heart_stands_still(init.skill)


def test_wall_time_kills_everything_and_keeps_the_output_so_far(init: InitProcess) -> None:
    source = DAEMONIZE.format("pass") + HEARTBEAT.replace("while True", "print('partial', flush=True)\nwhile True")
    result = init.run(python(source), wall_seconds=0.5)
    assert (result.stdout, result.stderr, result.ended) == (b"partial\n", b"", ("wall_timeout", None, 9))
    assert 0.5 <= result.exit["wall_seconds"] < PROMPTLY_SECONDS
    assert_heart_stands_still(init.skill)


def test_a_stopped_script_does_not_stop_the_clock(init: InitProcess) -> None:
    result = init.run(["sh", "-c", "kill -STOP $$"], wall_seconds=0.3)
    assert result.ended == ("wall_timeout", None, 9)
    assert result.exit["wall_seconds"] < PROMPTLY_SECONDS


def test_a_fork_bomb_ends_at_the_wall(init: InitProcess) -> None:
    # 150 processes which replace each other as fast as they can: whoever is killed has forked already.
    source = """
import os, time
for _ in range(150):
    if os.fork() == 0:
        while True:
            if os.fork(): os._exit(0)
            os.setsid()
time.sleep(600)
"""
    result = init.run(python(source), wall_seconds=0.5)
    assert result.ended == ("wall_timeout", None, 9)
    assert result.exit["wall_seconds"] < PROMPTLY_SECONDS
    assert init.run(python(COUNT)).stdout == b"2\n"


def test_nothing_is_left_but_init_after_a_run(init: InitProcess) -> None:
    init.run(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do (sleep 100 &) ; done; setsid sleep 100 &"])
    result = init.run(python(COUNT))
    assert result.stdout == b"2\n"


def test_orphans_are_buried_while_the_script_runs(init: InitProcess) -> None:
    source = """
import os, time
for _ in range(50):
    if os.fork() == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
for _ in range(50): os.wait()
deadline = time.monotonic() + 30
while sum(name.isdecimal() for name in os.listdir("/proc")) > 2 and time.monotonic() < deadline: time.sleep(0.01)
print(sum(name.isdecimal() for name in os.listdir("/proc")))
"""
    assert init.run(python(source)).stdout == b"2\n"


def test_an_orphans_exit_code_is_not_the_scripts(init: InitProcess) -> None:
    assert init.run(["sh", "-c", "(exit 9 & ) ; sleep 0.1; exit 4"]).ended == ("exited", 4, None)


def test_cancel_kills_everything_and_collects_nothing(init: InitProcess) -> None:
    source = DAEMONIZE.format("pass") + "print('up', flush=True); time.sleep(600)"
    init.start(python(source), artifact_patterns=["**"])
    init.expect(FrameType.STARTED)
    assert init.expect(FrameType.STDOUT).payload == b"up\n"
    init.send(FrameType.CANCEL)
    end = init.expect(FrameType.EXIT).json()
    assert (end["cause"], end["exit_code"], end["signal"]) == ("cancelled", None, 9)
    assert init.expect(FrameType.DONE).payload == b""
    assert end["wall_seconds"] < PROMPTLY_SECONDS
    assert_heart_stands_still(init.skill)


def test_cancel_between_runs_is_ignored(init: InitProcess) -> None:
    init.send(FrameType.CANCEL)
    init.stage({"a": b"a"})
    init.send(FrameType.CANCEL)
    assert init.run(["cat", "a"]).stdout == b"a"


def test_the_end_of_the_stream_kills_the_script(init: InitProcess) -> None:
    init.start(python(DAEMONIZE.format("pass") + "print('up', flush=True); time.sleep(600)"))
    init.expect(FrameType.STARTED)
    init.expect(FrameType.STDOUT)
    init.close()
    assert init.end() == (None, 0)
    assert_heart_stands_still(init.skill)


@pytest.mark.parametrize("when", ["idle", "staging", "waiting for input"])
def test_the_end_of_the_stream_ends_init_at_any_time(init: InitProcess, when: str) -> None:
    if when == "staging":
        init.write(b"\x01\x00\x00\x10\x00{")
    if when == "waiting for input":
        init.start(["cat"], stdin_bytes=10)
    init.close()
    assert init.end() == (None, 0)
