"""Where the Debian below the base image comes from, and where PowerShell comes from."""

import dataclasses
import pathlib

from skilljaild.images.bootstrap import BOOTSTRAP_REFERENCE, bootstrap, bootstrapped
from skilljaild.images.download import download, file_sha256
from skilljaild.images.error import ImageError
from skilljaild.images.pins import find_pin
from skilljaild.images.progress import Progress
from skilljaild.images.store import ImageStore, StoredImage

__all__ = ["DEBIAN_REFERENCE", "Archive", "BaseChoice", "find_archive", "resolve_base"]

DEBIAN_REFERENCE = "docker.io/library/debian:trixie-slim"
REGISTRY_SILENCE_SECONDS = 6
"""How long a registry that nobody asked for by name may stay silent before the base is bootstrapped."""
NAMED_IMAGE_SILENCE_SECONDS = 60


@dataclasses.dataclass(frozen=True, slots=True)
class BaseChoice:
    """What the operator said about the base: an image, a bootstrap, or neither, which takes what there is."""

    image: str | None = None
    bootstrap: bool = False

    def accepts(self, reference: str) -> bool:
        """Whether an image that was made from `reference` is what this choice asks for."""
        if self.image is not None:
            return reference == self.image
        return not self.bootstrap or reference == BOOTSTRAP_REFERENCE


def resolve_base(store: ImageStore, choice: BaseChoice, refresh: bool, progress: Progress) -> tuple[str, StoredImage]:
    """The reference and the image that the base is built on, pulled or bootstrapped if it has to be.

    `refresh` asks the registry or Debian's archive again. Raises ImageError when the choice cannot be had.
    """
    if choice.image is not None:
        return choice.image, _named(store, choice.image, refresh, progress)
    found = None if refresh else bootstrapped(store)
    if choice.bootstrap:
        return BOOTSTRAP_REFERENCE, found or bootstrap(store, progress)
    debian = None if refresh else store.find(DEBIAN_REFERENCE)
    if debian is not None:
        return DEBIAN_REFERENCE, debian
    if found is not None:
        return BOOTSTRAP_REFERENCE, found
    try:
        progress.step(f"pull {DEBIAN_REFERENCE}")
        return DEBIAN_REFERENCE, store.pull(DEBIAN_REFERENCE, progress.step, REGISTRY_SILENCE_SECONDS)
    except ImageError as error:
        progress.step(f"no registry serves it, so the base is bootstrapped: {error}")
    return BOOTSTRAP_REFERENCE, bootstrap(store, progress)


def _named(store: ImageStore, reference: str, refresh: bool, progress: Progress) -> StoredImage:
    image = None if refresh else store.find(reference)
    if image is not None:
        return image
    progress.step(f"pull {reference}")
    try:
        return store.pull(reference, progress.step, NAMED_IMAGE_SILENCE_SECONDS)
    except ImageError as error:
        image = store.find(reference)
        if image is not None:
            return image
        raise ImageError(f"--base-image {reference} is not on the engine: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """A file that an interpreter is unpacked from. `path` is None until it is fetched."""

    name: str
    sha256: str
    arch: str
    path: pathlib.Path | None
    """Set for a file that the operator names; a pinned file is fetched when it is needed."""

    @property
    def origin(self) -> str:
        """`archive` for an operator's file, `pinned` for a download."""
        return "pinned" if self.path is None else "archive"

    def fetch(self) -> pathlib.Path:
        """The file, downloaded if it has to be. Raises ImageError when it cannot be had."""
        if self.path is not None:
            return self.path
        pin = find_pin(self.name, self.arch)
        try:
            return download(pin)
        except ImageError as error:
            if self.name != "pwsh":
                raise
            raise ImageError(
                f"PowerShell has no source: {error}, or build with --pwsh-archive FILE, where FILE is a release archive "
                "of PowerShell for Linux (powershell-VERSION-linux-x64.tar.gz or -arm64.tar.gz)"
            ) from error


def find_archive(
    name: str, arch: str, pwsh_archive: pathlib.Path | None, pwsh_sha256: str | None, progress: Progress
) -> Archive:
    """What the image `name` is unpacked from: the operator's archive for pwsh if there is one, else the pinned file.

    Raises ImageError when the operator's archive is not there or has another hash than `pwsh_sha256`.
    """
    if name != "pwsh" or pwsh_archive is None:
        return Archive(name, find_pin(name, arch).sha256, arch, path=None)
    if not pwsh_archive.is_file():
        raise ImageError(f"--pwsh-archive {pwsh_archive} is not a file")
    found = file_sha256(pwsh_archive)
    if pwsh_sha256 is None:
        progress.notice(f"{pwsh_archive.name} has sha256 {found}; pass it as --pwsh-sha256 to hold later builds to it")
    elif found != pwsh_sha256.lower():
        raise ImageError(
            f"{pwsh_archive} has sha256 {found}, but --pwsh-sha256 says {pwsh_sha256.lower()}: it is not used"
        )
    return Archive(name, found, arch, path=pwsh_archive)
