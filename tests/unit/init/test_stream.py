"""What init makes of a daemon that breaks the protocol: FATAL and status 70, and never a hang."""

# ruff: noqa: S101

import contextlib
import pathlib
import tempfile
import time

import pytest
from harness import wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from skilljail_init import frames
from skilljail_init.frames import FrameType

from .driver import ENV, InitProcess, python

START = {
    "argv": ["true"], "env": ENV, "cwd": "", "stdin_bytes": 0, "wall_seconds": 5, "cpu_seconds": 5, "output_bytes": 9,
    "open_files": 99, "pids": 9, "cpus": 1, "disk_bytes": 9, "disk_inodes": 9, "egress": False,
    "artifact_patterns": ["*"], "artifact_count": 9, "artifact_bytes": 9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\x00\x00\x00\x00", "unknown frame type 0xff"),
        (b"GET / HTTP/1.1\r\n", "frame of 1163141167 bytes, the limit is 8388608"),
        (b"\x01\x00\x80\x00\x01", "frame of 8388609 bytes, the limit is 8388608"),
        (frames.encode(FrameType.READY, b"{}"), "READY frame from the wrong end"),
        (frames.encode(FrameType.DATA, b"x"), "DATA frame where STAGE or START was due"),
        (frames.encode(FrameType.STAGE, b"{"), "STAGE frame is not JSON"),
        (frames.encode(FrameType.STAGE, b"[]"), "STAGE frame is not a JSON object"),
        (frames.encode(FrameType.START, b"[" * 1_000_000), "START frame is not JSON"),
        (frames.encode(FrameType.START, b"{}"), "argv: not a list"),
    ],
)
def test_a_broken_frame_ends_init_with_a_reason(init: InitProcess, data: bytes, message: str) -> None:
    init.write(data)
    assert init.end() == (message, 70)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"argv": []}, "START: argv is empty"),
        ({"argv": ["a\0b"]}, "argv: not a string of UTF-8 without NUL"),
        ({"argv": "true"}, "argv: not a list"),
        ({"env": {"A=B": "x"}}, "env: 'A=B' is no name of a variable"),
        ({"env": {"": "x"}}, "env: '' is no name of a variable"),
        ({"env": {"A": 1}}, "env A: not a string of UTF-8 without NUL"),
        ({"env": []}, "env: not an object"),
        ({"cwd": "../home"}, "cwd: '../home' is not a safe path below the skill root"),
        ({"cwd": "/"}, "cwd: '/' is not a safe path below the skill root"),
        ({"stdin_bytes": -1}, "stdin_bytes: not an integer from 0 to 67108864"),
        ({"stdin_bytes": 1 << 40}, "stdin_bytes: not an integer from 0 to 67108864"),
        ({"wall_seconds": 0}, "wall_seconds: not a number of seconds above 0 and up to 1000000000"),
        ({"wall_seconds": "5"}, "wall_seconds: not a number of seconds above 0 and up to 1000000000"),
        ({"cpu_seconds": -1}, "cpu_seconds: not a number of seconds above 0 and up to 1000000000"),
        ({"cpu_seconds": 1 << 2000}, "cpu_seconds: not a number of seconds above 0 and up to 1000000000"),
        ({"output_bytes": None}, "output_bytes: not an integer from 0 to 9223372036854775807"),
        ({"artifact_count": True}, "artifact_count: not an integer from 0 to 9223372036854775807"),
        ({"egress": None}, "egress: neither true nor false"),
        ({"egress": 1}, "egress: neither true nor false"),
        ({"artifact_patterns": [1]}, "artifact_patterns: not a string of UTF-8 without NUL"),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(init: InitProcess, changes: dict[str, object], message: str) -> None:
    init.write(frames.encode_json(FrameType.START, START | changes))
    assert init.end() == (message, 70)


def test_more_input_than_announced_is_refused(init: InitProcess) -> None:
    init.start(["cat"], stdin=b"abcd", stdin_bytes=3)
    assert init.end() == ("1 bytes more of standard input than announced", 70)


@pytest.mark.parametrize("kind", [FrameType.STAGE, FrameType.START, FrameType.DATA])
def test_a_frame_in_the_middle_of_a_run_kills_the_script(init: InitProcess, kind: FrameType) -> None:
    init.start(python("import time\nwhile True: open('heartbeat', 'a').write('x'); time.sleep(0.01)"))
    init.expect(FrameType.STARTED)
    wait_until((init.skill / "heartbeat").exists)
    init.send(kind, b"{}")
    assert init.end() == (f"{kind.name} frame while a script runs", 70)
    size = (init.skill / "heartbeat").stat().st_size
    time.sleep(0.1)
    assert (init.skill / "heartbeat").stat().st_size == size


def test_a_frame_may_come_byte_by_byte(init: InitProcess) -> None:
    for byte in frames.encode_json(FrameType.START, START):
        init.write(bytes([byte]))
    assert init.finish().ended == ("exited", 0, None)


CONVERSATION = (
    frames.encode_json(
        FrameType.STAGE,
        {"directories": ["d"], "files": [{"path": "f", "size": 3, "executable": False, "sha256": "0" * 64}]},
    )
    + frames.encode(FrameType.DATA, b"abc")
    + frames.encode_json(FrameType.START, START | {"stdin_bytes": 2})
    + frames.encode(FrameType.DATA, b"in")
)

process_test = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@process_test
@given(st.integers(min_value=0, max_value=len(CONVERSATION)))
def test_a_stream_that_is_cut_anywhere_ends_init_quietly(length: int) -> None:
    with tempfile.TemporaryDirectory() as work, InitProcess(pathlib.Path(work)) as init:
        init.write(CONVERSATION[:length])
        init.close()
        assert init.end() == (None, 0)


@process_test
@given(st.lists(st.tuples(st.integers(0, len(CONVERSATION) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damage_to_the_stream_ends_in_an_orderly_way(damage: list[tuple[int, int]]) -> None:
    data = bytearray(CONVERSATION)
    for position, byte in damage:
        data[position] = byte
    with tempfile.TemporaryDirectory() as work, InitProcess(pathlib.Path(work)) as init:
        with contextlib.suppress(BrokenPipeError):  # it may have seen enough before the last byte
            init.write(bytes(data))
            init.close()
        message, status = init.end()
    assert (message is None, status) in {(True, 0), (False, 70)}
    assert message is None or "Error in" not in message


def test_a_fault_of_inits_own_is_told_by_type_and_place(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "init.py"
    program.write_text(f"""
import sys
sys.path.insert(0, {str(pathlib.Path(frames.__file__).parent.parent)!r})
from skilljail_init import conversation, main
def fail(*_): raise KeyError("a secret")
conversation.StageOrder = fail
main.main(sys.argv[1:])
""")
    with InitProcess(tmp_path, init=program) as init:
        init.send(FrameType.STAGE, b"{}")
        message, status = init.end()
    assert (message, status) == (f"KeyError in {program}:5", 70)


def test_a_daemon_that_is_gone_for_reading_ends_init(init: InitProcess) -> None:
    init.start(["cat", "/dev/zero"], output_bytes=1 << 40)
    init.expect(FrameType.STARTED)
    assert init.process.stdout is not None
    init.process.stdout.close()
    assert init.process.wait(30) == 0


def test_a_daemon_that_never_reads_fatal_does_not_hold_init_up(init: InitProcess) -> None:
    init.start(["cat", "/dev/zero"], output_bytes=1 << 40)
    time.sleep(1)
    init.send(FrameType.STAGE, b"{}")
    assert init.process.wait(30) == 70
