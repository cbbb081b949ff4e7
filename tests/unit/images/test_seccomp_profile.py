"""What the seccomp profile allows and refuses, and that it is made from its input and nothing else."""

import hashlib
import json
import pathlib
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .seccomp import DIRECTORY, PROFILE, answers, generator

EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
REMOVALS: dict[str, Any] = tomllib.loads((DIRECTORY / "removals.toml").read_text())
REGISTERS = st.integers(min_value=0, max_value=2**64 - 1)
ARGUMENTS = (0, 0, 0)
FORBIDDEN = [
    "acct",
    "add_key",
    "adjtimex",
    "bpf",
    "chroot",
    "clock_adjtime",
    "clock_settime",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mbind",
    "migrate_pages",
    "modify_ldt",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "name_to_handle_at",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "reboot",
    "request_key",
    "setns",
    "settimeofday",
    "socketcall",
    "swapoff",
    "swapon",
    "syslog",
    "umount2",
    "unshare",
    "userfaultfd",
    "vm86",
    "vm86old",
]


@pytest.fixture
def default() -> dict[str, Any]:
    """The engines' default profile, the very version that ours is made from."""
    record = tomllib.loads((DIRECTORY / "input.toml").read_text())
    path = pathlib.Path(record["path"])
    mend = f"install Debian's {record['package']} {record['version']}, whose {path} the profile is made from"
    assert path.is_file(), mend
    assert hashlib.sha256(path.read_bytes()).hexdigest() == record["sha256"], mend
    return dict(json.loads(path.read_text()))


def test_nothing_that_is_removed_is_allowed() -> None:
    for removal in REMOVALS["remove"]:
        errno = {"SUCCESS": 0, "EPERM": EPERM, "ENOSYS": ENOSYS}[removal["errno"]]
        for call in removal["calls"]:
            assert answers(call, *ARGUMENTS) == {errno}, call


@pytest.mark.parametrize("call", FORBIDDEN)
def test_calls_that_no_script_needs_are_refused(call: str) -> None:
    assert answers(call, *ARGUMENTS) in ({EPERM}, {ENOSYS})


def test_every_removal_says_why() -> None:
    for removal in [*REMOVALS["remove"], *REMOVALS["narrow"].values()]:
        assert len(removal["reason"]) > 10
        assert all(cve.startswith("CVE-") for cve in removal.get("cves", ()))


def test_everything_that_is_allowed_is_allowed_by_the_default(default: dict[str, Any]) -> None:
    allowed_there = {name for r in default["syscalls"] if r["action"] == "SCMP_ACT_ALLOW" for name in r["names"]}
    allowed_here = {name for r in PROFILE["syscalls"] if r["action"] == "SCMP_ACT_ALLOW" for name in r["names"]}
    assert allowed_here <= allowed_there
    # Neither is anything allowed that the default ties to a capability.
    tied = {
        name
        for r in default["syscalls"]
        if r["action"] == "SCMP_ACT_ALLOW" and (r.get("includes") or {}).get("caps")
        for name in r["names"]
    }
    free = {
        name
        for r in default["syscalls"]
        if r["action"] == "SCMP_ACT_ALLOW" and not (r.get("includes") or {}).get("caps")
        for name in r["names"]
    }
    assert not allowed_here & (tied - free)


def test_no_32_bit_entry_is_open() -> None:
    assert PROFILE["archMap"] == [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
    ]
    assert "architectures" not in PROFILE


def test_unknown_calls_are_not_there() -> None:
    assert (PROFILE["defaultAction"], PROFILE["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", ENOSYS)


def test_the_profile_is_flat() -> None:
    for rule in PROFILE["syscalls"]:
        assert set(rule) <= {"names", "action", "errnoRet", "args"}
        assert len({argument["index"] for argument in rule["args"]}) == len(rule["args"]), "runc splits such a rule"


@given(REGISTERS)
def test_terminal_injection_is_refused_whatever_the_high_half_says(request: int) -> None:
    expected: set[str | int] = {EPERM} if request & 0xFFFFFFFF in {0x5412, 0x541C} else {"allow"}
    assert answers("ioctl", 0, request) == expected


@pytest.mark.parametrize("near", [0x5412, 0x541C])
def test_each_neighbour_of_terminal_injection_is_allowed(near: int) -> None:
    for bit in range(32):
        other = near ^ 1 << bit
        assert answers("ioctl", 0, other) == ({EPERM} if other in {0x5412, 0x541C} else {"allow"})
    assert answers("ioctl", 0, near) == {EPERM}
    assert answers("ioctl", 0, near | 1 << 32) == {EPERM}


@given(REGISTERS)
def test_clone_makes_no_namespace(flags: int) -> None:
    expected: set[str | int] = {EPERM} if flags & 0x7E020000 else {"allow"}
    assert answers("clone", flags) == expected


@given(REGISTERS, REGISTERS, REGISTERS)
def test_any_socket_has_at_most_one_answer(domain: int, kind: int, protocol: int) -> None:
    assert len(answers("socket", domain, kind, protocol)) <= 1
    assert len(answers("socketpair", domain, kind, protocol)) <= 1


@pytest.mark.parametrize("domain", range(50))
def test_only_local_and_internet_sockets_can_be_made(domain: int) -> None:
    stream, datagram, raw, flags = 1, 2, 3, 0o2004000
    if domain == 1:
        assert answers("socket", domain, 5 | flags, 0) == {"allow"}
    elif domain in {2, 10}:
        for kind in (stream, datagram, stream | flags, datagram | flags):
            for protocol in range(300):
                assert answers("socket", domain, kind, protocol) == ({"allow"} if protocol in {0, 6, 17} else set())
        assert answers("socket", domain, raw, 1) == {EPERM}
        assert answers("socket", domain, 5, 132) == set()
    else:
        assert answers("socket", domain, stream, 0) == {EAFNOSUPPORT}
    assert answers("socket", domain | 1 << 32, stream, 0) == {EAFNOSUPPORT}
    assert answers("socketpair", domain, stream, 0) == ({"allow"} if domain == 1 else {EAFNOSUPPORT})


def test_personality_takes_the_usual_values_only() -> None:
    for value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF):
        assert answers("personality", value) == {"allow"}
    assert answers("personality", 0x0040000) == set()  # ADDR_NO_RANDOMIZE


def test_generating_again_gives_the_same_profile(default: dict[str, Any]) -> None:
    text = generator.render(generator.generate(default, REMOVALS))
    assert text == generator.render(generator.generate(default, REMOVALS))
    assert text == (DIRECTORY / "profile.json").read_text()
    assert json.loads(text) == generator.generate(default, REMOVALS)


def test_a_condition_that_the_generator_does_not_know_is_refused(default: dict[str, Any]) -> None:
    default["syscalls"].append({"names": ["x"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "9.0"}})
    with pytest.raises(generator.ProfileError, match="minKernel"):
        generator.generate(default, REMOVALS)


def test_a_default_that_contradicts_itself_is_read_strictly() -> None:
    rules = [
        {"names": ["a", "b"], "action": "SCMP_ACT_ALLOW", "args": []},
        {"names": ["b"], "action": "SCMP_ACT_ERRNO", "args": [], "errnoRet": EPERM, "excludes": {"caps": ["CAP_X"]}},
        {"names": ["c"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {"caps": ["CAP_X"]}},
        {"names": ["d"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {"arches": ["s390x"]}},
        {"names": ["e"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {"arches": ["arm64"]}},
    ]
    default = {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": ENOSYS, "syscalls": rules}
    profile = generator.generate(default, {"remove": [], "narrow": {}})
    assert profile["syscalls"] == [
        {"names": ["a", "e"], "action": "SCMP_ACT_ALLOW", "args": []},
        {"names": ["b"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM, "args": []},
    ]


def test_narrowing_a_call_that_the_default_does_not_allow_is_refused(default: dict[str, Any]) -> None:
    removals = {"remove": [], "narrow": {"bpf": {"argument": 0, "refuse_bits": 1, "errno": "EPERM"}}}
    with pytest.raises(generator.ProfileError, match=r"narrow\.bpf"):
        generator.generate(default, removals)


@pytest.fixture
def copied(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The generator at work on a copy of its files."""
    for constant in ("REMOVALS", "PROFILE", "INPUT_RECORD"):
        original: pathlib.Path = getattr(generator, constant)
        copy = tmp_path / original.name
        copy.write_bytes(original.read_bytes())
        monkeypatch.setattr(generator, constant, copy)
    return tmp_path


@pytest.mark.usefixtures("default")
def test_check_proves_that_the_profile_is_fresh(copied: pathlib.Path) -> None:
    assert copied.is_dir()
    assert generator.check(generator.DEFAULT_INPUT) == ([], "")


def test_check_tells_that_the_profile_was_changed_by_hand(copied: pathlib.Path) -> None:
    profile = copied / "profile.json"
    profile.write_text(profile.read_text().replace('"ptrace"', '"getpid"'))
    stale, _ = generator.check(copied / "no-input.json")
    assert stale == ["profile.json was changed by hand"]


def test_check_tells_that_the_removals_were_changed(copied: pathlib.Path) -> None:
    (copied / "removals.toml").write_text((copied / "removals.toml").read_text() + "\n# more\n")
    stale, _ = generator.check(copied / "no-input.json")
    assert stale == ["removals.toml was changed since profile.json was generated"]


def test_check_says_what_it_could_not_prove(copied: pathlib.Path) -> None:
    stale, unproven = generator.check(copied / "no-input.json")
    assert stale == []
    assert "no-input.json is not there: install Debian's golang-github-containers-common" in unproven
    (copied / "other.json").write_text("{}")
    stale, unproven = generator.check(copied / "other.json")
    assert stale == []
    assert "is not the file of Debian's golang-github-containers-common" in unproven
