"""The store's service on a socket."""

import asyncio
import pathlib
from collections.abc import AsyncIterator

import grpc
import pytest
from skilljail.v1 import bundle_store_pb2
from skilljaild.bundles.digest import digest_of

from .fake_service import Service, reason_of, serving

MIB = 1024 * 1024


@pytest.fixture
async def service(tmp_path: pathlib.Path) -> AsyncIterator[Service]:
    """A daemon whose store takes 4 MiB."""
    async with serving(tmp_path, bundles={"store_bytes": 4 * MIB}) as one:
        yield one


def header(digest: str, size: int) -> bundle_store_pb2.UploadRequest:
    """The beginning of a blob."""
    return bundle_store_pb2.UploadRequest(header=bundle_store_pb2.BlobHeader(digest=digest, size_bytes=size))


def data(content: bytes) -> bundle_store_pb2.UploadRequest:
    """Bytes of the current blob."""
    return bundle_store_pb2.UploadRequest(data=content)


def blob(content: bytes) -> list[bundle_store_pb2.UploadRequest]:
    """A whole blob."""
    pieces = [content[start : start + MIB] for start in range(0, len(content), MIB)]
    return [header(digest_of(content), len(content)), *map(data, pieces)]


async def missing(service: Service, *contents: bytes) -> list[bytes]:
    """Those contents that the store does not have."""
    by_digest = {digest_of(content): content for content in contents}
    answer = await service.store.FindMissing(bundle_store_pb2.FindMissingRequest(digests=list(by_digest)))
    return [by_digest[digest] for digest in answer.missing_digests]


async def upload(service: Service, *requests: bundle_store_pb2.UploadRequest) -> int:
    """How many blobs an upload stored."""
    answer = await service.store.Upload(iter(requests))
    return int(answer.blobs_stored)


async def refused(service: Service, *requests: bundle_store_pb2.UploadRequest) -> tuple[grpc.StatusCode, str]:
    """Why an upload is refused; nothing half-done is left of it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await upload(service, *requests)
    assert not list(service.directory.rglob("new-*"))
    return reason_of(caught.value)[:2]


INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def test_what_is_uploaded_is_not_missing_any_more(service: Service) -> None:
    contents = [b"", b"one", bytes(2 * MIB + 1)]
    assert await missing(service, *contents) == contents
    assert await upload(service, *(piece for content in contents for piece in blob(content))) == 3
    assert await missing(service, *contents, b"other") == [b"other"]
    assert service.stores.of("local").read(digest_of(contents[2]), 3 * MIB) == contents[2]


async def test_uploading_again_is_no_error(service: Service) -> None:
    assert await upload(service, *blob(b"one"), *blob(b"one")) == 2
    assert await upload(service, *blob(b"one")) == 1


async def test_an_upload_of_nothing_stores_nothing(service: Service) -> None:
    assert await upload(service) == 0
    assert await missing(service) == []


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([header("sha256:0", 1)], "REQUEST_INVALID"),
        ([header("../../etc/passwd", 1)], "REQUEST_INVALID"),
        ([header(digest_of(b"x"), -1)], "BLOB_INVALID"),
        ([header(digest_of(b"x"), 1), data(b"y")], "BLOB_INVALID"),
        ([header(digest_of(b"x"), 1), data(b"xx")], "BLOB_INVALID"),
        ([header(digest_of(b"x"), 2), data(b"x")], "BLOB_INVALID"),
        ([header(digest_of(b"x"), 1)], "BLOB_INVALID"),
        ([header(digest_of(bytes(MIB + 1)), MIB + 1), data(bytes(MIB + 1))], "BLOB_INVALID"),
    ],
)
async def test_an_upload_that_breaks_its_word_is_refused_and_what_came_before_stays(
    service: Service, requests: list[bundle_store_pb2.UploadRequest], reason: str
) -> None:
    assert await refused(service, *blob(b"before"), *requests) == (INVALID, reason)
    assert await missing(service, b"before", b"x") == [b"x"]


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([data(b"x")], "BLOB_INVALID"),
        ([bundle_store_pb2.UploadRequest()], "REQUEST_INVALID"),
        ([*blob(b"x"), data(b"more")], "BLOB_INVALID"),
        ([*blob(b"x"), bundle_store_pb2.UploadRequest()], "REQUEST_INVALID"),
    ],
)
async def test_bytes_without_a_header_of_theirs_are_refused(
    service: Service, requests: list[bundle_store_pb2.UploadRequest], reason: str
) -> None:
    assert await refused(service, *requests) == (INVALID, reason)
    assert await missing(service, b"x") == [b"x"]


async def test_a_blob_that_can_never_fit_is_refused(service: Service) -> None:
    assert await refused(service, header(digest_of(b"x"), 4 * MIB + 1)) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "STORE_FULL",
    )


async def test_an_upload_that_is_broken_off_leaves_nothing(service: Service) -> None:
    call = service.store.Upload()
    await call.write(header(digest_of(b"abc"), 3))
    await call.write(data(b"ab"))
    call.cancel()
    async with asyncio.timeout(5):
        while list(service.directory.rglob("new-*")):
            await asyncio.sleep(0.01)
    assert await missing(service, b"abc") == [b"abc"]


@pytest.mark.parametrize("digests", [["x"], [digest_of(b"").upper()], [digest_of(b""), ""], [digest_of(b"")] * 10_001])
async def test_a_question_that_is_none_is_refused(service: Service, digests: list[str]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.store.FindMissing(bundle_store_pb2.FindMissingRequest(digests=digests))
    assert reason_of(caught.value)[:2] == (INVALID, "REQUEST_INVALID")


async def test_ten_thousand_digests_can_be_asked_for_at_once(service: Service) -> None:
    contents = [f"{number}".encode() for number in range(10_000)]
    assert len(await missing(service, *contents)) == 10_000
