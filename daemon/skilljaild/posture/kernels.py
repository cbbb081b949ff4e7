"""Whose kernel a sandbox runs on, by its boot id.

A kernel makes up a boot id when it starts and keeps it while it runs. All containers of a host show the host's; a
sandbox that is a virtual machine has a kernel of its own, and so another one than every other sandbox. That is a
proof, unlike a runtime's name: whoever calls `runc` `kata` gets containers.

That a sandbox's boot id differs from the daemon's proves nothing by itself, for the engine may be on another machine,
or in a virtual machine that all of its containers share. That it is the same proves a container.
"""

import functools
import pathlib
import re
from typing import Any

__all__ = ["boot_id_of", "own_boot_id"]

PATH = "/proc/sys/kernel/random/boot_id"


def boot_id_of(facts: dict[str, Any]) -> str:
    """The boot id that init read, see `skilljail_init.isolation`. Empty when it tells none, or none of the kernel's.

    Some tools lay a file over it, to give each container a name of its own: such a one says nothing about kernels.
    """
    kernel, mounts = facts.get("kernel"), facts.get("mounts")
    boot_id = kernel.get("boot_id") if isinstance(kernel, dict) else None
    if not isinstance(boot_id, str) or not re.fullmatch(r"[0-9a-f-]{36}", boot_id) or not isinstance(mounts, list):
        return ""
    covers = [mount for mount in mounts if isinstance(mount, dict) and f"{PATH}/".startswith(f"{mount.get('path')}/")]
    return boot_id if all(mount.get("type") == "proc" for mount in covers) else ""


@functools.cache
def own_boot_id() -> str:
    """Of the kernel that the daemon runs on; empty where there is none."""
    try:
        return pathlib.Path(PATH).read_text().strip()
    except OSError:
        return ""
