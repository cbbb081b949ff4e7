"""The labels that images carry: where they come from and what is in them."""

import shutil
import subprocess

import skilljaild
from skilljaild.assets import sandbox_images_directory
from skilljaild.images.definition import ImageDefinition

__all__ = [
    "ARCHIVE_ORIGIN",
    "ARCHIVE_SHA256",
    "BASE_REFERENCE",
    "IMAGE",
    "INTERPRETER",
    "INTERPRETER_VERSION",
    "PARENT_ID",
    "RECIPE",
    "VERSION",
    "common_labels",
    "source_revision",
]

IMAGE = "io.skilljail.image"
VERSION = "io.skilljail.version"
RECIPE = "io.skilljail.recipe"
INTERPRETER = "io.skilljail.interpreter"
INTERPRETER_VERSION = "io.skilljail.interpreter-version"
PARENT_ID = "io.skilljail.parent-id"
"""The id of the image that this one was built on."""
BASE_REFERENCE = "io.skilljail.base"
"""What the base was built on: a registry's image or the bootstrap."""
ARCHIVE_SHA256 = "io.skilljail.{}-sha256"
"""The hash of the file that the interpreter was unpacked from, as in `io.skilljail.pwsh-sha256`."""
ARCHIVE_ORIGIN = "io.skilljail.{}-origin"
"""`pinned` for a download of pins.toml, `archive` for a file that the operator named."""


def source_revision() -> str:
    """`git describe` of the tree that this package runs from, or the package's version when it is installed."""
    tree = sandbox_images_directory().parent
    git = shutil.which("git")
    if git is None or not (tree / ".git").exists():
        return skilljaild.__version__
    command = [git, "-C", str(tree), "describe", "--always", "--dirty", "--tags"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or skilljaild.__version__


def common_labels(definition: ImageDefinition, recipe: str, parent_id: str) -> dict[str, str]:
    """The labels that are known before the image is built."""
    return {
        IMAGE: definition.name,
        VERSION: skilljaild.__version__,
        RECIPE: recipe,
        PARENT_ID: parent_id,
        "org.opencontainers.image.title": definition.title,
        "org.opencontainers.image.version": skilljaild.__version__,
        "org.opencontainers.image.revision": source_revision(),
        "org.opencontainers.image.licenses": definition.licenses,
    }
