"""The store's service on a socket."""

import asyncio
import contextlib
import pathlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from skilljail.v1 import bundle_store_pb2
from skilljaild.bundles.digest import digest_of
from skilljaild.bundles.store import BLOCK_BYTES, WRITERS_MAX, BlobStore, BlobWriter
from skilljaild.service import bundle_store as module

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


def check_idle(service: Service) -> None:
    """Nothing of any upload is left, on disk or in the account."""
    store = service.stores.of("local")
    kept = list(store._directory.iterdir())
    assert not [path for path in kept if path.name.startswith("new-")]
    assert store._writers == 0
    assert store._bytes == sum(max(path.stat().st_size, BLOCK_BYTES) for path in kept)


async def until_idle(service: Service) -> None:
    """Waits for the end of uploads that were broken off."""
    async with asyncio.timeout(30):
        while service.stores.of("local")._writers or list(service.directory.rglob("new-*")):
            await asyncio.sleep(0.01)
    check_idle(service)


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """Why a call was refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
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
    async with asyncio.timeout(30):
        while list(service.directory.rglob("new-*")):
            await asyncio.sleep(0.01)
    assert await missing(service, b"abc") == [b"abc"]


async def test_an_upload_that_falls_silent_is_ended_and_leaves_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS_MAX", 0.2)
    for said in ([], [header(digest_of(b"abc"), 3)], [header(digest_of(b"abc"), 3), data(b"ab")]):
        call = service.store.Upload()
        for request in said:
            await call.write(request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call, 30)
        assert reason_of(caught.value)[:2] == (INVALID, "REQUEST_INVALID")
        assert "sent nothing for 0.2 seconds" in str(caught.value.details())
    check_idle(service)


async def test_an_upload_may_take_longer_than_a_pause(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS_MAX", 2)
    call = service.store.Upload()
    await call.write(header(digest_of(b"abcd"), 4))
    for letter in b"abcd":
        await asyncio.sleep(0.6)
        await call.write(data(bytes([letter])))
    await call.done_writing()
    assert (await call).blobs_stored == 1


async def test_what_uploads_announce_is_all_that_comes_onto_the_disk(service: Service) -> None:
    """The store takes 4 MiB: what is not committed yet counts too."""
    calls = [service.store.Upload() for _ in range(3)]
    content = bytes(MIB)
    for call in calls:
        await call.write(header(digest_of(content + bytes(MIB // 2)), MIB + MIB // 2))
        with contextlib.suppress(asyncio.InvalidStateError):  # the one too many is refused already
            await call.write(data(content))
    tasks = [asyncio.ensure_future(ended(call)) for call in calls]
    (refused_call,) = (await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED))[0]
    assert refused_call.result() == (grpc.StatusCode.RESOURCE_EXHAUSTED, "STORE_FULL")
    assert sum(path.stat().st_size for path in service.directory.rglob("new-*")) <= 4 * MIB
    for call in calls:
        call.cancel()
    await until_idle(service)
    assert await upload(service, *blob(bytes(4 * MIB))) == 1


async def test_many_uploads_at_once_wait_for_each_other(service: Service) -> None:
    contents = [b"%d" % number for number in range(60)]
    assert await asyncio.gather(*(upload(service, *blob(content)) for content in contents)) == [1] * 60
    assert await missing(service, *contents) == []
    check_idle(service)


async def test_an_upload_that_finds_no_place_is_refused_and_may_come_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PLACE_SECONDS_MAX", 0.2)
    calls = [service.store.Upload() for _ in range(WRITERS_MAX)]
    for call in calls:
        await call.write(header(digest_of(b"abc"), 3))
    async with asyncio.timeout(30):
        while service.stores.of("local")._writers < WRITERS_MAX:
            await asyncio.sleep(0.01)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await upload(service, *blob(b"x"))
    assert reason_of(caught.value)[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "STORE_FULL")
    assert "16 uploads are under way" in str(caught.value.details())
    # Who has nothing to store needs no place.
    assert await upload(service) == 0
    for call in calls:
        call.cancel()
    await until_idle(service)
    assert await upload(service, *blob(b"x")) == 1


async def test_an_upload_that_is_broken_off_while_it_begins_leaves_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that opens the file goes on when the call is cancelled."""
    begun, go_on, made = threading.Event(), threading.Event(), threading.Event()
    writer = BlobStore.writer

    def slow(store: BlobStore, digest: str, size: int) -> BlobWriter:
        begun.set()
        assert go_on.wait(30)
        opened = writer(store, digest, size)
        made.set()
        return opened

    monkeypatch.setattr(BlobStore, "writer", slow)
    call = service.store.Upload()
    await call.write(header(digest_of(b"abc"), 3))
    assert await asyncio.to_thread(begun.wait, 30)
    call.cancel()
    await asyncio.sleep(0.2)
    go_on.set()
    assert await asyncio.to_thread(made.wait, 30)
    await until_idle(service)
    check_idle(service)


@pytest.mark.parametrize("digests", [["x"], [digest_of(b"").upper()], [digest_of(b""), ""], [digest_of(b"")] * 10_001])
async def test_a_question_that_is_none_is_refused(service: Service, digests: list[str]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.store.FindMissing(bundle_store_pb2.FindMissingRequest(digests=digests))
    assert reason_of(caught.value)[:2] == (INVALID, "REQUEST_INVALID")


async def test_ten_thousand_digests_can_be_asked_for_at_once(service: Service) -> None:
    contents = [f"{number}".encode() for number in range(10_000)]
    assert len(await missing(service, *contents)) == 10_000
