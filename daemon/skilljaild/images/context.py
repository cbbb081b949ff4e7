"""The build context: a tar that says exactly what a Dockerfile may COPY, without the host's owners and times."""

import io
import tarfile
import tempfile
from types import TracebackType
from typing import IO, Self

__all__ = ["BuildContext"]

MODIFIED = 1_767_225_600
"""The time of every file, 2026-01-01: the same tree gives the same context."""


class BuildContext:
    """A tar in a temporary file. Use it as a context manager; `file()` ends it and rewinds."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add_bytes(self, path: str, content: bytes) -> None:
        """A small file, readable and not executable: wheels and umasks change modes on their way."""
        self.add_stream(path, io.BytesIO(content), len(content), 0o644)

    def add_stream(self, path: str, content: IO[bytes], size: int, mode: int) -> None:
        """A file of `size` bytes."""
        entry = _entry(path, mode)
        entry.size = size
        self._tar.addfile(entry, content)

    def add_link(self, path: str, target: str) -> None:
        """A symbolic link."""
        entry = _entry(path, 0o777)
        entry.type = tarfile.SYMTYPE
        entry.linkname = target
        self._tar.addfile(entry)

    def file(self) -> IO[bytes]:
        """The finished tar, from its beginning."""
        self._tar.close()
        self._file.seek(0)
        return self._file


def _entry(path: str, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.mode = mode
    entry.mtime = MODIFIED
    return entry
