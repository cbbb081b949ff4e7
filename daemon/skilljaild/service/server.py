"""The gRPC server: where it listens, its bounds, health and reflection."""

import contextlib
import os
import pathlib
import socket
import ssl
import stat
from collections.abc import Iterator

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from skilljail.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    bundle_store_pb2,
    bundle_store_pb2_grpc,
    script_runner_pb2,
    script_runner_pb2_grpc,
)

from skilljaild.config import Config, TlsConfig
from skilljaild.service.admin import Admin
from skilljaild.service.bounded_calls import REQUEST_BYTES_MAX, BoundedCalls
from skilljaild.service.bundle_store import BundleStore
from skilljaild.service.script_runner import ScriptRunner

__all__ = ["ListenError", "Server", "check_tls_files"]

STREAMS_MAX = 1_000
"""Calls of one connection at one time."""
CALLS_MAX = 2_000
"""Calls at one time; a further one gets RESOURCE_EXHAUSTED from gRPC itself."""

_OPTIONS = [
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_send_message_length", REQUEST_BYTES_MAX),
    # 1 << the algorithm, which is none: a request is never larger than what came over the wire.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_concurrent_streams", STREAMS_MAX),
    ("grpc.so_reuseport", 0),
    # A peer that vanished without a word is noticed within some seconds, and its runs end.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

_RUNNER = script_runner_pb2.DESCRIPTOR.services_by_name["ScriptRunnerService"].full_name
_STORE = bundle_store_pb2.DESCRIPTOR.services_by_name["BundleStoreService"].full_name
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name


class ListenError(Exception):
    """The address cannot be used; the message says what to do."""


class Server:
    """The services on one address."""

    def __init__(self, config: Config, runner: ScriptRunner, store: BundleStore, admin: Admin) -> None:
        self._config = config
        self._socket: pathlib.Path | None = None
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            interceptors=[BoundedCalls()], options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX
        )
        script_runner_pb2_grpc.add_ScriptRunnerServiceServicer_to_server(runner, self._server)
        bundle_store_pb2_grpc.add_BundleStoreServiceServicer_to_server(store, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (_RUNNER, _STORE, _ADMIN, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> str:
        """Listens and reports SERVING. Returns the address. Raises ListenError."""
        listen = self._config.listen
        try:
            if listen.startswith("unix:"):
                address = self._listen_unix(pathlib.Path(listen.removeprefix("unix:").removeprefix("//")))
            elif self._config.tls is not None:
                port = self._server.add_secure_port(listen, _credentials(self._config.tls))
                address = f"{listen.rpartition(':')[0]}:{port}"
            else:
                address = f"{listen.rpartition(':')[0]}:{self._server.add_insecure_port(listen)}"
        except (OSError, RuntimeError) as error:
            raise ListenError(f"cannot listen on {listen}: {error}; name another address with --listen") from error
        await self._server.start()
        await self._serving(health_pb2.HealthCheckResponse.SERVING)
        return address

    def _listen_unix(self, path: pathlib.Path) -> str:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _remove_stale(path)
        mode = int(self._config.socket_mode, 8)
        with _umask(0o777 & ~mode):  # never more open than asked for, not even for a moment
            self._server.add_insecure_port(f"unix:{path}")
        path.chmod(mode)
        self._socket = path
        return f"unix:{path}"

    async def drain(self) -> None:
        """Reports NOT_SERVING, so that balancers send nobody here any more."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Stops listening and ends the calls that are left."""
        await self._server.stop(grace=1.0)
        if self._socket is not None:
            _remove(self._socket)

    async def _serving(self, status: int) -> None:
        for service in ("", _RUNNER, _STORE, _ADMIN):
            await self._health.set(service, status)


def _credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """TLS in both directions: without a certificate of the client CA nobody gets in. Raises ListenError."""
    check_tls_files(tls)
    return grpc.ssl_server_credentials(
        [(tls.key_file.read_bytes(), tls.certificate_file.read_bytes())],
        root_certificates=tls.client_ca_file.read_bytes(),
        require_client_auth=True,
    )


def check_tls_files(tls: TlsConfig) -> None:
    """Raises ListenError naming the setting whose file is at fault; gRPC would only say that it cannot listen."""
    for name, path in tls:
        try:
            path.read_bytes()
        except OSError as error:
            raise ListenError(f"tls.{name}: {path} cannot be read ({error.strerror})") from error
    for name, path in (("certificate_file", tls.certificate_file), ("client_ca_file", tls.client_ca_file)):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
        except ssl.SSLError as error:
            raise ListenError(f"tls.{name}: {path} holds no certificate as PEM") from error
    try:  # a password, lest OpenSSL ask the terminal for one
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate_file, tls.key_file, password="")
    except ssl.SSLError as error:
        fault = "is not the key of tls.certificate_file" if "MISMATCH" in str(error) else "holds no private key as PEM"
        raise ListenError(f"tls.key_file: {tls.key_file} {fault}") from error


def _remove(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _remove_stale(path: pathlib.Path) -> None:
    """Removes the socket that a killed daemon left. Raises ListenError when it is in use or no socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ListenError(f"{path} is there and is no socket; name another address with --listen")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise ListenError(f"another daemon listens on {path}; stop it, or name another address with --listen")


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
