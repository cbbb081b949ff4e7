"""One run: the state machine from admission to the single outcome."""

import asyncio
import contextlib
import dataclasses
import datetime
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

import pydantic
import structlog

from skilljaild.bundles.store import BlobStore
from skilljaild.egress.dialler import Dialler, SystemDialler
from skilljaild.engines.base import (
    Engine,
    EngineError,
    EngineReport,
    EngineUnavailable,
    Image,
    ImageMissing,
    IsolationError,
    SandboxSpec,
)
from skilljaild.errors import Reason, Refusal, Violation
from skilljaild.fault import traced
from skilljaild.network import Network
from skilljaild.policy import check_arguments_with_secrets
from skilljaild.runs.admission import Admission, Ticket
from skilljaild.runs.collection import collect, collect_seconds
from skilljaild.runs.conversation import Exit, ProtocolError, StartFailed, StreamEnded
from skilljaild.runs.death import died_of_memory, ran_out_of_memory
from skilljaild.runs.delivery import Delivery
from skilljaild.runs.egress import RunEgress
from skilljaild.runs.events import (
    Finished,
    Outcome,
    Phases,
    Queued,
    RunResult,
    RunState,
    Started,
    Usage,
)
from skilljaild.runs.gate import Gate
from skilljaild.runs.order import Order
from skilljaild.runs.outcome import WITH_EXIT_CODE, decide
from skilljaild.runs.outlet import Outlet
from skilljaild.runs.pipe import EventPipe
from skilljaild.runs.sandbox import Sandbox, open_sandbox, uninterrupted
from skilljaild.runs.start import start_order
from skilljaild.runs.tunnels import Tunnels
from skilljaild.secrets.automaton import Automaton
from skilljaild.secrets.keeper import SecretKeeper
from skilljaild.secrets.mask import bounded_patterns
from skilljaild.secrets.mask_decision import DecisionMask

__all__ = ["Run", "RunContext"]

STAGE_SECONDS = 60.0

log = structlog.get_logger()

_INTERRUPTED = {
    Outcome.CANCELLED: "The run was cancelled.",
    Outcome.CLIENT_DISCONNECTED: "The caller went away.",
    Outcome.SHUTDOWN: "The daemon was stopped.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class RunContext:
    """What all runs of a daemon share."""

    engine: Engine
    report: EngineReport
    owner: str
    admission: Admission
    gate: Gate
    secrets: SecretKeeper = dataclasses.field(default_factory=SecretKeeper)
    make_dialler: Callable[[], Dialler] = SystemDialler
    """How a run that has egress reaches the world; each has its own."""


class Run:
    """One run. `execute` is called once; `end` may be called at any time, from the event loop's thread."""

    def __init__(
        self, run_id: str, tenant: str, order: Order, image: Image, store: BlobStore, context: RunContext
    ) -> None:
        self.run_id = run_id
        self.tenant = tenant
        self.request_id = order.request.request_id
        self.labels = order.request.labels
        self.script_path = order.request.script_path
        self.bundle_digest = order.request.bundle_digest
        # The command stays out: its arguments may be secret, and a run is remembered for long.
        self.policy = dataclasses.replace(order.policy, command=())
        self.state = RunState.QUEUED
        self.created = datetime.datetime.now(datetime.UTC)
        self.started: datetime.datetime | None = None
        self.finished: datetime.datetime | None = None
        self.result: RunResult | None = None
        self.refusal: Refusal | None = None
        """Why it could not be run; then `result` tells the same as SANDBOX_ERROR."""
        self.events = EventPipe()
        self.over = asyncio.Event()
        self._order: Order | None = order
        """Let go at the end: it holds whatever the request held."""
        self._image = image
        self._store = store
        self._context = context
        self._ticket: Ticket = context.admission.admit(order.size)
        self._phases = Phases()
        self._entered = time.monotonic()
        self._work: asyncio.Task[RunResult] | None = None
        self._interruption: Outcome | None = None
        self._delivery: Delivery | None = None
        self._egress: RunEgress | None = None
        self._automaton: Automaton | None = None
        """Finds what is masked in output. As secret as the values, and let go with them; so also `_decision_mask`."""
        self._decision_mask: DecisionMask | None = None
        self._ended: RunResult | None = None
        """Set when the script's end is known; no interruption takes it back."""

    @property
    def order(self) -> Order:
        """What is to be run. Only while the run is under way."""
        if self._order is None:
            raise RuntimeError("a finished run keeps nothing of its request")
        return self._order

    # Its life

    async def execute(self) -> None:
        """Runs to the end. Never raises: what went wrong is in `result` and `refusal`."""
        try:
            result = await self._supervise()
        except Refusal as refusal:
            self.refusal = refusal
            result = RunResult(Outcome.SANDBOX_ERROR, refusal.message)
        except Exception as error:  # noqa: BLE001  a fault of ours must still end the run, and be told
            log.error("run failed", run=self.run_id, **traced(error))  # noqa: TRY400
            result = self._faulty(error)
        finally:
            self._context.admission.release(self._ticket)
        result = dataclasses.replace(result, phases=self._phases)
        if self._egress is not None:
            result = self._egress.told_in(result)
            self._egress = None  # the run is remembered for long
        self._finish(result)
        await self.events.close(None if self.refusal else Finished(self.result or result))

    def _faulty(self, error: Exception) -> RunResult:
        """After a fault of ours: an end that is known stays, and only what never started is refused."""
        message = f"the daemon has a fault ({type(error).__name__}); its log tells more"
        if self._ended is not None:
            return self._ended
        if self.started is None:
            self.refusal = Refusal(Reason.INTERNAL, message)
        return RunResult(Outcome.SANDBOX_ERROR, message, usage=self._usage_so_far())

    async def _supervise(self) -> RunResult:
        """Does the work in a task of its own, which `end` cancels."""
        self._work = asyncio.create_task(self._do(), name=f"run {self.run_id}")
        if self._interruption is not None:
            self._work.cancel()
        try:
            return await self._work
        except asyncio.CancelledError:
            if self._ended is not None:
                return self._ended
            if self._interruption is None:
                raise
            return RunResult(self._interruption, _INTERRUPTED[self._interruption], usage=self._usage_so_far())

    def end(self, outcome: Outcome) -> None:
        """Ends the run with CANCELLED, CLIENT_DISCONNECTED or SHUTDOWN. The first call counts."""
        if self._interruption is None and not self.over.is_set():
            self._interruption = outcome
            if self._work is not None:
                self._work.cancel()

    async def _do(self) -> RunResult:
        await self.events.put(Queued(self._ticket.position))
        await self._ticket.turn()
        self._phases.queued = self._lap()
        self.state = RunState.STARTING
        with self._refusing(), contextlib.ExitStack() as pins:
            # In a thread: the store's lock is held while it makes room on the disk.
            pinned = self._store.pinned(self.order.digests)
            missing = await uninterrupted(asyncio.to_thread(pins.enter_context, pinned))
            if missing:
                raise Refusal(
                    Reason.BUNDLE_MISSING,
                    "the skill was dropped from the store while the run waited; upload it and try again",
                    missing=tuple(Violation(digest, "dropped") for digest in missing),
                )
            await self._context.gate.admit(self.policy.interpreter, self._image, self._ticket.place)
            async with open_sandbox(self._context.engine, self._spec(), self._context.admission.lose) as sandbox:
                self._context.gate.check(sandbox.facts)
                self._phases.claimed = self._lap()
                await self._in_time("staging the skill", self._stage(sandbox))
                values = await self._secret_values()
                await self._prepare_masks(values)
                self._phases.staged = self._lap()
                self._ended = await self._script(sandbox, values)
                return self._ended

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turns what kept the script from starting into a refusal. After the start nothing gets here."""
        try:
            yield
        except (StreamEnded, ProtocolError) as error:
            raise Refusal(
                Reason.SANDBOX_UNAVAILABLE, f"the sandbox failed before the script started: {error}", retry_seconds=5
            ) from error
        except IsolationError as error:
            raise Refusal(Reason.ISOLATION_POSTURE, str(error)) from error
        except ImageMissing as error:
            raise Refusal(Reason.INTERPRETER_UNAVAILABLE, str(error)) from error
        except EngineUnavailable as error:
            raise Refusal(Reason.ENGINE_UNAVAILABLE, str(error), retry_seconds=5) from error
        except EngineError as error:
            raise Refusal(Reason.SANDBOX_UNAVAILABLE, str(error), retry_seconds=5) from error

    def _spec(self) -> SandboxSpec:
        limits = self.order.policy.limits
        lifetime = limits.wall_seconds + collect_seconds(limits) + 120
        return SandboxSpec(
            owner=self._context.owner,
            run_id=self.run_id,
            deadline=int(time.time() + lifetime),
            image_digest=self._image.digest,
            limits=limits,
            place=self._ticket.place,
        )

    async def _in_time(self, what: str, work: Awaitable[None]) -> None:
        """Awaits what takes milliseconds. A sandbox that does not answer must not hold its place for long."""
        try:
            async with asyncio.timeout(STAGE_SECONDS):
                await work
        except TimeoutError:
            raise EngineError(f"{what} took longer than {STAGE_SECONDS:g} s; is the host overloaded?") from None

    async def _stage(self, sandbox: Sandbox) -> None:
        bundle = self.order.bundle
        entries: list[dict[str, object]] = [
            {"path": file.path, "size": file.size, "executable": file.executable, "sha256": file.digest[7:]}
            for file in bundle.files.values()
        ]
        await sandbox.conversation.stage(bundle.directories, entries, self._contents())

    async def _contents(self) -> AsyncIterator[bytes]:
        for file in self.order.bundle.files.values():
            if file.content is not None:
                yield file.content
            else:
                yield await asyncio.to_thread(self._store.read, file.digest, file.size)

    async def _secret_values(self) -> Mapping[str, pydantic.SecretStr]:
        """The run's secrets by variable, read as late as can be: a run that waits holds none. Raises Refusal."""
        values = await self._context.secrets.read(self.order.policy.secrets)
        check_arguments_with_secrets(self.order.request.argv, self._environment(values))
        return values

    async def _prepare_masks(self, secrets: Mapping[str, pydantic.SecretStr]) -> None:
        """Makes what takes the values out of what the caller is told, where that was asked for. Raises Refusal."""
        policy = self.order.policy
        if not secrets or not policy.mask_secrets:
            return
        patterns = bounded_patterns(dict(zip(policy.secrets, secrets.values(), strict=True)))
        # In threads: for large values each takes up to half a second.
        self._automaton = await asyncio.to_thread(Automaton, patterns)
        if policy.network is not Network.NONE:
            self._decision_mask = await asyncio.to_thread(DecisionMask, patterns)

    def _environment(self, secrets: Mapping[str, pydantic.SecretStr]) -> dict[str, str]:
        return self.order.env | {name: value.get_secret_value() for name, value in secrets.items()}

    async def _script(self, sandbox: Sandbox, secrets: Mapping[str, pydantic.SecretStr]) -> RunResult:
        """From the start of the script on every failure is a result."""
        self.state = RunState.RUNNING
        self.started = datetime.datetime.now(datetime.UTC)
        await self.events.put(
            Started(
                self.order.policy,
                self._image.digest,
                sandbox.sandbox_id,
                self._context.report.runtime,
                sandbox.verified,
            )
        )
        try:
            start = sandbox.conversation.start(self._start_order(secrets), self.order.request.stdin)
            await self._in_time("starting the script", start)
            async with self._tunnels(sandbox) as tunnels:
                end = await self._output(sandbox, tunnels)
        except StartFailed as error:
            command = self.order.policy.command[0]
            return RunResult(Outcome.START_FAILED, f"{command} could not be started in the sandbox: {error}")
        except (StreamEnded, ProtocolError, EngineError) as error:
            return await self._lost(sandbox, str(error))
        except TimeoutError:
            return self._overdue()
        finally:
            self._phases.running = self._lap()
        self.state = RunState.COLLECTING
        return await self._collect(sandbox, end)

    def _start_order(self, secrets: Mapping[str, pydantic.SecretStr]) -> dict[str, object]:
        request, policy = self.order.request, self.order.policy
        return start_order(
            policy.command,
            self._environment(secrets),
            policy.limits,
            working_directory=request.working_directory,
            egress=policy.network is not Network.NONE,
            artifact_patterns=request.artifact_patterns,
        )

    @contextlib.asynccontextmanager
    async def _tunnels(self, sandbox: Sandbox) -> AsyncIterator[Tunnels | None]:
        """What carries the script's connections while it runs. Without a network there is nothing that could dial."""
        if self.order.policy.network is Network.NONE:
            yield None
            return
        self._egress = RunEgress(self.order.policy, self.events, self._context.make_dialler(), self._decision_mask)
        async with self._egress.tunnels(sandbox.conversation.write) as tunnels:
            yield tunnels

    async def _output(self, sandbox: Sandbox, tunnels: Tunnels | None) -> Exit:
        """Passes the output on until init tells the end. Raises TimeoutError when it does not in time."""
        limits = self.order.policy.limits
        self._delivery = Delivery(self.events, Outlet(self._automaton), limits.wall_seconds)
        return await self._delivery.pass_on(sandbox.conversation.output(limits.output_bytes, tunnels))

    async def _collect(self, sandbox: Sandbox, end: Exit) -> RunResult:
        limits = self.order.policy.limits
        engine_oom = await ran_out_of_memory(self._context.engine, sandbox.sandbox_id)
        outcome, message = decide(end, limits, engine_oom=engine_oom)
        collected = await collect(sandbox.conversation, self.events, limits)
        if collected.fault:
            message = f"{message} Its artifacts could not all be delivered: {collected.fault}."
        self._phases.collected = self._lap()
        return RunResult(
            outcome,
            message,
            exit_code=end.exit_code if outcome in WITH_EXIT_CODE else None,
            signal=end.signal,
            usage=self._usage_at(end),
            artifacts=collected.artifacts,
            skipped=collected.skipped,
            skipped_omitted=collected.skipped_omitted,
        )

    async def _lost(self, sandbox: Sandbox, what: str) -> RunResult:
        """The sandbox went away under the script. The engine knows whether memory was why."""
        usage = self._usage_so_far()
        if await died_of_memory(self._context.engine, sandbox.sandbox_id):
            limit = self.order.policy.limits.memory_bytes
            message = f"The script needed more memory than {limit:,} bytes (memory_bytes); the whole sandbox died."
            return RunResult(Outcome.OOM_KILLED, message, usage=usage)
        return RunResult(Outcome.SANDBOX_ERROR, f"The sandbox was lost while the script ran: {what}.", usage=usage)

    def _overdue(self) -> RunResult:
        """init did not end the run in time: it is starved."""
        seconds = self.order.policy.limits.wall_seconds
        message = f"The script ran longer than {seconds:g} s (wall_time) and its sandbox was killed."
        return RunResult(Outcome.WALL_TIMEOUT, message, usage=self._usage_so_far())

    # Its bookkeeping

    def _finish(self, result: RunResult) -> None:
        self.result = result
        self.state = RunState.FINISHED
        self.finished = datetime.datetime.now(datetime.UTC)
        self._order = None
        # What they mask with would outlive the run in them.
        self._automaton = self._decision_mask = self._delivery = self._egress = None
        self.over.set()

    def _lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        seconds, self._entered = now - self._entered, now
        return seconds

    def _usage_so_far(self) -> Usage:
        seconds = 0.0
        if self.started is not None:
            seconds = (datetime.datetime.now(datetime.UTC) - self.started).total_seconds()
        return dataclasses.replace(self._delivered(), wall_seconds=seconds)

    def _delivered(self) -> Usage:
        """The output that was handed over."""
        if self._delivery is None:
            return Usage()
        return Usage(stdout_bytes=self._delivery.stdout_bytes, stderr_bytes=self._delivery.stderr_bytes)

    def _usage_at(self, end: Exit) -> Usage:
        return dataclasses.replace(
            self._delivered(),
            wall_seconds=end.wall_seconds,
            cpu_seconds=end.cpu_seconds,
            peak_memory_bytes=end.peak_memory_bytes,
            output_truncated=end.output_truncated,
            oom_kills=end.oom_kills,
            pids_limit_hits=end.pids_limit_hits,
            disk_full=end.disk_full,
        )
