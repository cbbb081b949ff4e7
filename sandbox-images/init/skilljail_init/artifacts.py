"""Finds the files that a run made or changed and that its caller asked for, and turns them into frames.

It runs when every process but init is dead, so nothing moves any more; what lies there is hostile all the
same. No link is followed, nothing but regular files is opened for reading, sizes are judged before a byte is
read, and entries, depth, count, bytes and time are bounded.
"""

from __future__ import annotations

import os
import stat
import time

from skilljail_init.errors import InitError
from skilljail_init.frames import DATA_MAX, FrameType, SkipReason, encode, encode_json
from skilljail_init.paths import DEPTH_MAX, PATH_BYTES_MAX, escaped, is_safe_name
from skilljail_init.patterns import PathPatterns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from skilljail_init.orders import StartOrder

__all__ = ["Collection"]

ENTRIES_MAX = 100_000
"""Directory entries looked at in all."""
SECONDS_MAX = 10.0
"""Time for looking and reading; waiting for the daemon does not count."""
SKIPPED_MAX = 2_000
"""SKIPPED frames; further ones are counted in DONE."""
PAUSE_ENTRIES = 256
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not wait for a writer.
REGULAR_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class TooMuch(Exception):  # noqa: N818 - the walk's end, not an error
    """The walk has used up its entries or its time."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Collection:
    """The artifacts of one run, frame by frame."""

    def __init__(self, root_fd: int, order: StartOrder, digests: dict[str, tuple[int, str]]) -> None:
        """`root_fd`: the skill root; `digests`: of each staged path its size in bytes and the sha256 of its content."""
        self._root_fd = root_fd
        self._patterns = PathPatterns(order.artifact_patterns)
        self._count_left = order.artifact_count
        self._bytes_left = order.artifact_bytes
        self._digests = digests
        self._entries_left = ENTRIES_MAX
        self._skipped = 0
        self._spent_seconds = 0.0
        self._resumed = 0.0
        self._frames = self._collect() if order.artifact_patterns else iter(())

    @property
    def skipped_omitted(self) -> int:
        """Skipped files for which there was no SKIPPED frame."""
        return max(0, self._skipped - SKIPPED_MAX)

    def next_frame(self) -> bytes | None:
        """The next encoded frame; b"" when there is none yet, to let the caller look around; None at the end."""
        self._resumed = time.monotonic()
        try:
            return next(self._frames, None)
        finally:
            self._spent_seconds += time.monotonic() - self._resumed

    def _collect(self) -> Iterator[bytes]:
        try:
            fd = os.open(".", DIRECTORY, dir_fd=self._root_fd)
        except OSError:
            yield self._skip([], SkipReason.UNREADABLE)
            return
        try:
            yield from self._directory(fd, [], self._patterns.start)
        except TooMuch as end:
            yield self._skip([], end.reason)
        finally:
            os.close(fd)

    def _directory(self, fd: int, above: list[str], above_states: tuple[int, ...]) -> Iterator[bytes]:
        """What is in one directory, in the order of names, which is the same on every file system."""
        for name, is_directory, is_file in self._entries(fd):
            self._check_time()
            names = [*above, name]
            states = self._patterns.step(above_states, name)
            if is_directory:
                if self._patterns.may_go_on(states):
                    yield from self._subdirectory(fd, names, states)
            elif self._patterns.is_match(states):
                yield from (self._file(fd, names) if is_file else [self._skip(names, SkipReason.NOT_A_REGULAR_FILE)])
            self._entries_left -= 1
            if self._entries_left % PAUSE_ENTRIES == 0:
                yield b""

    def _entries(self, fd: int) -> list[tuple[str, bool, bool]]:
        """Name, whether it is a directory, whether it is a regular file. Raises TooMuch."""
        found: list[tuple[str, bool, bool]] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                found.append((entry.name, entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)))
                if len(found) > self._entries_left:
                    raise TooMuch(SkipReason.COUNT_LIMIT)
        return sorted(found)

    def _subdirectory(self, parent: int, names: list[str], states: tuple[int, ...]) -> Iterator[bytes]:
        fault = _fault(names)
        # A file in it would be one name deeper.
        if fault is None and len(names) >= DEPTH_MAX:
            fault = SkipReason.DEPTH_LIMIT
        if fault is not None:
            yield self._skip(names, fault)
            return
        try:
            fd = os.open(names[-1], DIRECTORY, dir_fd=parent)
        except OSError:
            yield self._skip(names, SkipReason.UNREADABLE)
            return
        try:
            yield from self._directory(fd, names, states)
        finally:
            os.close(fd)

    def _file(self, parent: int, names: list[str]) -> Iterator[bytes]:
        """A file that matches: its frames, or why it is skipped; nothing when it is as it was staged."""
        fault = _fault(names)
        if fault is not None:
            yield self._skip(names, fault)
            return
        try:
            fd = os.open(names[-1], REGULAR_FILE, dir_fd=parent)
        except OSError:
            yield self._skip(names, SkipReason.UNREADABLE)
            return
        try:
            yield from self._open_file(fd, names)
        finally:
            os.close(fd)

    def _open_file(self, fd: int, names: list[str]) -> Iterator[bytes]:
        facts = os.fstat(fd)
        path = "/".join(names)
        if not stat.S_ISREG(facts.st_mode):
            yield self._skip(names, SkipReason.NOT_A_REGULAR_FILE)
        elif self._is_as_staged(fd, path, facts.st_size):
            return
        elif self._count_left == 0:
            yield self._skip(names, SkipReason.COUNT_LIMIT)
        elif facts.st_size > self._bytes_left:
            yield self._skip(names, SkipReason.SIZE_LIMIT)
        else:
            self._count_left -= 1
            self._bytes_left -= facts.st_size
            executable = bool(facts.st_mode & stat.S_IXUSR)
            yield encode_json(FrameType.ARTIFACT, {"path": path, "size": facts.st_size, "executable": executable})
            yield from _content(fd, path, facts.st_size)

    def _is_as_staged(self, fd: int, path: str, size: int) -> bool:
        """Whether a file has the content that it was staged with."""
        staged_size, staged_digest = self._digests.get(path, (-1, ""))
        if size != staged_size:
            return False
        import hashlib  # noqa: PLC0415 - most runs need it never, and none before its end

        digest = hashlib.sha256()
        position = 0
        while data := os.pread(fd, DATA_MAX, position):
            digest.update(data)
            position += len(data)
        return digest.hexdigest() == staged_digest

    def _skip(self, names: list[str], reason: SkipReason) -> bytes:
        """A SKIPPED frame, or b"" when there were too many."""
        self._skipped += 1
        if self._skipped > SKIPPED_MAX:
            return b""
        path = escaped(os.fsencode("/".join(names) or "."))
        return encode_json(FrameType.SKIPPED, {"path": path, "reason": reason})

    def _check_time(self) -> None:
        if self._spent_seconds + time.monotonic() - self._resumed > SECONDS_MAX:
            raise TooMuch(SkipReason.TIME_LIMIT)


def _fault(names: list[str]) -> SkipReason | None:
    """Why a path may not cross the stream. The names above the last one are good already."""
    if not is_safe_name(names[-1]) or len("/".join(names).encode()) > PATH_BYTES_MAX:
        return SkipReason.UNSAFE_NAME
    return None


def _content(fd: int, path: str, size: int) -> Iterator[bytes]:
    """DATA frames with exactly `size` bytes, as announced. Raises InitError when the file has fewer."""
    position = 0
    while position < size:
        data = os.pread(fd, min(DATA_MAX, size - position), position)
        if not data:
            raise InitError(f"the artifact {path!r} became shorter while it was read")
        position += len(data)
        yield encode(FrameType.DATA, data)
