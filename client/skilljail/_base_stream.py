"""What the blocking and the asynchronous stream have in common."""

import grpc

from skilljail._address import Address
from skilljail._errors import RunCancelled, SkilljailError
from skilljail._request import PreparedRun
from skilljail._result import RunResult
from skilljail._status import error_from_rpc
from skilljail._transcript import Transcript, broken

__all__ = ["BaseRunStream"]


class BaseRunStream:
    """The events of one run, and its result in the end."""

    def __init__(self, address: Address, run: PreparedRun) -> None:
        self._address = address
        self._transcript = Transcript(run.request)
        self._cancelled = False
        self._closed = False

    @property
    def run_id(self) -> str:
        """The daemon's name for the run; "" before the first event."""
        return self._transcript.run_id

    @property
    def result(self) -> RunResult:
        """The result. Raises StreamBroken when `Finished` has not come."""
        if self._transcript.result is None:
            raise broken("there is no result; read the stream to its end with wait()", self.run_id)
        return self._transcript.result

    @property
    def _is_finished(self) -> bool:
        return self._transcript.result is not None

    def _error(self, error: grpc.RpcError) -> SkilljailError:
        """The exception for a call that failed on the way."""
        if self._cancelled:
            return self._dropped()
        if self._transcript.patience.left_seconds <= 0:
            return self._transcript.overdue()
        return error_from_rpc(error, self._address, run_id=self.run_id, started=self._transcript.is_started)

    def _dropped(self) -> RunCancelled:
        return RunCancelled(
            "this client dropped the run, which has no result", metadata={"run_id": self.run_id} if self.run_id else {}
        )

    def _check_open(self) -> None:
        """Raises when there is nothing to read any more and there never was a result."""
        if self._cancelled and self._closed:
            raise self._dropped()
        if self._closed:
            raise broken("the stream was closed before the run's result", self.run_id)
