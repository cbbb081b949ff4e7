"""What stands between a sandbox and the host's kernel, decided by what was seen from inside of it.

A runtime's name promises nothing. init looks before anything hostile has run; the engine and the image are trusted.
"""

import enum
from typing import Any

__all__ = ["IsolationLevel", "level_of"]


class IsolationLevel(enum.IntEnum):
    """Weakest first; the values are those of `skilljail.v1.IsolationLevel`."""

    CONTAINER = 1
    """The kernel itself: namespaces, cgroups, seccomp."""
    GVISOR = 2
    """A kernel in user space takes the script's system calls."""
    VM = 3
    """A virtual machine with a kernel of its own."""


SIGNS_MIN = 2
"""Of the three places where gVisor's kernel tells its name; none of them is in any Linux."""
LINUX_NAMESPACE_MIN = 0xEFFF_0000
"""Linux numbers all namespaces from above here (include/linux/proc_ns.h), gVisor from 1."""


def level_of(facts: dict[str, Any], other_boot_id: str = "") -> IsolationLevel:
    """The level that init's facts prove, see `skilljail_init.isolation`; what is broken or missing proves CONTAINER.

    `other_boot_id`: the fact `kernel.boot_id` of another sandbox that the same engine started at about the same time.
    A kernel has one for as long as it runs, so a different one means that each sandbox has a kernel of its own.
    """
    kernel = facts.get("kernel")
    if not isinstance(kernel, dict):
        return IsolationLevel.CONTAINER
    if _is_gvisor(facts, kernel):
        return IsolationLevel.GVISOR
    boot_id = kernel.get("boot_id")
    own_kernel = isinstance(boot_id, str) and bool(boot_id) and bool(other_boot_id) and boot_id != other_boot_id
    return IsolationLevel.VM if own_kernel else IsolationLevel.CONTAINER


def _is_gvisor(facts: dict[str, Any], kernel: dict[str, Any]) -> bool:
    """Whether the kernel calls itself gVisor, and nothing that only Linux has speaks against it.

    A Linux kernel's namespaces have other numbers, and on Linux the floor puts mounts below /proc, which gVisor does
    without: its /proc tells nothing of the host.
    """
    signs, namespaces, mounts = kernel.get("gvisor"), facts.get("namespaces"), facts.get("mounts")
    if not (isinstance(signs, list) and isinstance(namespaces, dict) and isinstance(mounts, list) and mounts):
        return False
    if not all(isinstance(mount, dict) and isinstance(mount.get("path"), str) for mount in mounts):
        return False
    numbers = [number for number in namespaces.values() if number is not None]
    return (
        len(set(map(str, signs))) >= SIGNS_MIN
        and bool(numbers)
        and all(type(number) is int and 0 < number < LINUX_NAMESPACE_MIN for number in numbers)
        and not any(mount["path"].startswith("/proc/") for mount in mounts)
    )
