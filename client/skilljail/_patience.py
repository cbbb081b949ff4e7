"""How long a client waits for the end of a run whose daemon says that the script has started."""

import math
import time
from types import TracebackType
from typing import Self

from skilljail._limits import Limits

__all__ = ["Patience"]

END_SECONDS = 5.0
"""After the result nothing comes but the end of the stream."""
GRACE_SECONDS = 120.0
"""On top of everything that a run may take: what a slow machine needs to kill, collect and clean up."""
_COLLECTED_BYTES_PER_SECOND = 1024 * 1024
_SLOWEST_LINE_BYTES_PER_SECOND = 16 * 1024
"""What arrives earns the time that it took on a slow line, so that only lines below this are given up."""


class Patience:
    """Counts the seconds that this client waits, from the start of the script on; use it as a context around waits.

    The time that the caller takes between two events does not count: a daemon cannot help that. Before the start
    there is no end to it, since only the caller knows how long a run may wait for its turn.
    """

    def __init__(self) -> None:
        self.allowed_seconds = math.inf
        self._waited_seconds = 0.0
        self._since: float | None = None

    def __enter__(self) -> Self:
        self._since = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._waited_seconds = self._waited()
        self._since = None

    def begin(self, limits: Limits) -> None:
        """The script starts now, with these effective limits."""
        self._waited_seconds = 0.0
        self._since = time.monotonic() if self._since is not None else None
        collecting = (limits.artifact_bytes or 0) / _COLLECTED_BYTES_PER_SECOND
        self.allowed_seconds = (limits.wall_seconds or 0.0) + collecting + GRACE_SECONDS

    def end(self) -> None:
        """The result is there, and only the end of the stream is waited for."""
        self.allowed_seconds = self._waited() + END_SECONDS

    def earn(self, size_bytes: int) -> None:
        """So much output or content of artifacts arrived."""
        self.allowed_seconds += size_bytes / _SLOWEST_LINE_BYTES_PER_SECOND

    @property
    def left_seconds(self) -> float:
        """What is left; infinite before the start, and not above zero when it is used up."""
        return self.allowed_seconds - self._waited()

    def _waited(self) -> float:
        since = self._since  # another thread may look while a wait ends
        return self._waited_seconds + (time.monotonic() - since if since is not None else 0.0)
