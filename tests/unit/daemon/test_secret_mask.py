"""Secrets taken out of output: however it is cut, whatever overlaps."""

import time

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljaild.errors import Reason, Refusal
from skilljaild.runs.events import Output
from skilljaild.runs.outlet import Outlet
from skilljaild.secrets.automaton import Automaton
from skilljaild.secrets.mask import MASK, PREFIX_BYTES_MIN, StreamMask, bounded_patterns, patterns_of

A, B = b"abcdefgh", b"efghijkl"


def masked(data: bytes, *patterns: bytes) -> bytes:
    """A stream that came in one piece."""
    mask = StreamMask(Automaton(patterns))
    return mask.feed(data) + mask.flush()


def expected(data: bytes, patterns: list[bytes]) -> bytes:
    """The same by looking at every place: what is covered, and where a new occurrence begins behind all before."""
    ends = {}
    for start in range(len(data)):
        whole = [start + len(one) for one in patterns if data.startswith(one, start)]
        cut = [len(data) for one in patterns if len(data) - start < len(one) and one.startswith(data[start:])]
        if len(data) - start < PREFIX_BYTES_MIN:
            cut = []
        if whole or cut:
            ends[start] = max(whole + cut)
    pieces, covered = b"", 0
    for start in range(len(data)):
        if start in ends:
            if start >= covered:
                pieces += MASK
            covered = max(covered, ends[start])
        elif start >= covered:
            pieces += data[start : start + 1]
    return pieces


@pytest.mark.parametrize(
    ("data", "delivered"),
    [
        (b"", b""),
        (b"nothing here", b"nothing here"),
        (b"<abcdefgh>", b"<***>"),
        (b"abcdefghabcdefgh", b"******"),
        (b"abcdefghijkl!", b"***!"),  # A and B overlap: nothing of either is left
        (b"abcdefgefghijkl", b"abcdefg***"),
        (b"abcdefg!", b"abcdefg!"),
        (b"x abc", b"x abc"),  # too short to tell anything
        (b"x abcd", b"x ***"),  # cut by a limit or a kill, perhaps
        (b"abcdefgh-efghijk", b"***-***"),
        (b"abcdefghz", b"***z"),
        (b"abcdefghi", b"***"),  # the end of A may have been the beginning of B,
    ],
)
def test_every_occurrence_is_masked_once(data: bytes, delivered: bytes) -> None:
    assert masked(data, A, B) == delivered == expected(data, [A, B])


def test_the_longest_of_two_that_begin_alike_counts() -> None:
    assert masked(b"abcdefgh abcdefghXYZ.", A, A + b"XYZ") == b"*** ***."
    mask = StreamMask(Automaton([A, A + b"XYZ"]))
    assert (mask.feed(b"abcdefghX"), mask.feed(b"Y"), mask.feed(b"!"), mask.flush()) == (b"", b"", b"***XY!", b"")


@pytest.mark.parametrize("end", [b"", b"X", b"k", b"klX", b"klm", b"klmX"])
def test_a_value_within_the_beginning_of_another_is_masked(end: bytes) -> None:
    outer, inner = b"abcdefghijklm", b"cdefghij"
    data = b"abcdefghij" + end
    assert masked(data, outer, inner) == expected(data, [outer, inner])
    mask = StreamMask(Automaton([outer, inner]))
    pieces = [mask.feed(data[place : place + 1]) for place in range(len(data))]
    assert b"".join([*pieces, mask.flush()]) == expected(data, [outer, inner])


def test_no_more_is_held_back_than_may_be_a_beginning() -> None:
    mask = StreamMask(Automaton([A]))
    assert mask.feed(b"one abc") == b"one "
    assert mask.feed(b"x two a") == b"abcx two "
    assert mask.feed(b"bcdefg") == b""
    assert mask.feed(b"h") == b"***"
    assert mask.flush() == b""


def test_a_value_that_repeats_itself_is_one_mask_and_is_not_kept() -> None:
    mask = StreamMask(Automaton([b"a" * 8]))
    assert mask.feed(b"a" * 100_000) == MASK
    assert len(mask._held) < 8
    assert mask.feed(b"a" * 100_000 + b"b") == b"b"


ALPHABET = st.sampled_from(b"abc").map(lambda one: bytes([one]))
SECRETS = st.lists(st.lists(ALPHABET, min_size=8, max_size=12).map(b"".join), min_size=1, max_size=4)


@st.composite
def cut_outputs(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Secrets, and pieces of an output that is full of them and of parts of them."""
    secrets = draw(SECRETS)
    part = st.sampled_from(secrets).flatmap(
        lambda one: st.tuples(st.integers(0, len(one)), st.integers(0, len(one))).map(
            lambda ends: one[min(ends) : max(ends)]
        )
    )
    pieces = draw(st.lists(st.one_of(st.sampled_from(secrets), part, ALPHABET), max_size=12))
    data = b"".join(pieces)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return secrets, [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(cut_outputs())
def test_any_chunking_is_masked_as_the_whole_and_no_secret_is_left(case: tuple[list[bytes], list[bytes]]) -> None:
    secrets, pieces = case
    mask = StreamMask(Automaton(secrets))
    delivered = b"".join([*map(mask.feed, pieces), mask.flush()])
    assert delivered == expected(b"".join(pieces), secrets)
    assert not any(one in delivered for one in secrets)


def test_a_long_value_byte_by_byte_costs_no_more_for_what_is_held_back() -> None:
    """Looking through all of that again for each byte would take minutes."""
    value = b"\n".join(b"line %04d of a value of many lines, and more of it" % number for number in range(600))
    mask = StreamMask(Automaton(patterns_of([pydantic.SecretStr(value.decode())])))
    start = time.monotonic()
    held = [mask.feed(value[place : place + 1]) for place in range(len(value) - 1)]
    assert (set(held), mask.feed(b"t!"), mask.flush()) == ({b""}, b"***!", b"")
    assert time.monotonic() - start < 10


def test_a_long_value_that_repeats_itself_costs_no_more_either() -> None:
    mask = StreamMask(Automaton([b"a" * 32_000]))
    start = time.monotonic()
    for _ in range(300):
        assert mask.feed(b"a" * 31_999) + mask.feed(b"b") == b"a" * 31_999 + b"b"
    assert time.monotonic() - start < 10


def test_more_patterns_than_are_searched_for_are_found() -> None:
    patterns = [bytes([first, second]) * 4 for first in b"abcdefghij" for second in b"klmnopqrst"]
    data = b"xa".join(patterns)
    assert masked(data, *patterns) == b"xa".join([MASK] * len(patterns)) == expected(data, patterns)


@pytest.mark.parametrize(
    "value", ["\n".join(f"{number:08}" for number in range(1_001)), "x" * (256 * 1024 + 1)], ids=["lines", "bytes"]
)
def test_what_is_too_much_to_be_masked_is_refused_by_name(value: str) -> None:
    small = pydantic.SecretStr("abcdefgh")
    with pytest.raises(Refusal) as caught:
        bounded_patterns({"small": small, "large": pydantic.SecretStr(value)})
    assert (caught.value.reason, caught.value.metadata["secret"]) == (Reason.SECRET_UNAVAILABLE, "large")
    assert "leave mask_secrets out" in caught.value.message
    assert bounded_patterns({"small": small, "most": pydantic.SecretStr(value[:8_900])})


def test_lines_of_a_value_of_several_count_as_well() -> None:
    key = pydantic.SecretStr("-----BEGIN KEY-----\r\nMIIEvQIBADANBg\n  indented line\nshort\n-----END KEY-----\n")
    assert patterns_of([key]) == {
        key.get_secret_value().encode(),
        b"-----BEGIN KEY-----",
        b"MIIEvQIBADANBg",
        b"indented line",
        b"-----END KEY-----",
    }
    assert masked(b"> MIIEvQIBADANBg\r\n> short\n", *patterns_of([key])) == b"> ***\r\n> short\n"


def test_streams_are_apart_and_offsets_count_what_is_delivered() -> None:
    outlet = Outlet(Automaton([b"abcdefgh"]))
    for event in (
        Output(1, 0, b"out abcd"),
        Output(2, 0, b"efgh abcdef"),
        Output(1, 8, b"efgh."),
        Output(2, 11, b"gh" + b"x" * 70_000),
    ):
        outlet.take(event)
    outlet.end()
    assert [(one.stream, one.offset, one.data[:9]) for one in outlet.pending] == [
        (1, 0, b"out "),
        (2, 0, b"efgh "),
        (1, 4, b"***."),
        (2, 5, b"***xxxxxx"),
        (2, 5 + 65_536, b"xxxxxxxxx"),
    ]
    assert all(0 < len(one.data) <= 65_536 for one in outlet.pending)


def test_without_secrets_output_passes_as_it_is() -> None:
    outlet, event = Outlet(), Output(1, 7, b"abcdefgh")
    outlet.take(event)
    outlet.end()
    assert list(outlet.pending) == [event]
