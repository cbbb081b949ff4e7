"""No request whatever makes a container that is weaker than the floor, on Docker or on Podman."""

import dataclasses
import json
import os
import pathlib
import re
import tomllib
from typing import Any

import docker
import pytest
import skilljaild
from hypothesis import given, settings
from hypothesis import strategies as st
from skilljail.v1 import limits_pb2, script_runner_pb2
from skilljaild.assets import sandbox_images_directory
from skilljaild.bundles.store import BlobStore
from skilljaild.config import BundleConfig, CeilingLimits, DefaultLimits
from skilljaild.engines import floor as floor_module
from skilljaild.engines.base import Image, SandboxSpec
from skilljaild.engines.docker.config import container_config
from skilljaild.engines.docker.dialect import Dialect, DockerDialect, PodmanDialect
from skilljaild.engines.docker.inspection import checks
from skilljaild.engines.docker.podman import spec_generator
from skilljaild.engines.floor import Floor, FloorError, container_floor
from skilljaild.errors import Refusal
from skilljaild.limits import Limits
from skilljaild.network import NetworkCeiling
from skilljaild.policy import FLOORS
from skilljaild.runs.admission import Admission
from skilljaild.runs.order import OrderDesk
from skilljaild.runs.run import Run, RunContext
from skilljaild.service.convert import run_request

from .attempt import attempt
from .facts import LIMITS
from .fake_engine import REPORT, FakeEngine
from .open_gate import OpenGate

IMAGES = sandbox_images_directory()
FLOOR_FILE = tomllib.loads((IMAGES / "floor.toml").read_text())
PROFILE_FILE = IMAGES / "seccomp" / "profile.json"
DIGEST = "sha256:" + "c" * 64
RUN_ID = "0123456789abcdef0123456789abcdef"
CEILING = CeilingLimits(cpus=64).limits()
DESK = OrderDesk(DefaultLimits().limits(), CEILING, BundleConfig(), NetworkCeiling())
API = docker.APIClient(base_url="http://127.0.0.1:1", version="1.41")
"""Makes bodies; nothing is ever contacted."""
CANARY = "cAnArY"
"""Is in every text that a request brings, and must be in no container."""
HOST_CPUS = 2
MASKED = [
    *FLOOR_FILE["proc"]["masked"],
    *(f"/sys/devices/system/cpu/cpu{number}/thermal_throttle" for number in range(HOST_CPUS)),
]
READ_ONLY = FLOOR_FILE["proc"]["read_only"]

DIALECTS: dict[str, Dialect] = {"docker": DockerDialect(), "podman": PodmanDialect()}


def expected_body(kind: str, limits: Limits, deadline: str) -> dict[str, Any]:
    """The whole body of a creation, written down a second time: one line for each of the floor's and of the limits."""
    ulimits = {"core": 0, "nofile": limits.open_files, "fsize": limits.disk_bytes}
    host: dict[str, Any] = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "PidsLimit": limits.pids,
        "NanoCpus": round(limits.cpus * 1_000_000_000),
        "ShmSize": 64 * 1024 * 1024,
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "Init": False,
        "MaskedPaths": MASKED,
        "ReadonlyPaths": FLOOR_FILE["proc"]["read_only"],
    }
    options = f"nr_inodes={limits.disk_inodes},mode=0700,uid=60100,gid=60100"
    if kind == "docker":
        profile = json.dumps(json.loads(PROFILE_FILE.read_text()), separators=(",", ":"))
        host["SecurityOpt"] = ["no-new-privileges", f"seccomp={profile}"]
        host["Tmpfs"] = {"/work": f"rw,exec,nosuid,nodev,size={limits.disk_bytes},{options}"}
    else:
        host["SecurityOpt"] = ["no-new-privileges", f"seccomp={PROFILE_FILE.resolve()}", f"mask={':'.join(MASKED)}"]
        # A named volume of the sandbox's own, and no path of the host.
        host["Binds"] = [f"skilljail-{RUN_ID}:/work:rw,exec,nosuid,nodev,nocopy"]
        ulimits["nproc"] = 16_384
    host["Ulimits"] = [{"Name": name, "Soft": value, "Hard": value} for name, value in ulimits.items()]
    return {
        "Image": DIGEST,
        "User": "60100:60100",
        "Hostname": "sandbox",
        "WorkingDir": "/work",
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {
            "io.skilljail.owner": "owner",
            "io.skilljail.run": RUN_ID,
            "io.skilljail.deadline": deadline,
        },
        "HostConfig": host,
    }


def expected_podman_spec(limits: Limits, deadline: str, runtime: str) -> dict[str, Any]:
    """The same for Podman's own API, which is what a sandbox is made through there."""
    private = {"nsmode": "private"}
    ulimits = {"core": 0, "nofile": limits.open_files, "fsize": limits.disk_bytes, "nproc": 16_384}
    profile = str(PROFILE_FILE.resolve())
    return {
        "name": f"skilljail-{RUN_ID}",
        "image": DIGEST,
        "labels": expected_body("podman", limits, deadline)["Labels"],
        "user": "60100:60100",
        "hostname": "sandbox",
        "work_dir": "/work",
        "stdin": True,
        "terminal": False,
        "healthconfig": {"Test": ["NONE"]},
        "systemd": "false",
        "sdnotifyMode": "ignore",
        "image_volume_mode": "ignore",
        "restart_policy": "no",
        "use_image_hosts": True,
        "use_image_resolve_conf": True,
        "netns": {"nsmode": "none"},
        "pidns": private,
        "ipcns": private,
        "utsns": private,
        "cgroupns": private,
        "read_only_filesystem": True,
        "cap_drop": ["ALL"],
        "no_new_privileges": True,
        "seccomp_profile_path": profile,
        "annotations": {"io.podman.annotations.seccomp": profile},
        "mask": MASKED,
        "volumes": [
            {
                "Name": f"skilljail-{RUN_ID}",
                "Dest": "/work",
                "Options": ["rw", "exec", "nosuid", "nodev", "nocopy"],
            }
        ],
        "shm_size": 64 * 1024 * 1024,
        "r_limits": [{"type": name, "soft": value, "hard": value} for name, value in ulimits.items()],
        "resource_limits": {
            "memory": {"limit": limits.memory_bytes, "swap": limits.memory_bytes},
            "pids": {"limit": limits.pids},
            "cpu": {"quota": round(limits.cpus * 100_000), "period": 100_000},
        },
        "log_configuration": {"driver": "none"},
        "oci_runtime": runtime,
    }


def said(value: Any) -> Any:
    """A body without what it leaves unsaid: the engine takes null, "" and empty tables for not given."""
    if isinstance(value, dict):
        return {key: said(item) for key, item in value.items() if item is not None and item not in ("", [], {})}
    return [said(item) for item in value] if isinstance(value, list) else value


def spec_of(request: script_runner_pb2.RunScriptRequest, directory: pathlib.Path) -> SandboxSpec | Refusal:
    """What a request makes of a sandbox: all the way that a request goes, from its message on."""
    store = BlobStore(directory, 1_000)
    order = attempt(lambda: DESK.check(run_request(request), store))
    if isinstance(order, Refusal):
        return order
    context = RunContext(FakeEngine(), REPORT, "owner", Admission(1, 1), OpenGate())
    return Run(RUN_ID, "tenant", order, Image("reference", DIGEST, {}), store, context)._spec()


TEXT = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["", "--privileged", "--cap-add=ALL", "-v=/:/host", "host", "root", "0:0", "unconfined", "/var/run/docker.sock"]
    ),
).map(lambda text: CANARY + text)
NAMES = st.from_regex(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,8}"), fullmatch=True)
PATHS = NAMES.map(lambda name: f"{CANARY}/{name}")
CONTENTS = st.sampled_from([b"", b"#!/bin/sh -p\n", b"#!/usr/bin/env -S python3 -u\n", f"#!/bin/{CANARY}\n".encode()])
SUFFIXES = st.sampled_from([".py", ".sh", ".js", ".ps1"])


def whole(name: str) -> st.SearchStrategy[int]:
    """A limit that is within bounds most of the time; 0 is not asked for."""
    floor, ceiling = getattr(FLOORS, name), getattr(CEILING, name)
    return st.one_of(
        st.just(0), st.integers(floor, ceiling), st.sampled_from([floor, ceiling, floor - 1, ceiling + 1, -1])
    )


PLAIN = [field.name for field in dataclasses.fields(Limits) if isinstance(getattr(FLOORS, field.name), int)]
LIMIT_MESSAGES = st.builds(
    limits_pb2.Limits,
    cpus=st.one_of(st.just(0.0), st.floats(0.01, 64), st.floats()),
    **{name: whole(name) for name in PLAIN},
)


@st.composite
def requests(draw: st.DrawFn) -> script_runner_pb2.RunScriptRequest:
    """Any request, most of them good: every field that a caller can set is set to something."""
    script = draw(PATHS) + draw(SUFFIXES)
    request = script_runner_pb2.RunScriptRequest(
        request_id=draw(st.one_of(st.just(""), NAMES.map(lambda name: CANARY + name))),
        script_path=script,
        argv=draw(st.lists(TEXT.filter(lambda text: "\0" not in text), max_size=4)),
        env=draw(st.dictionaries(NAMES, TEXT.filter(lambda text: "\0" not in text), max_size=4)),
        stdin=draw(st.binary(max_size=20)),
        files=[
            script_runner_pb2.InputFile(path="SKILL.md", content=CANARY.encode()),
            script_runner_pb2.InputFile(path=script, content=draw(CONTENTS), executable=draw(st.booleans())),
        ],
        artifact_patterns=draw(st.lists(PATHS, max_size=2)),
        labels=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
        interpreter=draw(st.sampled_from(["", "", "python", "bash", "pwsh"])),
        working_directory=draw(st.sampled_from(["", CANARY])),
        limits=draw(LIMIT_MESSAGES),
    )
    request.env["LD_PRELOAD"] = f"/{CANARY}"
    return request


@pytest.mark.parametrize("kind", DIALECTS)
@settings(max_examples=150)
@given(request_message=requests(), runtime=st.sampled_from(["", "runsc"]))
def test_no_request_can_make_a_container_that_is_weaker_than_the_floor(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    request_message: script_runner_pb2.RunScriptRequest,
    runtime: str,
) -> None:
    spec = spec_of(request_message, tmp_path_factory.mktemp("blobs"))
    if isinstance(spec, Refusal):
        return
    for field in dataclasses.fields(Limits):
        assert getattr(spec.limits, field.name) <= getattr(CEILING, field.name)
    dialect = DIALECTS[kind]
    body = container_config(API, dialect, spec, container_floor(), runtime=runtime, cpus=HOST_CPUS)
    expected = expected_body(kind, spec.limits, str(spec.deadline))
    if runtime:
        # The operator's choice, and the only thing that is not the floor's or a limit.
        expected["HostConfig"]["Runtime"] = runtime
    assert said(body) == expected
    if kind == "podman":
        made = spec_generator(f"skilljail-{RUN_ID}", body)
        assert made == expected_podman_spec(spec.limits, str(spec.deadline), runtime)
        assert CANARY not in json.dumps(made)
    # What a request brings goes to init over the stream, and into no container's configuration.
    assert CANARY not in json.dumps(body)


def test_most_of_those_requests_are_good_ones(tmp_path: pathlib.Path) -> None:
    """Else the property above would hold of nothing."""
    good = 0

    @settings(max_examples=100, database=None)
    @given(requests())
    def count(request: script_runner_pb2.RunScriptRequest) -> None:
        nonlocal good
        good += isinstance(spec_of(request, tmp_path), SandboxSpec)

    count()
    assert good >= 10


def test_the_floor_file_says_what_the_design_promises() -> None:
    floor = container_floor()
    assert (floor.first_user, floor.users) == (60_100, 512)
    assert (floor.network, floor.read_only_root, floor.dropped_capabilities) == ("none", True, ("ALL",))
    assert (floor.no_new_privileges, floor.swap_bytes, floor.core_bytes) == (True, 0, 0)
    assert floor.log_driver == "none"
    assert {"nosuid", "nodev"} <= set(floor.work_options)
    assert set(floor.namespaces) == {"pid", "ipc", "uts", "cgroup"}
    assert {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"} <= set(floor.masked_paths)
    assert {"/proc/sys", "/proc/sysrq-trigger"} <= set(floor.read_only_paths)
    assert floor.seccomp_file == PROFILE_FILE.resolve()
    assert json.loads(floor.seccomp)["defaultAction"] == "SCMP_ACT_ERRNO"


# What is read back


SPEC = SandboxSpec("owner", RUN_ID, 1_700_000_000, DIGEST, LIMITS)
DISK_OPTIONS = "nr_inodes=1000,mode=0700,uid=60100,gid=60100"


class FakeApi:
    """Answers what the Podman dialect asks beside the inspected container."""

    base_url = "http://podman"

    def __init__(self, capabilities: list[str], options: str) -> None:
        self._capabilities = capabilities
        self._options = options

    def inspect_volume(self, name: str) -> dict[str, Any]:
        assert name == f"skilljail-{RUN_ID}"
        return {"Name": name, "Options": {"o": self._options}}

    def get(self, url: str) -> "FakeApi":
        assert url == f"http://podman/v4.0.0/libpod/containers/skilljail-{RUN_ID}/json"
        return self

    def raise_for_status(self) -> None:
        pass

    def json(self) -> dict[str, Any]:
        return {"EffectiveCaps": None, "BoundingCaps": self._capabilities}


def inspected(kind: str) -> dict[str, Any]:
    """What an engine tells of a container that it made of our body, as each of them tells it."""
    body = container_config(API, DIALECTS[kind], SPEC, container_floor(), cpus=HOST_CPUS)
    host = json.loads(json.dumps(body["HostConfig"]))
    host |= {"Privileged": False, "Runtime": "runc", "PidMode": "", "UTSMode": "", "OomKillDisable": False}
    name = f"skilljail-{RUN_ID}"
    mounts = []
    if kind == "podman":
        host |= {"Runtime": "oci", "IpcMode": "shareable", "CapDrop": None, "CgroupnsMode": ""}
        host["Ulimits"] = [one | {"Name": f"RLIMIT_{one['Name'].upper()}"} for one in host["Ulimits"]]
        mounts = [{"Type": "volume", "Name": name, "Destination": "/work"}]
    return {
        "Image": DIGEST if kind == "docker" else DIGEST.removeprefix("sha256:"),
        "Config": {"User": "60100:60100", "Tty": False},
        "HostConfig": host,
        "Mounts": mounts,
    }


def faults(kind: str, container: dict[str, Any], *, capabilities: tuple[str, ...] = (), runtime: str = "") -> list[str]:
    """The controls that an inspected container lacks."""
    size = LIMITS.disk_bytes // os.sysconf("SC_PAGE_SIZE")
    api = FakeApi(list(capabilities), f"nr_blocks={size},{DISK_OPTIONS}")
    found = checks(api, container, DIALECTS[kind], SPEC, container_floor(), runtime, cpus=HOST_CPUS)
    return [name for name, holds in found.items() if not holds]


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_container_that_is_as_it_was_asked_for_passes(kind: str) -> None:
    assert faults(kind, inspected(kind)) == []


Weakening = tuple[str, str, object]
BOTH: list[Weakening] = [
    ("user", "Config.User", ""),
    ("user", "Config.User", "0:0"),
    ("user", "Config.User", "60100:0"),
    ("no network", "HostConfig.NetworkMode", "bridge"),
    ("no network", "HostConfig.NetworkMode", "host"),
    ("no network", "HostConfig.NetworkMode", "container:other"),
    ("read-only root", "HostConfig.ReadonlyRootfs", False),
    ("read-only root", "HostConfig.ReadonlyRootfs", None),
    ("not privileged", "HostConfig.Privileged", True),
    ("not privileged", "HostConfig.Privileged", None),
    ("no host namespaces", "HostConfig.PidMode", "host"),
    ("no host namespaces", "HostConfig.PidMode", "container:other"),
    ("no host namespaces", "HostConfig.UTSMode", "host"),
    ("no host namespaces", "HostConfig.IpcMode", "host"),
    ("no host namespaces", "HostConfig.IpcMode", ""),
    ("no host namespaces", "HostConfig.IpcMode", "container:other"),
    ("no host namespaces", "HostConfig.CgroupnsMode", "host"),
    ("no devices", "HostConfig.Devices", [{"PathOnHost": "/dev/kvm"}]),
    ("no devices", "HostConfig.DeviceRequests", [{"Driver": "nvidia"}]),
    ("no terminal", "Config.Tty", True),
    ("no log", "HostConfig.LogConfig", {"Type": "json-file"}),
    ("no log", "HostConfig.LogConfig", None),
    ("image by digest", "Image", "sha256:" + "d" * 64),
    ("memory limit", "HostConfig.Memory", 0),
    ("memory limit", "HostConfig.Memory", LIMITS.memory_bytes + 1),
    ("no swap", "HostConfig.MemorySwap", -1),
    ("no swap", "HostConfig.MemorySwap", 0),
    ("no swap", "HostConfig.MemorySwap", LIMITS.memory_bytes * 2),
    ("out-of-memory killer", "HostConfig.OomKillDisable", True),
    ("pids limit", "HostConfig.PidsLimit", None),
    ("pids limit", "HostConfig.PidsLimit", 0),
    ("pids limit", "HostConfig.PidsLimit", -1),
    ("CPU limit", "HostConfig.NanoCpus", 0),
    ("CPU limit", "HostConfig.NanoCpus", 2_000_000_000),
    ("shared memory limit", "HostConfig.ShmSize", 1 << 30),
]
ALONE: dict[str, list[Weakening]] = {
    "docker": [
        ("no capabilities", "HostConfig.CapDrop", []),
        ("no capabilities", "HostConfig.CapDrop", ["CHOWN"]),
        ("no capabilities", "HostConfig.CapAdd", ["CAP_SYS_ADMIN"]),
        *(("masked paths", "HostConfig.MaskedPaths", [one for one in MASKED if one != path]) for path in MASKED),
        ("masked paths", "HostConfig.MaskedPaths", None),
        *(
            ("read-only paths", "HostConfig.ReadonlyPaths", [one for one in READ_ONLY if one != path])
            for path in READ_ONLY
        ),
        ("read-only paths", "HostConfig.ReadonlyPaths", None),
        ("no foreign mounts", "HostConfig.Binds", ["/:/host"]),
        ("no foreign mounts", "Mounts", [{"Type": "bind", "Source": "/var/run/docker.sock"}]),
        ("no foreign mounts", "Mounts", [{"Type": "volume", "Name": f"skilljail-{RUN_ID}"}]),
        ("limits of the work directory", "HostConfig.Tmpfs", {"/work": f"nosuid,nodev,size=9999,{DISK_OPTIONS}"}),
        ("limits of the work directory", "HostConfig.Tmpfs", {"/work": "nosuid,nodev,size=67108864,uid=60100"}),
    ],
    "podman": [
        ("no foreign mounts", "Mounts", [{"Type": "bind", "Source": "/"}]),
        ("no foreign mounts", "Mounts", [{"Type": "volume", "Name": "another"}]),
        ("work directory nosuid and nodev", "HostConfig.Binds", [f"skilljail-{RUN_ID}:/work:rw,exec"]),
        ("work directory nosuid and nodev", "HostConfig.Binds", ["another:/work:rw,nosuid,nodev"]),
    ],
}


@pytest.mark.parametrize(
    ("kind", "control", "place", "value"),
    [(kind, *weakening) for kind in DIALECTS for weakening in [*BOTH, *ALONE[kind]]],
)
def test_each_control_that_does_not_hold_is_told_and_it_alone(
    kind: str, control: str, place: str, value: object
) -> None:
    container = inspected(kind)
    *tables, last = place.split(".")
    table = container
    for name in tables:
        table = table[name]
    table[last] = value
    assert faults(kind, container) == [control]


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize(
    ("name", "control"), [("core", "no core files"), ("nofile", "open files limit"), ("fsize", "file size limit")]
)
def test_each_resource_limit_is_read_back_soft_and_hard(kind: str, name: str, control: str) -> None:
    for change in ({"Soft": -1}, {"Hard": -1}, {"Hard": 10**12}):
        container = inspected(kind)
        (limit,) = [one for one in container["HostConfig"]["Ulimits"] if one["Name"].lower().endswith(name)]
        limit |= change
        assert faults(kind, container) == [control]
        container["HostConfig"]["Ulimits"].remove(limit)
        assert faults(kind, container) == [control]


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize(
    ("options", "control"),
    [
        (["no-new-privileges"], ["seccomp profile"]),
        (["no-new-privileges", "seccomp=unconfined"], ["seccomp profile"]),
        (["no-new-privileges", 'seccomp={"defaultAction":"SCMP_ACT_ALLOW"}'], ["seccomp profile"]),
        (["no-new-privileges", "seccomp=/etc/other.json"], ["seccomp profile"]),
        (["OURS"], ["no new privileges"]),
        (["OURS", "no-new-privileges=false"], ["no new privileges"]),
        (["OURS", "no-new-privileges:false"], ["no new privileges"]),
        (["OURS", "no-new-privileges", "no-new-privileges=false"], ["no new privileges"]),
        (None, ["no new privileges", "seccomp profile"]),
    ],
)
def test_security_options_are_read_back(kind: str, options: list[str] | None, control: list[str]) -> None:
    container = inspected(kind)
    ours = container["HostConfig"]["SecurityOpt"][1]
    container["HostConfig"]["SecurityOpt"] = options and [ours if one == "OURS" else one for one in options]
    assert faults(kind, container) == control


@pytest.mark.parametrize("option", ["no-new-privileges", "no-new-privileges=true", "no-new-privileges:true"])
def test_an_engine_may_write_an_option_in_its_own_way(option: str) -> None:
    container = inspected("docker")
    profile = json.loads(container["HostConfig"]["SecurityOpt"][1].removeprefix("seccomp="))
    container["HostConfig"]["SecurityOpt"] = [option, f"seccomp={json.dumps(profile, indent=2, sort_keys=True)}"]
    assert faults("docker", container) == []


def test_an_engine_may_mask_and_protect_more_than_the_floor_asks_for() -> None:
    container = inspected("docker")
    container["HostConfig"]["MaskedPaths"].append("/proc/more")
    container["HostConfig"]["ReadonlyPaths"].insert(0, "/proc/more")
    assert faults("docker", container) == []


def test_podmans_inspection_tells_no_paths_and_is_not_asked_for_them() -> None:
    """They are seen from inside, see `test_isolation.py`."""
    container = inspected("podman")
    container["HostConfig"] |= {"MaskedPaths": None, "ReadonlyPaths": None}
    assert faults("podman", container) == []


def test_every_line_of_the_floor_is_a_field_that_something_reads() -> None:
    sources = [path.read_text() for path in pathlib.Path(skilljaild.__file__).parent.rglob("*.py")]
    fields = [field.name for field in dataclasses.fields(Floor)]
    assert [
        name for name in fields if not any(re.search(rf"\b(floor|self)\.{name}\b", source) for source in sources)
    ] == []


@pytest.mark.parametrize("text", ["", "user = [", "user = 1", "unknown = 1\n[work]\n[proc]\n", "\udcff"])
def test_a_broken_floor_is_told_with_its_mend(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "floor.toml").write_text(text, errors="surrogateescape")
    monkeypatch.setattr(floor_module, "sandbox_images_directory", lambda: tmp_path)
    with pytest.raises(FloorError, match=r"^the container floor cannot be read \(.*\); install skilljail again$"):
        container_floor.__wrapped__()


def test_podman_may_tell_the_cpu_limit_as_quota_and_period() -> None:
    container = inspected("podman")
    container["HostConfig"] |= {"NanoCpus": 0, "CpuQuota": 150_000, "CpuPeriod": 100_000}
    assert faults("podman", container) == []
    container["HostConfig"]["CpuQuota"] = 200_000
    assert faults("podman", container) == ["CPU limit"]


def test_podmans_own_word_about_capabilities_counts() -> None:
    assert faults("podman", inspected("podman"), capabilities=("CAP_CHOWN",)) == ["no capabilities"]


@pytest.mark.parametrize(("runtime", "holds"), [("", True), ("runc", True), ("runsc", False)])
def test_the_runtime_that_was_asked_for_is_the_one_that_is_used(runtime: str, holds: bool) -> None:
    assert faults("docker", inspected("docker"), runtime=runtime) == ([] if holds else ["runtime"])
