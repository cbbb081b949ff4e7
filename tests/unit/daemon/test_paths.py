"""The one rule for paths from outside."""

import posixpath
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from skilljail._paths import path_fault as client_fault
from skilljail_init.paths import PathError, split_path
from skilljaild.errors import Reason, Refusal
from skilljaild.paths import check_path, path_fault, shown

ROOT = "/work/skill"


@pytest.mark.parametrize(
    "path",
    [
        "run.py",
        "scripts/run.py",
        "..a/b..",
        ".hidden",
        "a b/c:d*?[e]",
        "-rf",
        "ünï/測試/🦊.py",
        "a" * 255,
        "/".join("d" * 32),
        "/".join(["x" * 204] * 4 + ["x" * 204]),
    ],
)
def test_a_good_path_has_no_fault(path: str) -> None:
    assert path_fault(path) is None
    check_path(path, "script_path")


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("", "is empty"),
        ("a\udc80", "is not valid UTF-8"),
        ("a\0b", "holds a NUL"),
        ("a\nb", "holds a control character"),
        ("a\x1b[31m", "holds a control character"),
        ("a\x7f", "holds a control character"),
        ("a\x9b31m", "holds a control character"),
        ("a\\b", "holds a backslash; names are joined by /"),
        ("/etc/passwd", "is absolute; give it relative to the skill's folder"),
        ("//a", "is absolute; give it relative to the skill's folder"),
        ("..", "leaves the skill's folder with '..'"),
        ("a/../b", "leaves the skill's folder with '..'"),
        ("a/..", "leaves the skill's folder with '..'"),
        (".", "holds an empty name or '.'; write it in its shortest form"),
        ("./a", "holds an empty name or '.'; write it in its shortest form"),
        ("a//b", "holds an empty name or '.'; write it in its shortest form"),
        ("a/", "holds an empty name or '.'; write it in its shortest form"),
        ("/".join("d" * 33), "is more than 32 directories deep"),
        ("a" * 256, "holds a name longer than 255 bytes"),
        ("é" * 128, "holds a name longer than 255 bytes"),
        ("/".join(["x" * 204] * 4 + ["x" * 205]), "is longer than 1,024 bytes"),
    ],
)
def test_each_fault_is_named(path: str, fault: str) -> None:
    assert path_fault(path) == fault
    with pytest.raises(Refusal) as caught:
        check_path(path, "script_path")
    assert caught.value.reason is Reason.PATH_INVALID
    assert caught.value.field == "script_path"
    assert caught.value.message == f"script_path: the path {shown(path)} {fault}"


HOSTILE_NAMES = st.one_of(
    st.sampled_from(["", ".", "..", "...", "~", "a", "\\", "\0", "C:", "\u2024\u2024", "\uff0e\uff0e", "\u2215"]),
    st.text(max_size=8),
    st.text(st.characters(categories=("Cc", "Cs", "Cf", "Zl")), max_size=3),
)
HOSTILE_PATHS = st.one_of(
    st.lists(HOSTILE_NAMES, max_size=40).map("/".join),
    st.text(max_size=300),
    st.integers(0, 1_100).map(lambda length: "a" * length),
)


@given(HOSTILE_PATHS)
@example("../../etc/shadow")
@example("a/../../b")
@example("a/\x9b/b")
def test_what_is_accepted_never_leaves_the_root(path: str) -> None:
    if path_fault(path) is not None:
        return
    joined = posixpath.join(ROOT, path)
    assert posixpath.normpath(joined) == joined
    assert joined.startswith(ROOT + "/")
    assert "\\" not in path
    assert not any(unicodedata.category(one) in {"Cc", "Cs"} for one in path)
    assert len(path.encode()) <= 1_024
    assert all(1 <= len(name.encode()) <= 255 for name in path.split("/"))


@given(HOSTILE_PATHS)
@example("a\x85b")
@example("/".join("d" * 33))
def test_client_daemon_and_init_hold_the_same_rule(path: str) -> None:
    """What one end accepts and the next refuses would fail a run late and without the mend."""
    try:
        split_path(path)
    except PathError:
        init_accepts = False
    else:
        init_accepts = True
    assert (path_fault(path) is None, client_fault(path) is None) == (init_accepts, init_accepts)


@given(st.text(max_size=500))
def test_what_is_shown_is_short_and_steers_no_terminal(text: str) -> None:
    assert shown(text).isprintable()
    assert len(shown(text)) <= 10 * 201 + 2


def test_a_long_text_is_cut_visibly() -> None:
    assert shown("x" * 201) == "'" + "x" * 200 + "…'"
    assert shown("x" * 200) == "'" + "x" * 200 + "'"
