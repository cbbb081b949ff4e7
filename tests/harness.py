"""The real daemon as a process of the tests, and what tests ask of an engine."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import docker
import pytest
import skilljail

__all__ = [
    "EXAMPLE_SKILL",
    "INTERPRETERS",
    "ON_GVISOR",
    "RUNTIME",
    "RUNTIME_SEEN",
    "SKILL_MD",
    "Daemon",
    "MakeSkill",
    "Traces",
    "gvisor_processes",
    "on",
    "owned_containers",
    "running_daemon",
    "start_daemon",
    "wait_until",
]

RUNTIME = os.environ.get("SKILLJAIL_RUNTIME", "")
"""The engine's runtime that daemons of the tests ask for; empty for the engine's default."""
RUNTIME_SEEN = pytest.StashKey[str]()
"""What the sandboxes of a test session run on, such as `runc`; known when its daemon has been started."""

ON_GVISOR = RUNTIME.startswith("runsc")
INTERPRETERS = ("python", "node", "bash", "pwsh")
EXAMPLE_SKILL = pathlib.Path(__file__).parent.parent / "examples" / "skills" / "unit-converter"

SKILL_MD = "---\nname: test-skill\ndescription: Made by a test.\n---\n\n# Test skill\n"


@dataclasses.dataclass
class Daemon:
    """A `skilljaild serve` process of the tests."""

    address: str
    directory: pathlib.Path
    process: subprocess.Popen[bytes]
    log: pathlib.Path

    @property
    def owner(self) -> str:
        """The value of `io.skilljail.owner` on its sandboxes."""
        return (self.directory / "state" / "instance").read_text().strip()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stops it and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


def start_daemon(
    directory: pathlib.Path,
    *flags: str,
    environment: dict[str, str] | None = None,
    program: Sequence[str] = ("-m", "skilljaild"),
) -> Daemon:
    """Starts a daemon with its socket and state in `directory` and waits until it answers. `program`: for Python."""
    address = f"unix:{directory}/sock"
    log = directory / "log"
    command = [sys.executable, *program, "serve", "--listen", address, "--state-dir", f"{directory}/state"]
    if RUNTIME:
        command += ["--set", f"engine.runtime={RUNTIME}"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "--log-level", "debug", *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | (environment or {}),
        )
    daemon = Daemon(address, directory, process, log)
    try:
        with skilljail.Client(address) as client:
            client.wait_ready(30)
    except BaseException:
        process.kill()
        process.wait()
        sys.stderr.write(log.read_text())
        raise
    return daemon


@contextlib.contextmanager
def running_daemon(*flags: str, **options: Any) -> Iterator[Daemon]:
    """A daemon of a test's own, stopped and cleaned up at the end. `options`: of `start_daemon`."""
    with tempfile.TemporaryDirectory(prefix="skilljail-test-") as directory:
        daemon = start_daemon(pathlib.Path(directory), *flags, **options)
        try:
            yield daemon
        finally:
            daemon.stop()


T = TypeVar("T")


def on(*, runc: T, gvisor: T, why: str) -> T:
    """What is expected on the runtime of the tests. `why`: the reason of the difference, see docs/gvisor.md."""
    assert why
    return gvisor if ON_GVISOR else runc


MakeSkill = Callable[..., pathlib.Path]
"""`make_skill(files, executable=())`, see conftest."""


def owned_containers(api: docker.APIClient, owner: str) -> list[str]:
    """Names of the sandboxes of a daemon that are on the engine, running or not."""
    found = api.containers(all=True, filters={"label": [f"io.skilljail.owner={owner}"]})
    return [one["Names"][0] for one in found]


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits for something that happens soon; fails when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not happen within {seconds:g} s")
        time.sleep(0.02)


@dataclasses.dataclass(frozen=True)
class Traces:
    """What daemons and sandboxes of anybody leave on this host: containers, processes and folders."""

    containers: set[str]
    processes: set[int]
    directories: set[pathlib.Path]

    @classmethod
    def of(cls, api: docker.APIClient) -> "Traces":
        """What there is now."""
        containers = {one["Id"] for one in api.containers(all=True, filters={"label": ["io.skilljail.run"]})}
        return cls(
            containers,
            {int(path.parent.name) for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if _is_ours(path)}
            | gvisor_processes(),
            set(pathlib.Path(tempfile.gettempdir()).glob("skilljail-test-*")),
        )


def gvisor_processes() -> set[int]:
    """The processes of gVisor on this host. What runs in a sandbox is inside of them, and not to be seen."""
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith((b"runsc-sandbox\0", b"runsc-gofer\0")):
                found.add(int(path.parent.name))
    return found


def _is_ours(path: pathlib.Path) -> bool:
    """Whether a command line is a daemon's or an init's."""
    try:
        command = path.read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended meanwhile
    daemons = any(word == b"skilljaild" or word.endswith(b"/loopback_daemon.py") for word in command)
    return b"/opt/skilljail/init/__main__.py" in command or (daemons and b"serve" in command)
