"""What init reads: frames, orders, JSON, patterns. It ends with 0 or 70 whatever comes, and never hangs."""

import contextlib
import fnmatch
import json
import os
import pathlib
import re
import select
import subprocess
import tempfile
import threading
import time
from typing import IO, Any

import pytest
from hypothesis import strategies as st
from skilljail._paths import path_fault as client_path_fault
from skilljail_init import frames, jsontext
from skilljail_init.errors import InitError
from skilljail_init.frames import Frame, FrameDecoder, FrameError, FrameType
from skilljail_init.orders import StageOrder, StartOrder
from skilljail_init.paths import PathError, is_safe_name, split_path
from skilljail_init.patterns import PathPatterns
from skilljaild.paths import path_fault as daemon_path_fault
from unit.init.driver import UID, InitProcess

from .conversations import FROM_DAEMON, FROM_INIT, STAGE, START
from .hunt import target
from .mutation import Said, cut, encoded, framed, mutated, mutated_frames, mutated_json

HANG_SECONDS = 60.0
QUIET_SECONDS = 0.3
"""An init that says nothing for so long waits for more."""
PATTERN_SECONDS = 10.0


# Frames and their JSON


@target(
    cut(mutated_frames([*FROM_DAEMON, *FROM_INIT])),
    st.sampled_from([frames.FROM_DAEMON, frames.FROM_INIT]),
    examples=300,
)
def test_a_decoder_cuts_any_bytes_the_same_however_they_come(
    pieces: list[bytes], allowed: frozenset[FrameType]
) -> None:
    def decoded(pieces: list[bytes]) -> tuple[list[tuple[FrameType, bytes]], bool]:
        decoder = FrameDecoder(frames.FROM_INIT_MAX, allowed)
        found: list[tuple[FrameType, bytes]] = []
        for piece in pieces:
            try:
                found += [(one.type, one.payload) for one in decoder.feed(piece)]
            except FrameError:
                return found, True
            assert decoder.pending_bytes < frames.HEADER.size + frames.FROM_INIT_MAX
        return found, False

    whole = b"".join(pieces)
    one_by_one, broken = decoded([whole[index : index + 1] for index in range(len(whole))])
    found, also_broken = decoded(pieces)
    assert broken == also_broken
    # The frames before a fault that came in the same piece go down with it.
    assert one_by_one[: len(found)] == found if broken else one_by_one == found
    for kind, payload in found:
        assert kind in allowed
        assert len(payload) <= frames.FROM_INIT_MAX


JSON_SEEDS = [encoded(one) for one in (STAGE, START, {"a": [1, -2.5e-3, '\\"\u00e9', None, True, False, {}]})]


@target(mutated(JSON_SEEDS), examples=500)
def test_inits_json_is_that_of_the_standard_library(data: bytes) -> None:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        expected = json.loads(data.decode(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        with pytest.raises((ValueError, RecursionError)):
            jsontext.loads(data)
        assert str(error)
        return
    found = jsontext.loads(data)
    assert repr(found) == repr(expected)
    assert json.loads(jsontext.dumps(found)) == expected


# Orders


@target(mutated_json(STAGE) | mutated([encoded(STAGE)]), examples=400)
def test_what_init_stages_stays_below_the_skill_root(said: dict[str, Any] | bytes) -> None:
    try:
        order = StageOrder(_frame(FrameType.STAGE, said).json())
    except (FrameError, InitError):
        return
    for names in (*order.directories, *(file.names for file in order.files)):
        assert names
        assert all(is_safe_name(name) and os.sep not in name for name in names)
    for file in order.files:
        assert 0 <= file.size < 2**63
        assert re.fullmatch("[0-9a-f]{64}", file.digest)
        assert file.path == "/".join(file.names)


@target(mutated_json(START) | mutated([encoded(START)]), examples=400)
def test_what_init_starts_can_be_handed_to_the_kernel(said: dict[str, Any] | bytes) -> None:
    try:
        order = StartOrder(_frame(FrameType.START, said).json())
    except (FrameError, InitError):
        return
    assert order.argv
    for text in (*order.argv, *order.env, *order.env.values(), order.cwd, *order.artifact_patterns):
        assert b"\0" not in text.encode()
    assert not any("=" in name or not name for name in order.env)
    for number in (order.stdin_bytes, order.output_bytes, order.open_files, order.disk_bytes, order.artifact_count):
        assert type(number) is int
        assert 0 <= number < 2**63
    assert 0 < order.wall_seconds <= 10**9
    assert 0 < order.cpu_seconds <= 10**9
    PathPatterns(order.artifact_patterns).match("a/b")


def _frame(kind: FrameType, said: dict[str, Any] | bytes) -> Frame:
    return Frame(kind, said if isinstance(said, bytes) else encoded(said))


# The process


@target(mutated_frames(FROM_DAEMON), examples=25, share=3)
def test_init_ends_well_whatever_it_is_told(said: bytes) -> None:
    status, error, heard = told(said)
    assert (status, error) in {(0, b""), (70, b"")}, (status, error[-2_000:])
    # What it said is a conversation, whole or cut off by our end; and a fault has a name.
    assert heard[0].type is FrameType.READY
    fatal = [str(one.json()["message"]) for one in heard if one.type is FrameType.FATAL]
    assert len(fatal) == (status == 70)
    for message in fatal:
        assert " in /" not in message, message  # an unexpected exception, and its place


@pytest.mark.parametrize("said", FROM_DAEMON[:2])
def test_init_runs_what_the_mutations_start_from(said: list[Said]) -> None:
    status, error, heard = told(framed(said))
    assert (status, error) == (0, b"")
    assert {FrameType.STDOUT, FrameType.STDERR, FrameType.EXIT, FrameType.DONE} <= {one.type for one in heard}


def told(said: bytes) -> tuple[int, bytes, list[Frame]]:
    """Says something to an init, and hangs up when it has ended a run or has no more to say.

    Its exit status, what it wrote to standard error, and its frames.
    """
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="skilljail-test-"))
        error = stack.enter_context(tempfile.TemporaryFile())
        work = pathlib.Path(name) / "work"
        work.mkdir()
        pathlib.Path(name).chmod(0o755)
        if os.geteuid() == 0:
            os.chown(work, UID, UID)
        command = InitProcess(work, uid=UID).command
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error, bufsize=0)
        stack.enter_context(process)
        stack.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        writer = threading.Thread(target=_write, args=(process.stdin, said))
        writer.start()
        heard = _heard(process.stdout)
        writer.join(HANG_SECONDS)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        heard += _heard(process.stdout, hung_up=True)
        status = process.wait(HANG_SECONDS)
        error.seek(0)
        return status, error.read(), FrameDecoder(frames.FROM_INIT_MAX, frames.FROM_INIT).feed(heard)


def _write(stream: IO[bytes], said: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        view = memoryview(said)
        while view:
            view = view[os.write(stream.fileno(), view) :]


def _heard(stream: IO[bytes], *, hung_up: bool = False) -> bytes:
    """What init says, until a run is over or it is silent; to the end when we have hung up."""
    heard = b""
    last = (frames.encode(FrameType.DONE), frames.encode(FrameType.DONE, b'{"skipped_omitted":1}'))
    while hung_up or not heard.endswith(last):
        if not select.select([stream], [], [], HANG_SECONDS if hung_up else QUIET_SECONDS)[0]:
            assert not hung_up, "init hangs"
            break
        data = os.read(stream.fileno(), 1 << 16)
        if not data:
            break
        heard += data
    return heard


# Paths and patterns

CHARACTERS = st.sampled_from([*"ab./\\-~ ", "\0", "\t", "\x1f", "\x7f", "\x85", "\xa0", "é", "\u202e", "\ud800", "𝄞"])
NAMES = st.one_of(
    st.text(CHARACTERS, max_size=4),
    st.sampled_from(["", ".", "..", "...", "a" * 255, "a" * 256, "é" * 127, "é" * 128, ".git", "CON"]),
    st.text(max_size=3),
)
PATHS = st.lists(NAMES, max_size=5).map("/".join) | st.integers(30, 600).map(lambda count: "/".join("a" * count))


@target(PATHS, examples=500)
def test_daemon_client_and_init_have_one_rule_for_paths(path: str) -> None:
    try:
        accepted = split_path(path)
    except PathError as error:
        accepted = []
        assert len(str(error)) < 2_000
    assert bool(accepted) == (daemon_path_fault(path) is None) == (client_path_fault(path) is None)
    if accepted:
        assert os.path.normpath(path) == path == "/".join(accepted)
        assert not pathlib.PurePosixPath(path).is_absolute()


PATTERN_TEXTS = st.lists(
    st.sampled_from(["*", "**", "?", "[a-z]", "[!a]", "[", "]", "[]a]", "[^]-a]", "a", "b", ".", "/", "\\", "é", "-"]),
    max_size=200,
).map("".join)


@target(
    st.lists(PATTERN_TEXTS, max_size=64),
    st.lists(st.text("ab*[]-é\n", max_size=255), min_size=1, max_size=32),
    examples=200,
)
def test_no_pattern_takes_long_for_any_name(patterns: list[str], names: list[str]) -> None:
    started = time.monotonic()
    PathPatterns(patterns).match("/".join(names))
    assert time.monotonic() - started < PATTERN_SECONDS


@target(st.text("ab.*?[]!-", min_size=1, max_size=8), st.text("ab.-[]!", min_size=1, max_size=6), examples=500)
def test_a_pattern_for_one_name_is_that_of_the_shell(pattern: str, name: str) -> None:
    """The standard library's, where the two mean the same."""
    with contextlib.suppress(re.error):
        if "**" not in pattern and not re.search(r"\[!?[^\]]*-", pattern):
            assert PathPatterns([pattern]).match(name) == fnmatch.fnmatchcase(name, pattern)
