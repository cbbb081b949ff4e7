"""Which paths may cross the stream."""

# ruff: noqa: S101

import pytest
from skilljail_init.paths import PathError, escaped, is_safe_name, split_path


def test_a_good_path_is_cut_into_its_names() -> None:
    assert split_path("scripts/ä b/…'\".py") == ["scripts", "ä b", "…'\".py"]


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/etc/passwd", "..", "../x", "a/../b", "a/..", ".", "./a", "a/./b", "a//b", "a/", "a\\b", "a\0b",
        "a\nb", "a\x7fb", "a\x85b", chr(0xD800), "x" * 256, "ä" * 128, "/".join(["a"] * 33),
        "/".join(["x" * 250] * 5),
    ],
)  # fmt: skip
def test_a_path_that_could_lead_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(PathError):
        split_path(path)


def test_the_limits_themselves_are_good() -> None:
    assert is_safe_name("x" * 255)
    assert len(split_path("/".join(["a"] * 32))) == 32


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain.txt", "plain.txt"),
        ("größe 1.txt".encode(), "größe 1.txt"),
        (b"a\nb\\c\xff\x1b[0m", "a\\x0ab\\x5cc\\xff\\x1b[0m"),
        ("a\u202eb".encode(), "a\\xe2\\x80\\xaeb"),
        (b"\n" * 2_000, "\\x0a" * 256 + "…"),
    ],
)
def test_an_escaped_path_is_printable_and_bounded(raw: bytes, shown: str) -> None:
    assert escaped(raw) == shown
    assert shown.isprintable()
