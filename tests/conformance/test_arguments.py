"""Arguments: passed on as they are, or refused before anything is launched."""

import contextlib
import pathlib
from collections.abc import Callable

import pytest
import skilljail
from harness import INTERPRETERS, MakeSkill
from skilljail.adapters.maf import ScriptRunner

from conformance.ending import Ending
from conformance.framework import Framework
from conformance.scripts import ARGUMENTS

NothingLaunched = Callable[[], contextlib.AbstractContextManager[None]]
Skills = Callable[..., pathlib.Path]

LITERAL = [
    "two words",
    "  spaces around  ",
    "'single' \"double\"",
    "$(touch /tmp/x)",
    "`id`",
    "$HOME ${HOME} %HOME%",
    "*",
    "; exit 9",
    "a | b > c && d",
    "",
    "\\back\\slash\\",
    "line\nbreak\ttab",
    "żółw ☃ 😀 e\u0301",
    "--flag",
    "-x",
    "--name=value",
    "--",
    "-",
    "@splat",
    "#comment",
    "~",
    "!!",
    "\x01\x1b[31m",
]


def printed(arguments: list[str]) -> bytes:
    """What ARGUMENTS prints."""
    return "".join(f"{one}\0" for one in arguments).encode()


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_arguments_arrive_literally_and_in_order(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 1: no shell sees them."""
    skill = make_skill(ARGUMENTS.files(interpreter))
    result = client.run(skill, ARGUMENTS.path(interpreter), LITERAL)
    assert Ending.of(result) == Ending(stdout=printed(LITERAL))


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_the_first_argument_is_no_option_of_the_interpreter(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 1: what looks like an option of the interpreter goes to the script."""
    arguments = ["-c", "print(1)", "--version", "-e"]
    skill = make_skill(ARGUMENTS.files(interpreter))
    result = client.run(skill, ARGUMENTS.path(interpreter), arguments)
    assert Ending.of(result) == Ending(stdout=printed(arguments))


def test_the_longest_arguments_that_the_kernel_takes_arrive(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 1: the bounds are the kernel's, not ours."""
    arguments = ["é" * 65_535, *["x" * 131_071] * 6, ""]
    skill = make_skill(ARGUMENTS.files("python"))
    result = client.run(skill, ARGUMENTS.path("python"), arguments)
    assert Ending.of(result) == Ending(stdout=printed(arguments))


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_no_arguments_are_no_arguments(client: skilljail.Client, make_skill: MakeSkill, interpreter: str) -> None:
    """Case 2: not even an empty one."""
    skill = make_skill(ARGUMENTS.files(interpreter))
    assert Ending.of(client.run(skill, ARGUMENTS.path(interpreter))) == Ending()


@pytest.mark.parametrize("args", [None, []])
async def test_no_arguments_of_a_model_are_no_arguments(runner: ScriptRunner, skills: Skills, args: object) -> None:
    """Case 2: the framework says null, or an empty list."""
    framework = await Framework.over(runner, skills({"scripts/run.py": "import sys; print(sys.argv[1:])"}))
    assert await framework.run_skill_script("test-skill", "scripts/run.py", args) == "[]"


@pytest.mark.parametrize(
    ("argv", "where", "kind"),
    [
        pytest.param({"value": 1}, "argv", "dict", id="dict"),
        pytest.param("--value 1", "argv", "str", id="bare string"),
        pytest.param(b"--value", "argv", "bytes", id="bytes"),
        pytest.param(7, "argv", "int", id="number"),
        pytest.param(None, "argv", "NoneType", id="None"),
        pytest.param({"--value"}, "argv", "set", id="set"),
        pytest.param(["a", 1], "argv[1]", "int", id="a number among them"),
        pytest.param(["a", None], "argv[1]", "NoneType", id="None among them"),
        pytest.param([["a"]], "argv[0]", "list", id="nested list"),
        pytest.param([b"a"], "argv[0]", "bytes", id="bytes among them"),
        pytest.param([pathlib.Path("a")], "argv[0]", "PosixPath", id="a path among them"),
    ],
)
def test_arguments_of_another_shape_are_refused_by_type(
    client: skilljail.Client,
    make_skill: MakeSkill,
    nothing_launched: NothingLaunched,
    argv: object,
    where: str,
    kind: str,
) -> None:
    """Case 3: refused before launch, and the message names what it got."""
    skill = make_skill(ARGUMENTS.files("python"))
    with nothing_launched(), pytest.raises(skilljail.InvalidRequest) as caught:
        client.run(skill, ARGUMENTS.path("python"), argv)  # type: ignore[arg-type]
    assert caught.value.reason == "ARGUMENT_INVALID"
    assert str(caught.value).startswith(f"{where} must be ")
    assert str(caught.value).endswith(f"got {kind}")


WANTED = 'Error: Script \'scripts/run.py\' takes its arguments as a list of strings, such as ["--value", "1"]; got '


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        pytest.param({"value": 26.2}, "dict.", id="named arguments"),
        pytest.param({}, "dict.", id="no named arguments"),
        pytest.param("--value 1", "str.", id="bare string"),
        pytest.param('{"value": 1}', "str.", id="JSON of named arguments"),
        pytest.param('["--value", "1"]', "str.", id="JSON of a list"),
        pytest.param(["a", 1], "int at position 1.", id="a number among them"),
        pytest.param([["a"]], "list at position 0.", id="nested list"),
        pytest.param([None], "NoneType at position 0.", id="null among them"),
        pytest.param(["a", {"b": 1}], "dict at position 1.", id="an object among them"),
        pytest.param(True, "bool.", id="boolean"),
    ],
)
async def test_a_model_is_told_which_arguments_it_should_send(
    runner: ScriptRunner, skills: Skills, nothing_launched: NothingLaunched, args: object, answer: str
) -> None:
    """Cases 3 and 4: the wire has a list of strings only, nothing is guessed, and the model reads how to say it."""
    framework = await Framework.over(runner, skills({"scripts/run.py": "print('ran')"}))
    with nothing_launched():
        assert await framework.run_skill_script("test-skill", "scripts/run.py", args) == WANTED + answer
