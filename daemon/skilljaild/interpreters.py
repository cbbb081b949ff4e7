"""Which interpreter runs a script, and with which command."""

import dataclasses
import posixpath
import re
import shlex

from skilljaild.errors import Reason, Refusal
from skilljaild.paths import shown

__all__ = ["INTERPRETERS", "SHEBANG_BYTES", "Interpreter", "choose"]

SHEBANG_BYTES = 256
"""How much of a script's beginning decides; the kernel reads as much."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interpreter:
    """One of the interpreters that sandboxes are made for."""

    name: str
    suffixes: tuple[str, ...]
    programs: str
    """Regular expression for the program names of a shebang."""
    harmless: str
    """Regular expression for an option of a shebang, a NUL behind each word, that makes nothing run but the script."""
    options: tuple[str, ...] = ()
    """Options that it always gets, before the script."""

    def command(self, program: str, options: tuple[str, ...], script: str) -> tuple[str, ...]:
        """The command line up to and with the script."""
        return (program, *options, *self.options, script)

    def strange_options(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """The shebang's options in a command up to and with the script, when not all of them are known as harmless.

        An option may make it run what comes on standard input, or the first argument as the script.
        """
        options = command[1 : -1 - len(self.options)]
        harmless = re.fullmatch(f"(?:{self.harmless})*", "".join(f"{option}\0" for option in options))
        return () if harmless else options


INTERPRETERS = {
    interpreter.name: interpreter
    for interpreter in (
        Interpreter(
            "python",
            (".py",),
            r"python(3(\.\d+)?)?",
            r"-[bBEIOPqsSuvx]+\0|-W\0?[a-z]+\0|-X\0?(dev|utf8)\0",
        ),
        Interpreter(
            "node",
            (".js", ".mjs", ".cjs"),
            r"node(js)?",
            r"--(no-warnings|no-deprecation|enable-source-maps|use-strict|max-old-space-size=\d+)\0",
        ),
        Interpreter(
            "bash",
            (".sh", ".bash"),
            r"bash|sh",
            r"-[efuvxBCET]+\0|--(norc|noprofile|posix)\0"
            r"|-[efuvxBCET]*o\0(errexit|errtrace|functrace|noclobber|noglob|nounset|pipefail|verbose|xtrace)\0",
        ),
        Interpreter(
            "pwsh",
            (".ps1",),
            r"pwsh|powershell",
            r"(?i:-ExecutionPolicy)\0[A-Za-z]+\0",
            # Without -NonInteractive a prompt would wait for a person; -File must be the last option.
            ("-NoLogo", "-NoProfile", "-NonInteractive", "-File"),
        ),
    )
}


@dataclasses.dataclass(frozen=True, slots=True)
class Shebang:
    """The first line of a script, taken apart."""

    program: str
    options: tuple[str, ...]


def choose(script: str, beginning: bytes, *, executable: bool, asked: str = "") -> tuple[Interpreter, tuple[str, ...]]:
    """Which interpreter runs a script, and its command line up to and with the script's path.

    `script`: absolute path in the sandbox, so that it can never be read as an option; `beginning`: its first bytes.

    In this order: the interpreter that the request asks for, the shebang, the suffix. A shebang that names a program
    that no sandbox has counts only when the suffix tells nothing. Raises Refusal INTERPRETER_UNKNOWN.
    """
    shebang = parse_shebang(beginning)
    if asked:
        interpreter = _asked(asked)
        return interpreter, interpreter.command(default_program(interpreter), (), script)
    if shebang is not None and (named := _by_program(shebang.program)) is not None:
        program = _plain(shebang.program) if named.name == "bash" else default_program(named)
        return named, named.command(program, _without_file(named, shebang.options), script)
    suffix = posixpath.splitext(script)[1].lower()
    for one in INTERPRETERS.values():
        if suffix in one.suffixes:
            return one, one.command(default_program(one), (), script)
    raise _unknown(posixpath.basename(script), shebang, executable=executable)


def default_program(interpreter: Interpreter) -> str:
    """The program that stands for an interpreter when no shebang says which."""
    return "python3" if interpreter.name == "python" else interpreter.name


def parse_shebang(beginning: bytes) -> Shebang | None:
    """Takes a `#!` line apart, `env` and `env -S` followed. None when there is none or it makes no sense."""
    if not beginning.startswith(b"#!"):
        return None
    line = beginning[2:SHEBANG_BYTES].split(b"\n", 1)[0]
    if b"\0" in line:
        return None  # no argument could hold it
    try:
        words = shlex.split(line.decode().strip())
    except ValueError:
        return None
    if words and posixpath.basename(words[0]) == "env":
        words = _after_env(words[1:])
    if not words or not words[0].strip():
        return None
    return Shebang(posixpath.basename(words[0]), tuple(words[1:]))


def _after_env(words: list[str]) -> list[str]:
    """What `env` would execute: its own options and NAME=VALUE words are passed over."""
    while words and (words[0].startswith("-") or "=" in words[0]):
        word = words.pop(0)
        for long in ("-S", "--split-string="):
            if word.startswith(long) and word != long:
                words.insert(0, word.removeprefix(long))
        if word in {"-u", "--unset", "-C", "--chdir"} and words:
            words.pop(0)
    return words


def _by_program(program: str) -> Interpreter | None:
    return next((one for one in INTERPRETERS.values() if re.fullmatch(one.programs, _plain(program))), None)


def _plain(program: str) -> str:
    """Its name in a sandbox: scripts that were written on Windows may name it as it is there."""
    return program.removesuffix(".exe")


def _without_file(interpreter: Interpreter, options: tuple[str, ...]) -> tuple[str, ...]:
    """A shebang's options without those that our own command has anyway."""
    always = {option.lower() for option in interpreter.options}
    return tuple(option for option in options if option.lower() not in always)


def _asked(name: str) -> Interpreter:
    try:
        return INTERPRETERS[name]
    except KeyError:
        raise Refusal(
            Reason.INTERPRETER_UNKNOWN,
            f"interpreter: there is no {shown(name)}; choose one of {', '.join(INTERPRETERS)}",
            field="interpreter",
            interpreter=name[:64],
        ) from None


def _unknown(script: str, shebang: Shebang | None, *, executable: bool) -> Refusal:
    known = ", ".join(suffix for one in INTERPRETERS.values() for suffix in one.suffixes)
    mend = f"Name one of {', '.join(INTERPRETERS)} in a #! line, or use a suffix that is known ({known})."
    if shebang is not None:
        what = f"its #! line names {shown(shebang.program)}, which no sandbox has"
    elif executable:
        what = "it has no #! line and no known suffix"
    else:
        what = "it has no known suffix and no #! line"
    return Refusal(
        Reason.INTERPRETER_UNKNOWN,
        f"script_path: cannot tell what runs {shown(script)}: {what}. {mend}",
        field="script_path",
        interpreter=shebang.program[:64] if shebang else "",
    )
