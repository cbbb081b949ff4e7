"""`ScriptRunnerService`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
from skilljail.v1 import script_runner_pb2, script_runner_pb2_grpc

from skilljaild import __version__
from skilljaild.bundles.store import BlobStores
from skilljaild.catalogue import Catalogue
from skilljaild.config import Config
from skilljaild.errors import Reason, Refusal
from skilljaild.interpreters import INTERPRETERS
from skilljaild.runs.events import Outcome
from skilljaild.runs.order import OrderDesk
from skilljaild.runs.registry import RunRegistry
from skilljaild.runs.run import Run, RunContext
from skilljaild.service.convert import event_message, limits_message, run_message, run_request
from skilljaild.service.convert_posture import level_number
from skilljaild.service.identity import tenant_of
from skilljaild.service.status import refusing_stream, refusing_unary

__all__ = ["ScriptRunner"]

HEARTBEAT_SECONDS = 5.0
CHECKS_MAX = 4
"""Requests that are checked at one time: each may unfold a manifest of many megabytes."""
PAGE_DEFAULT = 50
PAGE_MAX = 500
PAGE_BYTES = 1024 * 1024
"""Clients take 4 MiB at most."""
DELIVERY_SECONDS = 60.0
"""How long a caller may take to read what is left when its run is over."""

Context = grpc.aio.ServicerContext[Any, Any]


class ScriptRunner(script_runner_pb2_grpc.ScriptRunnerServiceServicer):
    """See `proto/skilljail/v1/script_runner.proto`."""

    def __init__(
        self,
        config: Config,
        context: RunContext,
        stores: BlobStores,
        catalogue: Catalogue,
        registry: RunRegistry,
    ) -> None:
        self._config = config
        self._context = context
        self._stores = stores
        self._catalogue = catalogue
        self._registry = registry
        self._tls = config.tls is not None
        limits = config.limits
        self._checking = asyncio.Semaphore(CHECKS_MAX)
        self._desk = OrderDesk(
            limits.default.limits(), limits.ceiling.limits(), config.bundles, config.network.network(), context.secrets
        )

    # grpcio takes a method that writes as well as one that yields; its stubs know the latter only.
    @refusing_stream
    async def RunScript(  # type: ignore[override]  # noqa: N802
        self, request: script_runner_pb2.RunScriptRequest, context: Context
    ) -> AsyncGenerator[script_runner_pb2.RunScriptResponse, None]:
        run = await self._start(request, tenant_of(context, tls=self._tls))
        delivery = asyncio.create_task(_end_delivery(run, asyncio.current_task()))
        try:
            sequence = 0
            async for event in self._events(run):
                sequence += 1
                yield script_runner_pb2.RunScriptResponse(event=event_message(run.run_id, sequence, event))
        finally:
            delivery.cancel()
            # Whatever made us leave before the run was over, the caller does not listen any more.
            run.end(Outcome.CLIENT_DISCONNECTED)
            await run.events.abandon()
        if run.refusal is not None:
            raise run.refusal

    async def _start(self, request: script_runner_pb2.RunScriptRequest, tenant: str) -> Run:
        """Checks the whole request and lets the run go. Raises Refusal; then nothing was started."""
        self._registry.check_request_id(tenant, request.request_id)
        store = await asyncio.to_thread(self._stores.of, tenant)  # the first time it reads a whole directory
        async with self._checking:
            order = await asyncio.to_thread(lambda: self._desk.check(run_request(request), store, tenant))
        image = await self._catalogue.image(order.policy.interpreter)
        return self._registry.start(
            tenant, request.request_id, lambda run_id: Run(run_id, tenant, order, image, store, self._context)
        )

    async def _events(self, run: Run) -> AsyncIterator[Any]:
        """The run's events, with None where nothing happened for some seconds."""
        waiting: asyncio.Task[Any] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(run.events.get())
                done, _ = await asyncio.wait([waiting], timeout=HEARTBEAT_SECONDS)
                if not done:
                    yield None
                    continue
                event, waiting = waiting.result(), None
                if event is None:
                    return
                yield event
        finally:
            if waiting is not None:
                waiting.cancel()

    @refusing_unary
    async def GetRun(  # noqa: N802
        self, request: script_runner_pb2.GetRunRequest, context: Context
    ) -> script_runner_pb2.GetRunResponse:
        run = self._registry.get(tenant_of(context, tls=self._tls), request.run_id)
        return script_runner_pb2.GetRunResponse(run=run_message(run))

    @refusing_unary
    async def ListRuns(  # noqa: N802
        self, request: script_runner_pb2.ListRunsRequest, context: Context
    ) -> script_runner_pb2.ListRunsResponse:
        if request.page_size < 0:
            raise Refusal(
                Reason.REQUEST_INVALID,
                f"page_size: {request.page_size} is below 0; leave it out for {PAGE_DEFAULT}",
                field="page_size",
            )
        size = min(request.page_size or PAGE_DEFAULT, PAGE_MAX)
        runs, token = self._registry.page(tenant_of(context, tls=self._tls), size, request.page_token)
        response = script_runner_pb2.ListRunsResponse(next_page_token=token)
        total_bytes = 0
        for run in runs:
            message = run_message(run, lists=False)
            total_bytes += message.ByteSize()
            if response.runs and total_bytes > PAGE_BYTES:
                response.next_page_token = response.runs[-1].run_id
                break
            response.runs.append(message)
        return response

    @refusing_unary
    async def CancelRun(  # noqa: N802
        self, request: script_runner_pb2.CancelRunRequest, context: Context
    ) -> script_runner_pb2.CancelRunResponse:
        run = self._registry.get(tenant_of(context, tls=self._tls), request.run_id)
        run.end(Outcome.CANCELLED)
        await run.over.wait()
        return script_runner_pb2.CancelRunResponse(run=run_message(run))

    @refusing_unary
    async def GetCapabilities(  # noqa: N802
        self, request: script_runner_pb2.GetCapabilitiesRequest, context: Context
    ) -> script_runner_pb2.GetCapabilitiesResponse:
        del request
        tenant_of(context, tls=self._tls)
        config = self._config
        ceiling = config.network.network()
        return script_runner_pb2.GetCapabilitiesResponse(
            daemon_version=__version__,
            interpreters=await asyncio.gather(*map(self._interpreter, INTERPRETERS)),
            default_limits=limits_message(config.limits.default.limits()),
            limit_ceilings=limits_message(config.limits.ceiling.limits()),
            bundle_bytes_max=config.bundles.bundle_bytes,
            bundle_entries_max=config.bundles.bundle_entries,
            engine=script_runner_pb2.Engine(
                name=self._context.report.name,
                version=f"{self._context.report.product} {self._context.report.version}",
                runtime=self._context.report.runtime,
                warnings=self._context.report.warnings,
                isolation_level=level_number(self._context.gate.level),
            ),
            concurrent_runs_max=config.admission.concurrent_runs,
            queued_runs_max=config.admission.queued_runs,
            network_ceiling=int(ceiling.network),  # type: ignore[arg-type]
            allowed_hosts_ceiling=map(str, ceiling.nameable),
        )

    async def _interpreter(self, name: str) -> script_runner_pb2.Interpreter:
        entry = await self._catalogue.entry(name)
        fault = entry.fault if entry.image is None else self._context.gate.fault(entry.image)
        return script_runner_pb2.Interpreter(
            name=name,
            available=not fault,
            version=entry.version,
            image=entry.reference,
            image_digest=entry.image.digest if entry.image else "",
            unavailable_reason=fault,
            suffixes=INTERPRETERS[name].suffixes,
        )


async def _end_delivery(run: Run, call: asyncio.Task[Any] | None) -> None:
    """Ends a call whose caller does not take what is there for it: a finished run must not be held for ever."""
    await run.over.wait()
    await asyncio.sleep(DELIVERY_SECONDS)
    if call is not None:
        call.cancel()
