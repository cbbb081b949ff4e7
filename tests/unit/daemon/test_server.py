"""Where the daemon listens."""

import asyncio
import os
import pathlib
import socket
import stat
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from skilljail.v1 import script_runner_pb2
from skilljaild.service import server as module
from skilljaild.service.server import ListenError

from .certificates import Authority
from .fake_service import Service, serving


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> pathlib.Path:
    """A short path: a socket's name has at most 107 bytes."""
    assert len(str(tmp_path)) < 80
    return tmp_path


async def answers(service: Service) -> bool:
    """Whether the daemon tells its version."""
    answer = await service.runner.GetCapabilities(script_runner_pb2.GetCapabilitiesRequest())
    return bool(answer.daemon_version)


async def refused(directory: pathlib.Path, **settings: object) -> str:
    """Why an address cannot be used."""
    service = Service(directory, **settings)
    try:
        with pytest.raises(ListenError) as caught:
            await service.server.start()
    finally:
        await service.server.stop()
    return str(caught.value)


@pytest.mark.parametrize(("setting", "mode"), [("600", 0o600), ("0660", 0o660), ("666", 0o666)])
async def test_the_socket_has_the_mode_that_was_asked_for(directory: pathlib.Path, setting: str, mode: int) -> None:
    before = os.umask(0o027)
    try:
        async with serving(directory, socket_mode=setting) as service:
            assert stat.S_IMODE((directory / "s.sock").stat().st_mode) == mode
            assert await answers(service)
            assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


async def test_the_socket_is_at_no_moment_more_open_than_asked_for(
    directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    chmod = pathlib.Path.chmod

    def watched(path: pathlib.Path, mode: int) -> None:
        seen.append(stat.S_IMODE(path.stat().st_mode))
        chmod(path, mode)

    monkeypatch.setattr(pathlib.Path, "chmod", watched)
    async with serving(directory):
        assert seen == [0o600]


async def test_missing_directories_are_made_and_the_socket_is_removed_at_the_end(directory: pathlib.Path) -> None:
    path = directory / "run" / "a" / "s.sock"
    async with serving(directory, listen=f"unix://{path}") as service:
        assert service.address == f"unix:{path}"
        assert await answers(service)
    assert path.parent.is_dir()
    assert not path.exists()


async def test_the_socket_that_a_killed_daemon_left_is_replaced(directory: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(f"{directory}/s.sock")
    assert (directory / "s.sock").is_socket()
    async with serving(directory) as service:
        assert await answers(service)


async def test_a_socket_that_another_daemon_listens_on_is_left_alone(directory: pathlib.Path) -> None:
    async with serving(directory) as first:
        assert await refused(directory) == (
            f"another daemon listens on {directory}/s.sock; stop it, or name another address with --listen"
        )
        assert await answers(first)


@pytest.mark.parametrize("kind", ["file", "directory", "link to a file", "dangling link"])
async def test_what_is_no_socket_is_left_alone(directory: pathlib.Path, kind: str) -> None:
    path = directory / "s.sock"
    match kind:
        case "file":
            path.write_text("precious")
        case "directory":
            path.mkdir()
        case "link to a file":
            (directory / "precious").write_text("precious")
            path.symlink_to(directory / "precious")
        case _:
            path.symlink_to(directory / "nowhere")
    assert await refused(directory) == f"{path} is there and is no socket; name another address with --listen"
    assert path.lstat()  # noqa: ASYNC240  no other name for "still there, whatever it points to"


async def test_a_socket_that_cannot_be_asked_is_not_taken_for_a_stale_one(
    directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{directory}/s.sock")

    class Forbidden(socket.socket):
        def connect(self, _: object) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.socket, "socket", Forbidden)  # type: ignore[attr-defined]
    assert await refused(directory) == (
        f"cannot listen on unix:{directory}/s.sock: [Errno 13] Permission denied; name another address with --listen"
    )
    assert (directory / "s.sock").is_socket()


async def test_a_directory_that_cannot_be_made_is_named(directory: pathlib.Path) -> None:
    (directory / "file").write_text("")
    message = await refused(directory, listen=f"unix:{directory}/file/s.sock")
    assert message.startswith(f"cannot listen on unix:{directory}/file/s.sock: ")
    assert message.endswith("; name another address with --listen")


async def test_a_port_of_0_is_any_free_one_and_is_told(directory: pathlib.Path) -> None:
    async with serving(directory, listen="127.0.0.1:0", insecure=True) as service:
        host, _, port = service.address.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        assert await answers(service)


async def test_a_port_that_is_taken_is_refused(directory: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert (await refused(directory, listen=listen, insecure=True)).startswith(f"cannot listen on {listen}: ")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """The files of a good `[tls]` table."""
    authority = Authority(tmp_path_factory.mktemp("tls"), "operator")
    identity = authority.issue("server", "/CN=runner")
    return {
        "certificate_file": identity.certificate,
        "key_file": identity.key,
        "client_ca_file": authority.certificate,
    }


TLS_FILES = {"certificate_file": "certificate", "key_file": "private key", "client_ca_file": "certificate"}


@pytest.mark.parametrize("name", TLS_FILES)
async def test_a_tls_file_that_cannot_be_used_is_named(
    directory: pathlib.Path, tls: dict[str, pathlib.Path], name: str
) -> None:
    path = directory / "file.pem"
    files = tls | {name: path}
    assert await refused(directory, listen="127.0.0.1:0", tls=files) == (
        f"tls.{name}: {path} cannot be read (No such file or directory)"
    )
    for content in (b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        path.write_bytes(content)
        assert await refused(directory, listen="127.0.0.1:0", tls=files) == (
            f"tls.{name}: {path} holds no {TLS_FILES[name]} as PEM"
        )


async def test_the_key_of_another_certificate_is_told(
    directory: pathlib.Path, tls: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    other = Authority(tmp_path, "other").issue("other", "/CN=other")
    message = await refused(directory, listen="127.0.0.1:0", tls=tls | {"key_file": other.key})
    assert message == f"tls.key_file: {other.key} is not the key of tls.certificate_file"


async def test_a_taken_port_is_told_as_such_with_tls_too(directory: pathlib.Path, tls: dict[str, pathlib.Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        message = await refused(directory, listen=listen, tls=tls)
    assert message.startswith(f"cannot listen on {listen}: ")
    assert message.endswith("; name another address with --listen")


async def health(service: Service, name: str) -> int:
    """What the health service says of a service."""
    assert service.channel is not None
    stub: Any = health_pb2_grpc.HealthStub(service.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    return int(answer.status)


async def test_health_is_serving_until_the_daemon_drains(directory: pathlib.Path) -> None:
    names = [
        "",
        *("skilljail.v1.ScriptRunnerService", "skilljail.v1.BundleStoreService", "skilljail.v1.AdminService"),
    ]
    async with serving(directory) as service:
        assert await answers(service)
        assert [await health(service, name) for name in names] == [health_pb2.HealthCheckResponse.SERVING] * 4
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(service, "skilljail.v1.Nothing")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await service.server.drain()
        assert [await health(service, name) for name in names] == [health_pb2.HealthCheckResponse.NOT_SERVING] * 4
        # Calls that are under way, and their cancelling, still work.
        assert await answers(service)


async def test_reflection_names_every_service(directory: pathlib.Path) -> None:
    async with serving(directory) as service:
        assert await answers(service)
        connection: Any = service.channel
        messages: Any = reflection_pb2
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(connection)
        call = stub.ServerReflectionInfo(iter([messages.ServerReflectionRequest(list_services="")]))
        async for answer in call:
            assert sorted(one.name for one in answer.list_services_response.service) == [
                "grpc.health.v1.Health",
                "grpc.reflection.v1alpha.ServerReflection",
                "skilljail.v1.AdminService",
                "skilljail.v1.BundleStoreService",
                "skilljail.v1.ScriptRunnerService",
            ]
            break
        call.cancel()


async def test_stopping_ends_calls_that_are_left(directory: pathlib.Path) -> None:
    async with serving(directory) as service:
        assert await answers(service)
        assert service.channel is not None
        stub: Any = health_pb2_grpc.HealthStub(service.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        stopping = asyncio.create_task(service.server.stop())
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await asyncio.wait_for(watch.read(), 30)
        await asyncio.wait_for(stopping, 30)
