"""What init reads about its own confinement against the floor and the limits."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from skilljaild.engines.base import IsolationError
from skilljaild.runs.isolation import check_from_inside

from .facts import LIMITS, MIB, good_facts

USER = "a user and group of its own, not root"
CAPABILITIES = "no capability, also not in the bounding set"
MOUNTS = "no engine socket, no host folder"
MASKED = "what the kernel tells of the host is hidden"
READ_ONLY = "the kernel's settings are read-only"
NAMESPACES = "namespaces of its own"
WORK = "a work directory of at most 67,108,864 bytes"
CPUS = "at most 1.5 processors"
HOST_NAMESPACES = {"cgroup": 4_026_531_835, "ipc": 4_026_531_839, "pid": 4_026_531_836, "uts": 4_026_531_838}
"""What /proc/self/ns/* shows outside of any container."""
EVERYTHING = (
    USER,
    CAPABILITIES,
    "no new privileges",
    "skilljail's own system-call filter",
    "a process tree of its own",
    "init cannot be read or traced",
    NAMESPACES,
    "no network interface but loopback",
    "a read-only root",
    MOUNTS,
    MASKED,
    READ_ONLY,
    WORK,
    "at most 1,000 files in it",
    "at most 256 open files",
    "no file above 67,108,864 bytes",
    "no core files",
    "at most 268,435,456 bytes of memory",
    "no swap",
    "at most 64 processes and threads",
    CPUS,
)


KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
KERNEL_TYPES = ("proc", "sysfs", "cgroup", "cgroup2", "tmpfs", "devpts", "mqueue", "devtmpfs")


def place(mount: str, fact: str) -> tuple[str | int, ...]:
    """The path of a fact about a mount."""
    return ("mounts", [one["path"] for one in good_facts()["mounts"]].index(mount), fact)


def faults(facts: Any) -> list[str]:
    """The controls that do not hold."""
    with pytest.raises(IsolationError) as caught:
        check_from_inside(facts, LIMITS)
    text = str(caught.value)
    before, after = "seen from inside the sandbox, this does not hold: ", ". Nothing was run."
    assert text.startswith(before)
    assert text.endswith(after)
    return text.removeprefix(before).removesuffix(after).split("; ")


def changed(*path: str | int, value: object) -> dict[str, Any]:
    """Good facts with one of them changed."""
    facts = good_facts()
    place: Any = facts
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return facts


def test_a_sandbox_that_is_as_it_should_be_passes_with_everything_named() -> None:
    assert check_from_inside(good_facts(), LIMITS) == EVERYTHING


def test_what_the_kernel_rounds_to_pages_passes() -> None:
    facts = good_facts()
    facts["work"]["bytes"] += 65_536 - 4_096
    facts["cgroup"]["memory_bytes"] -= 4_095
    facts["cgroup"]["cpu_quota_microseconds"] += 1
    assert check_from_inside(facts, LIMITS) == EVERYTHING


def test_a_network_without_any_interface_passes() -> None:
    assert check_from_inside(changed("interfaces", value=[]), LIMITS) == EVERYTHING


@pytest.mark.parametrize("missing", [None, {}, {"version": 2}])
def test_a_control_group_that_the_sandbox_does_not_see_is_left_to_the_engine_and_not_claimed(missing: object) -> None:
    assert check_from_inside(changed("cgroup", value=missing), LIMITS) == EVERYTHING[:17]


WEAK: list[tuple[str, tuple[str | int, ...], object]] = [
    (USER, ("uids",), [0, 60_100, 60_100, 60_100]),
    (USER, ("uids",), [60_100, 60_100, 0, 60_100]),
    (USER, ("uids",), [60_100]),
    (USER, ("uids",), None),
    (USER, ("gids",), [0] * 4),
    (USER, ("groups",), [0]),
    (USER, ("groups",), [60_100, 999]),
    (USER, ("groups",), None),
    *((CAPABILITIES, ("capabilities", name), 1 << 21) for name in good_facts()["capabilities"]),
    *((CAPABILITIES, ("capabilities", name), None) for name in good_facts()["capabilities"]),
    (CAPABILITIES, ("capabilities",), {}),
    (CAPABILITIES, ("capabilities",), None),
    ("no new privileges", ("no_new_privileges",), False),
    ("no new privileges", ("no_new_privileges",), None),
    ("skilljail's own system-call filter", ("seccomp_mode",), 0),
    ("skilljail's own system-call filter", ("seccomp_mode",), 1),
    ("skilljail's own system-call filter", ("seccomp_mode",), None),
    ("skilljail's own system-call filter", ("own_filter",), False),
    ("skilljail's own system-call filter", ("own_filter",), None),
    ("a process tree of its own", ("pid",), 4_711),
    ("init cannot be read or traced", ("dumpable",), True),
    ("init cannot be read or traced", ("dumpable",), None),
    *((NAMESPACES, ("namespaces", name), inode) for name, inode in HOST_NAMESPACES.items()),
    (NAMESPACES, ("namespaces",), None),
    ("no network interface but loopback", ("interfaces",), ["lo", "eth0"]),
    ("no network interface but loopback", ("interfaces",), ["eth0"]),
    ("no network interface but loopback", ("interfaces",), None),
    ("a read-only root", ("root_read_only",), False),
    ("a read-only root", ("root_read_only",), None),
    (MOUNTS, ("mounts", 7, "path"), "/etc/shadow"),
    (MOUNTS, ("mounts", 7), {"path": "/host", "type": "ext4", "options": ["ro"]}),
    (MOUNTS, ("mounts", 7), {"path": "/var/run/docker.sock", "type": "tmpfs", "options": ["ro"]}),
    (MOUNTS, ("mounts", 7), {"path": "/home", "type": "overlay", "options": ["ro"]}),
    (MOUNTS, ("mounts", 7), {"path": "/mnt", "type": "fuse.sshfs", "options": ["ro"]}),
    (MOUNTS, ("mounts", 7), {"path": "/work/x", "type": "virtiofs", "options": ["ro"]}),
    # A folder of the host is one wherever it is put, and also where the host keeps it in memory.
    *((MOUNTS, ("mounts", 7), {"path": f"{top}/x", "type": "ext4", "options": ["ro"]}) for top in KERNEL_FOLDERS),
    *((MOUNTS, ("mounts", 7), {"path": f"{top}/x", "type": "fuse.sshfs", "options": []}) for top in KERNEL_FOLDERS),
    *((MOUNTS, ("mounts", 7), {"path": top, "type": "btrfs", "options": ["ro"]}) for top in KERNEL_FOLDERS),
    *((MOUNTS, ("mounts", 7), {"path": "/mnt", "type": kind, "options": ["ro"]}) for kind in KERNEL_TYPES),
    (MOUNTS, ("mounts", 7), {"path": "/processes", "type": "tmpfs", "options": ["ro"]}),
    *((MASKED, place("/proc/interrupts", "type"), kind) for kind in ("proc", "sysfs", "cgroup2")),
    (MASKED, place("/proc/interrupts", "path"), "/proc/other"),
    (MASKED, place("/proc/timer_list", "path"), "/proc/other"),
    (MASKED, place("/sys/firmware", "path"), "/sys/other"),
    (MASKED, place("/proc/kcore", "type"), "proc"),
    (READ_ONLY, place("/proc/sys", "options"), ["rw"]),
    (READ_ONLY, place("/proc/sys", "options"), []),
    *((READ_ONLY, place(f"/proc/{name}", "path"), "/proc/other") for name in ("bus", "fs", "sys")),
    (READ_ONLY, ("mounts", 7), {"path": "/proc/sysrq-trigger", "type": "proc", "options": ["rw"]}),
    # A second mount on the same place, that shows instead of the first.
    (READ_ONLY, ("mounts", 7), {"path": "/proc/sys", "type": "proc", "options": ["rw"]}),
    (MASKED, ("mounts", 7), {"path": "/sys/firmware", "type": "sysfs", "options": ["ro"]}),
    (WORK, ("work", "bytes"), 128 * MIB),
    (WORK, ("work", "bytes"), LIMITS.disk_bytes + 65_537),
    (WORK, ("work", "bytes"), None),
    (WORK, ("work", "bytes"), -1),
    ("at most 1,000 files in it", ("work", "inodes"), 1_001),
    ("at most 1,000 files in it", ("work", "inodes"), None),
    ("at most 256 open files", ("rlimits", "open_files"), [256, 257]),
    ("at most 256 open files", ("rlimits", "open_files"), ["max", "max"]),
    ("at most 256 open files", ("rlimits", "open_files"), [-1, -1]),
    ("at most 256 open files", ("rlimits", "open_files"), [256]),
    ("no file above 67,108,864 bytes", ("rlimits", "file_bytes"), [1, "max"]),
    ("no core files", ("rlimits", "core_bytes"), [0, "max"]),
    ("no core files", ("rlimits", "core_bytes"), [0, 1]),
    ("no core files", ("rlimits", "core_bytes"), None),
    ("at most 268,435,456 bytes of memory", ("cgroup", "memory_bytes"), "max"),
    ("at most 268,435,456 bytes of memory", ("cgroup", "memory_bytes"), 512 * MIB),
    ("at most 268,435,456 bytes of memory", ("cgroup", "memory_bytes"), -1),
    ("no swap", ("cgroup", "swap_bytes"), 1),
    ("no swap", ("cgroup", "swap_bytes"), "max"),
    ("at most 64 processes and threads", ("cgroup", "pids"), 65),
    ("at most 64 processes and threads", ("cgroup", "pids"), "max"),
    (CPUS, ("cgroup", "cpu_quota_microseconds"), 200_000),
    (CPUS, ("cgroup", "cpu_quota_microseconds"), "max"),
    (CPUS, ("cgroup", "cpu_quota_microseconds"), -1),
    (CPUS, ("cgroup", "cpu_period_microseconds"), 50_000),
    (CPUS, ("cgroup", "cpu_period_microseconds"), 0),
    (CPUS, ("cgroup", "cpu_period_microseconds"), None),
]


@pytest.mark.parametrize("mounts", [None, []])
def test_without_mounts_nothing_that_is_read_from_them_holds(mounts: object) -> None:
    assert faults(changed("mounts", value=mounts)) == [MOUNTS, MASKED, READ_ONLY]


@pytest.mark.parametrize("kind", ["tmpfs", "devtmpfs"])
def test_a_node_or_an_empty_folder_over_what_is_masked_passes(kind: str) -> None:
    facts = good_facts()
    for path in ("/proc/keys", "/sys/firmware", "/sys/devices/system/cpu/cpu0/thermal_throttle", "/dev/null"):
        facts["mounts"].append({"path": path, "type": kind, "options": ["ro"]})
    assert check_from_inside(facts, LIMITS) == EVERYTHING


@pytest.mark.parametrize("namespace", ["ipc", "uts", "pid", "cgroup"])
@pytest.mark.parametrize("value", [None, "4026532000", True, -1])
def test_a_namespace_that_is_not_told_is_not_taken_for_its_own(namespace: str, value: object) -> None:
    assert faults(changed("namespaces", namespace, value=value)) == ["namespaces of its own"]


@pytest.mark.parametrize(("control", "path", "value"), WEAK)
def test_each_weaker_fact_is_told_and_it_alone(control: str, path: tuple[str | int, ...], value: object) -> None:
    assert faults(changed(*path, value=value)) == [control]


def test_everything_that_is_weak_is_told_at_once() -> None:
    facts = good_facts() | {"uids": [0] * 4, "seccomp_mode": 0, "interfaces": ["eth0"]}
    assert faults(facts) == [USER, "skilljail's own system-call filter", "no network interface but loopback"]


@pytest.mark.parametrize(
    "name", [name for name in good_facts() if name not in {"cgroup", "start_time", "kernel", "tmp", "exposed"}]
)
def test_a_fact_that_is_not_there_never_passes(name: str) -> None:
    facts = good_facts()
    del facts[name]
    assert faults(facts)


def test_no_facts_at_all_name_every_control() -> None:
    assert faults({}) == list(EVERYTHING[:17])


def every_place(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of every value in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, item in items for one in [(*path, key), *every_place(item, (*path, key))]]


IGNORED = {"start_time", "options", "version", "kernel", "tmp", "exposed"}
"""Facts that no control is read from on Linux."""
PLACES = [path for path in every_place(good_facts()) if not IGNORED & set(path)]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5,
)
NUMBERS: tuple[tuple[str | int, ...], ...] = (
    ("work",),
    ("rlimits",),
    ("cgroup",),
)
"""Facts that may be smaller than asked for."""


@given(st.sampled_from(PLACES), JSON)
def test_no_changed_fact_passes_silently(path: tuple[str | int, ...], value: object) -> None:
    """Another value either is no weaker (a smaller number, a control group that is not seen), or is refused."""
    facts = changed(*path, value=value)
    assume(facts != good_facts())
    try:
        verified = check_from_inside(facts, LIMITS)
    except IsolationError:
        return
    if path[:1] in NUMBERS:
        assert_no_weaker(facts)
    elif path[0] == "namespaces":
        assert not HOST_NAMESPACES.items() & facts["namespaces"].items()
    elif path[0] == "mounts":
        assert_no_host_folder(facts["mounts"])
    else:
        assert facts["interfaces"] == [] or facts["groups"] == []
    assert set(verified) <= set(EVERYTHING)


def assert_no_weaker(facts: dict[str, Any]) -> None:
    """Every number that is there is one, from 0 to what was asked for."""
    group = facts["cgroup"] or {}
    asked = {
        "memory_bytes": LIMITS.memory_bytes + 65_536,
        "swap_bytes": 0,
        "pids": LIMITS.pids,
    }
    for name, most in asked.items():
        assert group.get(name) is None or 0 <= group[name] <= most
    if group.get("cpu_quota_microseconds") is not None:
        assert 0 < group["cpu_quota_microseconds"] / group["cpu_period_microseconds"] <= LIMITS.cpus * 1.01
    assert 0 <= facts["work"]["bytes"] <= LIMITS.disk_bytes + 65_536
    assert 0 <= facts["work"]["inodes"] <= LIMITS.disk_inodes
    for name, most in (("open_files", 256), ("core_bytes", 0), ("file_bytes", LIMITS.disk_bytes)):
        assert all(0 <= one <= most for one in facts["rlimits"][name])


def assert_no_host_folder(mounts: list[dict[str, Any]]) -> None:
    """Whatever is no file system of the kernel is where every engine mounts something, or the root or /work."""
    for mount in mounts:
        if mount["type"] not in ["proc", "sysfs", "cgroup", "cgroup2", "tmpfs", "devpts", "mqueue", "devtmpfs"]:
            assert mount["path"] in {"/", "/work", "/etc/hosts"}


@given(JSON)
def test_rubbish_is_refused_whatever_its_shape(value: object) -> None:
    for name in good_facts():
        if name in {"start_time", "cgroup", "kernel", "tmp", "exposed"} or (
            name == "namespaces" and isinstance(value, dict)
        ):
            continue  # what no control is read from, or what a kernel may not tell
        assume(value not in ([], {}, 1, 2, True, False))
        facts = good_facts() | {name: value}
        with pytest.raises(IsolationError):
            check_from_inside(facts, LIMITS)


@pytest.mark.parametrize("name", ["cpu_quota_microseconds", "cpu_period_microseconds"])
def test_a_number_beyond_every_float_is_refused(name: str) -> None:
    with pytest.raises(IsolationError):
        check_from_inside(changed("cgroup", name, value=10**400), LIMITS)


@pytest.mark.parametrize(
    "tighten",
    [
        lambda limits: dataclasses.replace(limits, memory_bytes=128 * MIB),
        lambda limits: dataclasses.replace(limits, pids=63),
        lambda limits: dataclasses.replace(limits, cpus=1.0),
        lambda limits: dataclasses.replace(limits, disk_bytes=32 * MIB),
        lambda limits: dataclasses.replace(limits, disk_inodes=999),
        lambda limits: dataclasses.replace(limits, open_files=255),
    ],
)
def test_a_sandbox_made_for_wider_limits_is_refused(tighten: Callable[[Any], Any]) -> None:
    with pytest.raises(IsolationError):
        check_from_inside(good_facts(LIMITS), tighten(LIMITS))
