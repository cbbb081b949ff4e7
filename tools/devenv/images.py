"""The images of the interpreters, built on an engine or carried from one engine to another."""

import os
import pathlib

from devenv.progress import SetupError, Step
from devenv.python import VENV_PYTHON

__all__ = ["build", "carry"]

CARRY = pathlib.Path(__file__).with_name("carry_images.py")


def build(step: Step, url: str) -> bool:
    """Builds what is missing or stale on the engine at `url`. Gives whether pwsh is there.

    PowerShell comes from outside Debian and PyPI. Where its release cannot be had, the others do without it;
    not in CI, and not when somebody named an archive.
    """
    archive = _pwsh_archive()
    if _build(step, url, "base", "python", "node", "bash") != 0:
        raise SetupError(f"An image could not be built: see above, or {step.log}")
    if _build(step, url, "pwsh", *(["--pwsh-archive", archive] if archive else [])) != 0:
        if archive or os.environ.get("CI"):
            raise SetupError(f"The image pwsh could not be built: see above, or {step.log}")
        return False
    return True


def _build(step: Step, url: str, *words: str) -> int:
    command = (str(VENV_PYTHON), "-m", "skilljaild", "images", "build", *words)
    return step.show(command, DOCKER_HOST=url, PYTHONUNBUFFERED="1")


def _pwsh_archive() -> str:
    """The archive that somebody named; empty when nobody did. Raises SetupError when it is not there."""
    archive = os.environ.get("SKILLJAIL_PWSH_ARCHIVE", "")
    if archive and not pathlib.Path(archive).is_file():
        raise SetupError(
            f"SKILLJAIL_PWSH_ARCHIVE is {archive}, and there is no such file.\n"
            "Mend: name a PowerShell archive for Linux, or unset the variable to use Microsoft's release."
        )
    return archive


def carry(step: Step, source: str, target: str) -> None:
    """Carries the images that `source` has and `target` lacks; ids, labels and references stay the same."""
    step.run((VENV_PYTHON, CARRY, source, target))
