"""The `docker` engine: any Docker or Podman API, through the `docker` package.

One container for each sandbox, spoken to over the attach stream alone. Neither exec nor the archive API is ever used.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar

import docker
import docker.errors
import docker.types
import requests.exceptions
import urllib3.exceptions
from docker.utils import kwargs_from_env

from skilljaild.engines.attach import AttachStream
from skilljaild.engines.base import (
    ByteStream,
    EngineError,
    EngineReport,
    EngineUnavailable,
    Image,
    ImageMissing,
    IsolationError,
    OwnedSandbox,
    SandboxSpec,
    SandboxStats,
)
from skilljaild.engines.floor import Floor, container_floor
from skilljaild.engines.known_bad import known_bad

__all__ = ["LABEL_DEADLINE", "LABEL_OWNER", "LABEL_RUN", "DockerEngine"]

LABEL_OWNER = "io.skilljail.owner"
LABEL_RUN = "io.skilljail.run"
LABEL_DEADLINE = "io.skilljail.deadline"

THREADS = 64
"""Calls to the engine that may wait at one time. The package is synchronous."""

API_VERSION_MIN = "1.41"
"""Docker 20.10: the first with `CgroupnsMode`."""

T = TypeVar("T")


class DockerEngine:
    """An `Engine` (see `skilljaild.engines.base`) over Docker's API."""

    def __init__(self, url: str = "", runtime: str = "", timeout_seconds: float = 60.0) -> None:
        """`url`: the API; empty means DOCKER_HOST, then Docker's usual socket. `runtime`: empty means its default.

        Nothing is contacted yet.
        """
        self._url = url
        self._runtime = runtime
        self._timeout_seconds = timeout_seconds
        self._client: Any = None  # docker's own stubs are full of holes
        self._threads = concurrent.futures.ThreadPoolExecutor(THREADS, "engine")
        self._podman = False

    async def _call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        call = functools.partial(self._translated, function, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _translated(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Calls, with the package's many exceptions turned into ours."""
        try:
            return function(*arguments, **options)
        except docker.errors.APIError as error:
            raise EngineError(f"the engine refused: {error.explanation or error}") from error
        except (
            docker.errors.DockerException,
            requests.exceptions.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            self._client = None  # a new one is made when the engine is back
            raise EngineUnavailable(
                f"no container engine answers at {self._shown_url()}. Start it, or name another with engine.url, "
                f"--engine-url or DOCKER_HOST. ({type(error).__name__}: {error})"
            ) from error

    def _shown_url(self) -> str:
        return self._url or "DOCKER_HOST or Docker's usual socket"

    def _api(self) -> Any:
        """The connection, made when first used and again after the engine was away."""
        client = self._client
        if client is None:
            options: dict[str, Any] = {"timeout": self._timeout_seconds, "version": "auto"}
            environment = kwargs_from_env()
            if self._url:
                environment["base_url"] = self._url
            client = docker.APIClient(**environment, **options, num_pools=THREADS)
            self._client = client
        return client

    # What the engine is

    async def probe(self) -> EngineReport:
        return await self._call(self._probe)

    def _probe(self) -> EngineReport:
        api = self._api()
        info, version = api.info(), api.version()
        components = {one["Name"]: one for one in version.get("Components") or []}
        self._podman = "Podman Engine" in components
        product = "Podman" if self._podman else "Docker"
        engine_version = components["Podman Engine"]["Version"] if self._podman else version["Version"]
        runtime = self._runtime or info.get("DefaultRuntime") or "runc"
        runtime_version = _component_version(components.get(runtime, {}))
        cgroup_version = int(info.get("CgroupVersion") or 1)
        return EngineReport(
            name="docker",
            product=product,
            version=engine_version,
            runtime=runtime,
            runtime_version=runtime_version,
            kernel=str(info.get("KernelVersion", "")),
            cgroup_version=cgroup_version,
            missing=tuple(self._missing(info, version, runtime)),
            warnings=tuple(known_bad(product, engine_version, runtime, runtime_version) + _weak(info, cgroup_version)),
        )

    def _missing(self, info: dict[str, Any], version: dict[str, Any], runtime: str) -> list[str]:
        """Controls that every run needs and that this engine does not offer."""
        missing = []
        if info.get("OSType", "linux") != "linux":
            missing.append("Linux containers: switch the engine to them")
        if not info.get("MemoryLimit", True):
            missing.append(
                "memory limits: enable the kernel's memory cgroup (cgroup_enable=memory) and restart the engine"
            )
        if not info.get("SwapLimit", True):
            missing.append("swap limits: boot with swapaccount=1, or use a host with cgroup v2")
        if not info.get("PidsLimit", True):
            missing.append("pids limits: enable the pids cgroup controller; a rootless engine needs cgroup v2 for it")
        if not (info.get("CpuCfsQuota", True) and info.get("CpuCfsPeriod", True)):
            missing.append("CPU limits: enable the kernel's CFS bandwidth control")
        if not any("seccomp" in option for option in info.get("SecurityOptions") or []):
            missing.append("seccomp: use a kernel and an engine that are built with it")
        runtimes = info.get("Runtimes") or {}
        if self._runtime and runtimes and runtime not in runtimes:
            missing.append(f"runtime {runtime}: the engine has {', '.join(sorted(runtimes))}; add it to the engine")
        api_version = version.get("ApiVersion", "0")
        if _numbers(api_version) < _numbers(API_VERSION_MIN):
            missing.append(
                f"API {API_VERSION_MIN}: the engine speaks {api_version}; update it (Docker 20.10, Podman 4.0)"
            )
        return missing

    async def image(self, reference: str) -> Image:
        return await self._call(self._image, reference)

    def _image(self, reference: str) -> Image:
        try:
            found = self._api().inspect_image(reference)
        except docker.errors.NotFound:
            raise ImageMissing(f"the engine has no image {reference}; build it with `skilljail images build`") from None
        labels = (found.get("Config") or {}).get("Labels") or {}
        digest = found["Id"] if found["Id"].startswith("sha256:") else f"sha256:{found['Id']}"
        return Image(reference, digest, dict(labels))

    # A sandbox's life

    async def create(self, spec: SandboxSpec) -> str:
        return await self._call(self._create, spec)

    def _create(self, spec: SandboxSpec) -> str:
        api = self._api()
        host_config = self._host_config(spec, container_floor())
        floor = container_floor()
        config = api.create_container_config(
            image=spec.image_digest,
            command=None,
            stdin_open=True,  # and closed for good when our end of the attach stream closes: init then exits
            tty=False,
            hostname="sandbox",
            user=f"{floor.user}:{floor.group}",
            working_dir=floor.work_path,
            labels={
                LABEL_OWNER: spec.owner,
                LABEL_RUN: spec.run_id,
                LABEL_DEADLINE: str(spec.deadline),
            },
            network_disabled=True,
            healthcheck={"test": ["NONE"]},  # an extended image may bring one, which would be an exec
            host_config=host_config,
        )
        try:
            created = api.create_container_from_config(config, name=f"skilljail-{spec.run_id}")
        except docker.errors.ImageNotFound:
            raise ImageMissing(
                f"the engine lost the image {spec.image_digest}; build it with `skilljail images build`"
            ) from None
        return str(created["Id"])

    def _host_config(self, spec: SandboxSpec, floor: Floor) -> dict[str, Any]:
        """The floor and the run's limits in Docker's words."""
        limits = spec.limits
        ulimits = {"core": floor.core_bytes, "nofile": limits.open_files, "fsize": limits.disk_bytes}
        config: dict[str, Any] = self._api().create_host_config(
            network_mode=floor.network,
            read_only=floor.read_only_root,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges", f"seccomp={floor.seccomp}"],
            ipc_mode="private",
            cgroupns="private",
            mem_limit=limits.memory_bytes,
            memswap_limit=limits.memory_bytes + floor.swap_bytes,
            pids_limit=limits.pids,
            nano_cpus=round(limits.cpus * 1e9),
            shm_size=floor.shared_memory_bytes,
            ulimits=[docker.types.Ulimit(name=name, soft=value, hard=value) for name, value in ulimits.items()],
            tmpfs={floor.work_path: self._work_options(spec, floor)},
            log_config=docker.types.LogConfig(type=floor.log_driver),
            restart_policy={"Name": "no"},
            init=False,
            runtime=self._runtime or None,
        )
        config["MaskedPaths"] = list(floor.masked_paths)
        config["ReadonlyPaths"] = list(floor.read_only_paths)
        return config

    def _work_options(self, spec: SandboxSpec, floor: Floor) -> str:
        options = [
            *floor.work_options,
            f"size={spec.limits.disk_bytes}",
            f"nr_inodes={spec.limits.disk_inodes}",
            f"mode={floor.work_mode}",
            f"uid={floor.user}",
            f"gid={floor.group}",
        ]
        return ",".join([*options, "notmpcopyup"] if self._podman else options)

    async def verify(self, sandbox_id: str, spec: SandboxSpec) -> tuple[str, ...]:
        return await self._call(self._verify, sandbox_id, spec)

    def _verify(self, sandbox_id: str, spec: SandboxSpec) -> tuple[str, ...]:
        inspected = self._api().inspect_container(sandbox_id)
        faults = [name for name, holds in self._checks(inspected, spec, container_floor()).items() if not holds]
        if faults:
            raise IsolationError(f"the engine did not apply: {'; '.join(faults)}. Nothing was run.")
        return ()

    def _checks(self, inspected: dict[str, Any], spec: SandboxSpec, floor: Floor) -> dict[str, bool]:
        """Each control and whether the engine says that it holds."""
        host, config, limits = inspected["HostConfig"], inspected["Config"], spec.limits
        ulimits = {one["Name"].lower().removeprefix("rlimit_"): one["Hard"] for one in host.get("Ulimits") or []}
        options = (host.get("Tmpfs") or {}).get(floor.work_path, "").split(",")
        security = host.get("SecurityOpt") or []
        return {
            f"user {floor.user}": config.get("User") == f"{floor.user}:{floor.group}",
            "image by digest": inspected["Image"].removeprefix("sha256:") == spec.image_digest.removeprefix("sha256:"),
            "no network": host.get("NetworkMode") == floor.network,
            "read-only root": host.get("ReadonlyRootfs") is True,
            "not privileged": host.get("Privileged") is False,
            "no capabilities": self._no_capabilities(inspected),
            "no new privileges": any(option.startswith("no-new-privileges") for option in security)
            and not any(option.endswith(("=false", ":false")) for option in security),
            "seccomp profile": any(_same_profile(option, floor.seccomp) for option in security),
            "no host namespaces": all(
                host.get(name, "") in {"", "private"} for name in ("PidMode", "IpcMode", "UTSMode", "CgroupnsMode")
            ),
            "no host paths": not host.get("Binds") and not _mounted_from_host(inspected),
            "no devices": not host.get("Devices") and not host.get("DeviceRequests"),
            "memory limit": host.get("Memory") == limits.memory_bytes,
            "no swap": host.get("MemorySwap") == limits.memory_bytes + floor.swap_bytes,
            "out-of-memory killer": not host.get("OomKillDisable"),
            "pids limit": host.get("PidsLimit") == limits.pids,
            "CPU limit": _cpus_hold(host, limits.cpus),
            "no core files": ulimits.get("core") == floor.core_bytes,
            "open files limit": ulimits.get("nofile") == limits.open_files,
            "file size limit": ulimits.get("fsize") == limits.disk_bytes,
            "work directory size": f"size={limits.disk_bytes}" in options,
            "work directory inodes": f"nr_inodes={limits.disk_inodes}" in options,
            "work directory nosuid and nodev": {"nosuid", "nodev"} <= set(options),
            "no log": (host.get("LogConfig") or {}).get("Type") in {floor.log_driver, "passthrough"},
            "runtime": not self._runtime or host.get("Runtime") == self._runtime,
        }

    def _no_capabilities(self, inspected: dict[str, Any]) -> bool:
        host = inspected["HostConfig"]
        if self._podman:  # it lists what is left instead of repeating what was asked
            return not host.get("CapAdd") and not inspected.get("EffectiveCaps") and not inspected.get("BoundingCaps")
        return not host.get("CapAdd") and [name.upper() for name in host.get("CapDrop") or []] == ["ALL"]

    async def stream(self, sandbox_id: str) -> ByteStream:
        return await self._call(self._attach_and_start, sandbox_id, asyncio.get_running_loop())

    def _attach_and_start(self, sandbox_id: str, loop: asyncio.AbstractEventLoop) -> ByteStream:
        api = self._api()
        # Attached before it starts, so that nothing of init is missed. Without detach keys: our bytes hold any value.
        attached = api.attach_socket(sandbox_id, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "detachKeys": ""})
        stream = AttachStream(attached, loop, self._threads)
        try:
            api.start(sandbox_id)
        except BaseException:
            stream.shut()
            raise
        return stream

    async def stats(self, sandbox_id: str) -> SandboxStats:
        state = (await self._call(self._inspect, sandbox_id))["State"]
        return SandboxStats(running=bool(state.get("Running")), oom_killed=bool(state.get("OOMKilled")))

    def _inspect(self, sandbox_id: str) -> dict[str, Any]:
        inspected: dict[str, Any] = self._api().inspect_container(sandbox_id)
        return inspected

    async def kill(self, sandbox_id: str) -> None:
        with contextlib.suppress(_Gone):
            await self._call(self._unless_gone, lambda: self._api().kill(sandbox_id))

    async def destroy(self, sandbox_id: str) -> None:
        with contextlib.suppress(_Gone):
            await self._call(self._unless_gone, lambda: self._api().remove_container(sandbox_id, v=True, force=True))

    def _unless_gone(self, function: Callable[[], None]) -> None:
        """Calls; a container that is gone, dead or just being removed by somebody is what was wanted."""
        try:
            function()
        except docker.errors.APIError as error:
            if error.status_code in {404, 409}:
                raise _Gone from None
            raise

    async def list_owned(self, owner: str) -> tuple[OwnedSandbox, ...]:
        return await self._call(self._list_owned, owner)

    def _list_owned(self, owner: str) -> tuple[OwnedSandbox, ...]:
        found = self._api().containers(all=True, filters={"label": [f"{LABEL_OWNER}={owner}"]})
        return tuple(
            OwnedSandbox(one["Id"], one["Labels"].get(LABEL_RUN, ""), int(one["Labels"].get(LABEL_DEADLINE) or 0))
            for one in found
        )

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Gone(Exception):
    """The container is not there any more."""


def _component_version(component: dict[str, Any]) -> str:
    """A runtime's version: Docker puts it into `Version`, Podman into `Details`."""
    return str(component.get("Version", "")).split("+", 1)[0].split("\n", 1)[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _weak(info: dict[str, Any], cgroup_version: int) -> list[str]:
    """What is weaker here than on the best host."""
    options = " ".join(info.get("SecurityOptions") or [])
    found = []
    if cgroup_version == 1:
        found.append("cgroup v1: use a host with cgroup v2, whose controllers cannot be escaped through release_agent")
    if "userns" not in options and "rootless" not in options:
        found.append("no user namespace: the sandbox's user is a user of the host; enable userns-remap or go rootless")
    if "apparmor" not in options and "selinux" not in options:
        found.append("no LSM: load AppArmor or SELinux for a second wall behind seccomp")
    return found


def _same_profile(option: str, seccomp: str) -> bool:
    name, _, value = option.partition("=")
    if name != "seccomp":
        return False
    try:
        return bool(json.loads(value) == json.loads(seccomp))
    except ValueError:
        return False


def _mounted_from_host(inspected: dict[str, Any]) -> bool:
    return any(mount.get("Type") in {"bind", "volume"} for mount in inspected.get("Mounts") or [])


def _cpus_hold(host: dict[str, Any], cpus: float) -> bool:
    """NanoCpus in Docker; Podman turns it into quota and period."""
    if host.get("NanoCpus"):
        return bool(host["NanoCpus"] == round(cpus * 1e9))
    period = host.get("CpuPeriod") or 0
    return bool(period) and abs(host.get("CpuQuota", 0) / period - cpus) < 0.01
