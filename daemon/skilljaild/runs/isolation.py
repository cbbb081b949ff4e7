"""Checks what init read about its own confinement against the container floor and the run's limits.

init is ours, but it runs in the sandbox: what it says here counts because nothing hostile has run there yet.
"""

from collections.abc import Callable
from typing import Any

from skilljaild.engines.base import IsolationError
from skilljaild.engines.floor import Floor, container_floor
from skilljaild.limits import Limits
from skilljaild.numbers import at_most, both_at_most, is_count
from skilljaild.runs import gvisor
from skilljaild.runs.level import IsolationLevel, level_of

__all__ = ["check_from_inside"]

MISSING: dict[str, Any] = {}


def check_from_inside(facts: dict[str, Any], limits: Limits, place: int = 0) -> tuple[str, ...]:
    """Returns what holds, a short sentence each. Raises IsolationError naming what does not.

    `facts`: as in `skilljail_init.isolation`; `place`: of the sandbox, as in `SandboxSpec`. A control group that the
    sandbox does not see (some rootless engines) is left to the engine's own inspection; every other fact must be
    there. A sandbox that is proved to be on gVisor is judged by gVisor's rules where those differ, any other by those
    of Linux.
    """
    floor = container_floor()
    on_gvisor = level_of(facts) is IsolationLevel.GVISOR
    try:
        if on_gvisor:
            checks = _on_gvisor(facts, limits, floor, floor.user_of(place))
        else:
            checks = _on_linux(facts, limits, floor, floor.user_of(place))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise IsolationError("init's report of its isolation is broken; build the image again") from error
    faults = [sentence for sentence, holds in checks.items() if not holds]
    if faults:
        mends = gvisor.mends(faults) if on_gvisor else ""
        raise IsolationError(
            f"seen from inside the sandbox, this does not hold: {'; '.join(faults)}. {mends}Nothing was run."
        )
    return tuple(checks)


def _on_linux(facts: dict[str, Any], limits: Limits, floor: Floor, user: int) -> dict[str, bool]:
    return (
        _identity(facts, floor, user, _CAPABILITY_SETS)
        | _namespaces(facts, floor)
        | _surroundings(facts, floor)
        | _kernel_paths(facts, floor)
        | _work(facts, limits)
        | _files(facts, limits)
        | _process_limits(facts, limits)
        | _group(facts, limits)
    )


def _on_gvisor(facts: dict[str, Any], limits: Limits, floor: Floor, user: int) -> dict[str, bool]:
    """The same walls as far as they are gVisor's, too; `gvisor` has the others in its terms."""
    identity = _identity(facts, floor, user, gvisor.capability_sets(facts, _CAPABILITY_SETS))
    del identity[_INIT_CLOSED]
    return (
        identity
        | _surroundings(facts, floor, gvisor.MOUNTED)
        | _work(facts, limits)
        | _process_limits(facts, limits)
        | gvisor.checks(facts, limits)
    )


_INIT_CLOSED = "init cannot be read or traced"
_CAPABILITY_SETS = ("inheritable", "permitted", "effective", "bounding", "ambient")


def _identity(facts: dict[str, Any], floor: Floor, user: int, names: tuple[str, ...]) -> dict[str, bool]:
    capabilities, groups = facts.get("capabilities") or MISSING, facts.get("groups")
    return {
        "a user and group of its own, not root": facts.get("uids") == [user] * 4
        and facts.get("gids") == [user] * 4
        and isinstance(groups, list)
        and set(groups) <= {user},
        "no capability, also not in the bounding set": all(capabilities.get(name) == 0 for name in names),
        "no new privileges": facts.get("no_new_privileges") is floor.no_new_privileges,
        "skilljail's own system-call filter": facts.get("seccomp_mode") == 2 and facts.get("own_filter") is True,
        "a process tree of its own": facts.get("pid") == 1,
        _INIT_CLOSED: facts.get("dumpable") is False,
    }


def _namespaces(facts: dict[str, Any], floor: Floor) -> dict[str, bool]:
    namespaces = facts.get("namespaces")
    return {
        "namespaces of its own": isinstance(namespaces, dict)
        and all(
            is_count(namespaces.get(name)) and namespaces[name] != _HOST_NAMESPACES[name] for name in floor.namespaces
        )
    }


def _surroundings(facts: dict[str, Any], floor: Floor, also_mounted: tuple[str, ...] = ()) -> dict[str, bool]:
    """`also_mounted`: where the runtime mounts something of its own that is judged apart from this."""
    mounts = facts.get("mounts") or []
    paths = [mount.get("path") for mount in mounts]
    return {
        "no network interface but loopback": facts.get("interfaces") in (["lo"], []),
        "a read-only root": facts.get("root_read_only") is True,
        "no engine socket, no host folder": bool(mounts)
        and not any(str(path).startswith(f"{floor.work_path}/") for path in paths)
        and not any(str(path).endswith(".sock") for path in paths)
        and all(mount.get("path") in also_mounted or _is_known(mount, floor) for mount in mounts),
    }


def _kernel_paths(facts: dict[str, Any], floor: Floor) -> dict[str, bool]:
    mounts = facts.get("mounts") or []
    return {
        "what the kernel tells of the host is hidden": _all_hold(mounts, floor.masked_paths, _hides),
        "the kernel's settings are read-only": _all_hold(mounts, floor.read_only_paths, _is_read_only),
    }


_HOST_NAMESPACES = {"ipc": 0xEFFFFFFF, "uts": 0xEFFFFFFE, "pid": 0xEFFFFFFC, "cgroup": 0xEFFFFFFB}
"""The inodes that Linux gives to the namespaces it boots with (include/linux/proc_ns.h)."""
_ENGINE_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv")
"""Small files that every engine mounts; the root being read-only, so are they of no use for writing."""
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
_KERNEL_TYPES = {"proc", "sysfs", "cgroup", "cgroup2", "tmpfs", "devpts", "mqueue", "devtmpfs"}


def _is_known(mount: dict[str, Any], floor: Floor) -> bool:
    """A mount that the floor, the kernel or every engine brings. Anything else comes from the host."""
    path, kind = str(mount.get("path")), mount.get("type")
    if path in {"/", floor.work_path, *_ENGINE_FILES}:
        return True
    # Only there: elsewhere a tmpfs is as good as any other folder of the host.
    return kind in _KERNEL_TYPES and f"{path}/".startswith(tuple(f"{one}/" for one in _KERNEL_FOLDERS))


_EVERYWHERE = {"/proc/bus", "/proc/fs", "/proc/sys", "/proc/interrupts", "/proc/timer_list", "/sys/firmware"}
"""What every Linux has, whatever it is built with. The other paths of the floor are covered only where they exist,
which mounts do not tell."""


def _all_hold(mounts: list[dict[str, Any]], paths: tuple[str, ...], holds: Callable[[dict[str, Any]], bool]) -> bool:
    """Whether every mount on each of the paths holds, and there is one on those that every Linux has."""
    found = {path: [holds(mount) for mount in mounts if mount.get("path") == path] for path in paths}
    return all(all(each) and (bool(each) or path not in _EVERYWHERE) for path, each in found.items())


def _hides(mount: dict[str, Any]) -> bool:
    """Engines cover a folder with a tmpfs, a file with the null device: of a tmpfs, or of the devtmpfs."""
    return mount.get("type") in {"tmpfs", "devtmpfs"}


def _is_read_only(mount: dict[str, Any]) -> bool:
    return "ro" in mount["options"]


def _work(facts: dict[str, Any], limits: Limits) -> dict[str, bool]:
    work = facts.get("work") or MISSING
    return {f"a work directory of at most {limits.disk_bytes:,} bytes": at_most(work.get("bytes"), limits.disk_bytes)}


def _files(facts: dict[str, Any], limits: Limits) -> dict[str, bool]:
    work = facts.get("work") or MISSING
    return {f"at most {limits.disk_inodes:,} files in it": at_most(work.get("inodes"), limits.disk_inodes, slack=0)}


def _process_limits(facts: dict[str, Any], limits: Limits) -> dict[str, bool]:
    rlimits = facts.get("rlimits") or MISSING
    return {
        f"at most {limits.open_files:,} open files": both_at_most(rlimits.get("open_files"), limits.open_files),
        f"no file above {limits.disk_bytes:,} bytes": both_at_most(rlimits.get("file_bytes"), limits.disk_bytes),
        "no core files": both_at_most(rlimits.get("core_bytes"), 0),
    }


def _group(facts: dict[str, Any], limits: Limits) -> dict[str, bool]:
    """The control group's limits as far as the sandbox sees them."""
    group = facts.get("cgroup") or MISSING
    checks = {}
    if group.get("memory_bytes") is not None:
        checks[f"at most {limits.memory_bytes:,} bytes of memory"] = at_most(group["memory_bytes"], limits.memory_bytes)
    if group.get("swap_bytes") is not None:
        checks["no swap"] = group["swap_bytes"] == 0
    if group.get("pids") is not None:
        checks[f"at most {limits.pids:,} processes and threads"] = at_most(group["pids"], limits.pids, slack=0)
    quota, period = group.get("cpu_quota_microseconds"), group.get("cpu_period_microseconds")
    if quota is not None:
        checks[f"at most {limits.cpus:g} processors"] = (
            is_count(quota) and is_count(period) and 0 < quota <= limits.cpus * 1.01 * period
        )
    return checks
