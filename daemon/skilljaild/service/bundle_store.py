"""`BundleStoreService`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from skilljail.v1 import bundle_store_pb2, bundle_store_pb2_grpc

from skilljaild.bundles.digest import is_digest
from skilljaild.bundles.store import BlobStore, BlobStores, BlobWriter
from skilljaild.errors import Reason, Refusal
from skilljaild.paths import shown
from skilljaild.service.identity import tenant_of
from skilljaild.service.status import refusing_unary

__all__ = ["BundleStore"]

DIGESTS_MAX = 10_000
PIECE_BYTES_MAX = 1024 * 1024

Context = grpc.aio.ServicerContext[Any, Any]


class BundleStore(bundle_store_pb2_grpc.BundleStoreServiceServicer):
    """See `proto/skilljail/v1/bundle_store.proto`."""

    def __init__(self, stores: BlobStores, *, tls: bool) -> None:
        self._stores = stores
        self._tls = tls

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
        try:
            async for request in request_iterator:
                match request.WhichOneof("piece"):
                    case "header":
                        await asyncio.to_thread(upload.begin, request.header.digest, request.header.size_bytes)
                    case "data":
                        await asyncio.to_thread(upload.take, request.data)
                    case _:
                        raise Refusal(Reason.REQUEST_INVALID, "piece: neither a header nor data", field="piece")
            await asyncio.to_thread(upload.commit)
        finally:
            await asyncio.to_thread(upload.close)
        return bundle_store_pb2.UploadResponse(blobs_stored=upload.stored)

    async def _store(self, context: Context) -> BlobStore:
        tenant = tenant_of(context, tls=self._tls)
        return await asyncio.to_thread(self._stores.of, tenant)


class _Upload:
    """One Upload call: blobs, one after the other."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._writer: BlobWriter | None = None
        self._stack = contextlib.ExitStack()
        self.stored = 0

    def begin(self, digest: str, size: int) -> None:
        """Starts the next blob; the one before is committed."""
        self.commit()
        _check_digest(digest, "header.digest")
        if size < 0:
            raise Refusal(Reason.BLOB_INVALID, f"blob {digest}: a size below 0", field="header.size_bytes")
        self._writer = self._stack.enter_context(self._store.writer(digest, size))

    def take(self, data: bytes) -> None:
        """Bytes of the current blob."""
        if self._writer is None:
            raise Refusal(Reason.BLOB_INVALID, "data before the first header; send a header first", field="data")
        if len(data) > PIECE_BYTES_MAX:
            raise Refusal(
                Reason.BLOB_INVALID,
                f"data: {len(data):,} bytes in one piece, at most {PIECE_BYTES_MAX:,} are taken; send smaller pieces",
                field="data",
            )
        self._writer.write(data)

    def commit(self) -> None:
        """Puts the current blob, if there is one, into the store."""
        if self._writer is not None:
            self._writer.commit()
            self.stored += 1
            self.close()

    def close(self) -> None:
        """Drops what is not committed."""
        self._writer = None
        self._stack.close()


def _check_digest(digest: str, field: str) -> None:
    if not is_digest(digest):
        raise Refusal(
            Reason.REQUEST_INVALID,
            f"{field}: {shown(digest)} is no digest; it is sha256: and 64 lower-case hex digits",
            field=field,
        )
