"""Calls that send too much, nothing, or stay open."""

import asyncio
import contextlib
import pathlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from skilljail.v1 import bundle_store_pb2, bundle_store_pb2_grpc, script_runner_pb2
from skilljaild.service import bounded_calls as module
from skilljaild.service import server as server_module
from skilljaild.service.decoding import decoded

from .fake_service import Service, reason_of, serving

MIB = 1024 * 1024
RUN_SCRIPT = "/skilljail.v1.ScriptRunnerService/RunScript"
UNARY = [
    "/skilljail.v1.ScriptRunnerService/GetRun",
    "/skilljail.v1.ScriptRunnerService/ListRuns",
    "/skilljail.v1.ScriptRunnerService/CancelRun",
    "/skilljail.v1.ScriptRunnerService/GetCapabilities",
    "/skilljail.v1.BundleStoreService/FindMissing",
    "/skilljail.v1.AdminService/SelfTest",
    "/grpc.health.v1.Health/Check",
]
STREAMS = [
    RUN_SCRIPT,
    "/skilljail.v1.BundleStoreService/Upload",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]
REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_INVALID", {})


@pytest.fixture
async def service(tmp_path: pathlib.Path) -> AsyncIterator[Service]:
    """A daemon."""
    async with serving(tmp_path) as one:
        yield one


@pytest.fixture
async def channel(service: Service) -> AsyncIterator[grpc.aio.Channel]:
    """A connection whose calls send bytes as they are."""
    async with grpc.aio.insecure_channel(service.address) as one:
        yield one


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """How a call failed."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(to_the_end(call), 30)
    return caught.value


async def to_the_end(call: Any) -> None:
    """Reads every answer."""
    async for _ in call:
        pass


HOSTILE = {
    "files": (RUN_SCRIPT, b"\x42\x00"),
    "arguments": (RUN_SCRIPT, b"\x22\x00"),
    "environment": (RUN_SCRIPT, b"\x2a\x00"),
    "digests": ("/skilljail.v1.BundleStoreService/FindMissing", b"\x0a\x00"),
}


@pytest.mark.parametrize(("method", "field"), HOSTILE.values(), ids=HOSTILE)
async def test_millions_of_empty_entries_are_refused_and_never_decoded(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch, method: str, field: bytes
) -> None:
    parsed: list[int] = []

    def watched(raw: bytes, deserialize: Callable[[bytes], Any], *bounds: int) -> Any:
        def parse(raw: bytes) -> Any:
            parsed.append(len(raw))
            return deserialize(raw)

        return decoded(raw, parse, *bounds)

    monkeypatch.setattr(module, "decoded", watched)
    error = await failure(channel.stream_stream(method)(iter([field * (9 * MIB // 2)])))
    assert reason_of(error) == REFUSED
    assert re.search(r"more than (150|20),000 fields", error.details() or "")
    assert parsed == []
    assert reason_of(await failure(channel.stream_stream(method)(iter([field]))))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert parsed == [2]


async def test_as_many_arguments_as_fit_are_taken(service: Service) -> None:
    """And not refused for their number, but for the script that there is not."""
    request = script_runner_pb2.RunScriptRequest(script_path="x.py", argv=[""] * 116_000)
    request.files.add(path="SKILL.md", content=b"---\nname: x\ndescription: x\n---\n")
    assert reason_of(await failure(service.runner.RunScript(request)))[1] == "SCRIPT_NOT_FOUND"


@pytest.mark.parametrize("method", [one for one in UNARY + STREAMS if one != "/grpc.health.v1.Health/Watch"])
async def test_what_is_no_message_is_refused_with_the_reason(channel: grpc.aio.Channel, method: str) -> None:
    error = await failure(channel.stream_stream(method)(iter([b"\xff\xff\xff"])))
    assert reason_of(error) == REFUSED
    assert "is not the message that this call takes" in (error.details() or "")


async def test_a_name_of_many_bytes_is_refused(channel: grpc.aio.Channel) -> None:
    for method in {*UNARY, *STREAMS} - {one for one, bounds in module._BOUNDS.items() if bounds.bytes_max > MIB}:
        error = await failure(channel.stream_stream(method)(iter([b"\x0a\x80\x80\x04" + b"x" * 65_536])))
        assert reason_of(error) == REFUSED
        assert "at most 65,536" in (error.details() or "")


@pytest.mark.parametrize("method", UNARY + STREAMS)
async def test_a_call_that_sends_nothing_is_ended(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS_MAX", 0.2)
    error = await failure(channel.stream_stream(method)())
    assert reason_of(error) == REFUSED
    assert "sent nothing for 0.2 seconds" in (error.details() or "")


@pytest.mark.parametrize("method", [*UNARY, RUN_SCRIPT, "/grpc.health.v1.Health/Watch"])
async def test_a_call_that_ends_without_a_request_is_told(channel: grpc.aio.Channel, method: str) -> None:
    error = await failure(channel.stream_stream(method)(iter([])))
    assert reason_of(error) == REFUSED
    assert error.details() == "the call ended without a request; send one"


async def test_a_method_that_there_is_not_is_told_as_such(channel: grpc.aio.Channel) -> None:
    error = await failure(channel.unary_stream("/skilljail.v1.ScriptRunnerService/Nothing")(b""))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_compressed_request_is_not_taken(service: Service, algorithm: grpc.Compression) -> None:
    request = bundle_store_pb2.FindMissingRequest(digests=["sha256:" + "0" * 64])
    async with grpc.aio.insecure_channel(service.address, compression=algorithm) as channel:
        stub: Any = bundle_store_pb2_grpc.BundleStoreServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.FindMissing(request)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "is disabled" in (caught.value.details() or "")
    assert len((await service.store.FindMissing(request)).missing_digests) == 1


async def test_so_many_watches_and_no_more(service: Service, channel: grpc.aio.Channel) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest()
    watches = [stub.Watch(request) for _ in range(64)]
    serving_status = health_pb2.HealthCheckResponse.SERVING
    assert [(await one.read()).status for one in watches] == [serving_status] * 64
    error = await failure(stub.Watch(request))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == (
        "64 calls of /grpc.health.v1.Health/Watch are open, as many as are taken at one time; ask with Check"
    )
    assert (await stub.Check(request)).status == serving_status
    watches[0].cancel()
    async with asyncio.timeout(30):
        while True:  # the place gets free when the server has heard of it
            another = stub.Watch(request)
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert (await another.read()).status == serving_status
                break
    for one in (another, *watches):
        one.cancel()


async def test_so_many_reflections_and_no_more(channel: grpc.aio.Channel) -> None:
    messages: Any = reflection_pb2
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    calls = [stub.ServerReflectionInfo() for _ in range(64)]
    for one in calls:
        await one.write(messages.ServerReflectionRequest(list_services=""))
        assert (await one.read()).list_services_response.service
    assert (await failure(stub.ServerReflectionInfo())).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for one in calls:
        one.cancel()


async def test_a_call_too_many_is_told_in_the_words_that_the_client_knows(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CALLS_MAX", 1)
    async with serving(tmp_path) as service:
        first = service.store.Upload()
        await first.write(
            bundle_store_pb2.UploadRequest(
                header=bundle_store_pb2.BlobHeader(digest="sha256:" + "0" * 64, size_bytes=1)
            )
        )
        async with asyncio.timeout(30):
            while not service.stores.of("local")._writers:
                await asyncio.sleep(0.01)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.runner.GetCapabilities(script_runner_pb2.GetCapabilitiesRequest())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "Concurrent RPC limit exceeded" in (caught.value.details() or "")
        first.cancel()
