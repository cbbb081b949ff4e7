"""What one run uses: the kernel's accounts, counted from the start of the script."""

from __future__ import annotations

import os
import time

from skilljail_init.census import TMP, FileCensus, count_tasks, is_apart
from skilljail_init.kernel import is_gvisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from skilljail_init.cgroup import ControlGroup
    from skilljail_init.children import Children

__all__ = ["Usage"]


class Usage:
    """Made just before the script starts. `look` reads what must be watched."""

    def __init__(
        self, control_group: ControlGroup, children: Children, work: str, *, pids: int, disk_inodes: int, cpus: float
    ) -> None:
        """`pids`, `disk_inodes`, `cpus`: limits, for what is counted here where the kernel does not."""
        self._group = control_group
        self._children = children
        self._pids = pids
        on_gvisor = is_gvisor()
        self._folders = [work, *([TMP] if on_gvisor and is_apart(TMP, work) else [])]
        unlimited = [folder for folder in self._folders if on_gvisor and os.statvfs(folder).f_files == 0]
        self._files = [FileCensus(folder, disk_inodes) for folder in unlimited]
        cpu_seconds = control_group.cpu_seconds()
        self.has_cpu_account = cpu_seconds is not None
        """Whether the kernel keeps the account; else init adds up processes, which takes its time."""
        self._cpu_base = children.cpu_seconds() if cpu_seconds is None else cpu_seconds
        self._pids_base = control_group.pids_limit_hits()
        self._oom_base = control_group.oom_kills()
        # gVisor takes a process that waits for its turn for one that runs; but the host gives it its share alone.
        self._cpus = cpus if on_gvisor else None
        self._started = time.monotonic()
        self._crowded = 0 if on_gvisor else None
        self.disk_full = False
        self.too_many_tasks = False
        """Whether there were more processes and threads than allowed; seen only where init counts them."""
        self.too_many_files = False
        """Whether there were more files than allowed, likewise."""

    def close(self) -> None:
        """Gives back what counting needs."""
        for census in self._files:
            census.close()

    def look_at_disk(self) -> None:
        """Notes whether the work directory is full. What is freed between two looks is missed."""
        for folder in self._folders:
            size = os.statvfs(folder)
            # A file system without a fixed number of inodes says that it has none at all.
            self.disk_full |= size.f_bfree == 0 or (size.f_files > 0 and size.f_ffree == 0)

    def count(self) -> None:
        """Counts what the kernel does not hold to its limit, if there is such."""
        for census in self._files:
            self.too_many_files |= census.is_above()
        self.disk_full |= self.too_many_files
        if self._crowded is not None:
            tasks = count_tasks()
            self._crowded += tasks > self._pids
            self.too_many_tasks |= tasks > self._pids

    def cpu_seconds(self) -> float:
        """User and system time of all processes of the run, dead or alive."""
        now = self._group.cpu_seconds() if self.has_cpu_account else None
        used = max(0.0, (self._children.cpu_seconds() if now is None else now) - self._cpu_base)
        return used if self._cpus is None else min(used, self._cpus * (time.monotonic() - self._started))

    def pids_limit_hits(self) -> int | None:
        """Processes and threads that the kernel refused; where it keeps no record, looks that met too many."""
        hits = _since(self._pids_base, self._group.pids_limit_hits())
        return self._crowded if hits is None else hits

    def oom_kills(self) -> int | None:
        """Processes that the kernel's out-of-memory killer ended."""
        return _since(self._oom_base, self._group.oom_kills())

    def peak_memory_bytes(self) -> int | None:
        """The most memory of the whole sandbox, since it was made."""
        return self._group.peak_memory_bytes()


def _since(base: int | None, now: int | None) -> int | None:
    return None if base is None or now is None else max(0, now - base)
