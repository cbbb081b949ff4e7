"""The kernel's accounts of the sandbox, read from its control group.

Versions 1 and 2, the host's cgroup namespace and one of its own.

What cannot be read is None. Nothing is guessed: where the sandbox has no group of its own, the numbers of the
whole machine would be taken for its.
"""

# pathlib is slow to import.
# ruff: noqa: PTH102, PTH110, PTH123, PTH208
from __future__ import annotations

import os

__all__ = ["ControlGroup", "Counter", "decode_mount_point"]

UNLIMITED = 2**62
"""Version 1 writes "no limit" as the largest multiple of a page below 2^63."""
READ_BYTES = 8_192
FIELDS_MIN = 6
"""Words of a line of mountinfo before its " - ", optional ones left out."""


class Counter:
    """One number of a file that stays open, so that reading it again is a single system call."""

    def __init__(self, path: str, key: str | None, scale: float = 1) -> None:
        """`key`: first word of the number's line; None: the file holds nothing else. Raises OSError."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._key = key
        self._scale = scale

    def read(self) -> float | None:
        """The number, times the scale; None when the kernel has none."""
        try:
            text = os.pread(self._fd, READ_BYTES, 0).decode("ascii", "replace")
        except OSError:
            return None
        for line in text.splitlines():
            words = line.split()
            if words and (self._key is None or words[0] == self._key):
                return int(words[-1]) * self._scale if words[-1].isdecimal() else None
        return None


class ControlGroup:
    """The control group that init finds itself in."""

    def __init__(self, process: str = "/proc/self") -> None:
        """`process`: a folder with the files `cgroup` and `mountinfo` of a process."""
        folders = _folders(_read(f"{process}/cgroup"), _read(f"{process}/mountinfo"))
        self._folders = {name: folder for name, folder in folders.items() if not _is_root(folder)}
        self._cpu = self._counter(("cpu.stat", "usage_usec", 1e-6), ("cpuacct", "cpuacct.usage", None, 1e-9))
        self._oom_kills = self._counter(
            ("memory.events", "oom_kill", 1), ("memory", "memory.oom_control", "oom_kill", 1)
        )
        self._pids_hits = self._counter(("pids.events", "max", 1), ("pids", "pids.events", "max", 1))
        self._peak = self._counter(("memory.peak", None, 1), ("memory", "memory.max_usage_in_bytes", None, 1))

    def _counter(
        self, second: tuple[str, str | None, float], first: tuple[str, str, str | None, float]
    ) -> Counter | None:
        """The counter where it is: a version 1 controller wins, for what it has, version 2 has not."""
        controller, name, key, scale = first
        folder = self._folders.get(controller)
        if folder is None:
            folder, (name, key, scale) = self._folders.get(""), second
        if folder is None:
            return None
        try:
            return Counter(f"{folder}/{name}", key, scale)
        except OSError:
            return None

    def cpu_seconds(self) -> float | None:
        """User and system time of all processes of the group, since it was made."""
        return self._cpu.read() if self._cpu else None

    def oom_kills(self) -> int | None:
        """Processes that the out-of-memory killer ended, since the group was made."""
        return _whole(self._oom_kills)

    def pids_limit_hits(self) -> int | None:
        """Processes and threads that the kernel refused, since the group was made."""
        return _whole(self._pids_hits)

    def peak_memory_bytes(self) -> int | None:
        """The most memory that the group ever had. Linux before 5.19 does not keep it in version 2."""
        return _whole(self._peak)

    def limits(self) -> dict[str, object]:
        """The group's limits, for `isolation`: a number, "max" for no limit, None for what cannot be read."""
        if "memory" in self._folders or "pids" in self._folders:
            return self._limits_of_version_1()
        folder = self._folders.get("")
        quota, _, period = (_read_in(folder, "cpu.max") or "").strip().partition(" ")
        return {
            "version": None if folder is None else 2,
            "memory_bytes": _limit(_read_in(folder, "memory.max")),
            "swap_bytes": _limit(_read_in(folder, "memory.swap.max")),
            "pids": _limit(_read_in(folder, "pids.max")),
            "cpu_quota_microseconds": _limit(quota),
            "cpu_period_microseconds": _limit(period),
        }

    def _limits_of_version_1(self) -> dict[str, object]:
        memory, pids, cpu = (self._folders.get(name) for name in ("memory", "pids", "cpu"))
        memory_bytes = _limit(_read_in(memory, "memory.limit_in_bytes"))
        swap_bytes = _limit(_read_in(memory, "memory.memsw.limit_in_bytes"))
        if isinstance(memory_bytes, int) and isinstance(swap_bytes, int):
            swap_bytes -= memory_bytes  # version 1 limits the sum
        return {
            "version": 1,
            "memory_bytes": memory_bytes,
            "swap_bytes": swap_bytes,
            "pids": _limit(_read_in(pids, "pids.max")),
            "cpu_quota_microseconds": _limit(_read_in(cpu, "cpu.cfs_quota_us")),
            "cpu_period_microseconds": _limit(_read_in(cpu, "cpu.cfs_period_us")),
        }


def _folders(memberships: str | None, mounts: str | None) -> dict[str, str]:
    """Where each controller's group is mounted; version 2 has the name ""."""
    paths: dict[str, str] = {}
    for line in (memberships or "").splitlines():
        _, controllers, path = (line + "::").split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path.removesuffix("::")))
    folders: dict[str, str] = {}
    for line in (mounts or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options, *_) = before.split(" "), [*after.split(" "), "", "", ""]
        if kind not in {"cgroup", "cgroup2"} or len(fields) < FIELDS_MIN:
            continue
        root, mount_point = map(decode_mount_point, fields[3:5])
        for name in [""] if kind == "cgroup2" else options.split(","):
            folder = _below(mount_point, root, paths.get(name))
            if folder is not None:
                folders[name] = folder
    return folders


def _below(mount_point: str, root: str, path: str | None) -> str | None:
    """The folder of group `path` in a hierarchy that is mounted from `root` on; None when not in there."""
    # A ".." leads out of the cgroup namespace: the mount or the group is somebody else's.
    if path is None or "/.." in path or "/.." in root:
        return None
    above = root.rstrip("/")
    if path != root and not path.startswith(above + "/"):
        return None
    return (mount_point + path.removeprefix(above)).rstrip("/")


def _is_root(folder: str) -> bool:
    """Whether a folder is the root of its hierarchy: the whole machine, not a sandbox."""
    return os.path.exists(f"{folder}/release_agent") or not (
        os.path.exists(f"{folder}/cgroup.events") or os.path.exists(f"{folder}/notify_on_release")
    )


def decode_mount_point(text: str) -> str:
    """A path of mountinfo, in which the kernel writes white space and backslashes as three octal digits."""
    head, *pieces = text.split("\\")
    return head + "".join(chr(int(piece[:3], 8)) + piece[3:] for piece in pieces)


def _whole(counter: Counter | None) -> int | None:
    value = counter.read() if counter else None
    return None if value is None else int(value)


def _limit(text: str | None) -> object:
    """A limit as the kernel writes it: int, "max" or None."""
    word = (text or "").strip()
    if word in {"max", "-1"} or (word.isdecimal() and int(word) >= UNLIMITED):
        return "max"
    return int(word) if word.isdecimal() else None


def _read_in(folder: str | None, name: str) -> str | None:
    return None if folder is None else _read(f"{folder}/{name}")


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None
