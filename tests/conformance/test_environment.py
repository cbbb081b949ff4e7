"""The environment of a script: what we promise, what the caller gives, and nothing of anybody's host."""

import pathlib
import tempfile
from collections.abc import Callable, Iterator

import pytest
import skilljail
from attack_table import Seen
from harness import INTERPRETERS, Daemon, MakeSkill, start_daemon
from skilljail import RunResult
from skilljail.adapters.maf import ScriptRunner

from conformance.ending import Ending
from conformance.framework import Framework
from conformance.scripts import ENVIRONMENT

STATIC = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/work/home",
    "TMPDIR": "/work/tmp",
    "LANG": "C.UTF-8",
    "USER": "sandbox",
    "NO_COLOR": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "POWERSHELL_TELEMETRY_OPTOUT": "1",
    "POWERSHELL_UPDATECHECK": "Off",
    "DOTNET_EnableDiagnostics": "0",
}
"""What every script sees."""

OWN = {
    "python": set[str](),
    "node": set[str](),
    "bash": {"PWD", "SHLVL", "_", "OLDPWD"},
    "pwsh": {"PSModulePath"},
}
"""What an interpreter sets by itself."""

SECRET = "s3cret-0f-the-h0st"  # noqa: S105  # it is there to be looked for


def environment(result: RunResult, interpreter: str) -> dict[str, str]:
    """What ENVIRONMENT printed, without the interpreter's own."""
    assert Ending.of(result) == Ending(stdout=result.stdout)
    pairs = dict(line.split("=", 1) for line in result.stdout_text.split("\0")[:-1])
    if interpreter == "pwsh":
        pairs["PATH"] = pairs["PATH"].partition(":")[2]  # it puts its own directory in front
    return {name: value for name, value in pairs.items() if name not in OWN[interpreter]}


@pytest.fixture(scope="module")
def secretive() -> Iterator[Daemon]:
    """A daemon whose own environment is full of credentials."""
    names = (
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "SKILLJAIL_TLS_KEY",
        "LD_LIBRARY_PATH",
        "HTTPS_PROXY",
        "PYTHONPATH_X",
    )
    with tempfile.TemporaryDirectory(prefix="skilljail-test-") as directory:
        daemon = start_daemon(pathlib.Path(directory), environment=dict.fromkeys(names, f"/{SECRET}"))
        try:
            yield daemon
        finally:
            daemon.stop()


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_script_sees_the_static_environment_and_nothing_of_the_host(
    secretive: Daemon, make_skill: MakeSkill, monkeypatch: pytest.MonkeyPatch, interpreter: str
) -> None:
    """Case 23: neither the daemon's variables nor the caller's."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with skilljail.Client(secretive.address) as client:
        result = client.run(make_skill(ENVIRONMENT.files(interpreter)), ENVIRONMENT.path(interpreter))
    assert environment(result, interpreter) == STATIC


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_variables_of_the_call_come_on_top_and_win(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 23: literally, whatever is in them."""
    given = {
        "UNIT": "km",
        "HOME": "/work/tmp",
        "NO_COLOR": "",
        "_UNDER_1": "$(id) `id` $HOME; 'x' \"y\" = \\",
        "LINES_": "one\ntwo\n",
        "Mixed_Case9": "żółw 😀",
    }
    result = client.run(make_skill(ENVIRONMENT.files(interpreter)), ENVIRONMENT.path(interpreter), env=given)
    assert environment(result, interpreter) == STATIC | given


def test_variables_of_one_call_are_not_there_in_the_next(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 23: per call means per call."""
    skill = make_skill(ENVIRONMENT.files("bash"))
    first = client.run(skill, ENVIRONMENT.path("bash"), env={"TOKEN": "t0ken"})
    assert environment(first, "bash") == STATIC | {"TOKEN": "t0ken"}
    assert environment(client.run(skill, ENVIRONMENT.path("bash")), "bash") == STATIC


@pytest.mark.parametrize("name", ["", "A B", "A=B", "1A", "A-B", "Ä", "A\0", "A\n", " A", "A.B"])
def test_a_name_that_is_none_is_refused(client: skilljail.Client, make_skill: MakeSkill, name: str) -> None:
    """Case 23: before launch."""
    skill = make_skill({"x.sh": "echo ran"})
    with pytest.raises(skilljail.InvalidRequest, match="a name is a letter or _ and then") as caught:
        client.run(skill, "x.sh", env={name: "value"})
    assert caught.value.reason == "ENVIRONMENT_INVALID"


@pytest.mark.parametrize("value", ["a\0b", 1, None, b"bytes", "x" * 200_000])
def test_a_value_that_is_none_is_refused_without_telling_it(
    client: skilljail.Client, make_skill: MakeSkill, value: object
) -> None:
    """Case 23: it may be a secret."""
    with pytest.raises(skilljail.InvalidRequest, match="TOKEN") as caught:
        client.run(make_skill({"x.sh": "echo ran"}), "x.sh", env={"TOKEN": value})  # type: ignore[dict-item]
    assert caught.value.reason == "ENVIRONMENT_INVALID"
    assert "a\0b" not in str(caught.value)
    assert "xxx" not in str(caught.value)


LOOK = """
import os, pathlib

def look(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""

for name, value in os.environ.items():
    print(name, value)
for process in pathlib.Path("/proc").glob("[0-9]*"):
    for name in "environ", "cmdline", "mountinfo", "cgroup", "maps":
        print(look(process / name))
for path in pathlib.Path("/etc").rglob("*"):
    if path.is_file():
        print(look(path))
"""


@pytest.mark.attack(76, "the daemon's credentials", expected="nowhere")
def test_credentials_of_the_daemon_are_nowhere_to_be_found(
    secretive: Daemon, make_skill: MakeSkill, seen: Seen
) -> None:
    """Case 23: not in any process of the sandbox, nor in a file, nor in a command line."""
    with skilljail.Client(secretive.address) as client:
        result = client.run(make_skill({"x.py": LOOK}), "x.py")
    assert Ending.of(result) == Ending(stdout=result.stdout)
    assert b"PATH" in result.stdout
    assert SECRET.encode() not in result.stdout
    assert str(secretive.directory).encode() not in result.stdout
    assert secretive.owner.encode() not in result.stdout
    seen(f"{result.stdout.count(SECRET.encode())} times")


async def test_the_variables_of_a_runner_reach_the_script_and_those_of_the_model_do_not(
    daemon: Daemon, skills: Callable[..., pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 23: through the framework; what a host says for all calls is there, what its process has is not."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    async with skilljail.AsyncClient(daemon.address) as client:
        runner = ScriptRunner(client, env={"UNIT": "km"}, env_from_context=["UNIT", "TOKEN"])
        framework = await Framework.over(runner, skills({"x.sh": "env | sort"}))
        answer = await framework.run_skill_script("test-skill", "x.sh", ["TOKEN=model"])
        told = await framework.run_skill_script(
            "test-skill", "x.sh", context={"UNIT": "mi", "TOKEN": "t", "OTHER": "o"}
        )
    lines = [f"{name}={value}" for name, value in STATIC.items()]
    assert settled(answer) == sorted([*lines, "UNIT=km"])
    assert settled(told) == sorted([*lines, "UNIT=mi", "TOKEN=t"])


def settled(answer: str) -> list[str]:
    """The lines of an answer, without bash's own variables."""
    return sorted(line for line in answer.splitlines() if line.split("=")[0] not in OWN["bash"])
