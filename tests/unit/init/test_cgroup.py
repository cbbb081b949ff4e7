"""Finding the sandbox's control group and reading it, on trees of files as kernels lay them out."""

# ruff: noqa: S101

import pathlib

import pytest
from skilljail_init.cgroup import ControlGroup, Counter, decode_mount_point

VERSION_2 = {
    "cgroup.events": "populated 1\n",
    "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\n",
    "cpu.max": "50000 100000\n",
    "memory.events": "low 0\noom 4\noom_kill 2\noom_group_kill 0\n",
    "memory.peak": "123456\n",
    "memory.max": "268435456\n",
    "memory.swap.max": "0\n",
    "pids.events": "max 7\n",
    "pids.max": "64\n",
}
VERSION_1 = {
    "memory": {
        "notify_on_release": "0\n",
        "memory.limit_in_bytes": "268435456\n",
        "memory.memsw.limit_in_bytes": "268435456\n",
        "memory.max_usage_in_bytes": "123456\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    },
    "pids": {"notify_on_release": "0\n", "pids.max": "64\n", "pids.events": "max 7\n"},
    "cpu,cpuacct": {
        "notify_on_release": "0\n",
        "cpu.cfs_quota_us": "50000\n",
        "cpu.cfs_period_us": "100000\n",
        "cpuacct.usage": "1500000000\n",
    },
}
LIMITS = {
    "memory_bytes": 268_435_456,
    "swap_bytes": 0,
    "pids": 64,
    "cpu_quota_microseconds": 50_000,
    "cpu_period_microseconds": 100_000,
}
NO_LIMITS = dict.fromkeys(LIMITS)


def lay_out(folder: pathlib.Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)


def process(tmp_path: pathlib.Path, memberships: str, mounts: list[str]) -> str:
    """A folder as /proc/self."""
    lay_out(tmp_path / "self", {"cgroup": memberships, "mountinfo": "".join(f"{line}\n" for line in mounts)})
    return str(tmp_path / "self")


def version_1(tmp_path: pathlib.Path, path: str, root: str, below: str = "") -> str:
    """A process in groups `path`, whose hierarchies are mounted from `root` on."""
    mounts, memberships = ["22 1 0:20 / /proc rw - proc proc rw"], ["1:name=systemd:/", "0::/"]
    for number, (controllers, files) in enumerate(VERSION_1.items(), 2):
        mount_point = tmp_path / "fs" / controllers
        lay_out(pathlib.Path(f"{mount_point}{below}"), files)
        memberships.append(f"{number}:{controllers}:{path}")
        mounts.append(
            f"3{number} 22 0:3{number} {root} {mount_point} ro,nosuid master:9 - cgroup cgroup rw,{controllers}"
        )
    return process(tmp_path, "\n".join(memberships), mounts)


def version_2(tmp_path: pathlib.Path, path: str, root: str, below: str = "") -> str:
    """The same with the one hierarchy of version 2."""
    lay_out(pathlib.Path(f"{tmp_path}/fs{below}"), VERSION_2)
    mounts = [f"30 22 0:26 {root} {tmp_path}/fs ro,nosuid - cgroup2 cgroup rw,nsdelegate"]
    return process(tmp_path, f"0::{path}\n", mounts)


def records(group: ControlGroup) -> list[float | None]:
    return [group.cpu_seconds(), group.oom_kills(), group.pids_limit_hits(), group.peak_memory_bytes()]


@pytest.mark.parametrize("layout", [version_1, version_2])
@pytest.mark.parametrize(
    ("path", "root", "below"),
    [
        ("/", "/", ""),  # a cgroup namespace of its own
        ("/docker/0ab", "/docker/0ab", ""),  # the host's namespace, the own group mounted
        ("/docker/0ab", "/", "/docker/0ab"),  # the host's namespace, everything mounted
        ("/pod/x/y", "/pod", "/x/y"),
    ],
)
def test_the_own_group_is_found(tmp_path: pathlib.Path, layout: object, path: str, root: str, below: str) -> None:
    assert callable(layout)
    group = ControlGroup(layout(tmp_path, path, root, below))
    assert records(group) == [pytest.approx(1.5), 2, 7, 123_456]
    assert group.limits() == LIMITS | {"version": 1 if layout is version_1 else 2}


@pytest.mark.parametrize(
    ("path", "root"), [("/../other", "/"), ("/", "/.."), ("/docker/0abc", "/docker/0ab"), ("/", "/docker")]
)
def test_somebody_elses_group_is_not_taken_for_the_own(tmp_path: pathlib.Path, path: str, root: str) -> None:
    group = ControlGroup(version_2(tmp_path, path, root))
    assert (records(group), group.limits()) == ([None] * 4, NO_LIMITS | {"version": None})


def test_the_whole_machine_is_not_taken_for_the_sandbox(tmp_path: pathlib.Path) -> None:
    place = version_2(tmp_path, "/", "/")
    (tmp_path / "fs" / "cgroup.events").unlink()  # only the root has none
    assert records(ControlGroup(place)) == [None] * 4
    place = version_1(tmp_path, "/", "/")
    for controllers in VERSION_1:
        (tmp_path / "fs" / controllers / "release_agent").touch()  # only the root has one
    group = ControlGroup(place)
    assert (records(group), group.limits()) == ([None] * 4, NO_LIMITS | {"version": None})


def test_a_hybrid_host_gives_each_record_where_it_is(tmp_path: pathlib.Path) -> None:
    lay_out(tmp_path / "fs", {name: VERSION_2[name] for name in ("cgroup.events", "cpu.stat")})
    lay_out(tmp_path / "memory", VERSION_1["memory"])
    mounts = [
        f"30 22 0:26 / {tmp_path}/fs ro - cgroup2 cgroup2 rw",
        f"31 22 0:27 /a {tmp_path}/memory ro - cgroup cgroup rw,memory",
    ]
    group = ControlGroup(process(tmp_path, "4:memory:/a\n0::/\n", mounts))
    assert records(group) == [1.5, 2, None, 123_456]


def test_limits_that_are_none_are_max(tmp_path: pathlib.Path) -> None:
    place = version_2(tmp_path, "/", "/")
    changes = {"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.swap.max": "max\n", "pids.max": "max\n"}
    lay_out(tmp_path / "fs", changes)
    unlimited = dict.fromkeys(LIMITS, "max") | {"cpu_period_microseconds": 100_000}
    assert ControlGroup(place).limits() == unlimited | {"version": 2}
    place = version_1(tmp_path, "/", "/")
    none = "9223372036854771712\n"
    lay_out(tmp_path / "fs" / "memory", {"memory.limit_in_bytes": none, "memory.memsw.limit_in_bytes": none})
    lay_out(tmp_path / "fs" / "pids", {"pids.max": "max\n"})
    lay_out(tmp_path / "fs" / "cpu,cpuacct", {"cpu.cfs_quota_us": "-1\n"})
    assert ControlGroup(place).limits() == unlimited | {"version": 1}


def test_swap_accounting_that_is_off_is_unknown(tmp_path: pathlib.Path) -> None:
    place = version_1(tmp_path, "/", "/")
    (tmp_path / "fs" / "memory" / "memory.memsw.limit_in_bytes").unlink()
    assert ControlGroup(place).limits()["swap_bytes"] is None


@pytest.mark.parametrize("memberships", ["", "nonsense\n", "0::/\n"])
def test_a_kernel_without_control_groups_gives_nothing(tmp_path: pathlib.Path, memberships: str) -> None:
    group = ControlGroup(process(tmp_path, memberships, ["", "nonsense", "1 2 3 - cgroup2", "- - cgroup cgroup"]))
    assert (records(group), group.limits()) == ([None] * 4, NO_LIMITS | {"version": None})
    assert records(ControlGroup(str(tmp_path / "nowhere"))) == [None] * 4


def test_a_counter_reads_the_present_value(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "events"
    file.write_text("oom 1\noom_kill 2\n")
    counter = Counter(str(file), "oom_kill")
    assert counter.read() == 2
    file.write_text("oom 1\noom_kill 3\n")
    assert counter.read() == 3
    file.write_text("oom_kill many\n")
    assert counter.read() is None
    file.write_text("")
    assert counter.read() is None


def test_a_mount_point_with_white_space_is_decoded() -> None:
    assert decode_mount_point(r"/a\040b\134c\011") == "/a b\\c\t"
    assert decode_mount_point("/plain") == "/plain"
