"""What one run uses: the kernel's accounts, counted from the start of the script."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from skilljail_init.cgroup import ControlGroup
    from skilljail_init.children import Children

__all__ = ["Usage"]


class Usage:
    """Made just before the script starts. `look` reads what must be watched."""

    def __init__(self, control_group: ControlGroup, children: Children, work: str) -> None:
        self._group = control_group
        self._children = children
        self._work = work
        cpu_seconds = control_group.cpu_seconds()
        self.has_cpu_account = cpu_seconds is not None
        """Whether the kernel keeps the account; else init adds up processes, which takes its time."""
        self._cpu_base = children.cpu_seconds() if cpu_seconds is None else cpu_seconds
        self._pids_base = control_group.pids_limit_hits()
        self._oom_base = control_group.oom_kills()
        self.disk_full = False

    def look_at_disk(self) -> None:
        """Notes whether the work directory is full. What is freed between two looks is missed."""
        size = os.statvfs(self._work)
        # A file system without a fixed number of inodes says that it has none at all.
        self.disk_full |= size.f_bfree == 0 or (size.f_files > 0 and size.f_ffree == 0)

    def cpu_seconds(self) -> float:
        """User and system time of all processes of the run, dead or alive."""
        now = self._group.cpu_seconds() if self.has_cpu_account else None
        return max(0.0, (self._children.cpu_seconds() if now is None else now) - self._cpu_base)

    def pids_limit_hits(self) -> int | None:
        """Processes and threads that the kernel refused."""
        return _since(self._pids_base, self._group.pids_limit_hits())

    def oom_kills(self) -> int | None:
        """Processes that the kernel's out-of-memory killer ended."""
        return _since(self._oom_base, self._group.oom_kills())

    def peak_memory_bytes(self) -> int | None:
        """The most memory of the whole sandbox, since it was made."""
        return self._group.peak_memory_bytes()


def _since(base: int | None, now: int | None) -> int | None:
    return None if base is None or now is None else max(0, now - base)
