"""Directories of a skill, read without following links where the system lets us."""

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, Protocol

__all__ = ["Folder", "open_folder"]

# Absent on Windows, where a directory cannot be held open; there the names are checked and then used.
_HAS_DIRECTORY_FDS = os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd and os.listdir in os.supports_fd


class Folder(Protocol):
    """An open directory."""

    def names(self) -> list[str]:
        """The names in it, sorted."""
        ...

    def lstat(self, name: str) -> os.stat_result:
        """What `name` is; a link as such."""
        ...

    def open_file(self, name: str) -> BinaryIO:
        """Opens the regular file `name`. Raises OSError for a link and for anything else, and never waits."""
        ...


@contextlib.contextmanager
def open_folder(root: str, parts: tuple[str, ...]) -> Iterator[Folder]:
    """Opens `root`/`parts`. No part may be a link, or have become one since it was looked at: that is an OSError."""
    if not _HAS_DIRECTORY_FDS:
        yield _PathFolder(os.path.join(root, *parts))  # noqa: PTH118  # names are text here, never resolved
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open(root, flags)
    try:
        for part in parts:
            deeper = os.open(part, flags, dir_fd=current)
            os.close(current)
            current = deeper
        yield _DescriptorFolder(current)
    finally:
        os.close(current)


class _DescriptorFolder:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def names(self) -> list[str]:
        return sorted(os.listdir(self._descriptor))  # noqa: PTH208  # a descriptor, not a path

    def lstat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def open_file(self, name: str) -> BinaryIO:
        # O_NONBLOCK: a FIFO that took the file's place must not make us wait for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return _regular(os.open(name, flags, dir_fd=self._descriptor))


class _PathFolder:
    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> list[str]:
        return sorted(os.listdir(self._path))  # noqa: PTH208  # names, not paths

    def lstat(self, name: str) -> os.stat_result:
        return os.lstat(os.path.join(self._path, name))  # noqa: PTH118

    def open_file(self, name: str) -> BinaryIO:
        if stat.S_ISLNK(self.lstat(name).st_mode):
            raise OSError(0, "it became a link")
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
        return _regular(os.open(os.path.join(self._path, name), flags))  # noqa: PTH118


def _regular(descriptor: int) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is no regular file any more")
    return os.fdopen(descriptor, "rb")
