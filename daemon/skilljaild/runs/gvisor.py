"""What holds in a sandbox on gVisor, where that differs from Linux.

Between the script and the host's kernel there is a kernel in user space, the sentry, one for each sandbox. What it
changes, control by control (docs/gvisor.md has the cases):

- Namespaces: process numbers, IPC, host name and control groups are the sentry's, and it serves this sandbox alone.
  What the links below /proc/self/ns tell is its own invention.
- Masked and read-only paths of /proc and /sys: the sentry takes no notice of them, and needs none. Its files tell of
  itself, not of the host, and are root's: a sandbox's user cannot write any, and what could be set would be the
  sandbox's own.
- Ambient capabilities: there are none, and older releases do not say so. They are part of the permitted ones at most.
- Control groups: they hold the sentry on the host, and no sandbox sees them. A sentry takes for all its memory what its
  group may have, so the memory that it tells proves the group; the rest the engine is asked (`Engine.confirm`).
- Processes and threads: the host's group counts the sentry's, which are several for each of the sandbox's. So init
  counts the sandbox's own; newer releases also hold RLIMIT_NPROC.
- Files: older releases know no limit on the number of files of a tmpfs. There init counts.
- init: older releases let every process of the same user open its descriptors, whatever prctl(2) says. Then a script
  can speak in init's name: lie about how its own run ended. The daemon takes all that it reads for a script's word
  anyway, and has its own clock and bounds. Such a release is not said to close init off.
- Signals to init: gVisor delivers them, so the filter refuses to send them (`engines.docker.gvisor`).
- /tmp: gVisor mounts a tmpfs over our link unless it is told to mount one; then that has a cap of its own.

Our own system-call filter is needed as on Linux: it keeps the script from what the sentry offers and nobody needs, and
keeps init out of its reach. The sentry has another one around itself, on the host, that nobody can see from inside.
"""

from typing import Any

from skilljaild.limits import Limits
from skilljaild.numbers import at_most

__all__ = ["MOUNTED", "capability_sets", "checks", "mends"]

TMP = "/tmp"  # noqa: S108 - gVisor's choice
MOUNTED = (TMP,)
"""Where gVisor mounts something unasked. `checks` judges it."""
FILTER = "skilljail's own system-call filter"
MEMORY = "of memory, gVisor's own share included"


def capability_sets(facts: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the sets that this gVisor tells about."""
    told = facts.get("capabilities")
    silent = isinstance(told, dict) and told.get("ambient") is None
    return tuple(name for name in names if name != "ambient" or not silent)


def checks(facts: dict[str, Any], limits: Limits) -> dict[str, bool]:
    """Each control that is gVisor's own, a short sentence, and whether it holds. Broken facts raise as in `isolation`.

    What init only counts says so: it ends a script that is above, and cannot keep it from getting there.
    """
    kernel, work, tmp = facts["kernel"], facts.get("work") or {}, facts.get("tmp")
    has_tmp = any(mount["path"] == TMP for mount in facts["mounts"])
    found = {"gVisor's kernel between the script and the host's": True}
    if facts.get("exposed") is True:
        found["init's memory cannot be read or traced"] = facts.get("dumpable") is False
    else:
        found["init cannot be read or traced"] = facts.get("dumpable") is False and facts.get("exposed") is False
    if has_tmp:
        found[f"at most {limits.disk_bytes:,} bytes in {TMP}"] = isinstance(tmp, dict) and at_most(
            tmp.get("bytes"), limits.disk_bytes
        )
    places = [work, *([tmp] if isinstance(tmp, dict) else [])]
    if all(place.get("inodes") == 0 for place in places):
        found[f"at most {limits.disk_inodes:,} files in each, counted by init"] = True
    else:
        found[f"at most {limits.disk_inodes:,} files in each"] = all(
            place.get("inodes") != 0 and at_most(place.get("inodes"), limits.disk_inodes, slack=0) for place in places
        )
    found[f"at most {limits.memory_bytes:,} bytes {MEMORY}"] = at_most(kernel.get("memory_bytes"), limits.memory_bytes)
    found[f"at most {limits.pids:,} processes and threads, counted by init"] = True
    return found


def mends(faults: list[str]) -> str:
    """What to do about faults that come from the way the runtime is started; ends with a space, or is empty."""
    found = []
    if FILTER in faults:
        found.append("give the runtime the argument --oci-seccomp")
    if any(fault.endswith(MEMORY) for fault in faults):
        found.append("take --ignore-cgroups from the runtime's arguments")
    if any(fault.endswith(f"in {TMP}") for fault in faults):
        found.append("let the engine's name for the runtime, or its program, be runsc")
    return f"{'; '.join(found).capitalize()} (docs/gvisor.md). " if found else ""
