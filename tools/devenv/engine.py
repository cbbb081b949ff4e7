"""The engine: one that answers already, or a dockerd of this checkout's own."""

import contextlib
import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

from devenv import debian, gvisor
from devenv.progress import SetupError, Step
from devenv.python import VENV_PYTHON
from devenv.service import Service, processes_naming
from devenv.state import DATA, LOGS, RUN, unmount

__all__ = ["OWN_URL", "OwnEngine", "UnansweredError", "find", "foresee", "install", "product"]

CONFIG = DATA / "daemon.json"
SOCKET = RUN / "docker.sock"
OWN_URL = f"unix://{SOCKET}"
PROGRAMS = {"dockerd": "docker.io", "mmdebstrap": "mmdebstrap"}
SERVICE_START_SECONDS = 20
RELOAD_SECONDS = 30.0
CONNECT_SECONDS = 5.0

ASK = """
import docker, sys
version = docker.DockerClient(base_url=sys.argv[1], timeout=10).version()
name = version.get("Components", [{}])[0].get("Name", "Engine")
print("Docker" if name == "Engine" else name.removesuffix(" Engine"), version["Version"])
"""


class UnansweredError(SetupError):
    """DOCKER_HOST names an engine that does not answer."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"DOCKER_HOST is {url}, and no engine answers there.\n"
            "Mend: start that engine, or unset DOCKER_HOST to use the usual one or one made here."
        )


def foresee() -> None:
    """Says early that there will be no engine: before the Python environment is made, which takes a while.

    Raises SetupError when none listens and none can be installed or started. It asks no more than whether somebody
    listens, and nothing of an engine on another machine; `find` asks the rest.
    """
    url = _named_url()
    if url is not None:
        if url.startswith("unix://") and not _listens(url):
            raise UnansweredError(url)
    elif not any(map(_listens, _usual_urls())) and not OwnEngine().running:
        _refuse_unless_possible()


def product(url: str) -> str | None:
    """What answers at a URL, such as `Docker 29.1.2` or `Podman 5.4.1`; None when nothing does."""
    if url.startswith("unix://") and not os.access(url.removeprefix("unix://"), os.R_OK | os.W_OK):
        return None  # asking costs a third of a second
    asked = subprocess.run((VENV_PYTHON, "-c", ASK, url), capture_output=True, text=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else None


def find() -> tuple[str, str] | None:
    """The URL and product of an engine that is not ours and answers. Raises UnansweredError."""
    url = _named_url()
    for candidate in [url] if url else _usual_urls():
        if (answer := product(candidate)) is not None:
            return candidate, answer
    if url:
        raise UnansweredError(url)
    return None


def _named_url() -> str | None:
    """What DOCKER_HOST names, unless it is our own engine: that one is started when it does not run."""
    url = os.environ.get("DOCKER_HOST") or None
    return None if url == OWN_URL else url


def _usual_urls() -> list[str]:
    """Where engines listen by themselves; none when DOCKER_HOST asks for our own."""
    if os.environ.get("DOCKER_HOST") == OWN_URL:
        return []
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    desktop = pathlib.Path("~/.docker/run/docker.sock").expanduser()
    return [f"unix://{path}" for path in ("/var/run/docker.sock", f"{runtime}/docker.sock", desktop)]


def _listens(url: str) -> bool:
    """Whether somebody listens at a `unix://` URL and lets us in."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CONNECT_SECONDS)
        try:
            connection.connect(url.removeprefix("unix://"))
        except OSError:
            return False
    return True


def install(step: Step) -> tuple[str, str] | None:
    """Installs Debian's engine. Gives back what `find` does: the package may have started a service."""
    had_engine = debian.find_program("dockerd") is not None
    _refuse_unless_possible()
    if debian.why_not() is not None:
        return None
    packages = dict(PROGRAMS)
    if pathlib.Path("/sys/module/apparmor").is_dir():
        packages["apparmor_parser"] = "apparmor"  # dockerd starts no container without it on such a kernel
    debian.install(step, packages, "An engine is needed")
    if had_engine or not pathlib.Path("/run/systemd/system").is_dir():
        return None
    with step.action("waiting for the service that the package started"):
        for _ in range(SERVICE_START_SECONDS):
            if (found := find()) is not None:
                return found
            time.sleep(1)
    return None


def _refuse_unless_possible() -> None:
    """Raises SetupError where an engine can neither be installed nor be started from an installed one."""
    reason = debian.why_not()
    if reason is None or (os.geteuid() == 0 and debian.find_program("dockerd") is not None):
        return
    raise SetupError(
        f"No engine answers, and none can be installed because {reason}.\n"
        "Mend, one of:\n"
        "  - start Docker or Podman, and see that you may use its socket (Docker: group docker);\n"
        "  - name the socket of an engine: DOCKER_HOST=unix:///path/to/docker.sock make …;\n"
        f"  - on Debian, as root: apt-get install {' '.join(PROGRAMS.values())}"
    )


class OwnEngine:
    """A dockerd of this checkout's own: its data stay, it runs while somebody uses it."""

    def __init__(self) -> None:
        self._service = Service("dockerd", RUN / "docker.pid", str(CONFIG), LOGS / "dockerd.log")
        self._keep = RUN / "keep"

    @property
    def running(self) -> bool:
        return self._service.pid() is not None

    @contextlib.contextmanager
    def used(self, step: Step) -> Iterator[str]:
        """Starts the engine when it does not run; the last user stops it. Gives its URL.

        Two locks: `users` is shared by all who use the engine, so whoever gets it alone is the last; `start`
        lets one at a time start it.
        """
        RUN.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (RUN / "users.lock").open("w") as users:
            fcntl.flock(users, fcntl.LOCK_SH)
            try:
                with (RUN / "start.lock").open("w") as starting:
                    fcntl.flock(starting, fcntl.LOCK_EX)
                    if product(OWN_URL) is None or not self.running:
                        self._start(step)
                yield OWN_URL
            finally:
                fcntl.flock(users, fcntl.LOCK_UN)
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not self._keep.exists():
                        self.stop()

    def offer_gvisor(self, step: Step) -> None:
        """Makes the running engine know gVisor, which is installed. Raises SetupError when it does not take it."""
        pid = self._service.pid()
        if pid is None or gvisor.is_known(OWN_URL):
            return
        with step.action(f"adding the runtime {gvisor.RUNTIME} to the engine"):
            self._configure()
            os.kill(pid, signal.SIGHUP)  # others may use it: it reads its settings again and goes on
            deadline = time.monotonic() + RELOAD_SECONDS
            while not gvisor.is_known(OWN_URL):
                if time.monotonic() > deadline:
                    raise SetupError(
                        "The engine does not take the runtime. Stop it (tools/setup engine stop); try again."
                    )
                time.sleep(0.2)

    def _configure(self) -> None:
        DATA.mkdir(parents=True, exist_ok=True)
        CONFIG.write_text(json.dumps(_configuration(), indent=2))

    def keep(self) -> None:
        """Lets the engine run on when its last user has gone, until `stop`."""
        self._keep.touch()

    def stop(self) -> None:
        """Stops the engine with all that it started, also what an engine that was killed left behind."""
        self._keep.unlink(missing_ok=True)
        self._service.stop()
        self._sweep()

    def _start(self, step: Step) -> None:
        self.stop()
        self._configure()
        dockerd = debian.find_program("dockerd")
        if dockerd is None:
            raise SetupError("dockerd is not there. On Debian, as root: apt-get install docker.io")
        with step.action("starting a dockerd of this checkout's own"):
            self._service.start((dockerd, "--config-file", CONFIG), answers=lambda: product(OWN_URL) is not None)

    def _sweep(self) -> None:
        """Kills and unmounts what a dockerd that could not stop in order has left."""
        if not DATA.exists():
            return
        for pid in processes_naming(RUN, "containerd", "containerd-shim-runc-v2", "containerd-shim"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in _in_containers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        unmount(DATA / "docker", RUN / "exec")
        # The numbers in these may be other processes' by now, and dockerd would take those for its own.
        (RUN / "dockerd.pid").unlink(missing_ok=True)
        (RUN / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)


def _configuration() -> dict[str, object]:
    """dockerd's settings. Sandboxes have no network: it has no bridge and leaves the firewall alone."""
    return {
        "hosts": [OWN_URL],
        "data-root": str(DATA / "docker"),
        "exec-root": str(RUN / "exec"),
        "pidfile": str(RUN / "dockerd.pid"),
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "runtimes": gvisor.configuration(),
    }


def _in_containers() -> Iterator[int]:
    """The processes in cgroups of our containers."""
    containers = DATA / "docker" / "containers"
    ids = {entry.name for entry in containers.iterdir()} if containers.is_dir() else set()
    for entry in pathlib.Path("/proc").iterdir():
        if ids and entry.name.isdecimal():
            with contextlib.suppress(OSError):
                cgroups = (entry / "cgroup").read_text()
                if any(name in cgroups for name in ids):
                    yield int(entry.name)
