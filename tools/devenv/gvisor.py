"""gVisor as a runtime of the engine: `runsc`."""

import subprocess
from typing import Any

from devenv import debian
from devenv.progress import SetupError, Step
from devenv.python import VENV_PYTHON

__all__ = ["RUNTIME", "configuration", "install", "is_known", "refuse_unless_known"]

RUNTIME = "runsc"
ARGUMENTS = ("--network=none", "--oci-seccomp")
"""docs/gvisor.md says why."""

ASK = """
import docker, sys
print(*docker.DockerClient(base_url=sys.argv[1], timeout=10).info().get("Runtimes") or ())
"""


def install(step: Step) -> None:
    """Installs Debian's gVisor where none is. Raises SetupError."""
    debian.install(step, {RUNTIME: "runsc"}, "gVisor is needed")


def configuration() -> dict[str, Any]:
    """What dockerd's settings say of the runtime, where it is installed."""
    program = debian.find_program(RUNTIME)
    return {RUNTIME: {"path": program, "runtimeArgs": list(ARGUMENTS)}} if program else {}


def is_known(url: str) -> bool:
    """Whether the engine at a URL has the runtime."""
    asked = subprocess.run((VENV_PYTHON, "-c", ASK, url), capture_output=True, text=True, check=False)
    return RUNTIME in asked.stdout.split()


def refuse_unless_known(url: str) -> None:
    """Raises SetupError, with the mend, where an engine that is not ours lacks the runtime."""
    if not is_known(url):
        arguments = ", ".join(f'"{one}"' for one in ARGUMENTS)
        raise SetupError(
            f"The engine at {url} has no runtime {RUNTIME}.\n"
            f"Mend: install gVisor and add this to the engine's /etc/docker/daemon.json, then restart it:\n"
            f'    "runtimes": {{"{RUNTIME}": {{"path": "/usr/bin/runsc", "runtimeArgs": [{arguments}]}}}}\n'
            "or unset DOCKER_HOST and stop that engine, to use one made here. docs/gvisor.md tells more."
        )
