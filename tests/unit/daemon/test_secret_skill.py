"""What a skill calls itself, from hostile bytes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljaild.errors import Reason, Refusal
from skilljaild.secrets.skill import skill_name

from .attempt import attempt


@pytest.mark.parametrize(
    "content",
    [
        b"---\nname: web-search\ndescription: x\n---\n# Text\n",
        b"\xef\xbb\xbf---\r\nname: web-search\r\n---\r\n",
        b"---\nmetadata: {name: other, more: [1]}\nname: 'web-search' # comment\n---",
        b'---\n"name": "web-search"\n---\n---\nname: other\n---\n',
        b"---\nother: !!python/object/apply:os.system ['false']\nname: web-search\n---\n",
        b"---\na: &a [x]\nb: *a\nname: web-search\n---\n",
    ],
)
def test_the_name_is_read_from_the_frontmatter(content: bytes) -> None:
    assert skill_name(content) == "web-search"


BOMB = b"".join(
    b"a%d: &a%d [%s]\n" % (number, number, b", ".join([b"*a%d" % (number - 1)] * 9) if number else b"x")
    for number in range(40)
)
MERGES = b"".join(
    b"a%d: &a%d {<<: [%s]}\n" % (number, number, b", ".join([b"*a%d" % (number - 1)] * 9))
    if number
    else b"a0: &a0 {b: c}\n"
    for number in range(40)
)


@pytest.mark.parametrize("bomb", [BOMB, MERGES], ids=["aliases", "merge keys"])
def test_a_bomb_costs_nothing(bomb: bytes) -> None:
    started = time.monotonic()
    assert skill_name(b"---\n" + bomb + b"name: web-search\n---\n") == "web-search"
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "no frontmatter"),
        (b"# Text\n---\nname: x\n---\n", "no frontmatter"),
        (b"---\nname: x\n", "no frontmatter"),
        (
            b"---\nname: x\n" + b"#" * 16_384 + b"\n---\n",
            "no frontmatter between two lines of ---, in its first 16,384",
        ),
        (b"---\n" + b"[" * 16_000 + b"\n---\n", "more than 256 opening brackets"),
        (b"---\n" + b"{" * 257 + b"\n---\n", "more than 256 opening brackets"),
        (b"---\n" + b"- " * 8_000 + b"\n---\n", "no YAML"),
        (b"---\nname: \xff\n---\n", "no YAML"),
        (b"---\nname: [\n---\n", "no YAML"),
        (b"---\nname: x\n...\nname: y\n---\n", "no YAML"),
        (b"---\n- name: x\n---\n", "no mapping"),
        (b"---\nname\n---\n", "no mapping"),
        (b"---\n---\n", "no mapping"),
        (b"---\ndescription: x\n---\n", "not have one name"),
        (b"---\nname: x\nname: y\n---\n", "not have one name"),
        (b"---\nname: [x]\n---\n", "not have one name"),
        (b"---\nname: {x: y}\n---\n", "not have one name"),
        (b"---\nname: 1\n---\n", "not have one name"),
        (b"---\nname: yes\n---\n", "not have one name"),
        (b"---\nname:\n---\n", "not have one name"),
        (b"---\nname: ''\n---\n", "printable"),
        (b'---\nname: "a\\nb"\n---\n', "printable"),
        (b"---\nname: " + b"x" * 65 + b"\n---\n", "1 to 64"),
    ],
)
def test_what_has_no_single_plain_name_is_refused(content: bytes, fault: str) -> None:
    with pytest.raises(Refusal, match=fault) as caught:
        skill_name(content)
    assert (caught.value.reason, caught.value.field) == (Reason.SKILL_INVALID, "bundle_digest")


@given(st.one_of(st.binary(max_size=300), st.text("-nae:{}[]&*!<|>'\"#%@`,?\n \t\0x", max_size=300).map(str.encode)))
def test_any_bytes_give_a_name_or_a_refusal(content: bytes) -> None:
    found = attempt(lambda: skill_name(b"---\n" + content + b"\n---\n"))
    assert isinstance(found, Refusal | str)
