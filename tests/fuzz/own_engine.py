"""A dockerd of the tests' own, which may be killed, on data of its own, with the image of bash alone.

It cleans up also what a killed one, or a killed session of tests, has left.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import time
from types import TracebackType
from typing import Any, Self

import docker
from devenv import debian
from devenv.service import Service, processes_naming
from devenv.state import DATA, RUN, unmount
from skilljaild import images

__all__ = ["OwnEngine"]

CGROUP = f"skilljail-fuzz-{RUN.name}"
"""All cgroups of its containers are below this one."""
CGROUP_ROOT = pathlib.Path("/sys/fs/cgroup")
IMAGE = images.reference("bash")
ANSWER_SECONDS = 60.0
GONE_SECONDS = 30.0


class OwnEngine:
    """The engine. Entering starts it, on the image that the usual engine has; leaving takes it down wholly."""

    def __init__(self) -> None:
        self._run, self._data = RUN / "fuzz", DATA / "fuzz"
        self._socket = self._run / "docker.sock"
        self.url = f"unix://{self._socket}"
        self._service = Service("dockerd", self._run / "service.pid", self.url, self._run / "log")
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        dockerd = debian.find_program("dockerd")
        if dockerd is None or os.geteuid() != 0:
            raise AssertionError(
                "an engine that may be killed needs root and a dockerd (on Debian: apt-get install docker.io); without "
                "them, leave these tests out: PYTEST_FLAGS='--deselect tests/fuzz/test_lives.py'"
            )
        self._command = (
            dockerd, "--host", self.url, "--data-root", self._data / "docker", "--exec-root", self._run / "exec",
            "--pidfile", self._run / "docker.pid", "--bridge", "none", "--iptables=false", "--ip6tables=false",
            "--cgroup-parent", f"/{CGROUP}",
        )  # fmt: skip
        with contextlib.ExitStack() as stack:
            self._run.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = stack.enter_context((self._run / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # one session at a time
            stack.callback(self._remove)
            self._remove()
            self._run.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._data.mkdir(parents=True)
            self.start()
            self._load_image()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start(self) -> None:
        """Starts it and waits for its answer. Nothing happens when it runs."""
        if self._service.pid() is not None:
            return
        # The numbers in these may be other processes' by now.
        (self._run / "docker.pid").unlink(missing_ok=True)
        (self._run / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)
        self._service.start(self._command, answers=self._answers)

    def kill(self) -> None:
        """SIGKILL for the engine itself; what it had started stays, as it does when one crashes."""
        pid = self._service.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def api(self) -> Any:
        """A connection to it; the caller closes it."""
        return docker.APIClient(base_url=self.url, version="auto", timeout=ANSWER_SECONDS)

    def _answers(self) -> bool:
        try:
            with contextlib.closing(self.api()) as api:
                return bool(api.ping())
        except (docker.errors.DockerException, OSError):
            return False

    def _load_image(self) -> None:
        usual = docker.DockerClient(**docker.utils.kwargs_from_env(), timeout=300)
        with contextlib.closing(usual), contextlib.closing(self.api()) as api:
            for _ in api.load_image(usual.images.get(IMAGE).save(named=IMAGE)):
                pass

    # What is there

    def containers(self) -> list[str]:
        """Names of all containers, of anybody."""
        with contextlib.closing(self.api()) as api:
            return [one["Names"][0] for one in api.containers(all=True)]

    def volumes(self) -> list[str]:
        """Names of all volumes."""
        with contextlib.closing(self.api()) as api:
            return [one["Name"] for one in api.volumes()["Volumes"] or []]

    @staticmethod
    def cgroups() -> set[str]:
        """Ids of containers that have a control group, dead or alive, in any hierarchy."""
        parents = [*CGROUP_ROOT.glob(CGROUP), *CGROUP_ROOT.glob(f"*/{CGROUP}")]
        return {entry.name for parent in parents for entry in parent.iterdir() if entry.is_dir()}

    @staticmethod
    def processes() -> dict[int, tuple[str, bool]]:
        """Processes in its containers: the container's id, and whether it is runc's own, which waits to become init."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    _, separator, after = (entry / "cgroup").read_text().partition(f"/{CGROUP}/")
                    if separator:
                        waits = (entry / "cmdline").read_bytes() == b"runc\0init\0"
                        found[int(entry.name)] = (after.split("\n", 1)[0].split("/", 1)[0], waits)
        return found

    # Its end

    def _remove(self) -> None:
        """Ends and removes all that there is of it."""
        self._service.stop()
        deadline = time.monotonic() + GONE_SECONDS
        while left := [*self._helpers(), *self.processes()]:
            if time.monotonic() > deadline:
                raise AssertionError(f"processes of the engine do not end: {left}")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        unmount(self._data, self._run)
        self._remove_cgroups()
        shutil.rmtree(self._data, ignore_errors=True)
        for entry in self._run.iterdir() if self._run.exists() else ():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()
        with contextlib.suppress(OSError):  # others have something there
            self._data.parent.rmdir()

    def _helpers(self) -> list[int]:
        return list(processes_naming(self._run, "containerd", "containerd-shim-runc-v2", "containerd-shim"))

    @staticmethod
    def _remove_cgroups() -> None:
        for parent in [*CGROUP_ROOT.glob(CGROUP), *CGROUP_ROOT.glob(f"*/{CGROUP}")]:
            for entry in [*sorted(parent.rglob("*/"), key=lambda one: len(one.parts), reverse=True), parent]:
                if entry.is_dir():
                    with contextlib.suppress(OSError):
                        entry.rmdir()
