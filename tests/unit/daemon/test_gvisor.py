"""What init reads about its own confinement on gVisor, against the floor and the limits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljail_init.frames import FrameType
from skilljaild.engines.base import IsolationError, SandboxSpec
from skilljaild.runs.admission import Admission
from skilljaild.runs.isolation import check_from_inside
from skilljaild.runs.sandbox import open_sandbox

from .facts import LIMITS, MIB, good_facts, gvisor_facts
from .fake_engine import Box, FakeEngine

WORK = "a work directory of at most 67,108,864 bytes"
TMP = "at most 67,108,864 bytes in /tmp"
COUNTED_FILES = "at most 1,000 files in each, counted by init"
FILES = "at most 1,000 files in each"
MEMORY = "at most 268,435,456 bytes of memory, gVisor's own share included"
FILTER = "skilljail's own system-call filter"
EVERYTHING = (
    "a user and group of its own, not root",
    "no capability, also not in the bounding set",
    "no new privileges",
    FILTER,
    "a process tree of its own",
    "no network interface but loopback",
    "a read-only root",
    "no engine socket, no host folder",
    WORK,
    "at most 256 open files",
    "no file above 67,108,864 bytes",
    "no core files",
    "gVisor's kernel between the script and the host's",
    "init cannot be read or traced",
    TMP,
    COUNTED_FILES,
    MEMORY,
    "at most 64 processes and threads, counted by init",
)


def faults(facts: Any) -> str:
    """What is told of the controls that do not hold."""
    with pytest.raises(IsolationError) as caught:
        check_from_inside(facts, LIMITS)
    before = "seen from inside the sandbox, this does not hold: "
    assert str(caught.value).startswith(before)
    return str(caught.value).removeprefix(before)


def changed(*path: str | int, value: object) -> dict[str, Any]:
    """The facts of a good sandbox with one of them changed."""
    facts = gvisor_facts()
    place: Any = facts
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return facts


def test_a_sandbox_on_gvisor_passes_with_no_more_claimed_than_was_seen() -> None:
    assert check_from_inside(gvisor_facts(), LIMITS) == EVERYTHING


def test_a_newer_gvisor_holds_the_number_of_files_itself() -> None:
    facts = gvisor_facts() | {"work": {"bytes": 64 * MIB, "inodes": 1_000}, "tmp": {"bytes": 64 * MIB, "inodes": 999}}
    facts["capabilities"]["ambient"] = 0
    expected = tuple(FILES if one == COUNTED_FILES else one for one in EVERYTHING)
    assert check_from_inside(facts, LIMITS) == expected


def test_an_older_gvisor_that_opens_inits_descriptors_is_not_said_to_close_them() -> None:
    expected = tuple("init's memory cannot be read or traced" if "traced" in one else one for one in EVERYTHING)
    assert check_from_inside(gvisor_facts() | {"exposed": True}, LIMITS) == expected
    weak = gvisor_facts() | {"exposed": True, "dumpable": True}
    assert faults(weak) == "init's memory cannot be read or traced. Nothing was run."


def test_without_a_tmp_of_gvisors_own_nothing_is_said_of_it() -> None:
    facts = gvisor_facts() | {"tmp": None}
    facts["mounts"] = [mount for mount in facts["mounts"] if mount["path"] != "/tmp"]  # noqa: S108
    assert check_from_inside(facts, LIMITS) == tuple(one for one in EVERYTHING if one != TMP)


WEAK: list[tuple[str, tuple[str | int, ...], object]] = [
    ("a user and group of its own, not root", ("uids",), [0] * 4),
    ("no capability, also not in the bounding set", ("capabilities", "bounding"), 1),
    ("no capability, also not in the bounding set", ("capabilities", "bounding"), None),
    ("no capability, also not in the bounding set", ("capabilities", "ambient"), 1),
    ("no new privileges", ("no_new_privileges",), False),
    ("no new privileges", ("no_new_privileges",), None),
    ("a process tree of its own", ("pid",), 2),
    ("init cannot be read or traced", ("dumpable",), True),
    ("init cannot be read or traced", ("exposed",), None),
    ("init cannot be read or traced", ("exposed",), 0),
    ("no network interface but loopback", ("interfaces",), ["lo", "eth0"]),
    ("a read-only root", ("root_read_only",), False),
    ("no engine socket, no host folder", ("mounts", 4), {"path": "/mnt", "type": "9p", "options": ["ro"]}),
    ("no engine socket, no host folder", ("mounts", 4), {"path": "/run/docker.sock", "type": "9p", "options": []}),
    ("no engine socket, no host folder", ("mounts", 4), {"path": "/var/tmp", "type": "tmpfs", "options": []}),
    (WORK, ("work", "bytes"), 65 * MIB),
    ("at most 256 open files", ("rlimits", "open_files"), ["max", "max"]),
    ("no file above 67,108,864 bytes", ("rlimits", "file_bytes"), None),
    ("no core files", ("rlimits", "core_bytes"), [0, "max"]),
    (FILES, ("work", "inodes"), 1_000),
    (FILES, ("work", "inodes"), None),
    (FILES, ("tmp", "inodes"), 1_001),
]


@pytest.mark.parametrize(("control", "path", "value"), WEAK)
def test_each_weaker_fact_is_told_and_it_alone(control: str, path: tuple[str | int, ...], value: object) -> None:
    assert faults(changed(*path, value=value)) == f"{control}. Nothing was run."


@pytest.mark.parametrize("path", [("own_filter",), ("seccomp_mode",)])
def test_without_our_filter_the_mend_is_told(path: tuple[str, ...]) -> None:
    mend = "Give the runtime the argument --oci-seccomp (docs/gvisor.md). Nothing was run."
    assert faults(changed(*path, value=False)) == f"{FILTER}. {mend}"


@pytest.mark.parametrize("value", [8 * 1024 * MIB, None, -1, True, "268435456"])
def test_a_memory_that_is_not_the_groups_is_refused_with_the_mend(value: object) -> None:
    mend = "Take --ignore-cgroups from the runtime's arguments (docs/gvisor.md). Nothing was run."
    assert faults(changed("kernel", "memory_bytes", value=value)) == f"{MEMORY}. {mend}"


@pytest.mark.parametrize("value", [{"bytes": 2**63 - 4096, "inodes": 0}, {"bytes": None, "inodes": 0}])
def test_a_tmp_without_a_cap_is_refused_with_the_mend(value: object) -> None:
    mend = "Let the engine's name for the runtime, or its program, be runsc (docs/gvisor.md). Nothing was run."
    assert faults(changed("tmp", value=value)) == f"{TMP}. {mend}"


def test_a_tmp_that_is_mounted_and_not_measured_is_refused() -> None:
    assert faults(changed("tmp", value=None)).startswith(f"{TMP}. ")


@pytest.mark.parametrize("name", [name for name in gvisor_facts() if name not in {"start_time", "cgroup"}])
def test_a_fact_that_is_not_there_never_passes(name: str) -> None:
    facts = gvisor_facts()
    del facts[name]
    with pytest.raises(IsolationError):
        check_from_inside(facts, LIMITS)


@pytest.mark.parametrize("name", ["mounts", "namespaces"])
def test_who_cannot_be_proved_to_be_on_gvisor_is_judged_by_the_rules_of_linux(name: str) -> None:
    on_linux = {
        "mounts": [*gvisor_facts()["mounts"], {"path": "/proc/keys", "type": "tmpfs", "options": ["ro"]}],
        "namespaces": gvisor_facts()["namespaces"] | {"user": 4_026_532_000},
    }
    assert "namespaces of its own" in faults(gvisor_facts() | {name: on_linux[name]})


# And on the host


async def opened(engine: FakeEngine, facts: dict[str, Any]) -> tuple[str, ...]:
    """What was verified of a sandbox whose init reports these facts."""

    async def init(box: Box) -> None:
        box.say(FrameType.READY, {"isolation": facts})

    engine.init = init
    spec = SandboxSpec("owner", "1", 0, "sha256:" + "c" * 64, LIMITS)
    async with open_sandbox(engine, spec, Admission(1, 1).lose) as sandbox:
        return sandbox.verified


async def test_limits_that_a_sandbox_cannot_see_are_looked_for_on_the_host_before_anything_runs() -> None:
    engine = FakeEngine()
    assert await opened(engine, gvisor_facts()) == EVERYTHING
    assert engine.calls == ["create", "verify", "stream", "confirm", "destroy"]


async def test_without_them_nothing_runs_and_nothing_is_left() -> None:
    engine = FakeEngine()
    engine.faults["confirm"] = IsolationError("no group")
    with pytest.raises(IsolationError, match="no group"):
        await opened(engine, gvisor_facts())
    assert (engine.live, engine.calls[-1]) == ({}, "destroy")


async def test_a_sandbox_on_linux_is_not_looked_up_on_the_host() -> None:
    engine = FakeEngine()
    await opened(engine, good_facts())
    assert "confirm" not in engine.calls


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([name for name in gvisor_facts() if name not in {"start_time", "cgroup"}]), JSON)
def test_rubbish_never_brings_more_than_a_refusal_or_a_claim_that_holds(name: str, value: object) -> None:
    facts = gvisor_facts() | {name: value}
    try:
        verified = check_from_inside(facts, LIMITS)
    except IsolationError:
        return
    good = {"interfaces": ([], ["lo"]), "groups": ([], [60_100]), "seccomp_mode": (2,), "pid": (1,)}
    assert value in good.get(name, (gvisor_facts()[name],)) or (name, value) == ("exposed", True)
    assert set(verified) <= {*EVERYTHING, "init's memory cannot be read or traced"}
