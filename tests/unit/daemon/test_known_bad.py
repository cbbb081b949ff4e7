"""Versions with known holes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljaild.engines.finding import Finding, Severity
from skilljaild.engines.known_bad import known_bad

AF_ALG = (
    "AF_ALG sockets are open by default (our own profile closes them); update to 29.4.3",
    "CVE-2026-31431",
)
COPIES = (
    "copying to or from a container can run its programs and leave it (we never copy); update to 29.5.1",
    "CVE-2026-41567, -41568, -42306",
)
ARCHIVES = (
    "unpacking an archive can leave its folder (we never have one unpacked); update to 29.7.0",
    "CVE-2026-17106",
)
MASKED = (
    "masked paths and console mounts can be used to escape; update to 1.2.8 or 1.3.3",
    "CVE-2025-31133, -52565, -52881",
)
LEAK = ("a leaked descriptor lets a sandbox reach the host's files; update to 1.1.12", "CVE-2024-21626")


def holes_of(subject: str, holes: list[tuple[str, str]]) -> list[Finding]:
    """The findings about one product."""
    return [Finding(Severity.KNOWN_BAD, subject, message, source) for message, source in holes]


@pytest.mark.parametrize(
    ("version", "holes"),
    [
        ("1.0.3", [MASKED, LEAK]),
        ("1.1.5", [MASKED, LEAK]),
        ("1.1.5+ds1", [MASKED, LEAK]),
        ("1.1.11", [MASKED, LEAK]),
        ("1.1.12", [MASKED]),
        ("1.1.99", [MASKED]),
        ("1.2.0", [MASKED]),
        ("1.2.7", [MASKED]),
        ("1.2.8", []),
        ("1.2.99", []),
        ("1.3.0", [MASKED]),
        ("1.3.0-rc.1", [MASKED]),
        ("1.3.2", [MASKED]),
        ("1.3.3", []),
        ("1.4.0", []),
        ("v1.4.0", []),
        ("2.0", []),
    ],
)
def test_a_hole_is_told_for_every_line_that_has_it(version: str, holes: list[tuple[str, str]]) -> None:
    assert known_bad("Podman", "5.6.0", "runc", version) == holes_of(f"runc {version}", holes)


@pytest.mark.parametrize(
    ("version", "holes"),
    [
        ("20.10.24+dfsg1", [AF_ALG, COPIES, ARCHIVES]),
        ("29.4.2", [AF_ALG, COPIES, ARCHIVES]),
        ("29.4.3", [COPIES, ARCHIVES]),
        ("29.5.0", [COPIES, ARCHIVES]),
        ("29.5.1", [ARCHIVES]),
        ("29.6.9", [ARCHIVES]),
        ("29.7.0", []),
        ("30.0.0", []),
    ],
)
def test_engine_and_runtime_are_both_looked_at(version: str, holes: list[tuple[str, str]]) -> None:
    expected = holes_of(f"Docker {version}", holes)
    assert known_bad("Docker", version, "runc", "1.3.3") == expected
    assert known_bad("Docker", version, "runc", "1.1.5")[: len(expected)] == expected


@pytest.mark.parametrize("version", ["", "unknown", "dev", "v", "1"])
def test_a_version_that_is_not_told_is_said_to_be_unknown_and_taken_for_bad(version: str) -> None:
    unknown = "the engine does not tell its version; see to it that it is a current one"
    assert known_bad("Docker", version, "runc", version) == [
        Finding(Severity.KNOWN_BAD, "Docker", unknown),
        Finding(Severity.KNOWN_BAD, "runc", unknown),
    ]


def test_of_what_has_no_entry_nothing_is_claimed() -> None:
    assert known_bad("Podman", "", "crun", "") == []
    assert known_bad("Podman", "4.3.1", "runsc", "0.0.1") == []


def test_a_finding_reads_as_one_sentence_with_its_source() -> None:
    (first, *_) = known_bad("Podman", "5", "runc", "1.2.7")
    assert first.text == f"runc 1.2.7: {MASKED[0]} ({MASKED[1]})"
    assert Finding(Severity.INFO, "a", "b").text == "a: b"


@given(st.text(max_size=12))
def test_any_version_text_is_understood(version: str) -> None:
    assert all(one.severity is Severity.KNOWN_BAD for one in known_bad("Docker", version, "runc", version))
