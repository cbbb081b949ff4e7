"""Blobs on disk, one store for each tenant: bounded, least recently used out first, safe against crashes."""

import collections
import contextlib
import dataclasses
import hashlib
import os
import pathlib
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Self

from skilljaild.bundles.digest import is_digest
from skilljaild.errors import Reason, Refusal, Violation

__all__ = ["WRITERS_MAX", "BlobStore", "BlobStores", "BlobWriter"]

WRITERS_MAX = 16
"""Blobs of one tenant that may be on their way into the store at one time."""
BLOCK_BYTES = 4_096
"""What even an empty blob takes: an inode, a name, and a place in this process."""
TEMPORARY_PREFIX = "new-"
"""Of the name of a blob that is not complete."""
MTIME_AGE_SECONDS = 60
"""How far a file's mtime may be behind its last use. Only the order after a restart hangs on it."""


def _cost(size: int) -> int:
    """What a blob of `size` bytes counts for."""
    return max(size, BLOCK_BYTES)


@dataclasses.dataclass(slots=True)
class _Blob:
    size: int
    recorded: float
    """Its file's mtime."""
    pins: int = 0
    """Runs that are reading it."""


class BlobStore:
    """The blobs of one tenant.

    A blob's file appears under its final name only when it is complete and on disk, so a crash leaves at worst a
    temporary file, which the next start removes. Blobs that are being written count from their announcement on. All
    methods may be called from any thread.
    """

    def __init__(self, directory: pathlib.Path, bytes_max: int) -> None:
        """`directory`: the tenant's own, made when it is not there; `bytes_max`: all blobs together."""
        self._directory = directory
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._blobs: collections.OrderedDict[str, _Blob] = collections.OrderedDict()
        """The least recently used first."""
        self._bytes = 0
        """What the blobs count for, and those that are being written."""
        self._writers = 0
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
        for modified, digest, size in sorted(found):
            self._blobs[digest] = _Blob(size, modified)
            self._bytes += _cost(size)
        with self._lock:
            self._make_room(0)

    def _path(self, digest: str) -> pathlib.Path:
        return self._directory / digest.removeprefix("sha256:")

    def missing(self, digests: list[str]) -> list[str]:
        """Those of `digests` that are not here, each once; the others count as used now."""
        wanted = dict.fromkeys(digests)
        with self._lock:
            stale = self._touch(wanted)
            missing = [digest for digest in wanted if digest not in self._blobs]
        self._record(stale)
        return missing

    def _touch(self, digests: Iterable[str]) -> list[str]:
        """Counts blobs as used now. Returns those to hand to `_record`, when the lock is free again."""
        stale = []
        now = time.time()
        for digest in digests:
            blob = self._blobs.get(digest)
            if blob is None:
                continue
            self._blobs.move_to_end(digest)
            if not 0 <= now - blob.recorded < MTIME_AGE_SECONDS:
                blob.recorded = now
                stale.append(digest)
        return stale

    def _record(self, digests: list[str]) -> None:
        for digest in digests:
            with contextlib.suppress(OSError):
                os.utime(self._path(digest))

    def size(self, digest: str) -> int | None:
        """Bytes of a blob, or None when it is not here."""
        with self._lock:
            blob = self._blobs.get(digest)
            return None if blob is None else blob.size

    def writer(self, digest: str, size: int) -> "BlobWriter":
        """Starts to store a blob, and keeps room for it until the writer is left.

        Raises Refusal STORE_FULL, with `retry_seconds` unless it can never fit.
        """
        self._reserve(digest, _cost(size))
        try:
            return BlobWriter(self, self._directory / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}", digest, size)
        except BaseException:
            self._release(_cost(size))
            raise

    def _reserve(self, digest: str, cost: int) -> None:
        if cost > self._bytes_max:
            raise Refusal(
                Reason.STORE_FULL,
                f"blob {digest}: {cost:,} bytes are more than this store takes ({self._bytes_max:,}); make the file "
                "smaller, or have the operator raise bundles.store_bytes",
            )
        with self._lock:
            if self._writers >= WRITERS_MAX:
                raise Refusal(
                    Reason.STORE_FULL,
                    f"blob {digest}: {WRITERS_MAX} uploads are under way, as many as are taken at one time; try again "
                    "when one is over",
                    retry_seconds=1,
                )
            if not self._make_room(cost):
                raise Refusal(
                    Reason.STORE_FULL,
                    f"blob {digest}: the store ({self._bytes_max:,} bytes) is full of blobs that runs are using or "
                    "that are being uploaded; try again when they are over, or have the operator raise "
                    "bundles.store_bytes",
                    retry_seconds=5,
                )
            self._bytes += cost
            self._writers += 1

    def _release(self, cost: int) -> None:
        """A writer is left; `cost`: what it still held, 0 when its blob has taken that over."""
        with self._lock:
            self._bytes -= cost
            self._writers -= 1

    def _adopt(self, temporary: pathlib.Path, digest: str, size: int) -> bool:
        """Takes a complete file over, and the room that its writer kept. False when the blob is here already."""
        with self._lock:
            known = digest in self._blobs
            stale = self._touch([digest])
            if not known:
                temporary.rename(self._path(digest))
                self._blobs[digest] = _Blob(size, time.time())
        self._record(stale)
        return not known

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _make_room(self, cost: int) -> bool:
        """Drops blobs until `cost` more fits. False, and nothing dropped, when those in use leave too little."""
        excess = self._bytes + cost - self._bytes_max
        idle: list[str] = []
        for digest, blob in self._blobs.items():
            if excess <= 0:
                break
            if not blob.pins:
                idle.append(digest)
                excess -= _cost(blob.size)
        if excess > 0:
            return False
        for digest in idle:
            self._drop(digest)
        return True

    def _drop(self, digest: str) -> None:
        blob = self._blobs.pop(digest)
        self._bytes -= _cost(blob.size)
        self._path(digest).unlink(missing_ok=True)

    @contextlib.contextmanager
    def pinned(self, digests: list[str]) -> Iterator[list[str]]:
        """Keeps blobs from being dropped. Yields those of `digests` that are not here."""
        wanted = dict.fromkeys(digests)
        with self._lock:
            stale = self._touch(wanted)
            held = {digest: self._blobs[digest] for digest in wanted if digest in self._blobs}
            for blob in held.values():
                blob.pins += 1
        try:
            self._record(stale)
            yield [digest for digest in wanted if digest not in held]
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
        except FileNotFoundError:
            data = None
        if data is not None and len(data) <= limit and f"sha256:{hashlib.sha256(data).hexdigest()}" == digest:
            return data
        with self._lock:
            if digest in self._blobs:
                self._drop(digest)
        raise Refusal(
            Reason.BUNDLE_MISSING,
            f"blob {digest} is not on this daemon any more; upload it again",
            missing=(Violation(digest, "dropped"),),
        )


class BlobWriter:
    """Takes the bytes of one blob. A context manager: what is not committed is removed, and its room given back."""

    def __init__(self, store: BlobStore, temporary: pathlib.Path, digest: str, size: int) -> None:
        self._store = store
        self._temporary = temporary
        self._digest = digest
        self._size = size
        self._held = _cost(size)
        """The room that is kept for it."""
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
        """Puts the blob into the store. Raises Refusal BLOB_INVALID."""
        if self._written != self._size:
            raise Refusal(
                Reason.BLOB_INVALID,
                f"blob {self._digest}: {self._written:,} bytes came, its header announced {self._size:,}",
            )
        if f"sha256:{self._hash.hexdigest()}" != self._digest:
            raise Refusal(Reason.BLOB_INVALID, f"blob {self._digest}: the bytes have another digest")
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._store._adopt(self._temporary, self._digest, self._size):  # noqa: SLF001  the writer is the store's own
            self._held = 0  # the blob has it now, whatever the disk says next
            self._store._sync_directory()  # noqa: SLF001

    def __exit__(self, *error: object) -> None:
        try:
            self._file.close()  # which writes what is buffered, and fails on a full disk
        finally:
            self._temporary.unlink(missing_ok=True)
            self._store._release(self._held)  # noqa: SLF001


class BlobStores:
    """The stores of all tenants, opened when first used."""

    def __init__(self, directory: pathlib.Path, bytes_max: int) -> None:
        """`directory`: holds one folder for each tenant; `bytes_max`: for each of them.

        What a daemon that was killed had half written is removed now: a tenant may never come back.
        """
        self._directory = directory
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._stores: dict[str, BlobStore] = {}
        for path in directory.glob(f"*/{TEMPORARY_PREFIX}*"):
            path.unlink(missing_ok=True)

    def of(self, tenant: str) -> BlobStore:
        """The store of a tenant. The folder's name is a hash: a tenant's name may hold anything."""
        with self._lock:
            if tenant not in self._stores:
                name = hashlib.sha256(tenant.encode()).hexdigest()[:32]
                self._stores[tenant] = BlobStore(self._directory / name, self._bytes_max)
            return self._stores[tenant]
