"""Blobs on disk, one store for each tenant: bounded, least recently used out first, safe against crashes."""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import secrets
import threading
from collections.abc import Iterator
from typing import BinaryIO, Self

from skilljaild.bundles.digest import is_digest
from skilljaild.errors import Reason, Refusal

__all__ = ["BlobStore", "BlobStores", "BlobWriter"]


@dataclasses.dataclass(slots=True)
class _Blob:
    size: int
    used: int
    """Grows with each use."""
    pins: int = 0
    """Runs that are reading it."""


class BlobStore:
    """The blobs of one tenant.

    A blob's file appears under its final name only when it is complete and on disk, so a crash leaves at worst a
    temporary file, which the next start removes. All methods may be called from any thread.
    """

    def __init__(self, directory: pathlib.Path, bytes_max: int) -> None:
        """`directory`: the tenant's own, made when it is not there; `bytes_max`: all blobs together."""
        self._directory = directory
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._blobs: dict[str, _Blob] = {}
        self._clock = 0
        self._bytes = 0
        self._open()

    def _open(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: list[tuple[float, str, int]] = []
        for path in self._directory.iterdir():
            digest = f"sha256:{path.name}"
            if is_digest(digest):
                status = path.stat()
                found.append((status.st_mtime, digest, status.st_size))
            else:
                path.unlink(missing_ok=True)
        for _, digest, size in sorted(found):
            self._blobs[digest] = _Blob(size, self._tick())
            self._bytes += size
        with self._lock:
            self._make_room(0)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _path(self, digest: str) -> pathlib.Path:
        return self._directory / digest.removeprefix("sha256:")

    def missing(self, digests: list[str]) -> list[str]:
        """Those of `digests` that are not here, each once; the others count as used now."""
        with self._lock:
            for digest in digests:
                self._touch(digest)
            return [digest for digest in dict.fromkeys(digests) if digest not in self._blobs]

    def _touch(self, digest: str) -> None:
        blob = self._blobs.get(digest)
        if blob is not None:
            blob.used = self._tick()
            with contextlib.suppress(OSError):
                os.utime(self._path(digest))

    def size(self, digest: str) -> int | None:
        """Bytes of a blob, or None when it is not here."""
        with self._lock:
            blob = self._blobs.get(digest)
            return None if blob is None else blob.size

    def writer(self, digest: str, size: int) -> "BlobWriter":
        """Starts to store a blob. Raises Refusal STORE_FULL when it can never fit."""
        if size > self._bytes_max:
            raise Refusal(
                Reason.STORE_FULL,
                f"blob {digest}: {size:,} bytes are more than this store takes ({self._bytes_max:,}); make the file "
                "smaller, or have the operator raise bundles.store_bytes",
            )
        return BlobWriter(self, self._directory / f"new-{secrets.token_hex(8)}", digest, size)

    def _adopt(self, temporary: pathlib.Path, digest: str, size: int) -> None:
        with self._lock:
            if digest in self._blobs:
                self._touch(digest)
                temporary.unlink(missing_ok=True)
                return
            if not self._make_room(size):
                temporary.unlink(missing_ok=True)
                raise Refusal(
                    Reason.STORE_FULL,
                    f"blob {digest}: the store ({self._bytes_max:,} bytes) is full of blobs that runs are using; try "
                    "again when they are over, or have the operator raise bundles.store_bytes",
                    retry_seconds=5,
                )
            temporary.rename(self._path(digest))
            self._sync_directory()
            self._blobs[digest] = _Blob(size, self._tick())
            self._bytes += size

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _make_room(self, size: int) -> bool:
        """Drops blobs until `size` more bytes fit. False, and nothing dropped, when those in use leave too little."""
        if size + sum(blob.size for blob in self._blobs.values() if blob.pins) > self._bytes_max:
            return False
        free = sorted((blob.used, digest) for digest, blob in self._blobs.items() if not blob.pins)
        for _, digest in free:
            if self._bytes + size <= self._bytes_max:
                break
            self._drop(digest)
        return True

    def _drop(self, digest: str) -> None:
        blob = self._blobs.pop(digest)
        self._bytes -= blob.size
        self._path(digest).unlink(missing_ok=True)

    @contextlib.contextmanager
    def pinned(self, digests: list[str]) -> Iterator[list[str]]:
        """Keeps blobs from being dropped. Yields those of `digests` that are not here."""
        held: dict[str, _Blob] = {}
        with self._lock:
            for digest in dict.fromkeys(digests):
                if digest in self._blobs:
                    self._touch(digest)
                    self._blobs[digest].pins += 1
                    held[digest] = self._blobs[digest]
        try:
            yield [digest for digest in dict.fromkeys(digests) if digest not in held]
        finally:
            # The blobs that were pinned, not those of the same digest: one may have been dropped and uploaded again.
            with self._lock:
                for blob in held.values():
                    blob.pins -= 1

    def read(self, digest: str, limit: int) -> bytes:
        """A whole blob of at most `limit` bytes, checked against its digest.

        Raises Refusal BUNDLE_MISSING when it is not here or the disk has spoilt it; a spoilt blob is dropped, so that
        the caller can upload it again.
        """
        try:
            with self._path(digest).open("rb") as file:
                data = file.read(limit + 1)
        except OSError:
            data = None
        if data is not None and len(data) <= limit and f"sha256:{hashlib.sha256(data).hexdigest()}" == digest:
            return data
        with self._lock:
            if digest in self._blobs:
                self._drop(digest)
        raise Refusal(Reason.BUNDLE_MISSING, f"blob {digest} is not on this daemon any more; upload it again")


class BlobWriter:
    """Takes the bytes of one blob. A context manager: what is not committed is removed."""

    def __init__(self, store: BlobStore, temporary: pathlib.Path, digest: str, size: int) -> None:
        self._store = store
        self._temporary = temporary
        self._digest = digest
        self._size = size
        self._hash = hashlib.sha256()
        self._written = 0
        self._file: BinaryIO = temporary.open("xb")

    def __enter__(self) -> Self:
        return self

    def write(self, data: bytes) -> None:
        """Takes the next bytes. Raises Refusal BLOB_INVALID as soon as they are too many."""
        self._written += len(data)
        if self._written > self._size:
            raise Refusal(
                Reason.BLOB_INVALID,
                f"blob {self._digest}: more than the {self._size:,} bytes that its header announced",
            )
        self._hash.update(data)
        self._file.write(data)

    def commit(self) -> None:
        """Puts the blob into the store. Raises Refusal BLOB_INVALID or STORE_FULL."""
        if self._written != self._size:
            raise Refusal(
                Reason.BLOB_INVALID,
                f"blob {self._digest}: {self._written:,} bytes came, its header announced {self._size:,}",
            )
        if f"sha256:{self._hash.hexdigest()}" != self._digest:
            raise Refusal(Reason.BLOB_INVALID, f"blob {self._digest}: the bytes have another digest")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._store._adopt(self._temporary, self._digest, self._size)  # noqa: SLF001  the writer is the store's own

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class BlobStores:
    """The stores of all tenants, opened when first used."""

    def __init__(self, directory: pathlib.Path, bytes_max: int) -> None:
        """`directory`: holds one folder for each tenant; `bytes_max`: for each of them."""
        self._directory = directory
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._stores: dict[str, BlobStore] = {}

    def of(self, tenant: str) -> BlobStore:
        """The store of a tenant. The folder's name is a hash: a tenant's name may hold anything."""
        with self._lock:
            if tenant not in self._stores:
                name = hashlib.sha256(tenant.encode()).hexdigest()[:32]
                self._stores[tenant] = BlobStore(self._directory / name, self._bytes_max)
            return self._stores[tenant]
