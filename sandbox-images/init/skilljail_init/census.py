"""Counts what the sandbox's kernel keeps no account of: processes and threads, and files, where it is gVisor's.

On Linux control groups and file systems refuse what is above a limit and keep the record. gVisor has no control group
that a sandbox can see, and its older releases have neither a limit on a user's processes nor one on a file system's
inodes. So init counts, and ends the script that is above.
"""

# pathlib is slow to import.
# ruff: noqa: PTH116
from __future__ import annotations

import os
import time

__all__ = ["TMP", "FileCensus", "count_tasks", "is_apart"]

SYSINFO_BYTES = 112
PROCS_OFFSET = 80
"""Of `procs` in struct sysinfo, on every 64-bit Linux."""
TMP = "/tmp"  # noqa: S108 - gVisor mounts a file system there
DEPTH_MAX = 200
"""Directories inside each other that are looked into; each takes a descriptor."""
REST_FACTOR = 20
"""A count is not repeated before so many times its own duration have passed: it is init's time, not the script's."""
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def count_tasks() -> int:
    """All processes and threads, init among them. On gVisor alone: Linux counts those of the whole host."""
    import ctypes  # noqa: PLC0415 - slow to import, and needed on gVisor alone

    buffer = ctypes.create_string_buffer(SYSINFO_BYTES)
    if ctypes.CDLL(None).sysinfo(buffer) != 0:
        raise OSError("sysinfo has no answer")
    return int.from_bytes(buffer.raw[PROCS_OFFSET : PROCS_OFFSET + 2], "little")


def is_apart(folder: str, other: str) -> bool:
    """Whether two folders are on file systems of their own; not when one of them is not there."""
    try:
        return os.stat(folder).st_dev != os.stat(other).st_dev
    except OSError:
        return False


class FileCensus:
    """The number of files on a tmpfs that does not limit it.

    gVisor numbers the inodes of a tmpfs one after the other. So the number of a new file tells how many were made
    since the last count, and only when that may be too many is everything counted anew.
    """

    def __init__(self, folder: str, files_max: int) -> None:
        """`folder`: where the tmpfs is mounted, and writable. Raises OSError."""
        self._root_fd = os.open(folder, DIRECTORY)
        self._files_max = files_max
        self._counted = 0
        self._newest = 0
        self._rest_until = 0.0

    def close(self) -> None:
        """Gives the descriptor back."""
        os.close(self._root_fd)

    def is_above(self) -> bool:
        """Whether there are more files and directories than allowed; what cannot be looked into counts as too many."""
        now = time.monotonic()
        if now < self._rest_until:
            return False
        newest = self._number_of_a_new_file()
        if newest is not None and self._counted + newest - self._newest <= self._files_max:
            return False
        left = self._files_max - 1  # the top directory is one
        try:
            left = _count_down(self._root_fd, left, DEPTH_MAX)
        except OSError:
            left = -1
        self._counted, self._newest = self._files_max - left, newest or 0
        self._rest_until = now + REST_FACTOR * (time.monotonic() - now)
        return left < 0

    def _number_of_a_new_file(self) -> int | None:
        """None when none can be made: the disk is full, or the script has locked its own work directory."""
        name = f".skilljail-{os.urandom(8).hex()}"  # one that the script cannot have put there before
        try:
            fd = os.open(name, NEW_FILE, 0o600, dir_fd=self._root_fd)
        except OSError:
            return None
        try:
            os.unlink(name, dir_fd=self._root_fd)
            return os.fstat(fd).st_ino
        except OSError:
            return None
        finally:
            os.close(fd)


def _count_down(fd: int, left: int, depth: int) -> int:
    """`left` less the files and directories below a directory; negative when there are more. Raises OSError."""
    directories = []
    with os.scandir(fd) as entries:
        for entry in entries:
            left -= 1
            if left < 0:
                return left
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
    if directories and depth == 0:
        return -1
    for name in directories:
        below = os.open(name, DIRECTORY, dir_fd=fd)
        try:
            left = _count_down(below, left, depth - 1)
        finally:
            os.close(below)
        if left < 0:
            break
    return left
