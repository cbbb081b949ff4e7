"""The ways to run a script that are compared. Each run must give the right answer, or it does not count."""

import dataclasses
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import skilljail
from skilljaild import images

__all__ = ["Contender", "Task", "contenders", "tasks"]


@dataclasses.dataclass(frozen=True)
class Task:
    """A script to run and what it must print."""

    name: str
    skill: pathlib.Path
    script: str
    arguments: tuple[str, ...]
    expected: bytes


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way to run a task. `run` raises when the answer is wrong."""

    name: str
    run: Callable[[Task], None]


def tasks(skills: pathlib.Path, scratch: pathlib.Path) -> Iterator[Task]:
    """A hello, and the example skill's convert.py (argparse, json)."""
    hello = scratch / "hello"
    hello.mkdir()
    (hello / "SKILL.md").write_text("---\nname: hello\ndescription: Says hello.\n---\n")
    (hello / "hello.py").write_text("print('hello')\n")
    yield Task("hello", hello, "hello.py", (), b"hello\n")
    arguments = ("--value", "26.2", "--factor", "1.60934")
    yield Task("convert.py", skills / "unit-converter", "scripts/convert.py", arguments, b'"result": 42.1647')


def contenders(client: skilljail.Client, docker_host: str) -> list[Contender]:
    """Bare subprocess, `docker run` with the engine's own defaults and no network, and skilljail."""

    def bare(task: Task) -> None:
        _check(task, _output([sys.executable, str(task.skill / task.script), *task.arguments]))

    def docker_run(task: Task) -> None:
        command = ["docker", "--host", docker_host, "run", "--rm", "--network", "none", "--entrypoint", "python3"]
        mount = ["--volume", f"{task.skill.resolve()}:/skill:ro", images.reference("python")]
        _check(task, _output([*command, *mount, f"/skill/{task.script}", *task.arguments]))

    def with_skilljail(task: Task) -> None:
        result = client.run(task.skill, task.script, task.arguments)
        if result.outcome is not skilljail.Outcome.EXITED:
            raise RuntimeError(f"{task.name}: {result.message}")
        _check(task, result.stdout)

    return [
        Contender("bare subprocess", bare),
        Contender("docker run", docker_run),
        Contender("skilljail", with_skilljail),
    ]


def _output(command: list[str]) -> bytes:
    return subprocess.run(command, capture_output=True, check=True).stdout


def _check(task: Task, output: bytes) -> None:
    if task.expected not in output:
        raise RuntimeError(f"{task.name}: the answer is wrong: {output!r}")
