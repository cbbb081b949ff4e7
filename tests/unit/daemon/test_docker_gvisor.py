"""What Docker is asked for where the runtime is gVisor, and what its arguments tell."""

import dataclasses
import json
from typing import Any

import docker
import pytest
from skilljaild.engines.base import EngineUnavailable, IsolationError, SandboxSpec
from skilljaild.engines.docker import engine as engine_module
from skilljaild.engines.docker.config import container_config
from skilljaild.engines.docker.dialect import DockerDialect
from skilljaild.engines.docker.engine import DockerEngine
from skilljaild.engines.docker.gvisor import argument_faults, held_limits, host_pids, in_gvisors_terms, is_gvisor
from skilljaild.engines.docker.inspection import checks
from skilljaild.engines.docker.report import engine_report
from skilljaild.engines.floor import container_floor

from .facts import LIMITS
from .test_report import DOCKER_20, DOCKER_29, PODMAN_4

SPEC = SandboxSpec("owner", "0" * 32, 1_700_000_000, "sha256:" + "c" * 64, LIMITS)
API = docker.APIClient(base_url="http://127.0.0.1:1", version="1.41")
DIALECT = DockerDialect()
GOOD = ["--network=none", "--oci-seccomp"]


def info(arguments: list[str], name: str = "runsc", path: str = "/usr/bin/runsc") -> dict[str, Any]:
    return DOCKER_20[0] | {"Runtimes": {"runc": {"path": "runc"}, name: {"path": path, "runtimeArgs": arguments}}}


@pytest.mark.parametrize(
    ("engine", "runtime"),
    [
        (info(GOOD), "runsc"),
        (info(GOOD, name="strong"), "strong"),
        (info(GOOD, name="runsc-kvm", path="/opt/gvisor"), "runsc-kvm"),
        (info(GOOD) | {"DefaultRuntime": "runsc"}, ""),
        ({"Runtimes": {"strong": {"runtimeType": "io.containerd.runsc.v1"}}}, "strong"),
        ({"Runtimes": {}}, "io.containerd.runsc.v1"),
    ],
)
def test_gvisor_is_known_by_its_name_or_its_program(engine: dict[str, Any], runtime: str) -> None:
    assert is_gvisor(engine, runtime)


@pytest.mark.parametrize("runtime", ["", "runc", "kata", "other"])
def test_other_runtimes_are_not_taken_for_gvisor(runtime: str) -> None:
    assert not is_gvisor(info(GOOD), runtime)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (GOOD, []),
        (["-oci-seccomp=true", "--platform=kvm", "--ignore-cgroups=false", "--host-uds=none"], []),
        ([*GOOD, "--ignore-cgroups"], ["--ignore-cgroups"]),
        ([*GOOD, "-ignore-cgroups=true"], ["--ignore-cgroups"]),
        ([*GOOD, "--strace", "--log-packets"], ["--strace", "--log-packets"]),
        ([*GOOD, "--host-uds=open"], ["--host-uds"]),
        ([*GOOD, "--fsgofer-host-uds"], ["--fsgofer-host-uds"]),
        (["--network=host", "--oci-seccomp"], ["--network=host"]),
        (["--network=none"], ["--oci-seccomp"]),
        (["--network=none", "--oci-seccomp=false"], ["--oci-seccomp"]),
        ([], ["--oci-seccomp"]),
    ],
)
def test_an_argument_that_opens_a_wall_stops_the_daemon_with_the_mend(arguments: list[str], told: list[str]) -> None:
    faults = argument_faults(info(arguments), "runsc")
    assert len(faults) == len(told)
    assert all(word in fault for word, fault in zip(told, faults, strict=True))
    missing = engine_report(info(arguments), DOCKER_20[1], "runsc").missing
    assert missing == tuple(faults)
    assert engine_report(info(arguments), DOCKER_20[1], "runc").missing == ()


def test_arguments_that_the_engine_does_not_tell_are_left_to_the_checks_from_inside() -> None:
    runtimes = {"Runtimes": {"runsc": {"runtimeType": "io.containerd.runsc.v1"}}}
    assert engine_report(DOCKER_29[0] | runtimes, DOCKER_29[1], "runsc").missing == ()


def test_gvisor_under_podman_is_refused() -> None:
    runtimes = {"Runtimes": {"runsc": {"path": "/usr/bin/runsc"}}}
    missing = engine_report(PODMAN_4[0] | runtimes, PODMAN_4[1], "runsc").missing
    assert missing == ("gVisor under Podman: use Docker for it",)


def test_the_filter_in_gvisors_terms_allows_nothing_more() -> None:
    ours, theirs = (json.loads(floor.seccomp) for floor in (container_floor(), in_gvisors_terms(container_floor())))
    assert (ours["defaultAction"], ours["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    assert (theirs["defaultAction"], theirs.get("defaultErrnoRet")) == ("SCMP_ACT_TRACE", None)
    shield = theirs["syscalls"][: -len(ours["syscalls"])]
    assert {rule["action"] for rule in shield} == {"SCMP_ACT_ERRNO"}
    changed = 0
    for before, after in zip(ours["syscalls"], theirs["syscalls"][len(shield) :], strict=True):
        assert before["names"] == after["names"]
        assert before.get("args") == after.get("args")
        if before.get("errnoRet") == 0:  # answered with success and not done
            assert after["action"] == "SCMP_ACT_ALLOW"
            assert set(after["names"]) == {"sync", "syncfs", "fsync", "fdatasync"}
        elif before != after:
            assert (before["action"], before["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)
            assert after["action"] == "SCMP_ACT_TRACE"
            assert "clone3" in after["names"]
            changed += 1
    assert changed == 1
    refused = {name for rule in theirs["syscalls"] if rule["action"] == "SCMP_ACT_ERRNO" for name in rule["names"]}
    assert "ptrace" in refused  # who could trace would see the calls, and let them through


def test_the_filter_refuses_each_way_to_send_init_a_signal() -> None:
    rules = json.loads(in_gvisors_terms(container_floor()).seccomp)["syscalls"]
    shield = [
        (rule["names"], [(one["index"], one["value"], one["valueTwo"], one["op"]) for one in rule["args"]])
        for rule in rules[:17]
    ]

    def when(**words: int) -> list[tuple[int, int, int, str]]:
        return [(int(name[1:]), 0xFFFFFFFF, value, "SCMP_CMP_MASKED_EQ") for name, value in words.items()]

    assert shield == [
        (["kill"], when(_0=1)),
        (["tkill"], when(_0=1)),
        (["rt_sigqueueinfo"], when(_0=1)),
        (["pidfd_open"], when(_0=1)),
        (["tgkill"], when(_0=1)),
        (["tgkill"], when(_1=1)),
        (["rt_tgsigqueueinfo"], when(_0=1)),
        (["rt_tgsigqueueinfo"], when(_1=1)),
        (["fcntl"], when(_1=8, _2=1)),
        (["fcntl"], when(_1=8, _2=0xFFFFFFFF)),
        (["fcntl"], when(_1=15)),
        (["ioctl"], when(_1=0x8901)),
        (["ioctl"], when(_1=0x8902)),
        # and each way to make a device node
        (["mknod"], [(1, 0xF000, 0x2000, "SCMP_CMP_MASKED_EQ")]),
        (["mknod"], [(1, 0xF000, 0x6000, "SCMP_CMP_MASKED_EQ")]),
        (["mknodat"], [(2, 0xF000, 0x2000, "SCMP_CMP_MASKED_EQ")]),
        (["mknodat"], [(2, 0xF000, 0x6000, "SCMP_CMP_MASKED_EQ")]),
    ]


def body() -> dict[str, Any]:
    floor = in_gvisors_terms(container_floor())
    return container_config(API, DIALECT, SPEC, floor, runtime="runsc", cpus=2, gvisor=True)


def test_a_container_on_gvisor_differs_from_one_on_linux_in_no_more_than_it_needs() -> None:
    ours = container_config(API, DIALECT, SPEC, container_floor(), runtime="runsc", cpus=2)
    theirs = body()
    differing = {name for name in ours["HostConfig"] if ours["HostConfig"][name] != theirs["HostConfig"][name]}
    assert differing == {"PidsLimit", "Tmpfs", "SecurityOpt"}
    assert {name for name in ours if ours[name] != theirs[name]} == {"HostConfig"}
    assert theirs["HostConfig"]["PidsLimit"] == 256 + 32 * 64
    work = ours["HostConfig"]["Tmpfs"]["/work"]
    assert theirs["HostConfig"]["Tmpfs"] == {"/work": work, "/tmp": work}  # noqa: S108 - gVisor's choice


def inspected() -> dict[str, Any]:
    made = body()
    host = json.loads(json.dumps(made["HostConfig"]))
    host |= {"Privileged": False, "Runtime": "runsc", "PidMode": "", "UTSMode": "", "OomKillDisable": False}
    return {"Image": SPEC.image_digest, "HostConfig": host, "Config": {"User": "60100:60100", "Tty": False}}


def faults(value: dict[str, Any], *, gvisor: bool = True) -> list[str]:
    floor = in_gvisors_terms(container_floor())
    found = checks(API, value, DIALECT, SPEC, floor, "runsc", cpus=2, gvisor=gvisor)
    return [name for name, holds in found.items() if not holds]


def test_such_a_container_is_read_back_as_it_was_asked_for() -> None:
    assert faults(inspected()) == []


def test_what_only_gvisor_needs_is_refused_of_any_other_runtime() -> None:
    assert faults(inspected(), gvisor=False) == ["pids limit"]


@pytest.mark.parametrize(
    ("control", "changes"),
    [
        ("limits of /tmp", {"Tmpfs": {"/work": body()["HostConfig"]["Tmpfs"]["/work"]}}),
        ("limits of /tmp", {"Tmpfs": body()["HostConfig"]["Tmpfs"] | {"/tmp": "rw,nosuid,nodev"}}),  # noqa: S108
        ("pids limit", {"PidsLimit": host_pids(65)}),
        ("pids limit", {"PidsLimit": 0}),
        ("memory limit", {"Memory": 0}),
        ("seccomp profile", {"SecurityOpt": ["no-new-privileges", f"seccomp={container_floor().seccomp}"]}),
    ],
)
def test_each_weaker_container_is_refused(control: str, changes: dict[str, Any]) -> None:
    value = inspected()
    value["HostConfig"] |= changes
    assert faults(value) == [control]


# What the host's control group says

GROUP = {"memory_stats": {"limit": LIMITS.memory_bytes}, "pids_stats": {"limit": host_pids(LIMITS.pids)}}


@pytest.mark.parametrize(
    ("accounts", "told"),
    [
        (GROUP, []),
        ({"memory_stats": {"limit": 25_000_000_000}, "pids_stats": {}}, ["memory limit", "pids limit"]),
        (GROUP | {"pids_stats": {"current": 3, "limit": 2**64 - 1}}, ["pids limit"]),
        (GROUP | {"memory_stats": {"limit": LIMITS.memory_bytes + 65_537}}, ["memory limit"]),
        (GROUP | {"memory_stats": None}, ["memory limit"]),
        ({}, ["memory limit", "pids limit"]),
    ],
)
def test_a_limit_that_no_group_of_the_host_has_is_told(accounts: dict[str, Any], told: list[str]) -> None:
    found = held_limits(accounts, SPEC, host_pids(LIMITS.pids))
    assert [name for name, holds in found.items() if not holds] == told


class FakeClient:
    """As much of Docker's API as a confirmation takes."""

    def __init__(self, accounts: dict[str, Any]) -> None:
        self.accounts = accounts
        self.asked = 0

    def version(self) -> dict[str, Any]:
        return DOCKER_20[1]

    def info(self) -> dict[str, Any]:
        return info(GOOD)

    def stats(self, sandbox_id: str, *, stream: bool, one_shot: bool) -> dict[str, Any]:
        assert (sandbox_id, stream, one_shot) == ("box", False, True)
        self.asked += 1
        if not self.accounts:
            raise OSError("gone")
        return self.accounts

    def close(self) -> None:
        pass


async def test_the_host_is_asked_until_it_has_answered_well_once_for_each_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeClient({"memory_stats": {"limit": 25_000_000_000}})
    monkeypatch.setattr(engine_module.docker, "APIClient", lambda **_: client)
    engine = DockerEngine("http://engine", "runsc")
    for _ in range(2):
        with pytest.raises(IsolationError, match="memory limit and pids limit"):
            await engine.confirm("box", SPEC)
    client.accounts = GROUP
    await engine.confirm("box", SPEC)
    await engine.confirm("box", SPEC)
    assert client.asked == 3
    client.accounts = {}
    narrower = dataclasses.replace(SPEC, limits=dataclasses.replace(LIMITS, pids=1))
    await engine.confirm("box", narrower)
    assert client.asked == 3
    with pytest.raises(EngineUnavailable):
        await engine._call(client.stats, "box", stream=False, one_shot=True)  # the connection is lost
    client.accounts = GROUP
    await engine.confirm("box", SPEC)
    assert client.asked == 5
    await engine.close()
