"""What the daemon reads: of sandboxes, callers and operators. It refuses in its own words, or takes what is good."""

import asyncio
import math
import os
import pathlib
import re
import tempfile
import tomllib
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar
from unittest import mock

import pytest
from google.protobuf import duration_pb2
from hypothesis import assume
from hypothesis import strategies as st
from skilljail.v1 import bundle_store_pb2, limits_pb2, script_runner_pb2
from skilljail_init import frames
from skilljail_init.frames import Frame, FrameType
from skilljail_init.orders import StageOrder, StartOrder
from skilljaild.bundles.bundle import Bundle, parse_manifest
from skilljaild.bundles.digest import digest_of
from skilljaild.bundles.store import BlobStore
from skilljaild.config import BundleConfig, Config, ConfigError, LimitsConfig, load
from skilljaild.engines.base import Image, IsolationError
from skilljaild.engines.docker.attach import Demultiplexer
from skilljaild.errors import Reason, Refusal
from skilljaild.interpreters import INTERPRETERS, SHEBANG_BYTES, choose
from skilljaild.network import NetworkCeiling
from skilljaild.paths import path_fault
from skilljaild.runs.admission import Admission
from skilljaild.runs.conversation import SKIPPED_MAX, Conversation, Exit, ProtocolError, StartFailed, StreamEnded
from skilljaild.runs.events import Artifact, ArtifactChunk, Output, SkippedArtifact
from skilljaild.runs.isolation import check_from_inside
from skilljaild.runs.order import OrderDesk
from skilljaild.runs.outcome import decide
from skilljaild.runs.run import Run, RunContext
from skilljaild.service.convert import run_message, run_request
from unit.daemon.facts import LIMITS, good_facts
from unit.daemon.fake_engine import REPORT, FakeEngine
from unit.daemon.open_gate import OpenGate
from unit.daemon.orders import SKILL_MD, manifest, put

from .conversations import FROM_INIT
from .hunt import target
from .mutation import cut, encoded, framed, mutated, mutated_frames, mutated_json, mutated_messages

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that must never have to wait."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        work.close()
    raise AssertionError("it waits for something that will not come")


# Of sandboxes


class Said:
    """A `ByteStream` whose other end has said all that it will say."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces[::-1]
        self.largest = max(map(len, pieces), default=0)

    async def read(self) -> bytes:
        """The next piece."""
        return self._pieces.pop() if self._pieces else b""

    async def write(self, data: bytes) -> None:
        """Nobody reads it."""

    async def close(self) -> None:
        """Nothing."""


@target(cut(mutated_frames(FROM_INIT)), examples=500, share=2)
def test_whatever_a_sandbox_says_is_told_apart_and_bounded(pieces: list[bytes]) -> None:
    stream = Said(pieces)
    conversation = Conversation(stream)
    try:
        at_once(conversed(conversation))
    except (ProtocolError, StreamEnded, StartFailed, IsolationError) as error:
        assert str(error).isprintable()
        assert len(str(error)) < 5_000
    held = conversation._decoder.pending_bytes + sum(len(frame.payload) for frame in conversation._frames)
    assert held <= frames.FROM_INIT_MAX + frames.HEADER.size + stream.largest


def test_a_sandbox_that_says_what_it_should_is_understood() -> None:
    """The seeds are what they should be."""
    for said, fault in zip(FROM_INIT, (None, None, StartFailed, ProtocolError), strict=True):
        conversation = Conversation(Said([framed(said)]))
        if fault is None:
            at_once(conversed(conversation))
        else:
            with pytest.raises(fault):
                at_once(conversed(conversation))


async def conversed(conversation: Conversation) -> None:
    """A whole conversation, as a run has it, and what must hold for all that comes of it."""
    assert isinstance(check_from_inside(await conversation.ready(), LIMITS), tuple)
    await conversation.stage([], [], nothing())
    await conversation.start({}, b"")
    sizes = {1: 0, 2: 0}
    async for one in conversation.output(LIMITS.output_bytes):
        if isinstance(one, Exit):
            decide(one, LIMITS, engine_oom=False)
            assert (one.exit_code is None) is not (one.signal is None)
            break
        assert isinstance(one, Output)
        assert one.offset == sizes[one.stream]
        sizes[one.stream] += len(one.data)
        assert sum(sizes.values()) <= LIMITS.output_bytes
    contents: dict[str, int] = {}
    named = done = 0
    async for one in conversation.artifacts(LIMITS):
        match one:
            case ArtifactChunk():
                assert one.offset == contents.get(one.path, 0)
                contents[one.path] = one.offset + len(one.data)
            case Artifact():
                assert (contents[one.path], path_fault(one.path)) == (one.size, None)
                assert re.fullmatch(r"[a-z]+/[-+.\w]+", one.media_type), one
                done += 1
            case SkippedArtifact():
                named += 1
                assert one.path.isprintable()
            case count:
                assert 0 <= count < 2**53
        assert done <= LIMITS.artifact_count
        assert named <= SKIPPED_MAX
        assert sum(contents.values()) <= LIMITS.artifact_bytes


async def nothing() -> Any:
    """The content of no file."""
    for piece in ():
        yield piece


@target(mutated_json(good_facts()) | mutated([encoded(good_facts())]), examples=500)
def test_what_init_reports_of_its_isolation_is_believed_or_refused(said: dict[str, Any] | bytes) -> None:
    try:
        facts = Frame(FrameType.READY, said if isinstance(said, bytes) else encoded(said)).json()
    except frames.FrameError:
        return
    try:
        verified = check_from_inside(facts, LIMITS)
    except IsolationError:
        return
    assert verified
    assert facts["uids"] == good_facts()["uids"]
    assert facts["capabilities"] == good_facts()["capabilities"]
    assert facts["interfaces"] in (["lo"], [])


@target(
    cut(mutated([b"\1\0\0\0\0\0\0\5hello\2\0\0\0\0\0\0\3err\1\0\0\0\0\1\0\0" + bytes(100), b"\1\0\0\0\0\0\0\0"])),
    examples=300,
)
def test_the_engines_stream_is_taken_apart_whatever_it_holds(pieces: list[bytes]) -> None:
    demultiplexer = Demultiplexer()
    found = [one for piece in pieces for one in demultiplexer.feed(piece)]
    assert sum(len(piece) for _, piece in found) <= sum(map(len, pieces))
    whole = Demultiplexer().feed(b"".join(pieces))
    assert b"".join(piece for kind, piece in found if kind == 1) == b"".join(
        piece for kind, piece in whole if kind == 1
    )


# Of callers

CONTENTS = {
    "SKILL.md": SKILL_MD,
    "scripts/run.py": b"#!/usr/bin/env python3\nprint(1)\n",
    "scripts/x.sh": b"#!/bin/sh\n",
}
MANIFEST = manifest(CONTENTS, ("empty", "a/b/c"))


@pytest.fixture(scope="module")
def store() -> Iterator[BlobStore]:
    """A store that has a skill."""
    with tempfile.TemporaryDirectory(prefix="skilljail-test-") as directory:
        one = BlobStore(pathlib.Path(directory), 1 << 20)
        for content in (*CONTENTS.values(), MANIFEST):
            put(one, content)
        yield one


@target(mutated([MANIFEST, bundle_store_pb2.BundleManifest().SerializeToString(), MANIFEST * 20]), examples=500)
def test_a_manifest_is_a_bundle_or_refused(data: bytes) -> None:
    try:
        files, directories = parse_manifest(data, 50)
        bundle = Bundle.of(files, directories, bytes_max=1_000_000, entries_max=50)
    except Refusal as refusal:
        assert refusal.reason in {Reason.SKILL_INVALID, Reason.PATH_INVALID}
        assert refusal.message.isprintable()
        return
    assert len(bundle.files) + len(bundle.directories) <= 50
    assert not set(bundle.files) & set(bundle.directories)
    for path in (*bundle.files, *bundle.directories):
        assert path_fault(path) is None


def _requests() -> list[script_runner_pb2.RunScriptRequest]:
    limits = limits_pb2.Limits(
        wall_time=duration_pb2.Duration(seconds=3, nanos=500), cpus=0.5, memory_bytes=64 << 20, disk_bytes=1 << 20
    )
    fields: dict[str, Any] = {
        "script_path": "scripts/run.py",
        "argv": ["--x", "", "é"],
        "env": {"A": "1", "LANG": "C"},
        "stdin": b"input",
        "artifact_patterns": ["out/*", "**"],
        "labels": {"team": "a"},
    }
    stored = script_runner_pb2.RunScriptRequest(
        request_id="once", bundle_digest=digest_of(MANIFEST), working_directory="scripts", limits=limits, **fields
    )
    stored.files.add(path="in/data.csv", content=b"1,2\n", executable=True)
    stored.files.add(path="in/again", digest=digest_of(SKILL_MD))
    inline = script_runner_pb2.RunScriptRequest(interpreter="bash", **fields)
    for path, content in CONTENTS.items():
        inline.files.add(path=path, content=content)
    return [stored, inline]


REFUSALS = {
    Reason.PATH_INVALID,
    Reason.ARGUMENT_INVALID,
    Reason.ENVIRONMENT_INVALID,
    Reason.LIMIT_INVALID,
    Reason.LIMIT_ABOVE_CEILING,
    Reason.REQUEST_INVALID,
    Reason.SKILL_INVALID,
    Reason.SCRIPT_NOT_FOUND,
    Reason.INTERPRETER_UNKNOWN,
    Reason.BUNDLE_MISSING,
}


@target(message=mutated_messages(_requests()), examples=400, share=2)
def test_a_request_is_refused_or_one_that_init_takes(
    store: BlobStore, message: script_runner_pb2.RunScriptRequest
) -> None:
    limits = LimitsConfig()
    desk = OrderDesk(limits.default.limits(), limits.ceiling.limits(), BundleConfig(), NetworkCeiling())
    try:
        order = desk.check(run_request(message), store)
    except Refusal as refusal:
        assert refusal.reason in REFUSALS
        assert refusal.message.isprintable()
        return
    context = RunContext(FakeEngine(), REPORT, "owner", Admission(1, 1), OpenGate())
    run = Run("run-1", "me", order, Image("x", digest_of(b""), {}), store, context)
    start = frames.encode_json(FrameType.START, run._start_order({}) | {"stdin_bytes": len(message.stdin)})
    assert len(start) <= frames.TO_INIT_MAX
    told = StartOrder(Frame(FrameType.START, start[frames.HEADER.size :]).json())
    assert told.argv[-len(message.argv) :] == list(message.argv)
    assert told.cwd == message.working_directory
    said = Said([frames.encode(FrameType.STAGED)] * 50)
    written: list[bytes] = []
    said.write = lambda data: taken(written, data)  # type: ignore[method-assign]
    asyncio.run(run._stage(_Sandbox(Conversation(said))))  # type: ignore[arg-type]
    decoder = frames.FrameDecoder(frames.TO_INIT_MAX, frames.FROM_DAEMON)
    staged = [StageOrder(one.json()) for one in decoder.feed(b"".join(written)) if one.type is FrameType.STAGE]
    assert {file.path for one in staged for file in one.files} == set(order.bundle.files)
    run_message(run)


class _Sandbox:
    """As much of a sandbox as staging needs."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation


async def taken(written: list[bytes], data: bytes) -> None:
    """Keeps what is written."""
    written.append(data)


SHEBANGS = [
    b"#!/usr/bin/env python3\nprint()",
    b"#!/usr/bin/env -S bash -eu\n",
    b"#!/usr/bin/env -u X A=1 node --no-warnings\r\n",
    b'#!/bin/sh -c "a b"\n',
    b"#! /usr/bin/pwsh -NoProfile\n",
    b"#!C:\\python\\python3.12.exe\n",
    b"#!/bin/bash.exe\n",
    b"#!/usr/bin/perl\n",
    b"import sys\n",
]
PROGRAMS = {"python": {"python3"}, "node": {"node"}, "bash": {"bash", "sh"}, "pwsh": {"pwsh"}}


@target(
    mutated(SHEBANGS),
    st.sampled_from(["x", "x.py", "x.SH", "x.ps1", "x.pl", "-rf", "\u202e.py"]),
    st.booleans(),
    st.sampled_from(["", "", "", "python", "pwsh", "perl", "\0"]),
    examples=500,
)
def test_a_program_that_sandboxes_have_is_chosen_or_the_script_refused(
    beginning: bytes, name: str, executable: bool, asked: str
) -> None:
    script = f"/work/skill/{name}"
    try:
        interpreter, command = choose(script, beginning[:SHEBANG_BYTES], executable=executable, asked=asked)
    except Refusal as refusal:
        assert refusal.reason is Reason.INTERPRETER_UNKNOWN
        assert refusal.message.isprintable()
        return
    assert INTERPRETERS[interpreter.name] is interpreter
    assert command[0] in PROGRAMS[interpreter.name]
    assert command[-1] == script
    assert asked in {"", interpreter.name}
    for word in command:
        assert b"\0" not in word.encode()


# Of operators

TOML = [
    b"""listen = "unix:/run/x.sock"
socket_mode = "660"
state_directory = "/var/lib/x"
shutdown_grace_seconds = 2.5
[limits.default]
wall_seconds = 5
memory_bytes = "256MiB"
[limits.ceiling]
cpus = 2.0
[admission]
concurrent_runs = 4
[log]
format = "json"
""",
    b"""listen = "127.0.0.1:0"
insecure = true
tls = {certificate_file = "/a", key_file = "/b", client_ca_file = "/c"}
images.python = "x"
engine = {kind = "docker", timeout_seconds = 1_000}
bundles.store_bytes = 0x1000
""",
    b"limits = [[1979-05-27T07:32:00Z, inf, nan, -0], {a = '''x'''}]\nlog.level = 07:32:00\n",
    b"a" + b".a" * 2_000 + b"=1",
    b"x = " + b"[" * 2_000,
]


@target(mutated(TOML), examples=300)
def test_a_configuration_file_is_taken_or_refused_in_our_words(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="skilljail-test-") as directory:
        file = pathlib.Path(directory) / "skilljaild.toml"
        file.write_bytes(data)
        check_config(file, {}, {})


NAMES = ["listen", "limits", "limits.default", "limits.default.pids", "log.level", "tls", "tls.key_file", "bundles", ""]
VALUES = [
    "", "1", "-1", "1e999", "9" * 5_000, "nan", "true", "null", "{}", "[]", '{"pids": 1}', '{"a":' * 2_000, "unix:/x",
    "[::1]:99999", "٣", "1GiB", "1" * 400 + "GiB", "600", "\x1b[2J", "debug", "\udcff", '{"default": {"cpus": 1e400}}',
]  # fmt: skip
SETTINGS = st.dictionaries(
    st.sampled_from(NAMES) | st.builds(".".join, st.lists(st.sampled_from([*NAMES, "a", "é", " "]), max_size=4)),
    st.sampled_from(VALUES) | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10),
    max_size=3,
)


@target(SETTINGS, SETTINGS, examples=300)
def test_settings_of_variables_and_flags_are_taken_or_refused_in_our_words(
    variables: dict[str, str], flags: dict[str, str]
) -> None:
    named = {"SKILLJAILD_" + name.replace(".", "__").upper(): value for name, value in variables.items()}
    assume(all("=" not in name for name in named))
    nested: dict[str, Any] = {}
    for name, value in flags.items():
        *tables, last = name.split(".")
        table = nested
        for one in tables:
            table = table.setdefault(one, {})
            assume(isinstance(table, dict))
        assume(not isinstance(table.get(last), dict))
        table[last] = value
    check_config(None, nested, named)


def check_config(file: pathlib.Path | None, flags: dict[str, Any], variables: dict[str, str]) -> None:
    """Loads it, which gives a configuration that makes sense or a ConfigError in few lines."""
    with mock.patch.dict(os.environ, variables):
        try:
            config = load(file, flags)
        except ConfigError as error:
            assert len(str(error)) < 20_000
            return
    assert isinstance(config, Config)
    limits = config.limits
    for name, value in limits.default:
        assert math.isfinite(value)
        assert value <= getattr(limits.ceiling, name)
    assert 0 <= config.shutdown_grace_seconds < math.inf
    assert config.listen.startswith("unix:") or config.tls is not None or config.insecure


def test_the_configuration_files_start_from_good_ones() -> None:
    """Two of the seeds are taken as they are."""
    for data in TOML[:2]:
        assert tomllib.loads(data.decode())
        with tempfile.TemporaryDirectory(prefix="skilljail-test-") as directory:
            file = pathlib.Path(directory) / "skilljaild.toml"
            file.write_bytes(data)
            assert isinstance(load(file, {}), Config)
