"""Installs Debian packages, where that is ours to do."""

import os
import pathlib
import platform
import shutil
import subprocess

from devenv.progress import SetupError, Step

__all__ = ["find_program", "install", "why_not"]

ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
APT = ("apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=300")


def find_program(name: str) -> str | None:
    """The path of a program, also of one in a folder that only root has on its PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{ADMIN_PATH}")


def why_not() -> str | None:
    """Why packages cannot be installed here; None when they can."""
    if platform.system() != "Linux" or find_program("apt-get") is None or not _is_debian():
        return "this is not a Debian system"
    if os.geteuid() != 0:
        return "this is not root"
    return None


def install(step: Step, needed: dict[str, str], purpose: str) -> None:
    """Installs the packages (values) whose program, or file by its path (keys), is missing. Raises SetupError, see
    below."""
    missing = sorted({package for thing, package in needed.items() if not _is_there(thing)})
    if missing:
        install_packages(step, missing, purpose)


def install_packages(step: Step, packages: list[str], purpose: str) -> None:
    """Installs packages. Raises SetupError with what to install where that is not ours to do."""
    if (reason := why_not()) is not None:
        raise SetupError(
            f"{purpose}, and {reason}, so nothing was installed.\n"
            f"Mend: install {' and '.join(packages)} and try again. On Debian, as root:\n"
            f"    apt-get install --no-install-recommends {' '.join(packages)}"
        )
    with step.action(f"installing {', '.join(packages)} by apt-get"):
        command = (*APT, "install", "--no-install-recommends", *packages)
        if all(map(_has_candidate, packages)):
            try:
                step.run(command, DEBIAN_FRONTEND="noninteractive")
            except SetupError:
                pass  # the lists may be old, and name files that the archive no longer has
            else:
                return
        step.run((*APT, "update"))
        step.run(command, DEBIAN_FRONTEND="noninteractive")


def _is_there(thing: str) -> bool:
    return pathlib.Path(thing).exists() if thing.startswith("/") else find_program(thing) is not None


def _is_debian() -> bool:
    try:
        values = platform.freedesktop_os_release()
    except OSError:
        return False
    return "debian" in {values.get("ID", ""), *values.get("ID_LIKE", "").split()}


def _has_candidate(package: str) -> bool:
    policy = subprocess.run(
        ("apt-cache", "policy", package),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout
    return "Candidate:" in policy and "Candidate: (none)" not in policy and pathlib.Path("/var/lib/apt/lists").is_dir()
