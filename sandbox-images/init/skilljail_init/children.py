"""Every other process of the sandbox. As PID 1 init is, sooner or later, the parent of them all."""

# pathlib is slow to import.
# ruff: noqa: PTH102, PTH110, PTH123, PTH208
from __future__ import annotations

import os

from skilljail_init.errors import InitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # `signal` wraps the same functions into enums, and importing enum takes 4 ms

__all__ = ["Children", "kill_everything"]

WALL = 0x40000000
"""waitpid(2)'s __WALL: wait for every child, however it was cloned. Python has no name for it."""
REAP_MAX = 1_000
"""Processes reaped in one go: a script that makes orphans without end must not keep init from its clock."""


def kill_everything() -> None:
    """Kills every process but init. Whoever forks in this moment is found by the next call: see `Children.gone`.

    Raises InitError when this process is not PID 1: it would kill all processes of its user.
    """
    _require_first()
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return  # nobody is left


def _require_first() -> None:
    if os.getpid() != 1:
        raise InitError("init must be PID 1 of a pid namespace of its own: start it as a container's entry point")


class Children:
    """Reaps what ends, whoever started it."""

    def __init__(self) -> None:
        """Raises InitError when this process is not PID 1."""
        if os.getpid() != 1:
            raise InitError("init must be PID 1 of a pid namespace of its own: start it as a container's entry point")
        self.gone = True
        """Whether, at the last look, no process but init existed."""
        self.wake_fd, write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(write_fd, False)
        # The one signal that init handles. The kernel drops every other one that the sandbox sends to its PID
        # 1, SIGKILL and SIGSTOP too; this one does no more than end a poll early, whoever sends it.
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def clear_wake(self) -> None:
        """Empties the descriptor that becomes readable when a child ends."""
        try:
            os.read(self.wake_fd, 4096)
        except BlockingIOError:
            return

    def reap(self, main_pid: int) -> int | None:
        """Buries who has ended. Returns the wait status of `main_pid` when it is among them."""
        status = None
        for _ in range(REAP_MAX):
            try:
                pid, ended = os.waitpid(-1, os.WNOHANG | WALL)
            except ChildProcessError:
                self.gone = True
                return status
            self.gone = False
            if pid == 0:
                return status
            if pid == main_pid:
                status = ended
        return status

    def cpu_seconds(self) -> float:
        """CPU time of all children, living and dead, for kernels without a CPU account of the sandbox.

        It misses what a process used whose parent ignored its end.
        """
        import resource  # noqa: PLC0415 - only where there is no better source

        dead = resource.getrusage(resource.RUSAGE_CHILDREN)
        ticks = sum(_cpu_ticks(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1")
        return dead.ru_utime + dead.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def _cpu_ticks(pid: str) -> int:
    """utime, stime, cutime and cstime of proc_pid_stat(5), added up; 0 when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name comes second, in parentheses, and may hold anything.
            fields = file.read().rpartition(b")")[2].split()
        return sum(int(field) for field in fields[11:15])
    except (OSError, ValueError):
        return 0
