"""The daemon's services on a socket of this process, over an engine in memory."""

import contextlib
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from skilljail.v1 import admin_pb2_grpc, bundle_store_pb2_grpc, script_runner_pb2_grpc
from skilljaild.bundles.store import BlobStores
from skilljaild.catalogue import Catalogue
from skilljaild.config import load
from skilljaild.daemon import make_examiner
from skilljaild.runs.admission import Admission
from skilljaild.runs.registry import RunRegistry
from skilljaild.runs.run import RunContext
from skilljaild.secrets.keeper import SecretKeeper
from skilljaild.service.admin import Admin
from skilljaild.service.bundle_store import BundleStore
from skilljaild.service.script_runner import ScriptRunner
from skilljaild.service.server import Server

from .fake_engine import REPORT, FakeEngine
from .open_gate import OpenGate

__all__ = ["Service", "reason_of", "serving"]


class Service:
    """The services as the daemon puts them together, without a process of their own."""

    def __init__(self, directory: pathlib.Path, **settings: Any) -> None:
        self.directory = directory
        self.engine = FakeEngine()
        flags: dict[str, Any] = {"listen": f"unix:{directory}/s.sock", "state_directory": str(directory / "state")}
        self.config = load(None, flags | settings)
        self.registry = RunRegistry(self.config.admission.remembered_runs)
        admission = Admission(self.config.admission.concurrent_runs, self.config.admission.queued_runs)
        self.stores = BlobStores(directory / "blobs", self.config.bundles.store_bytes)
        self.gate = OpenGate()
        catalogue = Catalogue(self.config.images, self.engine)
        runner = ScriptRunner(
            self.config,
            RunContext(self.engine, REPORT, "owner", admission, self.gate, SecretKeeper(self.config.secrets)),
            self.stores,
            catalogue,
            self.registry,
        )
        store = BundleStore(self.stores, tls=self.config.tls is not None)
        admin = Admin(self.config, make_examiner(self.config, self.engine, "owner", catalogue, admission))
        self.server = Server(self.config, runner, store, admin)
        self.address = ""
        self.channel: grpc.aio.Channel | None = None

    def _connection(self) -> grpc.aio.Channel:
        if self.channel is None:
            self.channel = grpc.aio.insecure_channel(self.address)
        return self.channel

    @property
    def runner(self) -> Any:
        """A stub of ScriptRunnerService."""
        return script_runner_pb2_grpc.ScriptRunnerServiceStub(self._connection())

    @property
    def admin(self) -> Any:
        """A stub of AdminService."""
        return admin_pb2_grpc.AdminServiceStub(self._connection())

    @property
    def store(self) -> Any:
        """A stub of BundleStoreService."""
        return bundle_store_pb2_grpc.BundleStoreServiceStub(self._connection())


@contextlib.asynccontextmanager
async def serving(directory: pathlib.Path, **settings: Any) -> AsyncIterator[Service]:
    """Services that answer at `Service.address`."""
    service = Service(directory, **settings)
    service.address = await service.server.start()
    try:
        yield service
    finally:
        await service.registry.close(0)
        if service.channel is not None:
            await service.channel.close()
        await service.server.stop()
        await service.engine.close()


def reason_of(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Code, ErrorInfo's reason and metadata of a call that failed."""
    details = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    assert isinstance(details, bytes)
    status = status_pb2.Status.FromString(details)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "skilljail"
    return error.code(), info.reason, dict(info.metadata)
