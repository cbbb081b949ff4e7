"""What an init reports about its confinement that is as it should be, see `skilljail_init.isolation`."""

from typing import Any

from skilljaild.engines.floor import container_floor
from skilljaild.limits import Limits

__all__ = ["LIMITS", "good_facts", "gvisor_facts"]

MIB = 1024 * 1024

LIMITS = Limits(
    wall_seconds=10.0,
    cpu_seconds=5.0,
    cpus=1.5,
    memory_bytes=256 * MIB,
    pids=64,
    disk_bytes=64 * MIB,
    disk_inodes=1_000,
    open_files=256,
    output_bytes=1_000,
    artifact_count=3,
    artifact_bytes=100_000,
    egress_bytes=100_000,
    egress_connections=10,
)
"""Limits of a test's run."""


def good_facts(limits: Limits = LIMITS, place: int = 0) -> dict[str, Any]:
    """The isolation facts of a sandbox on cgroup v2 in which everything holds."""
    floor = container_floor()
    return {
        "pid": 1,
        "uids": [floor.user_of(place)] * 4,
        "gids": [floor.user_of(place)] * 4,
        "groups": [floor.user_of(place)],
        "capabilities": dict.fromkeys(("inheritable", "permitted", "effective", "bounding", "ambient"), 0),
        "no_new_privileges": True,
        "seccomp_mode": 2,
        "own_filter": True,
        "namespaces": {
            name: 4_026_532_000 + number for number, name in enumerate(("cgroup", "ipc", "pid", "user", "uts"))
        },
        "interfaces": ["lo"],
        "root_read_only": True,
        "mounts": [
            {"path": "/", "type": "overlay", "options": ["ro", "relatime"]},
            {"path": "/proc", "type": "proc", "options": ["rw", "nosuid", "nodev", "noexec"]},
            {"path": "/proc/kcore", "type": "tmpfs", "options": ["rw", "nosuid"]},
            {"path": "/dev", "type": "tmpfs", "options": ["rw", "nosuid"]},
            {"path": "/dev/shm", "type": "tmpfs", "options": ["rw", "nosuid", "nodev", "noexec"]},
            {"path": "/sys", "type": "sysfs", "options": ["ro", "nosuid", "nodev", "noexec"]},
            {"path": "/sys/fs/cgroup", "type": "cgroup2", "options": ["ro", "nosuid", "nodev", "noexec"]},
            {"path": "/etc/hosts", "type": "ext4", "options": ["rw", "relatime"]},
            {"path": floor.work_path, "type": "tmpfs", "options": ["rw", "nosuid", "nodev"]},
            {"path": "/proc/bus", "type": "proc", "options": ["ro", "nosuid", "nodev", "noexec"]},
            {"path": "/proc/fs", "type": "proc", "options": ["ro", "nosuid", "nodev", "noexec"]},
            {"path": "/proc/sys", "type": "proc", "options": ["ro", "nosuid", "nodev", "noexec"]},
            {"path": "/proc/interrupts", "type": "tmpfs", "options": ["rw", "nosuid"]},
            {"path": "/proc/timer_list", "type": "devtmpfs", "options": ["rw", "nosuid"]},
            {"path": "/sys/firmware", "type": "tmpfs", "options": ["ro"]},
        ],
        "work": {"bytes": limits.disk_bytes, "inodes": limits.disk_inodes},
        "tmp": None,
        "cgroup": {
            "version": 2,
            "memory_bytes": limits.memory_bytes,
            "swap_bytes": 0,
            "pids": limits.pids,
            "cpu_quota_microseconds": round(limits.cpus * 100_000),
            "cpu_period_microseconds": 100_000,
        },
        "rlimits": {
            "open_files": [limits.open_files] * 2,
            "core_bytes": [0, 0],
            "file_bytes": [limits.disk_bytes] * 2,
        },
        "dumpable": False,
        "exposed": None,
        "kernel": {
            "boot_id": "0b1ce1c5-0000-4000-8000-000000000001",
            "memory_bytes": 8 * 1024 * MIB,
            "gvisor": [],
        },
        "start_time": 1_700_000_000.0,
    }


def gvisor_facts(limits: Limits = LIMITS, place: int = 0) -> dict[str, Any]:
    """The same of a sandbox on gVisor, as the release of December 2022 tells them."""
    floor = container_floor()
    return good_facts(limits, place) | {
        "capabilities": dict.fromkeys(("inheritable", "permitted", "effective", "bounding"), 0) | {"ambient": None},
        "namespaces": {"cgroup": None, "ipc": None, "pid": 111, "user": 112, "uts": None},
        "mounts": [
            {"path": "/", "type": "9p", "options": ["ro"]},
            {"path": "/dev", "type": "tmpfs", "options": ["rw"]},
            {"path": "/sys", "type": "sysfs", "options": ["ro", "noexec"]},
            {"path": "/proc", "type": "proc", "options": ["rw", "noexec"]},
            {"path": floor.work_path, "type": "tmpfs", "options": ["rw"]},
            {"path": "/tmp", "type": "tmpfs", "options": ["rw"]},  # noqa: S108 - gVisor's own
            {"path": "/dev/pts", "type": "devpts", "options": ["rw", "noexec"]},
            {"path": "/dev/shm", "type": "tmpfs", "options": ["rw", "noexec"]},
            {"path": "/etc/hosts", "type": "9p", "options": ["ro"]},
        ],
        "work": {"bytes": limits.disk_bytes, "inodes": 0},
        "tmp": {"bytes": limits.disk_bytes, "inodes": 0},
        "exposed": False,
        "cgroup": {
            "version": None,
            "memory_bytes": None,
            "swap_bytes": None,
            "pids": None,
            "cpu_quota_microseconds": None,
            "cpu_period_microseconds": None,
        },
        "kernel": {
            "boot_id": None,
            "memory_bytes": limits.memory_bytes,
            "gvisor": ["/proc/sentry-meminfo", "/proc/cmdline", "uname"],
        },
    }
