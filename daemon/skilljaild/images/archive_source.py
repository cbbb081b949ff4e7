"""Which file an interpreter is unpacked from: the pinned download, or a PowerShell archive that the operator names."""

import dataclasses
import pathlib
import shutil

from skilljaild.images.download import cached_file, download, file_sha256
from skilljaild.images.error import ImageError
from skilljaild.images.pins import find_pin
from skilljaild.images.progress import Progress

__all__ = ["Archive", "PwshChoice", "kept_archive", "named_archive", "pinned_archive"]


@dataclasses.dataclass(frozen=True, slots=True)
class PwshChoice:
    """What the operator said about PowerShell."""

    archive: pathlib.Path
    sha256: str | None
    """The hash that the archive must have, in hex; None takes what it has."""


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """A file that an interpreter is unpacked from. It need not be on this machine yet."""

    name: str
    """Of the interpreter."""
    sha256: str
    origin: str
    """`pinned` for a download of pins.toml, `archive` for a file that the operator named."""
    arch: str
    path: pathlib.Path | None = None
    """Where the operator's file is, or None when it is gone; None for a download, which is made when it is needed."""

    @property
    def is_lost(self) -> bool:
        """Whether the operator named this file in an earlier build and neither they nor the cache have it now."""
        return self.origin == "archive" and self.path is None

    def fetch(self) -> pathlib.Path:
        """The file, downloaded if it has to be. Raises ImageError when it cannot be had."""
        if self.path is not None:
            return self.path
        try:
            return download(find_pin(self.name, self.arch))
        except ImageError as error:
            if self.name != "pwsh":
                raise
            raise ImageError(
                f"PowerShell has no source: {error}, or build with --pwsh-archive FILE, where FILE is a release "
                "archive of PowerShell for Linux (powershell-VERSION-linux-x64.tar.gz or -arm64.tar.gz)"
            ) from error


def pinned_archive(name: str, arch: str) -> Archive:
    """The download that pins.toml names. Raises ImageError when there is none for the architecture."""
    return Archive(name, find_pin(name, arch).sha256, "pinned", arch)


def named_archive(choice: PwshChoice, arch: str, progress: Progress) -> Archive:
    """The PowerShell archive that the operator names. A copy goes to the cache, so that later builds need not name it.

    Raises ImageError when it is not there or has another hash than the operator said.
    """
    if not choice.archive.is_file():
        raise ImageError(f"--pwsh-archive {choice.archive} is not a file")
    found = file_sha256(choice.archive)
    if choice.sha256 is None:
        progress.notice(f"{choice.archive.name} has sha256 {found}: hold later builds to it with --pwsh-sha256")
    elif found != choice.sha256.lower():
        raise ImageError(
            f"{choice.archive} has sha256 {found}, but --pwsh-sha256 says {choice.sha256.lower()}: it is not used"
        )
    kept = cached_file(found, "powershell.tar.gz")
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".partial")
        shutil.copyfile(choice.archive, partial)
        partial.rename(kept)
    return Archive("pwsh", found, "archive", arch, choice.archive)


def kept_archive(sha256: str, arch: str) -> Archive:
    """The archive of this hash that an operator named in an earlier build; its path is None when the cache lost it."""
    kept = cached_file(sha256, "powershell.tar.gz")
    there = kept.is_file() and file_sha256(kept) == sha256
    return Archive("pwsh", sha256, "archive", arch, kept if there else None)
