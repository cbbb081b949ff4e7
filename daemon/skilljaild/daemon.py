"""The daemon as a whole: puts the parts together, starts them in order, and takes them down in the opposite one."""

import asyncio
import contextlib
import resource
import signal

import structlog

from skilljaild import __version__
from skilljaild.bundles.store import BlobStores
from skilljaild.catalogue import Catalogue
from skilljaild.config import Config, EngineConfig
from skilljaild.engines.base import Engine, EngineError, EngineReport
from skilljaild.engines.docker import DockerEngine
from skilljaild.engines.floor import container_floor
from skilljaild.instance import instance
from skilljaild.reaper import Reaper
from skilljaild.runs.admission import Admission
from skilljaild.runs.registry import RunRegistry
from skilljaild.runs.run import RunContext
from skilljaild.secrets.keeper import SecretKeeper
from skilljaild.service.bundle_store import BundleStore
from skilljaild.service.script_runner import ScriptRunner
from skilljaild.service.server import Server

__all__ = ["PostureError", "make_engine", "serve"]

log = structlog.get_logger()


class PostureError(Exception):
    """This host lacks what every run needs; the message names each thing and its mend."""


def make_engine(config: EngineConfig) -> Engine:
    """The engine of the configuration. Nothing is contacted yet."""
    return DockerEngine(config.url, config.runtime, config.timeout_seconds)


async def serve(config: Config) -> None:
    """Runs the daemon until SIGTERM or SIGINT.

    Raises StateError, EngineUnavailable, PostureError, SecretsError or ListenError when it cannot start.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold secrets that are on their way
    secrets = SecretKeeper(config.secrets)
    stop = _stop_signal()
    container_floor()  # a broken floor stops the daemon here, not the first run
    with instance(config.state_directory) as owner:
        engine = make_engine(config.engine)
        try:
            report = await _probe(engine)
            await _serve(config, engine, report, owner, secrets, stop)
        finally:
            await engine.close()


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _probe(engine: Engine) -> EngineReport:
    """Refuses to start where a control that every run needs is missing."""
    report = await engine.probe()
    if report.missing:
        lines = "\n".join(f"  {one}" for one in report.missing)
        raise PostureError(f"This engine cannot hold what every run needs. It lacks:\n{lines}")
    for warning in report.warnings:
        log.warning("posture", engine=report.product, warning=warning)
    return report


async def _serve(
    config: Config, engine: Engine, report: EngineReport, owner: str, secrets: SecretKeeper, stop: asyncio.Event
) -> None:
    registry = RunRegistry(config.admission.remembered_runs)
    reaper = Reaper(engine, owner, registry)
    await reaper.sweep()
    admission = Admission(config.admission.concurrent_runs, config.admission.queued_runs)
    stores = BlobStores(config.state_directory / "blobs", config.bundles.store_bytes)
    runner = ScriptRunner(
        config,
        RunContext(engine, report, owner, admission, secrets),
        stores,
        Catalogue(config.images, engine),
        registry,
    )
    server = Server(config, runner, BundleStore(stores, tls=config.tls is not None))
    address = await server.start()
    watch = asyncio.create_task(reaper.watch(), name="reaper")
    log.info("listening", address=address, version=__version__, engine=f"{report.product} {report.version}")
    try:
        await stop.wait()
    finally:
        log.info("stopping", runs=len(registry.under_way()), grace_seconds=config.shutdown_grace_seconds)
        await server.drain()
        await registry.close(config.shutdown_grace_seconds)
        await server.stop()
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        with contextlib.suppress(EngineError):  # the engine is away; the next start sweeps first
            await reaper.sweep()
    log.info("stopped")
