"""Pieces of content under their digest, and how they go to the daemon."""

import dataclasses
import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Protocol

from skilljail._errors import SkillInvalid
from skilljail._folder import open_folder
from skilljail.v1 import bundle_store_pb2

__all__ = ["Blob", "BytesSource", "FileSource", "Upload", "digest_of"]

READ_BYTES = 1024 * 1024
"""What is read at a time, and the most that one piece of an upload may hold."""


def digest_of(data: bytes) -> str:
    """`sha256:` and 64 lower-case hex digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Source(Protocol):
    """Where the content of a blob comes from."""

    def pieces(self) -> Iterator[bytes]:
        """The content, in pieces of 1 byte to 1 MiB. Raises OSError."""
        ...

    def __str__(self) -> str:
        """Names it for a person."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class BytesSource:
    """Content in memory."""

    data: bytes

    def pieces(self) -> Iterator[bytes]:
        """The content, in pieces."""
        return _read(io.BytesIO(self.data))

    def __str__(self) -> str:
        return "content in memory"


@dataclasses.dataclass(frozen=True, slots=True)
class FileSource:
    """A file below the real path of a skill folder; no part of its path is a link."""

    root: str
    parts: tuple[str, ...]

    def pieces(self) -> Iterator[bytes]:
        """The content as it is now, in pieces."""
        with open_folder(self.root, self.parts[:-1]) as folder, folder.open_file(self.parts[-1]) as file:
            yield from _read(file)

    def __str__(self) -> str:
        return f"'{'/'.join(self.parts)}' of '{self.root}'"


def _read(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(READ_BYTES):
        yield piece


@dataclasses.dataclass(frozen=True, slots=True)
class Blob:
    """Content and the digest that it had when it was looked at."""

    digest: str
    size_bytes: int
    source: Source


class Upload:
    """The requests of one upload.

    What is sent completely has the digest that was announced: a blob's last piece goes out only after all of it was
    hashed again. When a file has changed meanwhile, the iteration ends early and `check` raises why; the daemon then
    refuses the blob that is cut short. (An exception would be printed by gRPC's own thread.)
    """

    def __init__(self, blobs: Iterable[Blob]) -> None:
        self._blobs = tuple(blobs)
        self._error: SkillInvalid | None = None

    def check(self) -> None:
        """Raises SkillInvalid when a file changed."""
        if self._error is not None:
            raise self._error

    def requests(self) -> Iterator[bundle_store_pb2.UploadRequest]:
        """A header and pieces for each blob."""
        for blob in self._blobs:
            yield bundle_store_pb2.UploadRequest(
                header=bundle_store_pb2.BlobHeader(digest=blob.digest, size_bytes=blob.size_bytes)
            )
            try:
                for piece in _verified(blob):
                    yield bundle_store_pb2.UploadRequest(data=piece)
            except SkillInvalid as error:
                self._error = error
                return


def _verified(blob: Blob) -> Iterator[bytes]:
    sha256 = hashlib.sha256()
    size = 0
    held = b""
    try:
        for piece in blob.source.pieces():
            if held:
                yield held
            sha256.update(piece)
            size += len(piece)
            held = piece
            if size > blob.size_bytes:
                break
    except OSError as error:
        raise _changed(blob) from error
    if f"sha256:{sha256.hexdigest()}" != blob.digest:
        raise _changed(blob)
    if held:
        yield held


def _changed(blob: Blob) -> SkillInvalid:
    return SkillInvalid(f"the file {blob.source} changed while it was staged; try again when nobody writes to it")
