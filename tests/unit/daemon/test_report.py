"""What engines say about themselves, as each of them says it."""

import dataclasses
from typing import Any

import pytest
from attack_table import Seen
from skilljaild.engines.base import EngineReport
from skilljaild.engines.docker.report import engine_report, is_podman
from skilljaild.engines.finding import Finding, Severity

CGROUP_V1 = Finding(
    Severity.KNOWN_BAD,
    "cgroup v1",
    "buffers of sockets are no memory of a run, and there is release_agent to escape through; use a host with "
    "cgroup v2",
    "CVE-2022-0492",
)
NO_USER_NAMESPACE = Finding(
    Severity.WARNING,
    "no user namespace",
    "the sandbox's user is a user of the host; enable userns-remap or go rootless",
)
NO_LSM = Finding(Severity.WARNING, "no LSM", "load AppArmor or SELinux for a second wall behind seccomp")
LIMITS = {"MemoryLimit": True, "SwapLimit": True, "PidsLimit": True, "CpuCfsQuota": True}

DOCKER_20 = (
    LIMITS
    | {
        "OSType": "linux",
        "CgroupVersion": "1",
        "CgroupDriver": "cgroupfs",
        "DefaultRuntime": "runc",
        "KernelVersion": "5.10.0-30-amd64",
        "Runtimes": {
            "io.containerd.runc.v2": {"path": "runc"},
            "runc": {"path": "runc"},
            "runsc": {"path": "runsc", "runtimeArgs": ["--oci-seccomp"]},
        },
        "SecurityOptions": ["name=seccomp,profile=default"],
    },
    {
        "Version": "20.10.24+dfsg1",
        "ApiVersion": "1.41",
        "Components": [
            {"Name": "Engine", "Version": "20.10.24+dfsg1"},
            {"Name": "containerd", "Version": "1.6.20~ds1"},
            {"Name": "runc", "Version": "1.1.5+ds1"},
            {"Name": "docker-init", "Version": "0.19.0"},
        ],
    },
)
DOCKER_29 = (
    LIMITS
    | {
        "OSType": "linux",
        "CgroupVersion": "2",
        "CgroupDriver": "systemd",
        "DefaultRuntime": "runc",
        "KernelVersion": "6.18.0",
        "Runtimes": {"io.containerd.runc.v2": {}, "runc": {}},
        "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns", "name=userns"],
    },
    {
        "Version": "29.7.0",
        "ApiVersion": "1.52",
        "MinAPIVersion": "1.44",
        "Components": [
            {"Name": "Engine", "Version": "29.7.0"},
            {"Name": "containerd", "Version": "v2.2.0"},
            {"Name": "runc", "Version": "1.3.4"},
        ],
    },
)
# Podman's Docker API tells neither all limits nor the runtime's version.
PODMAN_4 = (
    LIMITS
    | {
        "OSType": "linux",
        "CgroupVersion": "1",
        "DefaultRuntime": "crun",
        "KernelVersion": "6.1.0",
        "Runtimes": {"crun": {}, "runc": {}},
        "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default"],
    },
    {
        "Version": "4.3.1",
        "ApiVersion": "1.41",
        "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}, {"Name": "Conmon", "Version": "2.1.6"}],
    },
)
PODMAN_5 = (
    {
        "OSType": "linux",
        "CgroupVersion": "2",
        "DefaultRuntime": "crun",
        "KernelVersion": "6.12.0",
        "Runtimes": {"crun": {}},
        "SecurityOptions": ["name=selinux", "name=seccomp,profile=default", "name=rootless"],
    },
    {
        "Version": "5.6.0",
        "ApiVersion": "1.41",
        "Components": [
            {"Name": "Podman Engine", "Version": "5.6.0"},
            {"Name": "OCI Runtime (crun)", "Version": "crun version 1.24"},
        ],
    },
)


def said(engine: tuple[dict[str, Any], dict[str, Any]], **info: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an engine says, with some of its information changed."""
    return engine[0] | info, engine[1]


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (
            DOCKER_29,
            EngineReport(
                "docker",
                "Docker",
                "29.7.0",
                "runc",
                "1.3.4",
                "6.18.0",
                2,
                (),
                (),
                user_namespace=True,
                lsms=("apparmor",),
            ),
        ),
        (
            PODMAN_5,
            EngineReport(
                "docker",
                "Podman",
                "5.6.0",
                "crun",
                "",
                "6.12.0",
                2,
                (),
                (),
                user_namespace=True,
                lsms=("selinux",),
                rootless=True,
            ),
        ),
        (
            PODMAN_4,
            EngineReport(
                "docker",
                "Podman",
                "4.3.1",
                "crun",
                "",
                "6.1.0",
                1,
                (),
                (CGROUP_V1, NO_USER_NAMESPACE),
                lsms=("apparmor",),
            ),
        ),
    ],
)
def test_an_engine_is_told_apart_with_what_is_weak_about_it(
    engine: tuple[dict[str, Any], dict[str, Any]], expected: EngineReport
) -> None:
    assert engine_report(*engine, "") == expected
    assert is_podman(engine[1]) is (expected.product == "Podman")


def test_an_old_engine_is_taken_and_its_holes_are_told() -> None:
    report = engine_report(*DOCKER_20, "")
    assert (report.product, report.version, report.runtime_version) == ("Docker", "20.10.24+dfsg1", "1.1.5")
    assert report.missing == ()
    assert (report.user_namespace, report.lsms, report.rootless) == (False, (), False)
    assert [one.subject for one in report.findings] == [
        "Docker 20.10.24+dfsg1",
        "Docker 20.10.24+dfsg1",
        "Docker 20.10.24+dfsg1",
        "runc 1.1.5",
        "runc 1.1.5",
        "cgroup v1",
        "no user namespace",
        "no LSM",
    ]
    assert report.findings[-3:] == (CGROUP_V1, NO_USER_NAMESPACE, NO_LSM)
    assert report.warnings == tuple(one.text for one in report.findings)


def test_what_is_only_good_to_know_is_no_warning() -> None:
    report = dataclasses.replace(engine_report(*DOCKER_29, ""), findings=(NO_LSM, Finding(Severity.INFO, "a", "b")))
    assert report.warnings == (NO_LSM.text,)


@pytest.mark.attack(88, "an engine without a limit", expected="missing, with the mend")
@pytest.mark.parametrize(
    ("name", "mend"),
    [
        (
            "MemoryLimit",
            "memory limits: enable the kernel's memory cgroup (cgroup_enable=memory) and restart the engine",
        ),
        ("SwapLimit", "swap limits: boot with swapaccount=1, or use a host with cgroup v2"),
        ("PidsLimit", "pids limits: enable the pids cgroup controller; a rootless engine needs cgroup v2 for it"),
        ("CpuCfsQuota", "CPU limits: enable the kernel's CFS bandwidth control"),
    ],
)
def test_a_limit_that_the_engine_lacks_is_missing_with_its_mend(name: str, mend: str, seen: Seen) -> None:
    assert engine_report(*said(DOCKER_29, **{name: False}), "").missing == (mend,)
    seen(f"{name} missing")


def test_what_an_engine_does_not_mention_is_not_taken_for_missing() -> None:
    info = {name: value for name, value in DOCKER_29[0].items() if name not in LIMITS}
    assert engine_report(info, DOCKER_29[1], "").missing == ()


@pytest.mark.attack(88, "an engine without seccomp", expected="missing, with the mend")
@pytest.mark.parametrize("options", [None, [], ["name=apparmor"]])
def test_an_engine_without_seccomp_is_refused(options: list[str] | None, seen: Seen) -> None:
    missing = engine_report(*said(DOCKER_29, SecurityOptions=options), "").missing
    assert missing == ("seccomp: use a kernel and an engine that are built with it",)
    seen(missing[0].partition(":")[0] + " missing")


def test_windows_containers_are_refused() -> None:
    missing = engine_report(*said(DOCKER_29, OSType="windows"), "").missing
    assert missing == ("Linux containers: switch the engine to them",)


@pytest.mark.parametrize(
    ("version", "fits"), [("1.40", False), ("1.9", False), ("1.41", True), ("1.100", True), ("2.0", True)]
)
def test_an_api_that_is_too_old_is_refused(version: str, fits: bool) -> None:
    info, about = DOCKER_29
    missing = engine_report(info, about | {"ApiVersion": version}, "").missing
    assert missing == (
        () if fits else (f"API 1.41: the engine speaks {version}; update it (Docker 20.10, Podman 4.0)",)
    )


def test_a_runtime_is_asked_for_by_name() -> None:
    report = engine_report(*DOCKER_20, "runsc")
    assert (report.runtime, report.runtime_version, report.missing) == ("runsc", "", ())
    report = engine_report(*DOCKER_20, "kata")
    assert report.missing == ("runtime kata: the engine has io.containerd.runc.v2, runc, runsc; add it to the engine",)


def test_every_missing_control_is_told_at_once() -> None:
    report = engine_report(*said(DOCKER_29, **dict.fromkeys(LIMITS, False), SecurityOptions=[]), "kata")
    assert len(report.missing) == 6


def test_an_engine_that_tells_next_to_nothing_is_refused_not_a_fault() -> None:
    report = engine_report({}, {"Version": "1"}, "")
    assert (report.version, report.runtime, report.cgroup_version) == ("1", "runc", 1)
    assert len(report.missing) == 2
