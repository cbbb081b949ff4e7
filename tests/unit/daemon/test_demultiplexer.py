"""The engine's two streams out of one."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from skilljaild.engines.docker.attach import Demultiplexer


def joined(pieces: list[tuple[int, bytes]]) -> dict[int, bytes]:
    """Each stream's bytes."""
    found: dict[int, bytes] = {}
    for kind, piece in pieces:
        found[kind] = found.get(kind, b"") + piece
    return found


def multiplexed(pieces: list[tuple[int, bytes]]) -> bytes:
    """What an engine makes of pieces."""
    return b"".join(struct.pack(">BxxxI", kind, len(piece)) + piece for kind, piece in pieces)


PIECES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=30)), max_size=8)


@given(PIECES, st.lists(st.integers(0, 40), max_size=20))
@example([(1, b"abc"), (2, b""), (1, b"d")], [1] * 20)
def test_however_the_stream_is_cut_the_same_comes_out(pieces: list[tuple[int, bytes]], cuts: list[int]) -> None:
    whole = multiplexed(pieces)
    demultiplexer = Demultiplexer()
    found: list[tuple[int, bytes]] = []
    position = 0
    for cut in [*cuts, len(whole)]:
        found += demultiplexer.feed(whole[position : position + cut])
        position += cut
    assert joined(found) == {kind: data for kind, data in joined(pieces).items() if data}
    assert all(piece for _, piece in found)


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_never_more_comes_out_than_went_in(pieces: list[bytes]) -> None:
    demultiplexer = Demultiplexer()
    found = [one for piece in pieces for one in demultiplexer.feed(piece)]
    assert sum(len(piece) for _, piece in found) <= sum(map(len, pieces))
    assert len(demultiplexer._header) < 8


@pytest.mark.parametrize("length", [2**32 - 1, 1_000_000])
def test_a_piece_is_passed_on_as_it_comes_whatever_length_it_announces(length: int) -> None:
    demultiplexer = Demultiplexer()
    assert demultiplexer.feed(struct.pack(">BxxxI", 1, length) + b"begin") == [(1, b"begin")]
    assert demultiplexer.feed(b"more") == [(1, b"more")]
