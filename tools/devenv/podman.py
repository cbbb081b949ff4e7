"""A Podman of this checkout's own, which serves Docker's API: the second engine that the tests run on."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

from devenv import debian
from devenv.engine import product
from devenv.progress import SetupError, Step
from devenv.service import Service
from devenv.state import DATA, LOGS, RUN, unmount

__all__ = ["OwnPodman", "install"]

SOCKET = RUN / "podman.sock"
OWN_URL = f"unix://{SOCKET}"


def install(step: Step) -> None:
    """Installs Podman and runc. Raises SetupError with what to install."""
    if os.geteuid() != 0:
        raise SetupError("The Podman tests start a Podman of their own, which needs root.\nMend: sudo make test-podman")
    debian.install(step, {"podman": "podman", "runc": "runc"}, "Podman is needed")


class OwnPodman:
    """Podman's API service with data of its own."""

    def __init__(self) -> None:
        self._service = Service("podman", RUN / "podman.pid", OWN_URL, LOGS / "podman-service.log")

    @contextlib.contextmanager
    def used(self, step: Step) -> Iterator[str]:
        """Starts the service and stops it at the end. Gives its URL."""
        self.stop()
        with step.action("starting a Podman of this checkout's own"):
            RUN.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._service.start(
                (*_command(), "system", "service", "--time", "0", OWN_URL),
                answers=lambda: product(OWN_URL) is not None,
            )
        try:
            yield OWN_URL
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the service and every container of it, also those that a killed service left behind."""
        self._service.stop()
        SOCKET.unlink(missing_ok=True)
        if (DATA / "podman").exists() and debian.find_program("podman") is not None:
            subprocess.run((*_command(), "rm", "--all", "--force", "--time", "0"), capture_output=True, check=False)
            unmount(DATA / "podman", RUN / "podman", RUN / "podman-tmp")


def _command() -> tuple[str, ...]:
    """podman with our own folders. crun refuses hosts with both cgroup versions; systemd may be absent."""
    return (
        debian.find_program("podman") or "podman",
        *(
            "--root",
            str(DATA / "podman"),
            "--runroot",
            str(RUN / "podman"),
            "--tmpdir",
            str(RUN / "podman-tmp"),
        ),
        *("--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file"),
    )
