"""`AdminService` on a socket, over an engine in memory."""

import pathlib
from typing import Any

import grpc
import pytest
from skilljail.v1 import admin_pb2, admin_pb2_grpc, posture_pb2
from skilljaild.engines.base import EngineUnavailable
from skilljaild.service.identity import check_operator

from .certificates import Authority, Identity
from .fake_service import reason_of, serving
from .probed import probed
from .test_tls import authority, channel, server, settings

__all__ = ["authority", "server"]


async def failure(stub: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """How a self-test is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.SelfTest(admin_pb2.SelfTestRequest(), timeout=20)
    return reason_of(caught.value)


async def test_whoever_has_the_socket_gets_the_whole_posture(tmp_path: pathlib.Path) -> None:
    async with serving(tmp_path, isolation={"minimum": "gvisor", "strict": True}) as service:
        service.engine.init = probed(no_bpf="it worked (3)")
        answer = await service.admin.SelfTest(admin_pb2.SelfTestRequest(), timeout=20)
        posture = answer.posture
        assert service.engine.live == {}
    assert abs(posture.time.seconds) > 1_700_000_000
    assert (posture.engine, posture.engine_version, posture.runtime, posture.runtime_version, posture.kernel) == (
        "Docker",
        "29.7.0",
        "runc",
        "1.3.4",
        "6.18",
    )
    assert (posture.isolation_level, posture.isolation_minimum, posture.strict, posture.cgroup_version) == (
        posture_pb2.ISOLATION_LEVEL_CONTAINER,
        posture_pb2.ISOLATION_LEVEL_GVISOR,
        True,
        2,
    )
    (finding,) = posture.findings
    assert (finding.severity, finding.subject, finding.message) == (
        posture_pb2.SEVERITY_WARNING,
        "no LSM",
        "load one",
    )
    assert [one.interpreter for one in posture.images] == ["python", "node", "bash", "pwsh"]
    for image in posture.images:
        assert (image.passed, image.fault, image.image_digest) == (False, "", "sha256:" + "a" * 64)
        assert image.isolation_level == posture_pb2.ISOLATION_LEVEL_CONTAINER
        assert image.duration.seconds + image.duration.nanos > 0
        assert [(one.name, one.seen) for one in image.controls if not one.holds] == [("no bpf", "it worked (3)")]


async def test_on_insecure_loopback_everybody_is_an_operator(tmp_path: pathlib.Path) -> None:
    async with serving(tmp_path, listen="127.0.0.1:0", insecure=True) as service:
        service.engine.init = probed()
        answer = await service.admin.SelfTest(admin_pb2.SelfTestRequest(), timeout=20)
        assert all(image.passed for image in answer.posture.images)


@pytest.mark.parametrize(
    ("tenants", "name", "passes"), [("", "ops", False), ("ops, sre", "sre", True), ("ops", "op", False)]
)
async def test_over_tls_only_the_operators_tenants_pass(
    authority: Authority, server: Identity, tmp_path: pathlib.Path, tenants: str, name: str, passes: bool
) -> None:
    asked = settings(authority, server) | {"admin": {"tenants": tenants}}
    async with (
        serving(tmp_path, **asked) as service,
        channel(service, authority, authority.issue(name, f"/CN={name}")) as connection,
    ):
        service.engine.init = probed()
        stub: Any = admin_pb2_grpc.AdminServiceStub(connection)
        if passes:
            assert (await stub.SelfTest(admin_pb2.SelfTestRequest(), timeout=20)).posture.images
        else:
            assert (await failure(stub))[:2] == (grpc.StatusCode.PERMISSION_DENIED, "OPERATOR_ONLY")
            assert service.engine.calls == []


async def test_a_certificate_without_a_name_is_no_operator(
    authority: Authority, server: Identity, tmp_path: pathlib.Path
) -> None:
    asked = settings(authority, server) | {"admin": {"tenants": ","}}
    async with (
        serving(tmp_path, **asked) as service,
        channel(service, authority, authority.issue("nameless-op", "/O=x")) as connection,
    ):
        stub: Any = admin_pb2_grpc.AdminServiceStub(connection)
        assert (await failure(stub))[:2] == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")


async def test_an_engine_that_is_away_is_a_status_with_a_time_to_come_again(tmp_path: pathlib.Path) -> None:
    async with serving(tmp_path) as service:
        service.engine.faults["probe"] = EngineUnavailable("no engine answers; start it")
        assert (await failure(service.admin))[:2] == (grpc.StatusCode.UNAVAILABLE, "ENGINE_UNAVAILABLE")


def test_the_refusal_names_the_mend() -> None:
    class Context:
        def auth_context(self) -> dict[str, list[bytes]]:
            return {"x509_common_name": [b"alice"]}

    context: Any = Context()
    with pytest.raises(Exception, match=r"admin\.tenants"):
        check_operator(context, ("bob",), tls=True)
    check_operator(context, ("bob", "alice"), tls=True)
    check_operator(context, (), tls=False)
