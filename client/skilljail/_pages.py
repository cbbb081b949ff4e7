"""The pages of a list of runs."""

from skilljail._errors import DaemonFault, InvalidRequest
from skilljail._steps import Unary
from skilljail.v1 import script_runner_pb2

__all__ = ["Pages"]

_PAGE_SIZE_MAX = 500


class Pages:
    """Asks for one page after the other, and notices a daemon whose pages lead nowhere."""

    def __init__(self, page_size: int) -> None:
        """Raises InvalidRequest."""
        if not 1 <= page_size <= _PAGE_SIZE_MAX:
            raise InvalidRequest(f"page_size must be 1 to {_PAGE_SIZE_MAX}, got {page_size}")
        self._page_size = page_size
        self._token = ""
        self._seen: set[str] = set()

    def request(self) -> Unary:
        """The call for the next page."""
        request = script_runner_pb2.ListRunsRequest(page_size=self._page_size, page_token=self._token)
        return Unary("ListRuns", request)

    def goes_on(self, response: script_runner_pb2.ListRunsResponse) -> bool:
        """Whether there is a page after this one. Raises DaemonFault when that could go on for ever."""
        self._token = response.next_page_token
        if not self._token:
            return False
        fault = "a page token that it sent before" if self._token in self._seen else ""
        fault = fault or ("" if response.runs else "a page without runs that is not the last one")
        if fault:
            raise DaemonFault(f"the daemon's list of runs leads nowhere: it sent {fault}; update or restart the daemon")
        self._seen.add(self._token)
        return True
