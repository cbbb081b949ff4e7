"""Puts a skill's files into the skill root, from the frames that carry their bytes.

Every name is opened relative to its directory's descriptor and no link is followed: in a session a script may
have left links where the next files go.
"""

from __future__ import annotations

import os

from skilljail_init.errors import InitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from skilljail_init.orders import StagedFile, StageOrder

__all__ = ["Stage"]

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Stage:
    """The skill root, and what was staged into it."""

    def __init__(self, skill_root: str) -> None:
        self.root_fd = os.open(skill_root, DIRECTORY)
        """Held open: a script owns the work directory, and may put something else in its place."""
        self.digests: dict[str, tuple[int, str]] = {}
        """Of each staged path: size in bytes and sha256 of its content."""

    def put(self, order: StageOrder, next_bytes: Callable[[], bytes]) -> None:
        """Makes what is ordered. `next_bytes` gives the next piece of the files' content.

        Raises InitError that names the path. A file that exists already is an error; a directory is not.
        """
        for names in order.directories:
            os.close(self._open_directory(names))
        rest = memoryview(b"")
        for file in order.files:
            rest = self._put_file(file, rest, next_bytes)
        if rest:
            raise InitError(f"STAGE: {len(rest)} bytes more than the files have")

    def _open_directory(self, names: list[str]) -> int:
        """A descriptor of a directory below the root, which is made where it is missing."""
        fd = os.dup(self.root_fd)
        try:
            for name in names:
                parent, fd = fd, _open_or_make(fd, name)
                os.close(parent)
        except OSError as error:
            os.close(fd)
            raise InitError(f"cannot make the directory {'/'.join(names)!r}: {error.strerror}") from error
        return fd

    def _put_file(self, file: StagedFile, rest: memoryview, next_bytes: Callable[[], bytes]) -> memoryview:
        """Makes one file from `rest` and what follows; returns what it leaves of the last piece."""
        parent = self._open_directory(file.names[:-1])
        try:
            fd = os.open(file.names[-1], NEW_FILE, 0o755 if file.executable else 0o644, dir_fd=parent)
        except OSError as error:
            raise InitError(f"cannot make the file {file.path!r}: {error.strerror}") from error
        finally:
            os.close(parent)
        try:
            missing = file.size
            while missing:
                rest = rest or memoryview(next_bytes())
                written = os.write(fd, rest[:missing])
                missing -= written
                rest = rest[written:]
        except OSError as error:
            raise InitError(f"cannot write the file {file.path!r}: {error.strerror}") from error
        finally:
            os.close(fd)
        self.digests[file.path] = (file.size, file.digest)
        return rest


def _open_or_make(parent: int, name: str) -> int:
    try:
        return os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, DIRECTORY, dir_fd=parent)
