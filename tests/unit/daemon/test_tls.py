"""Who calls over TCP: the common name of a certificate that the operator's authority signed."""

import asyncio
import pathlib
from typing import Any

import grpc
import pytest
from attack_table import Seen
from skilljail.v1 import bundle_store_pb2, bundle_store_pb2_grpc, script_runner_pb2, script_runner_pb2_grpc
from skilljaild.bundles.digest import digest_of
from skilljaild.errors import Reason, Refusal
from skilljaild.service.identity import LOCAL_TENANT, tenant_of

from .certificates import Authority, Identity
from .fake_service import Service, reason_of, serving
from .orders import SKILL_MD


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The operator's authority."""
    return Authority(tmp_path_factory.mktemp("tls"), "operator")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    """The daemon's own certificate."""
    return authority.issue("server", "/CN=runner")


def settings(authority: Authority, server: Identity) -> dict[str, Any]:
    """The configuration of a daemon on TCP."""
    return {
        "listen": "localhost:0",
        "tls": {
            "certificate_file": str(server.certificate),
            "key_file": str(server.key),
            "client_ca_file": str(authority.certificate),
        },
    }


def channel(service: Service, authority: Authority, caller: Identity | None) -> grpc.aio.Channel:
    """A connection of somebody who trusts `authority` and shows a certificate, or none."""
    credentials = grpc.ssl_channel_credentials(
        authority.certificate.read_bytes(),
        *((caller.key.read_bytes(), caller.certificate.read_bytes()) if caller else ()),
    )
    return grpc.aio.secure_channel(service.address, credentials)


async def code(connection: grpc.aio.Channel) -> grpc.StatusCode:
    """How a plain call ends."""
    stub: Any = script_runner_pb2_grpc.ScriptRunnerServiceStub(connection)
    call = stub.GetCapabilities(script_runner_pb2.GetCapabilitiesRequest(), timeout=60)
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_without_a_certificate_of_the_operators_authority_nobody_gets_in(
    authority: Authority, server: Identity, tmp_path: pathlib.Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with serving(tmp_path, **settings(authority, server)) as service:
        # Same name, same subject, another authority.
        for caller in (None, stranger.issue("alice", "/CN=alice")):
            async with channel(service, authority, caller) as connection:
                assert await code(connection) is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.insecure_channel(service.address) as connection:
            assert await code(connection) is grpc.StatusCode.UNAVAILABLE
        async with channel(service, authority, authority.issue("alice", "/CN=alice")) as connection:
            assert await code(connection) is grpc.StatusCode.OK


async def test_a_caller_can_tell_a_false_daemon(authority: Authority, tmp_path: pathlib.Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    false = settings(authority, stranger.issue("server", "/CN=runner"))
    async with (
        serving(tmp_path, **false) as service,
        channel(service, authority, authority.issue("alice", "/CN=alice")) as connection,
    ):
        assert await code(connection) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.attack(87, "another tenant's run and blob", expected="RUN_NOT_FOUND, missing")
async def test_the_common_name_is_the_tenant_and_tenants_share_nothing(
    authority: Authority, server: Identity, tmp_path: pathlib.Path, seen: Seen
) -> None:
    request = script_runner_pb2.RunScriptRequest(
        request_id="r1",
        script_path="run.py",
        files=[
            script_runner_pb2.InputFile(path="SKILL.md", content=SKILL_MD),
            script_runner_pb2.InputFile(path="run.py", content=b""),
        ],
    )
    blob = b"alice's own"
    async with (
        serving(tmp_path, **settings(authority, server)) as service,
        channel(service, authority, authority.issue("alice", "/O=x/CN=alice")) as alice,
        channel(service, authority, authority.issue("bob", "/O=x/CN=bob")) as bob,
    ):
        hers: Any = script_runner_pb2_grpc.ScriptRunnerServiceStub(alice)
        his: Any = script_runner_pb2_grpc.ScriptRunnerServiceStub(bob)
        run_id = ""
        async for answer in hers.RunScript(request):
            run_id = answer.event.run_id
        assert service.registry.get("cn:alice", run_id).tenant == "cn:alice"
        assert (await hers.GetRun(script_runner_pb2.GetRunRequest(run_id=run_id))).run.run_id == run_id
        for call in (
            his.GetRun(script_runner_pb2.GetRunRequest(run_id=run_id)),
            his.CancelRun(script_runner_pb2.CancelRunRequest(run_id=run_id)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert reason_of(caught.value)[1] == "RUN_NOT_FOUND"
        assert not (await his.ListRuns(script_runner_pb2.ListRunsRequest())).runs
        # Her request id is not taken for him.
        async for answer in his.RunScript(request):
            assert answer.event.run_id != run_id
        store: Any = bundle_store_pb2_grpc.BundleStoreServiceStub(alice)
        await store.Upload(
            iter(
                [
                    bundle_store_pb2.UploadRequest(
                        header=bundle_store_pb2.BlobHeader(digest=digest_of(blob), size_bytes=len(blob))
                    ),
                    bundle_store_pb2.UploadRequest(data=blob),
                ]
            )
        )
        question = bundle_store_pb2.FindMissingRequest(digests=[digest_of(blob)])
        for connection, missing in ((alice, []), (bob, [digest_of(blob)])):
            stub: Any = bundle_store_pb2_grpc.BundleStoreServiceStub(connection)
            assert (await stub.FindMissing(question)).missing_digests == missing
    seen(reason_of(caught.value)[1])


async def test_a_certificate_without_a_name_is_no_tenant(
    authority: Authority, server: Identity, tmp_path: pathlib.Path
) -> None:
    nameless = authority.issue("nameless", "/O=x")
    async with (
        serving(tmp_path, **settings(authority, server)) as service,
        channel(service, authority, nameless) as connection,
    ):
        stub: Any = script_runner_pb2_grpc.ScriptRunnerServiceStub(connection)
        store: Any = bundle_store_pb2_grpc.BundleStoreServiceStub(connection)
        for call in (
            stub.GetCapabilities(script_runner_pb2.GetCapabilitiesRequest()),
            stub.ListRuns(script_runner_pb2.ListRunsRequest()),
            stub.GetRun(script_runner_pb2.GetRunRequest()),
            stub.CancelRun(script_runner_pb2.CancelRunRequest()),
            stub.RunScript(script_runner_pb2.RunScriptRequest()).read(),
            store.FindMissing(bundle_store_pb2.FindMissingRequest()),
            store.Upload(iter([bundle_store_pb2.UploadRequest(data=b"x")])),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert reason_of(caught.value) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", {})
        assert service.engine.calls == []


class Context:
    """A call with an authentication context."""

    def __init__(self, *names: bytes) -> None:
        self._names = names

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": list(self._names)} if self._names else {}


def tenant(*names: bytes, tls: bool = True) -> str:
    """The tenant of a call."""
    context: Any = Context(*names)
    return tenant_of(context, tls=tls)


def test_without_tls_everybody_is_the_local_tenant() -> None:
    assert tenant(tls=False) == tenant(b"alice", tls=False) == LOCAL_TENANT


def test_no_common_name_can_pass_for_the_local_tenant_or_for_another() -> None:
    assert tenant(b"alice") == "cn:alice"
    assert tenant(LOCAL_TENANT.encode()) != LOCAL_TENANT
    assert len({tenant(name) for name in (b"a\xff", b"a", b"A", "ä".encode(), b"a ")}) == 5


@pytest.mark.parametrize("names", [(), (b"",), (b"alice", b"bob")])
def test_no_single_common_name_is_no_tenant(names: tuple[bytes, ...]) -> None:
    with pytest.raises(Refusal) as caught:
        tenant(*names)
    assert caught.value.reason is Reason.UNAUTHENTICATED


async def test_key_and_certificate_that_cannot_be_read_are_told(
    authority: Authority, server: Identity, tmp_path: pathlib.Path
) -> None:
    wrong = settings(authority, server)
    wrong["tls"]["key_file"] = str(tmp_path / "nowhere.key")
    service = Service(tmp_path, **wrong)
    with pytest.raises(Exception, match=r"tls\.key_file: .*nowhere\.key cannot be read"):
        await service.server.start()
    await asyncio.wait_for(service.server.stop(), 30)
