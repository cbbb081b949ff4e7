"""Which paths a glob pattern matches, and that no pair of pattern and path takes long."""

# ruff: noqa: S101

import fnmatch
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljail_init.patterns import NamePattern, PathPatterns


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("report.txt", ["report.txt"], ["report.txt2", "a/report.txt", "Report.txt", ""]),
        ("*", ["a", ".hidden", "a b"], ["a/b"]),
        ("*.csv", ["x.csv", ".csv"], ["x.csv.gz", "out/x.csv"]),
        ("out/*", ["out/a"], ["out", "out/a/b", "outer/a"]),
        ("out/**", ["out/a", "out/a/b", "out/.x"], ["out", "other/out/a"]),
        ("**", ["a", "a/b", "a/b/c"], []),
        ("**/*.png", ["x.png", "a/x.png", "a/b/x.png"], ["x.png/a", "a/x.jpg"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a/b/c", "b", "x/a/b", "ab"]),
        ("**/a/**/b/**", ["a/b/c", "x/a/y/b/z/z"], ["a/b", "a/c/d"]),
        ("??.t?t", ["ab.txt", "éü.t\nt"], ["a.txt", "abc.txt"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "-x"]),
        ("[!a-c]x", ["dx", "!x"], ["ax", "x"]),
        ("[^a]", ["b", "^"], ["a"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[!]a]", ["b"], ["]", "a"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[", ["["], ["a"]),
        ("a[b", ["a[b"], ["ab"]),
        ("[]", ["[]"], ["]"]),
        ("[!]", ["[!]"], ["!", "a"]),
        ("[*]", ["*"], ["a"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("", [], ["a"]),
        ("a//b", [], ["a/b"]),
        ("../x", [], ["x", "a/x"]),
    ],
)
def test_a_pattern_matches_what_it_says(pattern: str, matching: list[str], other: list[str]) -> None:
    patterns = PathPatterns([pattern])
    assert [path for path in matching if not patterns.match(path)] == []
    assert [path for path in other if path and patterns.match(path)] == []


def test_one_of_several_patterns_is_enough() -> None:
    patterns = PathPatterns(["*.a", "b/*"])
    assert [patterns.match(path) for path in ("x.a", "b/x", "b", "c/x.a")] == [True, True, False, False]


def test_no_pattern_matches_nothing() -> None:
    assert not PathPatterns([]).match("a")


@given(st.text(alphabet="ab*?", max_size=12), st.text(alphabet="ab\n", max_size=12))
def test_a_name_matches_as_the_standard_library_says(pattern: str, name: str) -> None:
    assert NamePattern(pattern).matches(name) is bool(re.match(fnmatch.translate(pattern), name))


@given(st.text(alphabet="ab[]!-*", max_size=10), st.text(alphabet="ab[]!-", max_size=6))
def test_any_brackets_are_a_pattern(pattern: str, name: str) -> None:
    assert NamePattern(pattern).matches(name) in {True, False}


@given(st.text(alphabet="ab/*", max_size=10), st.text(alphabet="ab/", max_size=10))
def test_a_walk_never_leaves_out_a_directory_of_a_match(pattern: str, path: str) -> None:
    patterns = PathPatterns([pattern])
    states = patterns.start
    names = path.split("/")
    may_go_on = True
    for name in names[:-1]:
        states = patterns.step(states, name)
        may_go_on = may_go_on and patterns.may_go_on(states)
    if patterns.match(path):
        assert may_go_on


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 500 + "b", "a" * 255),
        ("[a-z]*" * 170, "a" * 255),
        ("[" * 1024, "[" * 255),
        ("**/" * 300 + "b", "/".join("a" * 32)),
        ("**/*a*" * 150, "/".join(["a" * 31] * 32)),
    ],
)
def test_no_pattern_takes_long_for_any_path(pattern: str, path: str) -> None:
    began = time.monotonic()
    for _ in range(20):
        PathPatterns([pattern]).match(path)
    assert time.monotonic() - began < 20
