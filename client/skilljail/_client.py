"""The blocking client."""

import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc

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

__all__ = ["Client", "RunStream"]

_WATCH_SECONDS_MIN = 0.01

_T = TypeVar("_T")


class Client(BaseClient):
    """Runs scripts on a daemon. Threads may share one; it holds one connection.

    Every method that speaks to the daemon may raise DaemonUnavailable and the other errors of the tree in the
    package's docstring.
    """

    def __init__(self, address: str | None = None, *, tls: TLS | None = None, insecure: bool = False) -> None:
        """`address`: `unix:/path`, `/path` or `host:port`; None takes `SKILLJAIL_ADDRESS`, else the local socket.

        `tls`: for `host:port`; None takes `SKILLJAIL_TLS_CA`, `_CERT` and `_KEY`. `insecure`: no TLS, to a loopback
        address only. Raises InvalidAddress. Nothing is connected before the first call.
        """
        super().__init__(address, tls=tls, insecure=insecure)
        self._channel = self._connection.channel()
        self._runner = script_runner_pb2_grpc.ScriptRunnerServiceStub(self._channel)
        self._store = bundle_store_pb2_grpc.BundleStoreServiceStub(self._channel)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Runs that are under way on it are killed."""
        self._channel.close()

    def run(
        self,
        skill_dir: str | os.PathLike[str],
        script: str,
        argv: Sequence[str] = (),
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """Runs `script` (a path below `skill_dir`) with `argv` and waits for its end; see RunOptions for the rest.

        A script that fails is a result. Raises SkilljailError when it could not run, and kills the run when it is
        left by any other exception, such as KeyboardInterrupt.
        """
        with self.stream(skill_dir, script, argv, **options) as stream:
            return stream.wait()

    def stream(
        self,
        skill_dir: str | os.PathLike[str],
        script: str,
        argv: Sequence[str] = (),
        **options: Unpack[RunOptions],
    ) -> "RunStream":
        """As `run`, event by event. The run begins when the stream's block is entered, or with its first event."""
        return RunStream(self, prepare(skill_dir, script, argv, **options))

    def get_run(self, run_id: str) -> Run:
        """What the daemon remembers of a run. Raises RunNotFound."""
        response = self._perform(Unary("GetRun", script_runner_pb2.GetRunRequest(run_id=run_id)))
        return Run.from_wire(response.run)

    def list_runs(self, *, page_size: int = 50) -> Iterator[Run]:
        """The caller's runs, newest first, fetched page by page (1 to 500 runs) as they are asked for.

        Raises DaemonFault when the pages lead nowhere.
        """
        pages = Pages(page_size)
        while True:
            response = self._perform(pages.request())
            yield from map(Run.from_wire, response.runs)
            if not pages.goes_on(response):
                return

    def cancel_run(self, run_id: str) -> Run:
        """Ends a run and returns when its sandbox is destroyed. A finished run stays as it is. Raises RunNotFound."""
        response = self._perform(Unary("CancelRun", script_runner_pb2.CancelRunRequest(run_id=run_id)))
        return Run.from_wire(response.run)

    def capabilities(self) -> Capabilities:
        """What the daemon can do and where its bounds are."""
        response = self._perform(Unary("GetCapabilities", script_runner_pb2.GetCapabilitiesRequest()))
        return Capabilities.from_wire(response)

    def self_test(self) -> Posture:
        """Has the daemon try the walls of a sandbox of each image, which takes seconds. Raises OperatorOnly."""
        return Posture.from_wire(self._perform(self_test_step()).posture)

    def wait_ready(self, timeout_seconds: float = 30.0) -> Capabilities:
        """Waits until the daemon answers. Raises DaemonUnavailable when it does not in time."""
        return self._drive(self._waiting(timeout_seconds))

    def _drive(self, steps: Steps[_T]) -> _T:
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
                answer = self._perform(step)
            except SkilljailError as caught:
                error = caught

    def _perform(self, step: Step) -> Any:  # each step has an answer of its own
        try:
            match step:
                case Read():
                    return step.perform()
                case Pause():
                    return time.sleep(step.seconds)
                case Send():
                    return self._send(step)
                case Open():
                    return self._open(step)
                case Unary():
                    services = {"FindMissing": self._store, "SelfTest": self._admin}
                    call = getattr(services.get(step.method, self._runner), step.method)
                    return call(step.request, timeout=step.timeout_seconds, wait_for_ready=step.wait_for_ready)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._connection.address) from error

    def _send(self, step: Send) -> None:
        try:
            self._store.Upload(step.upload.requests(), timeout=step.timeout_seconds)
        except grpc.RpcError:
            # The daemon refused the blob that was cut short; why it was cut is the better answer.
            step.upload.check()
            raise
        step.upload.check()

    def _open(self, step: Open) -> tuple[Any, script_runner_pb2.RunScriptResponse | None]:
        call = self._runner.RunScript(step.request)
        try:
            return call, next(call, None)
        except BaseException:
            call.cancel()
            raise


class RunStream(BaseRunStream):
    """The events of one run: an iterator, and a context manager that kills a run that it leaves unfinished."""

    def __init__(self, client: Client, run: PreparedRun) -> None:
        super().__init__(client._connection.address, run)  # noqa: SLF001  # the stream is a part of its client
        self._client = client
        self._run = run
        self._call: Any = None
        self._first: script_runner_pb2.RunScriptResponse | None = None
        self._watch: threading.Timer | None = None

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if self._is_finished:
            raise StopIteration
        try:
            self._begin()
            with self._transcript.patience:
                return self._next_event()
        except BaseException:
            self.close()
            raise

    def _next_event(self) -> Event:
        while True:
            event = self._transcript.accept(self._read().event)
            if self._is_finished:
                self._unwatch()
                self._rewatch()
                self._read_end()
                self._unwatch()
            elif self._watch is None and self._transcript.is_started:
                self._rewatch()
            if event is not None:
                return event

    def wait(self) -> RunResult:
        """Reads what is left and returns the result. Raises StreamBroken when it never comes."""
        for _ in self:
            pass
        return self.result

    def cancel(self) -> None:
        """Ends the run; any thread may ask. The stream then goes on to `Finished` with `Outcome.CANCELLED`.

        A run whose first event has not come, or that the daemon cannot cancel, is dropped: reading raises
        RunCancelled.
        """
        if self._is_finished or self._closed:
            return
        try:
            if self.run_id:
                self._client.cancel_run(self.run_id)
                return
        except SkilljailError:
            pass  # dropping the call ends the run, too
        self._cancelled = True
        self.close()

    def close(self) -> None:
        """Kills the run if it is not finished; the stream cannot be read any more."""
        self._closed = True
        self._unwatch()
        if self._call is not None:
            self._call.cancel()

    def _rewatch(self) -> None:
        """A blocking read has no end of its own, so a timer drops the call when patience is used up."""
        seconds = max(self._transcript.patience.left_seconds, _WATCH_SECONDS_MIN)
        # The timer must not keep a stream alive that nobody reads any more.
        self._watch = threading.Timer(min(seconds, threading.TIMEOUT_MAX), _look_after, (weakref.ref(self),))
        self._watch.daemon = True
        self._watch.start()

    def _look(self) -> None:
        if self._closed:
            return
        if self._transcript.patience.left_seconds <= 0:
            self._call.cancel()
        else:
            self._rewatch()

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _begin(self) -> None:
        self._check_open()
        if self._call is None:
            steps = self._client._opening(self._run)  # noqa: SLF001
            self._call, self._first = self._client._drive(steps)  # noqa: SLF001
            if self._closed:
                # Another thread closed the stream while it was being opened.
                self._call.cancel()
                self._check_open()

    def _read(self) -> script_runner_pb2.RunScriptResponse:
        if self._first is not None:
            message, self._first = self._first, None
            return message
        try:
            following: script_runner_pb2.RunScriptResponse | None = next(self._call, None)
        except grpc.RpcError as error:
            raise self._error(error) from error
        if following is None:
            self._transcript.ended()
            raise AssertionError("a finished stream is not read")  # pragma: no cover
        return following

    def _read_end(self) -> None:
        """After the last event there is nothing. That the connection breaks then takes nothing from the result."""
        try:
            extra = next(self._call, None)
        except grpc.RpcError:
            return
        if extra is not None:
            self._transcript.accept(extra.event)


def _look_after(reference: "weakref.ref[RunStream]") -> None:
    stream = reference()
    if stream is not None:
        stream._look()  # noqa: SLF001  # it is the stream's own timer
