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
from skilljaild.egress.dialler import SystemDialler
from skilljaild.engines.base import Engine, EngineError, EngineReport, EngineUnavailable
from skilljaild.engines.docker import DockerEngine
from skilljaild.engines.floor import container_floor
from skilljaild.errors import Refusal
from skilljaild.instance import instance
from skilljaild.interpreters import INTERPRETERS
from skilljaild.posture.examiner import Examiner
from skilljaild.posture.posture import Demands, Posture
from skilljaild.posture.self_test import SelfTest
from skilljaild.reaper import Reaper
from skilljaild.runs.admission import Admission
from skilljaild.runs.level import IsolationLevel
from skilljaild.runs.registry import RunRegistry
from skilljaild.runs.run import RunContext
from skilljaild.secrets.keeper import SecretKeeper
from skilljaild.service.admin import Admin
from skilljaild.service.bundle_store import BundleStore
from skilljaild.service.script_runner import ScriptRunner
from skilljaild.service.server import Server

__all__ = ["PostureError", "make_engine", "make_examiner", "serve"]

log = structlog.get_logger()


class PostureError(Exception):
    """This host lacks what every run needs, or what the operator demands; the message names each thing and its mend."""


def make_engine(config: EngineConfig) -> Engine:
    """The engine of the configuration. Nothing is contacted yet."""
    return DockerEngine(config.url, config.runtime, config.timeout_seconds)


def make_examiner(config: Config, engine: Engine, owner: str, catalogue: Catalogue, admission: Admission) -> Examiner:
    """What tests the host, with the demands of the configuration."""
    demands = Demands(IsolationLevel[config.isolation.minimum.upper()], config.isolation.strict)
    self_test = SelfTest(engine, owner, config.limits.ceiling.limits(), admission)
    return Examiner(engine, catalogue, admission, self_test, demands)


async def serve(config: Config) -> None:
    """Runs the daemon until SIGTERM or SIGINT.

    Raises StateError, EngineUnavailable, PostureError, SecretsError or ListenError when it cannot start.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold secrets that are on their way
    secrets = SecretKeeper(config.secrets)
    for name, file in secrets.absent.items():
        log.warning("secret is not there yet", secret=name, file=file)
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
    return report


async def _self_test(config: Config, examiner: Examiner, report: EngineReport, stop: asyncio.Event) -> bool:
    """Refuses to start where the walls do not hold. False when the daemon was stopped meanwhile."""
    test = asyncio.create_task(examiner.at_start(report, config.admission.concurrent_runs), name="self-test")
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([test, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (test, stopped):
            task.cancel()
        await asyncio.wait([test, stopped])
    if test.cancelled():
        return False
    posture = _engine_error_of(test)
    _tell(posture)
    if posture.faults:
        lines = "\n".join(f"  {one}" for one in posture.faults)
        raise PostureError(f"This host does not hold what scripts need. `skilljaild doctor` tells more.\n{lines}")
    return True


def _engine_error_of(test: asyncio.Task[Posture]) -> Posture:
    """The result. Raises EngineUnavailable for an engine that went away, as everything does at start."""
    try:
        return test.result()
    except Refusal as refusal:
        raise EngineUnavailable(refusal.message) from refusal


def _tell(posture: Posture) -> None:
    """The posture in short, and loudly what is wrong with it."""
    report = posture.report
    log.info(
        "posture",
        isolation=posture.level.name.lower() if posture.level else "unproven",
        engine=f"{report.product} {report.version}",
        runtime=f"{report.runtime} {report.runtime_version}".strip(),
        kernel=report.kernel,
        cgroup=report.cgroup_version,
        passed=[test.interpreter for test in posture.images if test.passed],
        failed=[test.interpreter for test in posture.images if not test.passed],
        missing=[name for name in INTERPRETERS if name not in {test.interpreter for test in posture.images}],
    )
    for finding in posture.findings:
        log.warning("posture", severity=finding.severity.name, finding=finding.text)


async def _serve(
    config: Config, engine: Engine, report: EngineReport, owner: str, secrets: SecretKeeper, stop: asyncio.Event
) -> None:
    registry = RunRegistry(config.admission.remembered_runs)
    admission = Admission(config.admission.concurrent_runs, config.admission.queued_runs)
    catalogue = Catalogue(config.images, engine)
    examiner = make_examiner(config, engine, owner, catalogue, admission)
    reaper = Reaper(engine, owner, admission, registry, examiner)
    await reaper.sweep()
    if not await _self_test(config, examiner, report, stop):
        return
    stores = BlobStores(config.state_directory / "blobs", config.bundles.store_bytes)
    runner = ScriptRunner(
        config,
        RunContext(engine, report, owner, admission, examiner, secrets, SystemDialler),
        stores,
        catalogue,
        registry,
    )
    server = Server(config, runner, BundleStore(stores, tls=config.tls is not None), Admin(config, examiner))
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
