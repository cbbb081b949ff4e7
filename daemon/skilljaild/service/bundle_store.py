"""`BundleStoreService`."""

import asyncio
import collections
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
from skilljail.v1 import bundle_store_pb2, bundle_store_pb2_grpc

from skilljaild.bundles.digest import is_digest
from skilljaild.bundles.store import WRITERS_MAX, BlobStore, BlobStores, BlobWriter
from skilljaild.errors import Reason, Refusal
from skilljaild.paths import shown
from skilljaild.service.identity import tenant_of
from skilljaild.service.status import refusing_unary

__all__ = ["BundleStore"]

DIGESTS_MAX = 10_000
PIECE_BYTES_MAX = 1024 * 1024
IDLE_SECONDS_MAX = 30
"""How long an upload may send nothing: it keeps room in the store all the while."""
PLACE_SECONDS_MAX = 30
"""How long an upload waits while as many others as may write at one time do."""

Context = grpc.aio.ServicerContext[Any, Any]


class BundleStore(bundle_store_pb2_grpc.BundleStoreServiceServicer):
    """See `proto/skilljail/v1/bundle_store.proto`."""

    def __init__(self, stores: BlobStores, *, tls: bool) -> None:
        self._stores = stores
        self._tls = tls
        self._places: collections.defaultdict[str, asyncio.Semaphore] = collections.defaultdict(
            lambda: asyncio.Semaphore(WRITERS_MAX)
        )
        """By tenant. The store would refuse an upload too many; many callers who start at once had better wait."""

    @refusing_unary
    async def FindMissing(  # noqa: N802
        self, request: bundle_store_pb2.FindMissingRequest, context: Context
    ) -> bundle_store_pb2.FindMissingResponse:
        store = await self._store(context)
        if len(request.digests) > DIGESTS_MAX:
            raise Refusal(
                Reason.REQUEST_INVALID,
                f"digests: {len(request.digests):,}, at most {DIGESTS_MAX:,} can be asked for; ask in several calls",
                field="digests",
            )
        for digest in request.digests:
            _check_digest(digest, "digests")
        missing = await asyncio.to_thread(store.missing, list(request.digests))
        return bundle_store_pb2.FindMissingResponse(missing_digests=missing)

    @refusing_unary
    async def Upload(  # noqa: N802
        self, request_iterator: AsyncIterator[bundle_store_pb2.UploadRequest], context: Context
    ) -> bundle_store_pb2.UploadResponse:
        upload = _Upload(await self._store(context))
        place = self._places[tenant_of(context, tls=self._tls)]
        async with contextlib.AsyncExitStack() as stack:
            async for request in _pieces(request_iterator):
                match request.WhichOneof("piece"):
                    case "header":
                        if not upload.has_place:
                            await stack.enter_async_context(_taken(place))
                            stack.push_async_callback(upload.over)
                            upload.has_place = True
                        await asyncio.to_thread(upload.begin, request.header.digest, request.header.size_bytes)
                    case "data":
                        await asyncio.to_thread(upload.take, request.data)
                    case _:
                        raise Refusal(Reason.REQUEST_INVALID, "piece: neither a header nor data", field="piece")
            await asyncio.to_thread(upload.commit)
        return bundle_store_pb2.UploadResponse(blobs_stored=upload.stored)

    async def _store(self, context: Context) -> BlobStore:
        tenant = tenant_of(context, tls=self._tls)
        return await asyncio.to_thread(self._stores.of, tenant)


async def _pieces(
    request_iterator: AsyncIterator[bundle_store_pb2.UploadRequest],
) -> AsyncIterator[bundle_store_pb2.UploadRequest]:
    """The messages of an upload. Raises Refusal REQUEST_INVALID when the next one does not come."""
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS_MAX):
                request = await anext(request_iterator)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refusal(
                Reason.REQUEST_INVALID,
                f"the upload sent nothing for {IDLE_SECONDS_MAX} seconds; upload again, without a pause",
            ) from None
        yield request


@contextlib.asynccontextmanager
async def _taken(place: asyncio.Semaphore) -> AsyncIterator[None]:
    """One of a tenant's places. Raises Refusal STORE_FULL when none gets free."""
    try:
        async with asyncio.timeout(PLACE_SECONDS_MAX):
            await place.acquire()
    except TimeoutError:
        raise Refusal(
            Reason.STORE_FULL,
            f"{WRITERS_MAX} uploads are under way, as many as are taken at one time, and none ended within "
            f"{PLACE_SECONDS_MAX} seconds; try again when one is over",
            retry_seconds=5,
        ) from None
    try:
        yield
    finally:
        place.release()


class _Upload:
    """One Upload call: blobs, one after the other.

    Its methods run on threads, which go on when the call is cancelled: the lock and `_is_over` see to it that nothing
    is begun after the end.
    """

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._writer: BlobWriter | None = None
        self._stack = contextlib.ExitStack()
        self._is_over = False
        self.has_place = False
        self.stored = 0

    def begin(self, digest: str, size: int) -> None:
        """Starts the next blob; the one before is committed."""
        with self._lock:
            self._commit()
            _check_digest(digest, "header.digest")
            if size < 0:
                raise Refusal(Reason.BLOB_INVALID, f"blob {digest}: a size below 0", field="header.size_bytes")
            if not self._is_over:
                self._writer = self._stack.enter_context(self._store.writer(digest, size))

    def take(self, data: bytes) -> None:
        """Bytes of the current blob."""
        with self._lock:
            if self._writer is None:
                raise Refusal(Reason.BLOB_INVALID, "data before the first header; send a header first", field="data")
            if len(data) > PIECE_BYTES_MAX:
                raise Refusal(
                    Reason.BLOB_INVALID,
                    f"data: {len(data):,} bytes in one piece, at most {PIECE_BYTES_MAX:,} are taken; send smaller "
                    "pieces",
                    field="data",
                )
            self._writer.write(data)

    def commit(self) -> None:
        """Puts the current blob, if there is one, into the store."""
        with self._lock:
            self._commit()

    def _commit(self) -> None:
        if self._writer is not None:
            self._writer.commit()
            self.stored += 1
            self._close()

    async def over(self) -> None:
        """Drops what is not committed, also when the call is being cancelled."""
        await asyncio.shield(asyncio.to_thread(self._end))

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            self._close()

    def _close(self) -> None:
        self._writer = None
        self._stack.close()


def _check_digest(digest: str, field: str) -> None:
    if not is_digest(digest):
        raise Refusal(
            Reason.REQUEST_INVALID,
            f"{field}: {shown(digest)} is no digest; it is sha256: and 64 lower-case hex digits",
            field=field,
        )
