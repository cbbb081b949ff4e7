"""Which interpreter runs a script, and with which command."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from skilljaild.errors import Reason, Refusal
from skilljaild.interpreters import INTERPRETERS, SHEBANG_BYTES, Shebang, choose, parse_shebang

PWSH = ("-NoLogo", "-NoProfile", "-NonInteractive", "-File")


def chosen(script: str, beginning: bytes = b"", asked: str = "") -> tuple[str, tuple[str, ...]]:
    """The interpreter's name and the command without the script, which must be its last word."""
    interpreter, command = choose(f"/work/skill/{script}", beginning, executable=False, asked=asked)
    assert command[-1] == f"/work/skill/{script}"
    return interpreter.name, command[:-1]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a.py", ("python", ("python3",))),
        ("a.PY", ("python", ("python3",))),
        ("a.js", ("node", ("node",))),
        ("a.mjs", ("node", ("node",))),
        ("a.cjs", ("node", ("node",))),
        ("a.sh", ("bash", ("bash",))),
        ("a.bash", ("bash", ("bash",))),
        ("a.ps1", ("pwsh", ("pwsh", *PWSH))),
        ("a.tar.py", ("python", ("python3",))),
    ],
)
def test_the_suffix_decides_without_a_shebang(script: str, expected: tuple[str, tuple[str, ...]]) -> None:
    assert chosen(script, b"print(1)\n") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"#!/usr/bin/python3", ("python", ("python3",))),
        (b"#!/usr/bin/python", ("python", ("python3",))),
        (b"#!/opt/python3.12/bin/python3.12", ("python", ("python3",))),
        (b"#! /usr/bin/python3 -I", ("python", ("python3", "-I"))),
        (b"#!/usr/bin/env python3", ("python", ("python3",))),
        (b"#!/usr/bin/env -S python3 -u -I", ("python", ("python3", "-u", "-I"))),
        (b"#!/usr/bin/env -Spython3 -u", ("python", ("python3", "-u"))),
        (b"#!/usr/bin/env --split-string=python3 -u", ("python", ("python3", "-u"))),
        (b"#!/usr/bin/env -vS node --no-warnings", ("node", ("node", "--no-warnings"))),
        (b"#!/usr/bin/env LANG=C DEBUG= node", ("node", ("node",))),
        (b"#!/usr/bin/env -i -u HOME node", ("node", ("node",))),
        (b"#!/usr/bin/env --unset HOME -C / node", ("node", ("node",))),
        (b"#!/usr/bin/env --chdir=/ --unset=HOME node", ("node", ("node",))),
        (b"#!/usr/bin/env 'python3' \"-X\" 'utf8 mode'", ("python", ("python3", "-X", "utf8 mode"))),
        (b"#!/bin/sh -eu", ("bash", ("sh", "-eu"))),
        (b"#!/bin/bash", ("bash", ("bash",))),
        (b"#!/usr/bin/nodejs", ("node", ("node",))),
        (b"#!/usr/bin/env pwsh", ("pwsh", ("pwsh", *PWSH))),
        (b"#!/usr/bin/env pwsh -nologo -NoProfile -File", ("pwsh", ("pwsh", *PWSH))),
        (b"#!C:/tools/powershell.exe", ("pwsh", ("pwsh", *PWSH))),
        (b"#!/usr/bin/bash.exe -e", ("bash", ("bash", "-e"))),
        (b"#!/usr/bin/env python3\r", ("python", ("python3",))),
        (b"#!/bin/bash -e\r", ("bash", ("bash", "-e"))),
    ],
)
def test_the_shebang_beats_the_suffix(line: bytes, expected: tuple[str, tuple[str, ...]]) -> None:
    for suffix in ("", ".txt", ".rb", ".py", ".sh"):
        assert chosen(f"a{suffix}", line + b"\nrest \xff\n") == expected


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"#",
        b"#!",
        b"#!\n",
        b"#!   \n",
        b"#!/usr/bin/env\n",
        b"#!/usr/bin/env -S\n",
        b"#!/usr/bin/env A=B\n",
        b"#!/usr/bin/env 'python3\n",
        b'#!/usr/bin/python3 "\n',
        b"#!/usr/bin/python3 \\",
        b"#!/usr/bin/p\xffthon\n",
        b"#!/usr/bin/python3 -u\0\n",
        b" #!/usr/bin/python3\n",
        b"\xef\xbb\xbf#!/usr/bin/python3\n",
        b"\n#!/usr/bin/python3\n",
    ],
)
def test_a_shebang_that_makes_no_sense_leaves_it_to_the_suffix(beginning: bytes) -> None:
    assert parse_shebang(beginning) is None
    assert chosen("a.js", beginning) == ("node", ("node",))


@pytest.mark.parametrize("line", [b"#!/usr/bin/ruby\n", b"#!/usr/bin/env perl -w\n", b"#!/usr/bin/python2.7\n"])
def test_a_program_that_no_sandbox_has_counts_only_without_a_known_suffix(line: bytes) -> None:
    program = parse_shebang(line)
    assert program is not None
    assert chosen("a.py", line) == ("python", ("python3",))
    with pytest.raises(Refusal) as caught:
        chosen("a.rb", line)
    assert caught.value.message == (
        f"script_path: cannot tell what runs 'a.rb': its #! line names '{program.program}', which no sandbox has. "
        "Name one of python, node, bash, pwsh in a #! line, or use a suffix that is known "
        "(.py, .js, .mjs, .cjs, .sh, .bash, .ps1)."
    )
    assert caught.value.metadata == {"interpreter": program.program}


@pytest.mark.parametrize(
    ("executable", "what"),
    [(True, "it has no #! line and no known suffix"), (False, "it has no known suffix and no #! line")],
)
def test_what_nothing_tells_is_unknown(executable: bool, what: str) -> None:
    with pytest.raises(Refusal, match="cannot tell what runs 'tool'") as caught:
        choose("/work/skill/tool", b"hello", executable=executable)
    assert caught.value.reason is Reason.INTERPRETER_UNKNOWN
    assert caught.value.field == "script_path"
    assert what in caught.value.message


def test_only_so_much_of_the_first_line_counts_as_the_kernel_reads() -> None:
    padding = SHEBANG_BYTES - len(b"#!/usr/bin/python3 ")
    assert parse_shebang(b"#!/usr/bin/python3 " + b"x" * 1_000) == Shebang("python3", ("x" * padding,))
    # A character of two bytes across the cut is no UTF-8 any more.
    assert parse_shebang(b"#!/usr/bin/python3 " + b"x" * (padding - 1) + "é".encode()) is None


@pytest.mark.parametrize("name", INTERPRETERS)
def test_what_the_request_asks_for_wins(name: str) -> None:
    program, options = {"python": ("python3", ()), "pwsh": ("pwsh", PWSH)}.get(name, (name, ()))
    assert chosen("a.rb", b"#!/usr/bin/env node --inspect\n", asked=name) == (name, (program, *options))


@pytest.mark.parametrize("name", ["ruby", "Python", "python3", "/bin/sh", "x" * 500, "\x1b[2J"])
def test_an_unknown_interpreter_that_is_asked_for_is_refused(name: str) -> None:
    with pytest.raises(Refusal) as caught:
        chosen("a.py", asked=name)
    assert caught.value.reason is Reason.INTERPRETER_UNKNOWN
    assert caught.value.field == "interpreter"
    assert caught.value.metadata == {"interpreter": name[:64]}
    assert caught.value.message.endswith("; choose one of python, node, bash, pwsh")
    assert caught.value.message.isprintable()


@given(
    st.one_of(
        st.binary(max_size=300).map(lambda line: b"#!" + line),
        st.lists(
            st.sampled_from(
                [b"/usr/bin/env", b"-S", b"-u", b"python3", b"'", b'"', b"\\", b" ", b"=", b"A=B", b"sh", b"\r", b"\0"]
            ),
            max_size=12,
        ).map(lambda words: b"#!" + b" ".join(words)),
    )
)
@example(b"#!/usr/bin/env -S-S-S-S-S=")
def test_whatever_a_hostile_first_line_says_the_command_can_be_executed(beginning: bytes) -> None:
    """The program is one that the image has, the script is the last word, and no word holds what exec cannot pass."""
    interpreter, command = choose("/work/skill/a.py", beginning, executable=True)
    assert command[0] in {"python3", "node", "bash", "sh", "pwsh"}
    assert interpreter.name in INTERPRETERS
    assert command[-1] == "/work/skill/a.py"
    assert not any("\0" in word for word in command)
    assert sum(len(word.encode()) for word in command[:-1]) < 400
