"""The Python environment: `.venv` with exactly what `requirements/` locks, and skilljail itself."""

import hashlib
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

from devenv import debian, package_index
from devenv.progress import SetupError, Step
from devenv.state import CHECKOUT

__all__ = ["VENV_PYTHON", "prepare"]

VENV = CHECKOUT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "skilljail-setup"
LOCK = CHECKOUT / "requirements" / "dev.txt"


def prepare(step: Step) -> None:
    """Makes or brings up to date `.venv`. Nothing happens when neither locks, project nor Python changed."""
    wanted = _fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted and _works():
        return
    if not _usable():
        _make(step)
    uv = VENV / "bin" / "uv"
    with step.action("installing the locked packages"):
        try:
            _install_locked(step, uv)
        except SetupError as error:
            raise SetupError(f"{error}\n{package_index.MEND}") from error
    with step.action("installing skilljail itself"):
        step.run(
            (
                uv,
                "pip",
                "install",
                "--python",
                VENV_PYTHON,
                "--no-deps",
                "--no-build-isolation",
                "-e",
                CHECKOUT,
            )
        )
    STAMP.write_text(wanted)


def _install_locked(step: Step, uv: pathlib.Path) -> None:
    if not _has_uv(uv):
        uv_lock = step.log.with_name("uv.txt")
        uv_lock.write_text(_lock_of("uv"))
        pip = (VENV_PYTHON, "-m", "pip", "install", "--no-input", "--no-deps", "--require-hashes")
        step.run((*pip, "-r", uv_lock))
    sync = (uv, "pip", "sync", "--python", VENV_PYTHON, "--require-hashes", LOCK)
    step.run(sync, **package_index.uv_environment(VENV_PYTHON))


def _fingerprint() -> str:
    """What the environment was made from. Its scripts hold its path, so a moved checkout needs a new one."""
    digest = hashlib.sha256()
    for path in (CHECKOUT / "pyproject.toml", LOCK):
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()} {VENV} {sys.version_info.major}.{sys.version_info.minor}\n"


def _make(step: Step) -> None:
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        debian.install_packages(step, [package], f"{sys.executable} lacks the modules venv and ensurepip")
    with step.action(f"making .venv with Python {sys.version.split()[0]}"):
        shutil.rmtree(VENV, ignore_errors=True)
        step.run((sys.executable, "-m", "venv", VENV))


def _usable() -> bool:
    """Whether `.venv` was made at this place, by this version of Python, and can install packages."""
    version = sys.version_info[:2]
    code = f"import sys, pip; sys.exit(sys.prefix != {str(VENV)!r} or sys.version_info[:2] != {version})"
    command = VENV / "bin" / "pip"
    return command.exists() and str(VENV) in command.read_text(errors="replace").split("\n", 1)[0] and _runs(code)


def _works() -> bool:
    """Whether the packages are there. None is imported: ours may be broken in mid-work."""
    names = ("docker", "grpc", "pytest", "skilljail", "skilljaild")
    return _runs(f"import importlib.util as i, sys; sys.exit(not all(map(i.find_spec, {names})))")


def _runs(code: str) -> bool:
    if not VENV_PYTHON.exists():
        return False
    return subprocess.run((VENV_PYTHON, "-c", code), capture_output=True, check=False).returncode == 0


def _has_uv(uv: pathlib.Path) -> bool:
    if not uv.exists():
        return False
    answer = subprocess.run((uv, "--version"), capture_output=True, text=True, check=False).stdout.split()
    return _lock_of("uv").startswith(f"uv=={answer[1]} " if answer[1:] else "?")


def _lock_of(package: str) -> str:
    """The part of the lock that is about one package."""
    found = re.search(rf"^{package}==.*(\n    --hash=.*)+\n", LOCK.read_text(), flags=re.MULTILINE)
    if found is None:
        raise SetupError(f"{LOCK} has no {package}.\nMend: make lock, with pyproject.toml asking for it")
    return found[0]
