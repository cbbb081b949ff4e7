"""What init reads about its own confinement, for the daemon to verify before anything runs.

`report` gives this object, the READY frame's "isolation". A fact that cannot be read is null, never guessed;
"max" is the kernel's word for no limit.

    pid                  int; 1, or init does not run
    uids, gids           [int, int, int, int]: real, effective, saved, file system
    groups               [int, …]: supplementary groups
    capabilities         {"inheritable", "permitted", "effective", "bounding", "ambient"}: int, a bit for each
    no_new_privileges    bool; asked by prctl(2) where the kernel does not write it (gVisor)
    seccomp_mode         int: 0 none, 2 a filter
    own_filter           bool: whether the filter is skilljail's, which alone refuses what any process may do
    namespaces           {"cgroup", "ipc", "pid", "user", "uts": int}: the inode of each; the host's own are known
    interfaces           [str, …]: names of network interfaces
    root_read_only       bool: how "/" is mounted
    mounts               [{"path": str, "type": str, "options": [str, …]}, …] as they were mounted; the host's
                         side of a mount is left out
    work                 {"bytes": int, "inodes": int}: size of the file system of the work directory
    tmp                  the same of /tmp, where that is another file system: gVisor mounts one unasked
    cgroup               {"version": 1 | 2, "memory_bytes", "swap_bytes", "pids", "cpu_quota_microseconds",
                         "cpu_period_microseconds": int | "max"}: the sandbox's own group, where it sees one
    rlimits              {"open_files", "core_bytes", "file_bytes": [soft, hard], each int | "max"}
    dumpable             bool: false, or init does not run
    exposed              bool: whether another process of this user can open init's descriptors; tried on gVisor, whose
                         older releases let it whatever `dumpable` says, and null on Linux
    kernel               {"boot_id": str: of the kernel that the sandbox sees, "memory_bytes": int: all memory it tells,
                         "gvisor": [str, …]: where that kernel says that it is gVisor's, of `kernel.GVISOR_SIGNS`}
    start_time           float: when init's program started, seconds since the epoch by the sandbox's clock
"""

# pathlib is slow to import.
# ruff: noqa: PTH102, PTH110, PTH123, PTH208
from __future__ import annotations

import os
import resource

from skilljail_init.census import TMP, is_apart
from skilljail_init.cgroup import decode_mount_point
from skilljail_init.jsontext import dumps
from skilljail_init.kernel import gains_no_privileges, gvisor_signs, is_dumpable, is_exposed, is_gvisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from skilljail_init.cgroup import ControlGroup

__all__ = ["report"]

BOOT_ID_LENGTH = 36

MOUNTS_BYTES_MAX = 40_000
"""As JSON. More mounts than any container has are reported as null: the frame has a limit."""
ITEMS_MAX = 500
"""Groups and interfaces, likewise."""
FIELDS_MIN, KINDS_MIN = 6, 3
"""Words of a line of mountinfo before and after its " - ", optional ones left out."""
NAMESPACES = ("cgroup", "ipc", "pid", "user", "uts")
CAPABILITY_SETS = {
    "inheritable": "CapInh",
    "permitted": "CapPrm",
    "effective": "CapEff",
    "bounding": "CapBnd",
    "ambient": "CapAmb",
}


def report(work: str, control_group: ControlGroup, start_time: float, proc: str = "/proc") -> dict[str, object]:
    """The facts that this module's docstring lists.

    `work`: the work directory; `proc`: a folder as /proc.
    """
    process = f"{proc}/self"
    status = _status(_read(f"{process}/status"))
    mounts = _mounts(_read(f"{process}/mountinfo"))
    return {
        "pid": os.getpid(),
        "uids": _integers(status.get("Uid")),
        "gids": _integers(status.get("Gid")),
        "groups": _integers(status.get("Groups")),
        "capabilities": {name: _integer(status.get(key), 16) for name, key in CAPABILITY_SETS.items()},
        "no_new_privileges": _no_new_privileges(status),
        "seccomp_mode": _integer(status.get("Seccomp")),
        "own_filter": _own_filter(),
        "namespaces": {name: _namespace(f"{process}/ns/{name}") for name in NAMESPACES},
        "interfaces": _interfaces(_read(f"{process}/net/dev")),
        "root_read_only": _root_read_only(mounts),
        "mounts": mounts if mounts and len(dumps(mounts)) <= MOUNTS_BYTES_MAX else None,
        "work": _size(work),
        "tmp": _size(TMP) if is_apart(TMP, work) else None,
        "cgroup": control_group.limits(),
        "rlimits": {
            "open_files": _rlimit(resource.RLIMIT_NOFILE),
            "core_bytes": _rlimit(resource.RLIMIT_CORE),
            "file_bytes": _rlimit(resource.RLIMIT_FSIZE),
        },
        "dumpable": is_dumpable(),
        "exposed": is_exposed() if is_gvisor() else None,
        "kernel": _kernel(proc),
        "start_time": start_time,
    }


def _status(text: str) -> dict[str, str]:
    """proc_pid_status(5) as a mapping."""
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _mounts(text: str) -> list[dict[str, object]]:
    """proc_pid_mountinfo(5) without the host's side."""
    mounts: list[dict[str, object]] = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < FIELDS_MIN or len(kinds) < KINDS_MIN:
            continue
        options = fields[5].split(",")
        # A file system that is read-only as a whole says so only among its own options; those name host
        # paths, too.
        if "ro" in kinds[2].split(",") and "ro" not in options:
            options = ["ro", *(option for option in options if option != "rw")]
        path = decode_mount_point(fields[4])
        mounts.append({"path": path, "type": kinds[0], "options": options})
    return mounts


def _root_read_only(mounts: list[dict[str, object]]) -> bool | None:
    """Of the mount that was put on "/" last: it is the one that shows."""
    roots = [mount["options"] for mount in mounts if mount["path"] == "/"]
    return "ro" in roots[-1] if roots and isinstance(roots[-1], list) else None


def _interfaces(text: str) -> list[str] | None:
    """The names in /proc/net/dev, which has two lines of headings."""
    lines = text.splitlines()[2:]
    return [line.partition(":")[0].strip() for line in lines] if text and len(lines) <= ITEMS_MAX else None


def _size(work: str) -> dict[str, int] | None:
    try:
        size = os.statvfs(work)
    except OSError:
        return None
    return {"bytes": size.f_blocks * size.f_frsize, "inodes": size.f_files}


def _no_new_privileges(status: dict[str, str]) -> bool | None:
    if "Seccomp" in status and "NoNewPrivs" not in status:
        return gains_no_privileges()
    written = _integer(status.get("NoNewPrivs"))
    return None if written is None else written == 1


def _kernel(proc: str) -> dict[str, object]:
    """What the kernel says of itself."""
    memory_kib = _status(_read(f"{proc}/meminfo")).get("MemTotal", "").removesuffix(" kB")
    memory = _integer(memory_kib)
    return {
        "boot_id": _read(f"{proc}/sys/kernel/random/boot_id").strip()[:BOOT_ID_LENGTH] or None,
        "memory_bytes": None if memory is None else memory * 1024,
        "gvisor": gvisor_signs(proc),
    }


def _own_filter() -> bool | None:
    """Asks for init's limits by its number: no other filter refuses that; ours does, so that no script can set them."""
    try:
        resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)
    except PermissionError:
        return True
    except OSError:
        return None
    return False


def _namespace(link: str) -> int | None:
    """The number in a link such as `ipc:[4026531839]`."""
    try:
        return _integer(os.readlink(link).partition("[")[2].rstrip("]"))  # noqa: PTH115 - pathlib is slow to import
    except OSError:
        return None


def _rlimit(which: int) -> list[object]:
    return ["max" if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(which)]


def _integer(text: str | None, base: int = 10) -> int | None:
    try:
        return int(text or "", base)
    except ValueError:
        return None


def _integers(text: str | None) -> list[int] | None:
    """White-space separated numbers; an empty text is an empty list."""
    try:
        numbers = None if text is None else [int(word) for word in text.split()]
    except ValueError:
        return None
    return numbers if numbers is None or len(numbers) <= ITEMS_MAX else None


def _read(path: str) -> str:
    """The text of a file; empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
