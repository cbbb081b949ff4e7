"""What init reports about its confinement, from files as the kernel writes them."""

# ruff: noqa: S101

import json
import os
import pathlib

import pytest
from skilljail_init import frames, isolation
from skilljail_init.cgroup import ControlGroup
from skilljail_init.frames import FrameType
from skilljail_init.isolation import report
from skilljail_init.kernel import gains_no_privileges

STATUS = """\
Name:\tpython3
Uid:\t65532\t65532\t65532\t65532
Gid:\t65532\t65532\t65532\t65533
Groups:\t10 20\x20
CapInh:\t0000000000000000
CapPrm:\t0000000000000001
CapEff:\t0000000000000002
CapBnd:\t000001ffffffffff
CapAmb:\t0000000000000000
NoNewPrivs:\t1
Seccomp:\t2
Seccomp_filters:\t1
"""
MOUNTINFO = """\
500 400 0:50 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/var/lib/host/secret
501 500 0:51 / / ro,relatime - overlay overlay rw,lowerdir=/var/lib/host/secret
502 501 0:52 / /proc rw,nosuid,nodev,noexec - proc proc rw
503 501 0:53 /host/path /work\\040dir rw,nosuid,nodev shared:1 master:2 - tmpfs tmpfs rw,size=1024k
504 501 0:54 / /frozen rw,nosuid - ext4 /dev/sda1 ro,errors=remount-ro
"""
NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets
    lo:       0       0    0    0    0     0          0         0        0       0
  eth0: 1234567    1000    0    0    0     0          0         0   654321     900
"""


@pytest.fixture
def process(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder as /proc/self."""
    folder = tmp_path / "self"
    (folder / "net").mkdir(parents=True)
    (folder / "status").write_text(STATUS)
    (folder / "mountinfo").write_text(MOUNTINFO)
    (folder / "net" / "dev").write_text(NET)
    return folder


def facts(process: pathlib.Path, work: str = "/") -> dict[str, object]:
    return report(work, ControlGroup(str(process)), 12.5, str(process.parent))


def test_namespaces_are_told_by_their_inodes_and_unreadable_ones_are_null(process: pathlib.Path) -> None:
    (process / "ns").mkdir()
    (process / "ns" / "ipc").symlink_to("ipc:[4026531839]")
    (process / "ns" / "uts").symlink_to("nonsense")
    assert facts(process)["namespaces"] == {"cgroup": None, "ipc": 4026531839, "pid": None, "user": None, "uts": None}


def test_the_facts_are_what_the_kernel_writes(process: pathlib.Path) -> None:
    found = facts(process)
    assert found["uids"] == [65_532] * 4
    assert found["gids"] == [65_532, 65_532, 65_532, 65_533]
    assert found["groups"] == [10, 20]
    assert found["capabilities"] == {
        "inheritable": 0, "permitted": 1, "effective": 2, "bounding": 0x1FFFFFFFFFF, "ambient": 0,
    }  # fmt: skip
    assert (found["no_new_privileges"], found["seccomp_mode"]) == (True, 2)
    assert found["interfaces"] == ["lo", "eth0"]
    assert found["root_read_only"] is True
    assert found["mounts"] == [
        {"path": "/", "type": "overlay", "options": ["rw", "relatime"]},
        {"path": "/", "type": "overlay", "options": ["ro", "relatime"]},
        {"path": "/proc", "type": "proc", "options": ["rw", "nosuid", "nodev", "noexec"]},
        {"path": "/work dir", "type": "tmpfs", "options": ["rw", "nosuid", "nodev"]},
        {"path": "/frozen", "type": "ext4", "options": ["ro", "nosuid"]},
    ]
    assert found["start_time"] == 12.5
    assert "secret" not in json.dumps(found)
    assert "/host" not in json.dumps(found)


def test_the_docstring_lists_every_fact(process: pathlib.Path) -> None:
    listed = set()
    for line in (isolation.__doc__ or "").splitlines():
        if line.startswith("    ") and line[4] != " ":
            listed |= set(line[4:25].replace(",", " ").split())
    assert listed == set(facts(process))


def test_facts_that_cannot_be_read_are_null(tmp_path: pathlib.Path) -> None:
    found = facts(tmp_path / "nowhere", work=str(tmp_path / "gone"))
    known = {"pid", "rlimits", "dumpable", "start_time", "capabilities", "cgroup", "namespaces", "own_filter", "kernel"}
    assert {name for name, value in found.items() if value is not None} == known
    assert found["capabilities"] == dict.fromkeys(("inheritable", "permitted", "effective", "bounding", "ambient"))
    assert found["kernel"] == {"boot_id": None, "memory_bytes": None, "gvisor": []}


@pytest.mark.parametrize(
    "content", ["", "\n", "garbage", "Uid\nSeccomp:\nNoNewPrivs:\tx\nUid:\ta b\n", "- - - -\n" * 3]
)
def test_a_kernel_that_writes_something_else_does_no_harm(process: pathlib.Path, content: str) -> None:
    for name in ("status", "mountinfo", "net/dev"):
        (process / name).write_text(content)
    found = facts(process)
    assert [found[name] for name in ("uids", "seccomp_mode", "no_new_privileges", "root_read_only", "mounts")] == [
        None
    ] * 5


def test_a_writable_root_is_told(process: pathlib.Path) -> None:
    (process / "mountinfo").write_text(MOUNTINFO.splitlines()[0] + "\n")
    assert facts(process)["root_read_only"] is False


def test_a_crowd_of_mounts_never_breaks_the_frame(process: pathlib.Path) -> None:
    line = f"503 501 0:53 / /{'ü' * 100} rw,nosuid,nodev - tmpfs tmpfs rw\n"
    numbers = " ".join(["4294967295"] * isolation.ITEMS_MAX)
    (process / "status").write_text("".join(f"{name}:\t{numbers}\n" for name in ("Uid", "Gid", "Groups")))
    (process / "net" / "dev").write_text("\n\n" + "  veth0123456789: 0\n" * isolation.ITEMS_MAX)
    (process / "mountinfo").write_text(line * 59)
    found = facts(process)
    assert (len(str(found["groups"])), len(str(found["interfaces"])), len(str(found["mounts"]))) > (5000, 5000, 5000)
    assert len(frames.encode_json(FrameType.READY, {"isolation": found})) <= frames.FROM_INIT_MAX
    (process / "mountinfo").write_text(line * 70)
    assert facts(process)["mounts"] is None


def test_what_the_kernel_says_of_itself_is_told(process: pathlib.Path) -> None:
    proc = process.parent
    (proc / "meminfo").write_text("MemTotal:         262144 kB\nMemFree:          100 kB\n")
    (proc / "cmdline").write_text("BOOT_IMAGE=/boot/vmlinuz root=/dev/secret\n")
    (proc / "sys" / "kernel" / "random").mkdir(parents=True)
    (proc / "sys" / "kernel" / "random" / "boot_id").write_text("0b1ce1c5-0000-4000-8000-000000000000\n")
    assert facts(process)["kernel"] == {
        "boot_id": "0b1ce1c5-0000-4000-8000-000000000000",
        "memory_bytes": 256 * 1024 * 1024,
        "gvisor": [],
    }


def test_each_place_where_gvisor_tells_its_name_is_a_sign(
    process: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = process.parent
    (proc / "sentry-meminfo").write_text("")
    assert facts(process)["kernel"] == {"boot_id": None, "memory_bytes": None, "gvisor": ["/proc/sentry-meminfo"]}
    (proc / "cmdline").write_text("BOOT_IMAGE=/vmlinuz-4.4.0-gvisor quiet\n")
    for release, version in (("4.4.0", isolation.GVISOR_BUILD), ("4.19.0-gvisor", "#1 SMP")):
        monkeypatch.setattr("os.uname", lambda names=("Linux", "x", release, version, "x86_64"): os.uname_result(names))
        assert facts(process)["kernel"] == {
            "boot_id": None,
            "memory_bytes": None,
            "gvisor": list(isolation.GVISOR_SIGNS),
        }


def test_no_new_privileges_are_asked_for_where_the_kernel_does_not_write_them(process: pathlib.Path) -> None:
    (process / "status").write_text("Uid:\t1 1 1 1\nSeccomp:\t2\n")
    assert facts(process)["no_new_privileges"] is gains_no_privileges()
