"""Versions with known holes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljaild.engines.known_bad import known_bad

AF_ALG = "AF_ALG sockets are open by default (our own profile closes them) (CVE-2026-31431); update to 29.4.3"
ARCHIVES = "compressed archives run programs of the container (we never use them) (CVE-2026-41567); update to 29.5.1"
MASKED = (
    "masked paths and console mounts can be used to escape (CVE-2025-31133, -52565, -52881); update to 1.2.8 or 1.3.3"
)
LEAK = "a leaked descriptor lets a sandbox reach the host's files (CVE-2024-21626); update to 1.1.12"


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
def test_a_hole_is_told_for_every_line_that_has_it(version: str, holes: list[str]) -> None:
    assert known_bad("Podman", "5.6.0", "runc", version) == [f"runc {version}: {hole}" for hole in holes]


@pytest.mark.parametrize(
    ("version", "holes"),
    [
        ("20.10.24+dfsg1", [AF_ALG, ARCHIVES]),
        ("29.4.2", [AF_ALG, ARCHIVES]),
        ("29.4.3", [ARCHIVES]),
        ("29.5.0", [ARCHIVES]),
        ("29.5.1", []),
        ("30.0.0", []),
    ],
)
def test_engine_and_runtime_are_both_looked_at(version: str, holes: list[str]) -> None:
    expected = [f"Docker {version}: {hole}" for hole in holes]
    assert known_bad("Docker", version, "runc", "1.3.3") == expected
    assert known_bad("Docker", version, "runc", "1.1.5")[: len(expected)] == expected


@pytest.mark.parametrize("version", ["", "unknown", "dev", "v", "1"])
def test_a_version_that_is_not_told_is_said_to_be_unknown_and_not_taken_for_good(version: str) -> None:
    unknown = "the engine does not tell its version; see to it that it is a current one"
    assert known_bad("Docker", version, "runc", version) == [f"Docker: {unknown}", f"runc: {unknown}"]


def test_of_what_has_no_entry_nothing_is_claimed() -> None:
    assert known_bad("Podman", "", "crun", "") == []
    assert known_bad("Podman", "4.3.1", "runsc", "0.0.1") == []


@given(st.text(max_size=12))
def test_any_version_text_is_understood(version: str) -> None:
    assert all(isinstance(one, str) for one in known_bad("Docker", version, "runc", version))
