"""Watches over one script, until every process is dead and every byte of its output is in the outbox.

A run is in one of three states, each recognised by what is there:

    running   no cause and no wait status yet: the script's limits are watched
    ending    there is one or the other: everything is killed, again and again, until nothing is left
    draining  nothing is left but init: what still sits in the pipes goes to the daemon
"""

from __future__ import annotations

import os
import select
import time

from skilljail_init.children import kill_everything
from skilljail_init.errors import InitError
from skilljail_init.frames import DATA_MAX, TUNNEL_FRAMES, Cause, FrameError, FrameType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from skilljail_init.channel import Channel
    from skilljail_init.children import Children
    from skilljail_init.orders import StartOrder
    from skilljail_init.script import Script
    from skilljail_init.tunnels import Tunnels
    from skilljail_init.usage import Usage

__all__ = ["Run"]

LOOK_SECONDS = 0.05
"""Between two looks at the kernel's accounts: how late a CPU limit may be noticed."""
SLOW_LOOK_SECONDS = 0.25
"""The same where init has to add up processes itself."""
KILL_SECONDS = 0.01
"""Between two rounds of killing."""
DEATH_SECONDS_MAX = 10
"""After which something that cannot be killed makes init give up; the daemon then destroys the sandbox."""
PIDS_STORM = 100
"""Refused processes that make a fork bomb. A script that reaches its limit, waits and tries again stays far
below; a bomb passes it within milliseconds, and would go on eating its CPU limit to no end.
"""


class Run:
    """One script under watch."""

    def __init__(
        self,
        channel: Channel,
        children: Children,
        usage: Usage,
        *,
        script: Script,
        order: StartOrder,
        started: float,
        tunnels: Tunnels | None,
    ) -> None:
        """`started`: when the script started, by the monotonic clock. `tunnels`: None for a run without egress."""
        self._channel = channel
        self._children = children
        self._usage = usage
        self._script = script
        self._order = order
        self._started = started
        self._tunnels = tunnels
        self._streams = {script.stdout_fd: FrameType.STDOUT, script.stderr_fd: FrameType.STDERR}
        self._stdin_fd = script.stdin_fd
        self._stdin = memoryview(b"")
        self._output_left = order.output_bytes
        self._output_truncated = False
        self._cause: Cause | None = None
        self._status: int | None = None
        self._ended = started
        self._kill_since: float | None = None
        self._next_look = started
        self._next_cpu_look = started

    def supervise(self, stdin: bytes) -> Cause:
        """Runs the script to its end and sends its EXIT frame. Raises StreamClosed, FrameError."""
        self._stdin = memoryview(stdin)
        try:
            while not (self._children.gone and self._kill_since is not None and not self._streams):
                self._turn()
        finally:
            for fd in [*self._streams, *([] if self._stdin_fd is None else [self._stdin_fd])]:
                os.close(fd)
        self._usage.look_at_disk()
        cause = self._final_cause()
        self._channel.send_json(FrameType.EXIT, self._exit(cause))
        return cause

    def _turn(self) -> None:
        ready = self._channel.wait(self._interest(), self._timeout())
        self._obey()
        if self._children.wake_fd in ready:
            self._children.clear_wake()
        if self._stdin_fd in ready:
            self._feed()
        for fd in [fd for fd in self._streams if fd in ready]:
            self._pass_on(fd)
        if self._tunnels is not None:
            self._tunnels.serve(ready)
        status = self._children.reap(self._script.pid)
        if status is not None and self._status is None:  # a later process may have had the same number
            self._status, self._ended = status, time.monotonic()
        if self._cause is None and self._status is None:
            self._watch(time.monotonic())
        if self._cause is not None or self._status is not None:
            self._end()

    def _interest(self) -> dict[int, int]:
        """What to wait for. A full outbox leaves the script's output in its pipes, which stops the script."""
        interest = {self._children.wake_fd: select.POLLIN}
        if not self._channel.is_full:
            interest.update(dict.fromkeys(self._streams, select.POLLIN))
        if self._stdin_fd is not None:
            interest[self._stdin_fd] = select.POLLOUT
        if self._tunnels is not None:
            interest.update(self._tunnels.interest())
        return interest

    def _timeout(self) -> float | None:
        if self._kill_since is None:
            due = min(self._next_look, self._started + self._order.wall_seconds)
            return max(0.0, due - time.monotonic())
        return None if self._children.gone else KILL_SECONDS

    def _obey(self) -> None:
        while (frame := self._channel.take()) is not None:
            if self._tunnels is not None and frame.type in TUNNEL_FRAMES:
                self._tunnels.obey(frame)
                continue
            if frame.type is not FrameType.CANCEL:
                raise FrameError(f"{frame.type.name} frame while a script runs")
            if self._cause is None and self._status is None:
                self._cause = Cause.CANCELLED

    def _feed(self) -> None:
        """Writes standard input as far as the script takes it; closes it when all is written or nobody reads."""
        fd = self._stdin_fd
        if fd is None:
            return
        try:
            self._stdin = self._stdin[os.write(fd, self._stdin) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._stdin = memoryview(b"")
        if not self._stdin:
            os.close(fd)
            self._stdin_fd = None

    def _pass_on(self, fd: int) -> None:
        """Takes what is in a pipe, up to the limit; one byte more than that shows that there is more."""
        stream = self._streams[fd]
        data, ended = _read(fd, min(DATA_MAX, self._output_left + 1))
        if ended:
            os.close(fd)
            del self._streams[fd]
        passed = data[: self._output_left]
        self._output_left -= len(passed)
        if passed:
            self._channel.send(stream, passed)
        if len(data) > len(passed):
            self._output_truncated = True
            self._cause = self._cause or (Cause.OUTPUT_LIMIT if self._status is None else None)

    def _watch(self, now: float) -> None:
        """Ends the script that reached a limit."""
        if now >= self._started + self._order.wall_seconds:
            self._cause = Cause.WALL_TIMEOUT
        elif now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._usage.look_at_disk()
            self._usage.count()
            if self._usage.too_many_tasks:
                self._cause = Cause.PIDS_LIMIT
            elif self._usage.too_many_files:
                self._cause = Cause.DISK_LIMIT
            elif (self._usage.pids_limit_hits() or 0) > PIDS_STORM:
                self._cause = Cause.PIDS_STORM
            elif self._is_cpu_used_up(now):
                self._cause = Cause.CPU_TIMEOUT

    def _is_cpu_used_up(self, now: float) -> bool:
        if now < self._next_cpu_look:
            return False
        self._next_cpu_look = now + (0.0 if self._usage.has_cpu_account else SLOW_LOOK_SECONDS)
        return self._usage.cpu_seconds() > self._order.cpu_seconds

    def _end(self) -> None:
        """One round of killing. The run is over for the script, whatever it left behind."""
        now = time.monotonic()
        if self._kill_since is None:
            self._kill_since = now
        elif self._children.gone:
            return
        elif now > self._kill_since + DEATH_SECONDS_MAX:
            raise InitError(f"processes that do not die within {DEATH_SECONDS_MAX} s of SIGKILL")
        kill_everything()
        if self._tunnels is not None:
            self._tunnels.close()
        status = self._children.reap(self._script.pid)
        if status is not None and self._status is None:  # a later process may have had the same number
            self._status, self._ended = status, time.monotonic()

    def _final_cause(self) -> Cause:
        if self._cause is not None:
            return self._cause
        # The script was gone before its last output was read: it wrote too much all the same.
        if self._output_truncated:
            return Cause.OUTPUT_LIMIT
        return Cause.EXITED if os.WIFEXITED(self._status or 0) else Cause.SIGNALED

    def _exit(self, cause: Cause) -> dict[str, object]:
        """The EXIT frame, whose fields `frames` describes."""
        status = self._status or 0
        exited = os.WIFEXITED(status)
        return {
            "cause": cause,
            "exit_code": os.WEXITSTATUS(status) if exited else None,
            "signal": None if exited else os.WTERMSIG(status),
            "wall_seconds": round(self._ended - self._started, 6),
            "cpu_seconds": round(self._usage.cpu_seconds(), 6),
            "peak_memory_bytes": self._usage.peak_memory_bytes(),
            "oom_kills": self._usage.oom_kills(),
            "pids_limit_hits": self._usage.pids_limit_hits(),
            "disk_full": self._usage.disk_full,
            "output_truncated": self._output_truncated,
        }


def _read(fd: int, size: int) -> tuple[bytes, bool]:
    """What is there, at most `size` bytes in one piece, however small the writes were; and whether it is the end."""
    pieces: list[bytes] = []
    while size > 0:
        try:
            piece = os.read(fd, size)
        except BlockingIOError:
            break
        if not piece:
            return b"".join(pieces), True
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces), False
