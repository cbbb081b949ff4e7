"""The asynchronous client."""

import asyncio
import contextlib
import math
import os
import weakref
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

import grpc
import grpc.aio

from skilljail._base_client import BaseClient, self_test_step
from skilljail._base_stream import BaseRunStream
from skilljail._capabilities import Capabilities
from skilljail._errors import SkilljailError
from skilljail._events import Event
from skilljail._pages import Pages
from skilljail._posture import Posture
from skilljail._request import PreparedRun, RunOptions, prepare
from skilljail._result import Run, RunResult
from skilljail._status import error_from_rpc
from skilljail._steps import Open, Pause, Read, Send, Step, Steps, Unary
from skilljail._tls import TLS
from skilljail.v1 import admin_pb2_grpc, bundle_store_pb2_grpc, script_runner_pb2, script_runner_pb2_grpc

if TYPE_CHECKING:
    from skilljail.v1.admin_pb2_grpc import AdminServiceAsyncStub
    from skilljail.v1.bundle_store_pb2_grpc import BundleStoreServiceAsyncStub
    from skilljail.v1.script_runner_pb2_grpc import ScriptRunnerServiceAsyncStub

__all__ = ["AsyncClient", "AsyncRunStream"]

_T = TypeVar("_T")


class _LoopConnection:
    """A channel and its stubs. A channel of grpc.aio belongs to the loop in which it was made."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.runner = cast("ScriptRunnerServiceAsyncStub", script_runner_pb2_grpc.ScriptRunnerServiceStub(channel))
        self.store = cast("BundleStoreServiceAsyncStub", bundle_store_pb2_grpc.BundleStoreServiceStub(channel))
        self.admin = cast("AdminServiceAsyncStub", admin_pb2_grpc.AdminServiceStub(channel))


class AsyncClient(BaseClient):
    """Runs scripts on a daemon. Tasks may share one, also tasks of several event loops: each loop gets a connection.

    Every method that speaks to the daemon may raise DaemonUnavailable and the other errors of the tree in the
    package's docstring. Cancelling a task that awaits `run` kills the run.
    """

    def __init__(self, address: str | None = None, *, tls: TLS | None = None, insecure: bool = False) -> None:
        """`address`: `unix:/path`, `/path` or `host:port`; None takes `SKILLJAIL_ADDRESS`, else the local socket.

        `tls`: for `host:port`; None takes `SKILLJAIL_TLS_CA`, `_CERT` and `_KEY`. `insecure`: no TLS, to a loopback
        address only. Raises InvalidAddress. Needs no running event loop; nothing is connected before the first call.
        """
        super().__init__(address, tls=tls, insecure=insecure)
        self._connections: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnection] = (
            weakref.WeakKeyDictionary()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes this loop's connection. Runs that are under way on it are killed. The client may be used again."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.channel.close()

    async def run(
        self,
        skill_dir: str | os.PathLike[str],
        script: str,
        argv: Sequence[str] = (),
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """Runs `script` (a path below `skill_dir`) with `argv` and waits for its end; see RunOptions for the rest.

        A script that fails is a result. Raises SkilljailError when it could not run, and kills the run when it is
        left by any other exception, such as the cancellation of the task.
        """
        async with self.stream(skill_dir, script, argv, **options) as stream:
            return await stream.wait()

    def stream(
        self,
        skill_dir: str | os.PathLike[str],
        script: str,
        argv: Sequence[str] = (),
        **options: Unpack[RunOptions],
    ) -> "AsyncRunStream":
        """As `run`, event by event. The run begins when the stream's block is entered, or with its first event."""
        return AsyncRunStream(self, prepare(skill_dir, script, argv, **options))

    async def get_run(self, run_id: str) -> Run:
        """What the daemon remembers of a run. Raises RunNotFound."""
        response = await self._perform(Unary("GetRun", script_runner_pb2.GetRunRequest(run_id=run_id)))
        return Run.from_wire(response.run)

    async def list_runs(self, *, page_size: int = 50) -> AsyncIterator[Run]:
        """The caller's runs, newest first, fetched page by page (1 to 500 runs) as they are asked for.

        Raises DaemonFault when the pages lead nowhere.
        """
        pages = Pages(page_size)
        while True:
            response = await self._perform(pages.request())
            for run in response.runs:
                yield Run.from_wire(run)
            if not pages.goes_on(response):
                return

    async def cancel_run(self, run_id: str) -> Run:
        """Ends a run and returns when its sandbox is destroyed. A finished run stays as it is. Raises RunNotFound."""
        response = await self._perform(Unary("CancelRun", script_runner_pb2.CancelRunRequest(run_id=run_id)))
        return Run.from_wire(response.run)

    async def capabilities(self) -> Capabilities:
        """What the daemon can do and where its bounds are."""
        response = await self._perform(Unary("GetCapabilities", script_runner_pb2.GetCapabilitiesRequest()))
        return Capabilities.from_wire(response)

    async def self_test(self) -> Posture:
        """Has the daemon try the walls of a sandbox of each image, which takes seconds. Raises OperatorOnly."""
        return Posture.from_wire((await self._perform(self_test_step())).posture)

    async def wait_ready(self, timeout_seconds: float = 30.0) -> Capabilities:
        """Waits until the daemon answers. Raises DaemonUnavailable when it does not in time."""
        return await self._drive(self._waiting(timeout_seconds))

    def _of_loop(self) -> _LoopConnection:
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            connection = _LoopConnection(self._connection.aio_channel())
            self._connections[loop] = connection
        return connection

    async def _drive(self, steps: Steps[_T]) -> _T:
        """Performs steps until they are done. An error of a step is raised where the step was asked for."""
        answer: Any = None
        error: SkilljailError | None = None
        while True:
            try:
                step = steps.throw(error) if error is not None else steps.send(answer)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            answer, error = None, None
            try:
                answer = await self._perform(step)
            except SkilljailError as caught:
                error = caught

    async def _perform(self, step: Step) -> Any:  # each step has an answer of its own
        connection = self._of_loop()
        try:
            match step:
                case Read():
                    return await asyncio.to_thread(step.perform)
                case Pause():
                    return await asyncio.sleep(step.seconds)
                case Send():
                    with self._connection.channel() as channel:
                        return await _send(channel, step)
                case Open():
                    return await _open(connection, step)
                case Unary():
                    services = {"FindMissing": connection.store, "SelfTest": connection.admin}
                    call = getattr(services.get(step.method, connection.runner), step.method)
                    return await call(step.request, timeout=step.timeout_seconds, wait_for_ready=step.wait_for_ready)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._connection.address) from error


async def _send(channel: grpc.Channel, step: Send) -> None:
    """Uploads on a channel of its own for blocking calls, whose thread also reads the files.

    A write of grpc.aio that fails because the server has answered early loses that answer, which is the one that
    tells why.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    stub = bundle_store_pb2_grpc.BundleStoreServiceStub(channel)
    call = stub.Upload.future(step.upload.requests(), timeout=step.timeout_seconds)

    def wake(_call: object) -> None:
        with contextlib.suppress(RuntimeError):  # a loop that was closed meanwhile waits for nothing
            loop.call_soon_threadsafe(done.set)

    call.add_done_callback(wake)
    try:
        await done.wait()
    except BaseException:
        call.cancel()
        raise
    step.upload.check()
    call.result()


async def _open(connection: _LoopConnection, step: Open) -> tuple[Any, script_runner_pb2.RunScriptResponse | None]:
    call = connection.runner.RunScript(step.request)
    try:
        return call, await _next(call)
    except BaseException:
        call.cancel()
        raise


async def _next(call: Any) -> script_runner_pb2.RunScriptResponse | None:  # grpc's call has no public type
    """The next message, or None at the end of a stream that ended well."""
    message = await call.read()
    return None if message is grpc.aio.EOF else message


class AsyncRunStream(BaseRunStream):
    """The events of one run: an iterator, and a context manager that kills a run that it leaves unfinished."""

    def __init__(self, client: AsyncClient, run: PreparedRun) -> None:
        super().__init__(client._connection.address, run)  # noqa: SLF001  # the stream is a part of its client
        self._client = client
        self._run = run
        self._call: Any = None
        self._first: script_runner_pb2.RunScriptResponse | None = None

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._is_finished:
            raise StopAsyncIteration
        try:
            await self._begin()
            with self._transcript.patience:
                return await self._next_event()
        except BaseException:
            self.close()
            raise

    async def _next_event(self) -> Event:
        while True:
            event = self._transcript.accept((await self._read()).event)
            if self._is_finished:
                await self._read_end()
            if event is not None:
                return event

    async def wait(self) -> RunResult:
        """Reads what is left and returns the result. Raises StreamBroken when it never comes."""
        async for _ in self:
            pass
        return self.result

    async def cancel(self) -> None:
        """Ends the run; any task may ask. The stream then goes on to `Finished` with `Outcome.CANCELLED`.

        A run whose first event has not come, or that the daemon cannot cancel, is dropped: reading raises
        RunCancelled.
        """
        if self._is_finished or self._closed:
            return
        try:
            if self.run_id:
                await self._client.cancel_run(self.run_id)
                return
        except SkilljailError:
            pass  # dropping the call ends the run, too
        self._cancelled = True
        self.close()

    def close(self) -> None:
        """Kills the run if it is not finished; the stream cannot be read any more."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()

    async def _begin(self) -> None:
        self._check_open()
        if self._call is None:
            steps = self._client._opening(self._run)  # noqa: SLF001
            self._call, self._first = await self._client._drive(steps)  # noqa: SLF001
            if self._closed:
                # Another task closed the stream while it was being opened.
                self._call.cancel()
                self._check_open()

    async def _read(self) -> script_runner_pb2.RunScriptResponse:
        if self._first is not None:
            message, self._first = self._first, None
            return message
        try:
            async with asyncio.timeout(self._timeout_seconds()):
                following = await _next(self._call)
        except TimeoutError:
            self._transcript.give_up()
        except grpc.RpcError as error:
            raise self._error(error) from error
        except asyncio.CancelledError:
            # gRPC says so, too, when it was another task that closed the stream.
            task = asyncio.current_task()
            if self._closed and (task is None or not task.cancelling()):
                self._check_open()
            raise
        if following is None:
            self._transcript.ended()
            raise AssertionError("a finished stream is not read")  # pragma: no cover
        return following

    def _timeout_seconds(self) -> float | None:
        left = self._transcript.patience.left_seconds
        return None if math.isinf(left) else left

    async def _read_end(self) -> None:
        """After the last event there is nothing. That the connection breaks then takes nothing from the result."""
        try:
            async with asyncio.timeout(self._timeout_seconds()):
                extra = await _next(self._call)
        except (grpc.RpcError, TimeoutError):
            return
        if extra is not None:
            self._transcript.accept(extra.event)
