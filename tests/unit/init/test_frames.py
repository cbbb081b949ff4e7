"""The frame protocol's bytes: framing, closed sets of names, JSON."""

# ruff: noqa: S101, S301

import copy
import enum
import itertools
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljail_init import closed, frames, jsontext
from skilljail_init.frames import Cause, Frame, FrameDecoder, FrameError, FrameType

PAYLOAD_MAX = 1_000

frame_lists = st.lists(st.tuples(st.sampled_from(list(FrameType)), st.binary(max_size=50)), max_size=8)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, cut at `places`."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(frame_lists, st.lists(st.integers(min_value=0)))
def test_any_split_of_the_bytes_gives_the_same_frames(sent: list[tuple[FrameType, bytes]], places: list[int]) -> None:
    data = b"".join(frames.encode(kind, payload) for kind, payload in sent)
    decoder = FrameDecoder(PAYLOAD_MAX, frozenset(FrameType))
    got = [frame for piece in cut(data, places) for frame in decoder.feed(piece)]
    assert [(frame.type, frame.payload) for frame in got] == sent
    assert decoder.pending_bytes == 0


@given(st.lists(st.binary(max_size=200)))
def test_hostile_bytes_give_frames_or_an_error_and_never_grow_the_buffer(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(PAYLOAD_MAX, frames.FROM_INIT)
    for piece in pieces:
        try:
            got = decoder.feed(piece)
        except FrameError:
            return
        assert all(frame.type in frames.FROM_INIT and len(frame.payload) <= PAYLOAD_MAX for frame in got)
        assert decoder.pending_bytes <= PAYLOAD_MAX + 5


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\x24\x00\x00\x03\xe9", "frame of 1001 bytes, the limit is 1000"),
        (b"\x24\xff\xff\xff\xff", "frame of 4294967295 bytes, the limit is 1000"),
        (b"\x77\x00\x00\x00\x00", "unknown frame type 0x77"),
        (b"\x01\x00\x00\x00\x00", "STAGE frame from the wrong end"),
    ],
)
def test_a_hostile_header_is_refused_before_its_payload_comes(data: bytes, fault: str) -> None:
    with pytest.raises(FrameError, match=fault):
        FrameDecoder(PAYLOAD_MAX, frames.FROM_INIT).feed(data)


def test_a_truncated_frame_shows_as_pending_bytes() -> None:
    decoder = FrameDecoder(PAYLOAD_MAX, frozenset(FrameType))
    assert decoder.feed(frames.encode(FrameType.DATA, b"abc")[:-1]) == []
    assert decoder.pending_bytes == 7


@pytest.mark.parametrize("payload", [b"", b"[]", b"1", b"{", b"{}x", b"\xff", b'{"a":NaN}', b"[" * 100_000])
def test_a_payload_that_is_no_json_object_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError, match="READY frame is not"):
        Frame(FrameType.READY, payload).json()


@pytest.mark.parametrize("members", [FrameType, Cause, frames.SkipReason])
def test_a_closed_set_behaves_as_the_enum_that_it_is_for_type_checkers(members: type[enum.Enum]) -> None:
    base: Any = enum.IntEnum if issubclass(members, int) else enum.StrEnum
    model = base("Model", [(member.name, member.value) for member in members])
    assert [(m.name, m.value, str(m), f"{m}") for m in members] == [(m.name, m.value, str(m), f"{m}") for m in model]
    assert len(members) == len(model)
    for member, twin in zip(members, model, strict=True):
        assert member == twin.value
        assert hash(member) == hash(twin.value)
        assert members(member.value) is member
        assert getattr(members, member.name) is member
        assert isinstance(member, members)
        assert copy.deepcopy(member) is member
        assert pickle.loads(pickle.dumps(member)) is member
    value: object
    for value in ("nothing", 0x77, None, []):
        with pytest.raises(ValueError, match=members.__name__):
            members(value)


def test_closed_sets_name_themselves() -> None:
    assert repr(FrameType.STAGE) == "<FrameType.STAGE: 1>"
    assert repr(Cause.EXITED) == "<Cause.EXITED: 'exited'>"
    assert not hasattr(closed.IntEnum, "STAGE")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_json_is_what_the_standard_library_writes_and_reads(value: object) -> None:
    text = jsontext.dumps(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert jsontext.loads(text.encode()) == value
    assert jsontext.loads(json.dumps(value, indent=1, ensure_ascii=False).encode(errors="surrogatepass")) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_json_has_no_number_that_is_none(value: float) -> None:
    with pytest.raises(ValueError, match="is no JSON"):
        jsontext.dumps({"a": [value]})


@pytest.mark.parametrize("value", [b"bytes", {1: 2}, object(), {"a": {1}}])
def test_json_refuses_what_it_cannot_carry(value: object) -> None:
    with pytest.raises(TypeError):
        jsontext.dumps(value)
