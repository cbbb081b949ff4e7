"""Mutations: valid bytes, JSON values, frames and messages, and then something about them is wrong."""

import copy
import json
from collections.abc import Sequence
from typing import Any

from google.protobuf import message as protobuf_message
from hypothesis import strategies as st
from skilljail_init import frames
from skilljail_init.frames import FrameType

__all__ = ["Said", "cut", "framed", "mutated", "mutated_frames", "mutated_json", "mutated_messages"]

Said = tuple[FrameType, dict[str, Any] | bytes]
"""A frame: its type, and its JSON object or its raw payload."""

ODD_BYTES = [b"\0", b"\xff", b"\n", b'"', b"\\", b"..", b"/", b"{", b"[", b"\xed\xa0\x80", b"\xc3", b"9" * 20, b"-1"]
ODD_INTEGERS = [0, 1, 127, 128, 255, 256, 65_535, 65_536, 65_537, 2**31 - 1, 2**31, 2**32 - 1]
ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 256, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, -0.0, 1e-320, 1e308,
    "", ".", "..", "/", "a", "a/b", "../x", "a//b", "/etc/passwd", "\0", "\n", "\x1b[2J", "\x7f", "\x9f", "\\",
    "\ud800", "a" * 256, "a/" * 40 + "a", "é" * 600, "data:a/<b>,x", "a.tar.gz", "exited", "signaled", "wall_timeout",
    "0" * 64, [], {}, [[]], [None], {"": 0},
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes], most: int = 4) -> bytes:
    """One of `seeds` with up to `most` things wrong: flipped bits, pieces lost, doubled, foreign, cut."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, most))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(1, 40)))
        match draw(st.integers(0, 7)):
            case 0 if start < len(data):
                data[start] ^= 1 << draw(st.integers(0, 7))
            case 1 if start < len(data):
                data[start] = draw(st.integers(0, 255))
            case 2:
                del data[start:end]
            case 3:
                data[start:start] = data[start:end] * draw(st.sampled_from([1, 1, 1, 2, 50]))
            case 4:
                data[start:start] = draw(st.sampled_from(ODD_BYTES) | st.binary(max_size=20))
            case 5:
                data[start : start + 4] = draw(st.sampled_from(ODD_INTEGERS)).to_bytes(4, "big")
            case 6:
                other = draw(st.sampled_from(seeds))
                data[start:] = other[draw(st.integers(0, len(other))) :]
            case _:
                del data[start:]
    return bytes(data)


@st.composite
def mutated_json(draw: st.DrawFn, seed: dict[str, Any], most: int = 3) -> dict[str, Any]:
    """`seed` with up to `most` values that are odd, missing, doubled or somewhere else."""
    value: dict[str, Any] = copy.deepcopy(seed)
    for _ in range(draw(st.integers(0, most))):
        places = list(_places(value))
        if not places:
            break
        container, key = draw(st.sampled_from(places))
        match draw(st.integers(0, 4)):
            case 0:
                del container[key]
            case 1:
                container[key] = [container[key], copy.deepcopy(container[key])]
            case 2 if isinstance(container, list):
                container.insert(key, copy.deepcopy(container[key]))
            case _:
                container[key] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES) | st.text(max_size=20) | st.integers()))
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in it, at all depths."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    places = [(value, key) for key in keys]
    for key in keys:
        places += _places(value[key])
    return places


def encoded(value: dict[str, Any]) -> bytes:
    """JSON in UTF-8, with what no daemon and no init would write."""
    return json.dumps(value).encode()


def framed(said: Sequence[Said]) -> bytes:
    """Frames as bytes."""
    return b"".join(frames.encode(kind, value if isinstance(value, bytes) else encoded(value)) for kind, value in said)


@st.composite
def mutated_frames(draw: st.DrawFn, seeds: Sequence[Sequence[Said]], most: int = 3) -> bytes:
    """A conversation in which frames are lost, doubled, swapped, of another type, or hold something odd."""
    said = list(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, most))):
        if not said:
            break
        index = draw(st.integers(0, len(said) - 1))
        kind, value = said[index]
        match draw(st.integers(0, 6)):
            case 0:
                del said[index]
            case 1:
                said[index:index] = [said[index]] * draw(st.sampled_from([1, 1, 3, 100]))
            case 2:
                other = draw(st.integers(0, len(said) - 1))
                said[index], said[other] = said[other], said[index]
            case 3:
                said[index] = (draw(st.sampled_from(list(FrameType))), value)
            case 4 if isinstance(value, bytes):
                said[index] = (kind, draw(mutated([value])))
            case 5 if isinstance(value, dict):
                said[index] = (kind, draw(mutated([encoded(value)])))
            case _ if isinstance(value, dict):
                said[index] = (kind, draw(mutated_json(value)))
    whole = framed(said)
    return draw(mutated([whole], most=2)) if draw(st.integers(0, 3)) == 0 else whole


@st.composite
def cut(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> list[bytes]:
    """Bytes in pieces, as a stream brings them."""
    data = draw(whole)
    pieces: list[bytes] = []
    position = 0
    for size in draw(st.lists(st.sampled_from([1, 2, 5, 6, 100, 65_541]), max_size=6)):
        pieces.append(data[position : position + size])
        position += size
    pieces.append(data[position:])
    return [piece for piece in pieces if piece]


@st.composite
def mutated_messages(draw: st.DrawFn, seeds: Sequence[Any], most: int = 3) -> Any:
    """A message of `seeds`' type whose bytes are mutated, as far as they still are a message."""
    seed = draw(st.sampled_from(seeds))
    for data in (draw(mutated([one.SerializeToString() for one in seeds], most)), seed.SerializeToString()):
        message = type(seed)()
        try:
            message.ParseFromString(data)
        except protobuf_message.DecodeError:
            continue
        return message
    return seed
