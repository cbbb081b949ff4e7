"""What the probe printed, which is hostile."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljaild.posture.probe import CONTROLS, LAST_FAMILY, ON_LINUX, OPEN_FAMILIES, SEEN_LENGTH
from skilljaild.posture.sight import OUTPUT_BYTES_MAX, Control, SightError, read_sight

from .probed import GOOD, sight_of


def test_every_control_is_read_in_its_order() -> None:
    found = read_sight(json.dumps(sight_of(no_bpf="it worked (3)")).encode())
    assert [one.name for one in found] == list(CONTROLS)
    assert [one for one in found if not one.holds] == [Control("no bpf", holds=False, seen="it worked (3)")]


def test_each_control_has_a_name_of_its_own_and_every_closed_family_is_among_them() -> None:
    assert len(set(CONTROLS)) == len(CONTROLS)
    families = [name for name in CONTROLS if name.startswith("no socket of family ")]
    assert len(families) == LAST_FAMILY + 1 - len(OPEN_FAMILIES)
    assert set(CONTROLS) > ON_LINUX


def test_on_gvisor_what_says_nothing_there_is_not_asked_for() -> None:
    found = {name: value for name, value in GOOD.items() if name not in ON_LINUX}
    output = json.dumps(found).encode()
    assert {one.name for one in read_sight(output, gvisor=True)} == set(CONTROLS) - ON_LINUX
    for wrong, gvisor in ((output, False), (json.dumps(GOOD).encode(), True)):
        with pytest.raises(SightError, match="did not try exactly"):
            read_sight(wrong, gvisor=gvisor)


NAME = CONTROLS[0]
WITHOUT_ONE = {name: value for name, value in GOOD.items() if name != NAME}


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"\xff",
        b"not json",
        b"[" * 50_000,
        b"1" * 5_000,
        b"null",
        b"[]",
        json.dumps(WITHOUT_ONE).encode(),
        json.dumps(GOOD | {"no such control": [True, ""]}).encode(),
        json.dumps(GOOD).encode() + b"{}",
        # What held the first time does not count when it did not the second time, or the other way round.
        json.dumps(GOOD).encode()[:-1] + f', "{NAME}": [true, ""]}}'.encode(),
        *(
            json.dumps(GOOD | {NAME: value}).encode()
            for value in (
                True,
                None,
                [],
                [True],
                [1, "EPERM"],
                ["true", "EPERM"],
                [True, 1],
                [True, "EPERM", "more"],
                {"holds": True},
                [True, "x" * (SEEN_LENGTH + 1)],
            )
        ),
        json.dumps(GOOD).encode().ljust(OUTPUT_BYTES_MAX + 1),
    ],
)
def test_what_is_not_exactly_as_it_must_be_is_refused_and_not_repeated(output: bytes) -> None:
    with pytest.raises(SightError) as caught:
        read_sight(output)
    assert str(caught.value).startswith("the probe ")
    assert len(str(caught.value)) < 80


def test_what_was_seen_is_made_printable() -> None:
    (first, *_) = read_sight(json.dumps(GOOD | {NAME: [False, "a\x1b[2J\nb\u202e"]}).encode())
    assert first.seen == "a?[2J?b?"


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(output: bytes) -> None:
    with pytest.raises(SightError):
        read_sight(output)
