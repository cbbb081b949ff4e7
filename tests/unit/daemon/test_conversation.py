"""The daemon's side of the frame protocol: whatever a sandbox sends, it is bounded and told apart."""

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from skilljail_init import frames
from skilljail_init.frames import Cause, FrameType, SkipReason, encode, encode_json
from skilljaild.bundles.digest import digest_of
from skilljaild.limits import Limits
from skilljaild.paths import path_fault
from skilljaild.runs import conversation as module
from skilljaild.runs.conversation import Conversation, Exit, ProtocolError, StartFailed, StreamEnded
from skilljaild.runs.events import Artifact, ArtifactChunk, Output, SkippedArtifact

from .facts import LIMITS, good_facts
from .fake_engine import EXITED, FakeStream, contents

READY = encode_json(FrameType.READY, {"isolation": good_facts()})
STAGED = encode(FrameType.STAGED)
STARTED = encode_json(FrameType.STARTED, {})
DONE = encode(FrameType.DONE)
EXIT = encode_json(FrameType.EXIT, EXITED)


def exit_frame(**fields: object) -> bytes:
    """An EXIT frame with some fields changed."""
    return encode_json(FrameType.EXIT, EXITED | fields)


def artifact(path: object = "out", size: object = 3, **fields: object) -> bytes:
    """An ARTIFACT frame."""
    return encode_json(FrameType.ARTIFACT, {"path": path, "size": size, "executable": False} | fields)


def data(content: bytes) -> bytes:
    """A DATA frame."""
    return encode(FrameType.DATA, content)


def skipped(path: object = "x", reason: object = "size_limit") -> bytes:
    """A SKIPPED frame."""
    return encode_json(FrameType.SKIPPED, {"path": path, "reason": reason})


def speaking(*pieces: bytes) -> Conversation:
    """A conversation with an init that says `pieces` and is gone."""
    stream = FakeStream()
    for piece in pieces:
        stream.put(piece)
    # What the daemon writes is not looked at here, and must not fail because the other end has spoken its last.
    stream.write = lambda _: asyncio.sleep(0)  # type: ignore[assignment, method-assign]
    stream.end()
    return Conversation(stream)


async def listed(some: AsyncIterator[Any]) -> list[Any]:
    """All that comes."""
    return [one async for one in some]


async def outputs(*pieces: bytes, limit: int = 1_000) -> list[Output | Exit]:
    """What `output` makes of frames."""
    return await listed(speaking(*pieces).output(limit))


async def collected(*pieces: bytes, limits: Limits = LIMITS) -> list[Any]:
    """What `artifacts` makes of frames."""
    return await listed(speaking(*pieces).artifacts(limits))


# What is said to init


async def test_a_whole_conversation_says_and_hears_what_the_protocol_asks_for() -> None:
    stream = FakeStream()
    conversation = Conversation(stream)
    for piece in (
        READY,
        STAGED,
        STARTED,
        encode(FrameType.STDOUT, b"a"),
        encode(FrameType.STDERR, b"xy"),
        encode(FrameType.STDOUT, b"bc"),
        EXIT,
        artifact("out/a.csv", 5, executable=True),
        data(b"he"),
        data(b"llo"),
        artifact("empty", 0),
        skipped("\\xff", "unsafe_name"),
        encode_json(FrameType.DONE, {"skipped_omitted": 7}),
    ):
        stream.put(piece)
    assert await conversation.ready() == good_facts()
    entry: dict[str, object] = {"path": "a", "size": 70_000, "executable": False, "sha256": "0" * 64}
    await conversation.stage(("d",), [entry], contents(bytes(70_000)))
    await conversation.start({"argv": ["x"]}, b"in")
    assert await listed(conversation.output(1_000)) == [
        Output(1, 0, b"a"),
        Output(2, 0, b"xy"),
        Output(1, 1, b"bc"),
        Exit(Cause.EXITED, 0, None, 0.5, 0.25, 1_000, 0, 0, disk_full=False, output_truncated=False),
    ]
    assert (conversation.stdout_bytes, conversation.stderr_bytes) == (3, 2)
    digest = f"sha256:{hashlib.sha256(b'hello').hexdigest()}"
    empty = f"sha256:{hashlib.sha256(b'').hexdigest()}"
    assert await listed(conversation.artifacts(LIMITS)) == [
        ArtifactChunk("out/a.csv", 0, b"he"),
        ArtifactChunk("out/a.csv", 2, b"llo"),
        Artifact("out/a.csv", 5, digest, "text/csv", executable=True),
        ArtifactChunk("empty", 0, b""),
        Artifact("empty", 0, empty, "application/octet-stream", executable=False),
        SkippedArtifact("\\xff", "unsafe_name"),
        7,
    ]
    said = [stream.received.get_nowait() for _ in range(stream.received.qsize())]
    assert [frame.type for frame in said] == [
        FrameType.STAGE,
        FrameType.DATA,
        FrameType.DATA,
        FrameType.START,
        FrameType.DATA,
    ]
    assert said[0].json() == {"directories": ["d"], "files": [entry]}
    assert [len(frame.payload) for frame in said[1:3]] == [65_536, 70_000 - 65_536]
    assert said[3].json() == {"argv": ["x"], "stdin_bytes": 2}
    assert said[4].payload == b"in"


@pytest.mark.parametrize(
    ("path", "media_type"), [("data:a/<b>,x", "application/octet-stream"), ("data:a/b.csv", "text/csv")]
)
async def test_the_type_of_an_artifact_is_that_of_its_name_and_not_one_that_the_name_spells(
    path: str, media_type: str
) -> None:
    *_, one, _ = await collected(artifact(path, 0), DONE)
    assert one == Artifact(path, 0, digest_of(b""), media_type, executable=False)


async def test_cancel_is_one_frame() -> None:
    stream = FakeStream()
    await Conversation(stream).cancel()
    assert stream.written == [encode(FrameType.CANCEL)]


async def test_much_content_is_written_in_bounded_pieces() -> None:
    stream = FakeStream()
    stream.put(STAGED)
    await Conversation(stream).stage([], [entry("a", 1_000_000)], contents(bytes(1_000_000)))
    assert max(map(len, stream.written)) <= module.WRITE_BYTES + frames.DATA_MAX + 5
    received = [stream.received.get_nowait() for _ in range(stream.received.qsize())]
    assert sum(len(frame.payload) for frame in received[1:]) == 1_000_000


def entry(path: str, size: int = 0) -> dict[str, object]:
    """A file's entry in a STAGE frame."""
    return {"path": path, "size": size, "executable": False, "sha256": "0" * 64}


async def staged_in_turns(
    directories: list[str], entries: list[dict[str, object]], sizes: list[int]
) -> list[tuple[list[str], list[dict[str, object]], bytes]]:
    """What an init hears that takes STAGE frames one after the other: directories, files and their content."""
    stream = FakeStream()
    turns: list[tuple[list[str], list[dict[str, object]], bytes]] = []

    async def init() -> None:
        while True:
            order = await stream.received.get()
            assert order.type is FrameType.STAGE
            assert len(order.payload) <= 1 << 20
            files: Any = order.json()["files"]
            content = b""
            while len(content) < sum(one["size"] for one in files):
                piece = await stream.received.get()
                assert piece.type is FrameType.DATA
                content += piece.payload
            said: Any = order.json()["directories"]
            turns.append((said, files, content))
            stream.put(STAGED)

    task = asyncio.create_task(init())
    pieces = (bytes([number % 256]) * size for number, size in enumerate(sizes))
    await asyncio.wait_for(Conversation(stream).stage(directories, entries, contents(*pieces)), 30)
    assert stream.received.empty()
    task.cancel()
    return turns


@pytest.mark.parametrize("letter", ["x", "é", "𝄞"])
async def test_the_largest_bundle_is_staged_in_turns_that_init_takes(letter: str) -> None:
    """10,000 paths of 1,000 bytes are 11 MB of JSON and more."""
    paths = [f"{number:04}" + letter * (996 // len(letter.encode())) for number in range(10_000)]
    directories, entries = paths[:3_000], [entry(path, number % 3) for number, path in enumerate(paths[3_000:])]
    sizes = [number % 3 for number in range(7_000)]
    turns = await staged_in_turns(directories, entries, sizes)
    assert len(turns) > 9
    assert [path for turn in turns for path in turn[0]] == directories
    assert [one for turn in turns for one in turn[1]] == entries
    assert b"".join(turn[2] for turn in turns) == b"".join(bytes([n % 256]) * size for n, size in enumerate(sizes))


@pytest.mark.parametrize(("directories", "entries"), [([], []), (["d"], []), ([], [entry("a", 3)])])
async def test_a_small_bundle_is_staged_at_once(directories: list[str], entries: list[dict[str, object]]) -> None:
    content = bytes(3 * len(entries))
    assert await staged_in_turns(directories, entries, [3] * len(entries)) == [(directories, entries, content)]


async def test_content_that_no_entry_names_is_a_fault() -> None:
    stream = FakeStream()
    stream.put(STAGED)
    with pytest.raises(ValueError, match="3 bytes of content that belong to no entry"):
        await Conversation(stream).stage([], [], contents(b"abc"))


# What comes up


@pytest.mark.parametrize(
    "said",
    [
        encode_json(FrameType.READY, {}),
        encode_json(FrameType.READY, {"isolation": None}),
        encode_json(FrameType.READY, {"isolation": []}),
        encode(FrameType.READY, b"[]"),
        encode(FrameType.READY, b"{"),
        encode(FrameType.READY, b"\xff"),
        encode(FrameType.READY, b"[" * 60_000),
        encode(FrameType.READY, b'{"isolation": NaN}'),
        encode(FrameType.STAGED),
        encode(FrameType.STDOUT, b"x"),
        encode(FrameType.STAGE, b"{}"),
        b"\x99\0\0\0\0",
        b"\x20\xff\xff\xff\xff",
        b"Traceback (most recent call last)",
    ],
)
async def test_an_init_that_does_not_come_up_as_it_must_breaks_the_protocol(said: bytes) -> None:
    with pytest.raises(ProtocolError):
        await speaking(said).ready()


@pytest.mark.parametrize("said", [(), (READY[:3],), (READY[:-1],)])
async def test_a_stream_that_ends_early_is_told_as_such(said: tuple[bytes, ...]) -> None:
    with pytest.raises(StreamEnded, match="the sandbox's stream ended"):
        await speaking(*said).ready()


async def test_a_frame_may_come_in_any_pieces_and_several_at_once() -> None:
    whole = READY + STAGED + STARTED + encode(FrameType.STDOUT, b"x") + EXIT + DONE
    for pieces in ([whole], [whole[index : index + 1] for index in range(len(whole))]):
        conversation = speaking(*pieces)
        await conversation.ready()
        await conversation.stage([], [], contents())
        await conversation.start({}, b"")
        assert len(await listed(conversation.output(10))) == 2
        assert await listed(conversation.artifacts(LIMITS)) == [0]


async def test_a_script_that_cannot_be_executed_is_start_failed_with_its_reason_made_printable() -> None:
    said = encode_json(FrameType.FAILED, {"errno": 2, "message": "No such file\x1b[2J\n"})
    with pytest.raises(StartFailed) as caught:
        await speaking(said).start({}, b"")
    assert str(caught.value) == "No such file?[2J?"


@pytest.mark.parametrize("message", ["\x1b[31mred\n\ud800", "x" * 60_000, None, 5, {"a": 1}, ["x"]])
async def test_what_init_says_when_it_gives_up_is_made_printable_and_short(message: object) -> None:
    said = encode_json(FrameType.FATAL, {"message": message})
    with pytest.raises(ProtocolError) as caught:
        await speaking(said).ready()
    text = str(caught.value)
    assert text.startswith("init gave up: ")
    assert text.isprintable()
    assert len(text) <= 320


@pytest.mark.parametrize("payload", [b"", b"not json", b"[1]"])
async def test_giving_up_without_a_message_breaks_the_protocol_too(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        await speaking(encode(FrameType.FATAL, payload)).ready()


async def test_init_may_give_up_at_any_time() -> None:
    fatal = encode_json(FrameType.FATAL, {"message": "why"})
    with pytest.raises(ProtocolError, match="init gave up: why"):
        await outputs(encode(FrameType.STDOUT, b"x"), fatal)
    with pytest.raises(ProtocolError, match="init gave up: why"):
        await collected(artifact("a", 9), data(b"x"), fatal)


# Output


async def test_output_that_one_read_brought_is_joined_and_streams_keep_their_order() -> None:
    out, err = (encode(kind, b"x") for kind in (FrameType.STDOUT, FrameType.STDERR))
    large = encode(FrameType.STDOUT, b"y" * (frames.DATA_MAX - 1))
    found = await outputs(out * 3 + err * 2 + out, out + large, large + out * 3 + EXIT, limit=1 << 20)
    assert [(one.stream, one.offset, len(one.data)) for one in found if isinstance(one, Output)] == [
        (1, 0, 3),
        (2, 0, 2),
        (1, 3, 1),
        (1, 4, frames.DATA_MAX),
        (1, 4 + frames.DATA_MAX, frames.DATA_MAX),
        (1, 4 + frames.DATA_MAX * 2, 2),
    ]


@pytest.mark.parametrize("pieces", [[b"x", b""], [b"x" * 600, b"x" * 401]], ids=["empty", "too much"])
async def test_what_is_joined_is_checked(pieces: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="more output than init may pass on"):
        await outputs(b"".join(encode(FrameType.STDOUT, piece) for piece in pieces) + EXIT)


async def test_output_up_to_the_limit_passes_both_streams_counted_together() -> None:
    found = await outputs(encode(FrameType.STDOUT, b"x" * 600), encode(FrameType.STDERR, b"y" * 400), EXIT)
    assert [len(one.data) for one in found if isinstance(one, Output)] == [600, 400]


@pytest.mark.parametrize(
    "pieces",
    [
        [encode(FrameType.STDOUT, b"x" * 1_001)],
        [encode(FrameType.STDOUT, b"x" * 600), encode(FrameType.STDERR, b"y" * 401)],
        [encode(FrameType.STDOUT)],
        [encode(FrameType.STDERR)],
    ],
)
async def test_more_output_than_init_may_pass_on_ends_the_run(pieces: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="more output than init may pass on"):
        await outputs(*pieces, EXIT)


@pytest.mark.parametrize("said", [artifact(), data(b"x"), DONE, STARTED, READY, skipped(), STAGED])
async def test_nothing_but_output_comes_before_the_exit(said: bytes) -> None:
    with pytest.raises(ProtocolError, match="frame where STDOUT/STDERR/EXIT was due"):
        await outputs(said, EXIT)


@pytest.mark.parametrize("said", [EXIT, encode(FrameType.STDOUT, b"late"), data(b"x"), STARTED])
async def test_after_the_exit_nothing_but_artifacts_comes(said: bytes) -> None:
    with pytest.raises(ProtocolError, match="frame where ARTIFACT/SKIPPED/DONE was due"):
        await collected(said, DONE)


# The end


@pytest.mark.parametrize("cause", list(Cause))
async def test_every_cause_is_understood(cause: Cause) -> None:
    status: dict[str, object] = {"exit_code": None, "signal": 9}
    if cause is Cause.EXITED:
        status = {"exit_code": 255, "signal": None}
    (found,) = await outputs(exit_frame(cause=cause, **status))
    assert isinstance(found, Exit)
    assert (found.cause, found.exit_code, found.signal) == (cause, status["exit_code"], status["signal"])


async def test_what_the_sandboxes_kernel_does_not_tell_is_none() -> None:
    unknown = dict.fromkeys(("cpu_seconds", "peak_memory_bytes", "oom_kills", "pids_limit_hits"))
    (found,) = await outputs(exit_frame(**unknown))
    assert found == Exit(Cause.EXITED, 0, None, 0.5, None, None, None, None, disk_full=False, output_truncated=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"cause": "unknown"},
        {"cause": None},
        {"cause": ["exited"]},
        {"exit_code": None},
        {"exit_code": -1},
        {"exit_code": 256},
        {"exit_code": True},
        {"exit_code": 0.0},
        {"exit_code": "0"},
        {"exit_code": 10**400},
        {"signal": 9},
        {"exit_code": None, "signal": 9},
        {"cause": "signaled"},
        {"cause": "signaled", "exit_code": None},
        {"cause": "signaled", "exit_code": None, "signal": 0},
        {"cause": "signaled", "exit_code": None, "signal": 65},
        {"cause": "signaled", "exit_code": None, "signal": -9},
        {"cause": "wall_timeout", "exit_code": None},
        {"cause": "wall_timeout", "signal": 9},
        {"wall_seconds": None},
        {"wall_seconds": -0.1},
        {"wall_seconds": 1e9},
        {"wall_seconds": True},
        {"wall_seconds": "1"},
        {"cpu_seconds": -1},
        {"cpu_seconds": 10**400},
        {"peak_memory_bytes": -1},
        {"peak_memory_bytes": 2**53},
        {"peak_memory_bytes": 1.5},
        {"oom_kills": -1},
        {"oom_kills": "many"},
        {"pids_limit_hits": {}},
    ],
)
async def test_an_impossible_end_breaks_the_protocol(fields: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        await outputs(exit_frame(**fields))


@pytest.mark.parametrize("value", [1, "true", "yes", [True], None])
async def test_a_flag_is_true_or_it_is_not_set(value: object) -> None:
    (found,) = await outputs(exit_frame(disk_full=value, output_truncated=value))
    assert isinstance(found, Exit)
    assert (found.disk_full, found.output_truncated) == (False, False)


# Artifacts


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "./a",
        "a\\b",
        "a\0",
        "a\nb",
        "\ud800",
        "d/" * 32 + "x",
        None,
        5,
        [],
    ],
)
async def test_a_path_that_init_may_not_send_never_gets_out(path: object) -> None:
    with pytest.raises(ProtocolError, match="an artifact with a path that init may not send"):
        await collected(artifact(path), data(b"abc"), DONE)


@pytest.mark.parametrize("size", [-1, 2**53, True, 1.0, "3", None])
async def test_a_size_that_is_none_breaks_the_protocol(size: object) -> None:
    with pytest.raises(ProtocolError):
        await collected(artifact("a", size), data(b"abc"), DONE)


@pytest.mark.parametrize(
    "pieces",
    [
        [artifact("a", 3), data(b"abcd")],
        [artifact("a", 3), data(b"ab"), data(b"cd")],
        [artifact("a", 3), data(b"")],
        [artifact("a", 3), data(b"ab"), DONE],
        [artifact("a", 3), data(b"ab"), artifact("b", 1)],
        [artifact("a", 0), data(b"")],
        [artifact("a", 3), skipped()],
        [data(b"abc")],
    ],
)
async def test_content_of_another_size_than_announced_breaks_the_protocol(pieces: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        await collected(*pieces, DONE)


async def test_the_same_path_twice_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="more artifacts than init may pass on"):
        await collected(artifact("a", 0), artifact("a", 0), DONE)


async def test_more_artifacts_than_asked_for_break_the_protocol_in_number_and_in_bytes() -> None:
    three = [artifact(f"{number}", 0) for number in range(4)]
    assert len(await collected(*three[:3], DONE)) == 7
    with pytest.raises(ProtocolError, match="more artifacts than init may pass on"):
        await collected(*three, DONE)
    small = dataclasses.replace(LIMITS, artifact_bytes=5)
    assert len(await collected(artifact("a", 3), data(b"abc"), artifact("b", 2), data(b"de"), DONE, limits=small)) == 5
    with pytest.raises(ProtocolError, match="more artifacts than init may pass on"):
        await collected(artifact("a", 3), data(b"abc"), artifact("b", 3), data(b"def"), DONE, limits=small)
    with pytest.raises(ProtocolError, match="more artifacts than init may pass on"):
        await collected(artifact("a", 2**52), limits=small)


@pytest.mark.parametrize("reason", list(SkipReason))
async def test_every_reason_to_skip_is_understood(reason: SkipReason) -> None:
    assert await collected(skipped("a", reason), DONE) == [SkippedArtifact("a", reason.value), 0]


@pytest.mark.parametrize("reason", ["", "because", None, 3])
async def test_an_unknown_reason_to_skip_breaks_the_protocol(reason: object) -> None:
    with pytest.raises(ProtocolError, match="a skipped artifact with an unknown reason"):
        await collected(skipped("a", reason), DONE)


async def test_a_skipped_path_is_printable_and_as_long_as_init_makes_it() -> None:
    longest = "x" * 1_024 + "…"
    paths = ["a\x1b[2J\n", longest, longest + "y" * 60_000, None]
    found = await collected(*(skipped(path) for path in paths), DONE)
    assert [one.path for one in found[:-1]] == ["a?[2J?", longest, longest, ""]


async def test_skipped_files_beyond_what_a_result_names_are_counted() -> None:
    found = await collected(skipped() * 1_500, encode_json(FrameType.DONE, {"skipped_omitted": 2**52}))
    assert found[:1_000] == [SkippedArtifact("x", "size_limit")] * 1_000
    assert found[1_000:] == [1] * 500 + [2**52]


async def test_skipped_files_without_end_break_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SKIPPED_FRAMES_MAX", 2_000)
    assert len(await collected(skipped() * 2_000, DONE)) == 2_001
    with pytest.raises(ProtocolError, match="too many skipped artifacts"):
        await collected(skipped() * 2_001, DONE)


@pytest.mark.parametrize("omitted", [-1, 2**53, True, "9", None, 10**400])
async def test_a_count_of_omitted_files_that_is_none_breaks_the_protocol(omitted: object) -> None:
    with pytest.raises(ProtocolError, match="a count that is none"):
        await collected(encode_json(FrameType.DONE, {"skipped_omitted": omitted}))


async def test_done_may_be_empty_or_tell_nothing() -> None:
    assert await collected(DONE) == await collected(encode_json(FrameType.DONE, {})) == [0]


# A sandbox that is out to do harm

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.integers(0, 300),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.sampled_from(["../x", "/x", "a", "b", "exited", "signaled", "cancelled", "size_limit", "\x1b[2J"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=3,
)
KEYS = ["isolation", "message", "path", "size", "executable", "reason", "skipped_omitted", *EXITED]
OBJECTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
PAYLOADS = st.one_of(st.binary(max_size=20), st.just(b"x" * 700))


def as_frame(frame_type: FrameType, value: Any) -> bytes:
    """A frame with JSON or with bytes."""
    return encode(frame_type, value) if isinstance(value, bytes) else encode_json(frame_type, value)


FRAMES = st.one_of(
    # Such as they must be, so that a conversation gets far,
    st.sampled_from(
        [
            *[READY, STAGED, STARTED, EXIT, DONE, data(b"abc"), data(b""), skipped(), artifact("a"), artifact("b", 0)],
            encode(FrameType.STDOUT, b"abc"),
            encode(FrameType.STDERR, b"x" * 400),
        ]
    ),
    # such as they may not be,
    st.builds(exit_frame, wall_seconds=VALUES),
    st.builds(exit_frame, cause=VALUES, exit_code=VALUES, signal=VALUES),
    st.builds(artifact, VALUES, VALUES),
    st.builds(skipped, VALUES, st.one_of(VALUES, st.just("unreadable"))),
    st.builds(as_frame, st.sampled_from(sorted(frames.FROM_INIT)), st.one_of(PAYLOADS, OBJECTS)),
    # and such as are none.
    st.binary(max_size=12),
)


class Result:
    """All that a conversation brought out."""

    def __init__(self) -> None:
        self.events: list[Output | Exit] = []
        self.artifacts: list[ArtifactChunk | Artifact | SkippedArtifact | int] = []
        self.fault: Exception | None = None

    async def converse(self, said: Iterable[bytes]) -> None:
        """Goes as far as it gets. Whatever else is raised than the three is a fault of the daemon."""
        conversation = speaking(*(piece for piece in said if piece))
        try:
            await conversation.ready()
            await conversation.stage([], [], contents())
            await conversation.start({}, b"")
            async for event in conversation.output(LIMITS.output_bytes):
                self.events.append(event)
            async for one in conversation.artifacts(LIMITS):
                self.artifacts.append(one)
        except (ProtocolError, StreamEnded, StartFailed) as error:
            self.fault = error


def check(result: Result) -> None:
    """What holds whatever a sandbox sent."""
    output = [one for one in result.events if isinstance(one, Output)]
    assert sum(len(one.data) for one in output) <= LIMITS.output_bytes
    for stream in (1, 2):
        pieces = [one for one in output if one.stream == stream]
        assert [one.offset for one in pieces] == [
            sum(len(one.data) for one in pieces[:index]) for index in range(len(pieces))
        ]
        assert all(1 <= len(one.data) <= 65_536 for one in pieces)
    ends = [one for one in result.events if isinstance(one, Exit)]
    assert ends == result.events[len(output) :]
    assert len(ends) <= 1
    assert ends or not result.artifacts
    for end in ends:
        assert (end.exit_code is None) is not (end.signal is None)
        assert end.exit_code is None or 0 <= end.exit_code <= 255
        assert end.signal is None or 1 <= end.signal <= 64
        assert 0 <= end.wall_seconds < 1e9
    artifacts = [one for one in result.artifacts if isinstance(one, Artifact)]
    chunks = [one for one in result.artifacts if isinstance(one, ArtifactChunk)]
    assert len(artifacts) <= LIMITS.artifact_count
    assert sum(len(one.data) for one in chunks) <= LIMITS.artifact_bytes
    assert len({one.path for one in artifacts}) == len(artifacts)
    assert all(path_fault(path) is None for path in [one.path for one in artifacts] + [one.path for one in chunks])
    for one in artifacts:
        content = b"".join(chunk.data for chunk in chunks if chunk.path == one.path)
        assert (one.size, one.digest) == (len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")
    for skip in result.artifacts:
        if isinstance(skip, SkippedArtifact):
            assert skip.path.isprintable()
            assert skip.reason in {reason.value for reason in SkipReason}
    assert result.fault is not None or isinstance(result.artifacts[-1], int)
    assert len(str(result.fault)) < 500


@settings(max_examples=300)
@given(st.integers(0, 5), st.lists(FRAMES, max_size=12), st.lists(st.integers(1, 400), max_size=6))
@example(5, [DONE], [])
@example(4, [EXIT, EXIT, DONE], [])
@example(5, [artifact("a", 0), artifact("a", 0), DONE], [])
def test_whatever_a_sandbox_sends_stays_within_its_bounds(good: int, said: list[bytes], cuts: list[int]) -> None:
    """`good`: how many frames are as they must be before the harm begins; `cuts`: how the stream is cut."""
    whole = b"".join([*[READY, STAGED, STARTED, encode(FrameType.STDOUT, b"hi"), EXIT][:good], *said])
    pieces = []
    for cut in cuts:
        pieces.append(whole[:cut])
        whole = whole[cut:]
    result = Result()
    asyncio.run(result.converse([*pieces, whole]))
    check(result)


@given(st.binary(max_size=2_000))
def test_any_bytes_at_all_are_a_broken_protocol_or_the_end(said: bytes) -> None:
    result = Result()
    asyncio.run(result.converse([said]))
    assert isinstance(result.fault, ProtocolError | StreamEnded)
