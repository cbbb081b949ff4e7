"""The container floor and a run's limits in the words of Docker's API."""

from typing import Any

import docker.types

from skilljaild.engines.base import SandboxSpec
from skilljaild.engines.docker.dialect import Dialect
from skilljaild.engines.docker.gvisor import TMP, host_pids
from skilljaild.engines.floor import Floor

__all__ = [
    "LABEL_DEADLINE",
    "LABEL_OWNER",
    "LABEL_RUN",
    "container_config",
    "labels_of",
    "masked_paths",
    "sandbox_name",
    "user_of",
]

LABEL_OWNER = "io.skilljail.owner"
LABEL_RUN = "io.skilljail.run"
LABEL_DEADLINE = "io.skilljail.deadline"

_MODES = {"ipc": "ipc_mode", "cgroup": "cgroupns"}
"""Of the floor's namespaces, those that Docker gives to each container only when asked; the others it gives unasked."""


def sandbox_name(run_id: str) -> str:
    """The container's name, which is also the sandbox's id."""
    return f"skilljail-{run_id}"


def user_of(spec: SandboxSpec, floor: Floor) -> str:
    """User and group of a sandbox, by number."""
    return f"{floor.user_of(spec.place)}:{floor.user_of(spec.place)}"


def labels_of(spec: SandboxSpec) -> dict[str, str]:
    """What everything that is made for a sandbox carries."""
    return {LABEL_OWNER: spec.owner, LABEL_RUN: spec.run_id, LABEL_DEADLINE: str(spec.deadline)}


def masked_paths(floor: Floor, cpus: int) -> list[str]:
    """Every path that is hidden. `cpus`: processors of the engine's host."""
    per_cpu = [path.format(cpu=number) for path in floor.masked_per_cpu_paths for number in range(cpus)]
    return [*floor.masked_paths, *per_cpu]


def container_config(
    api: Any,
    dialect: Dialect,
    spec: SandboxSpec,
    floor: Floor,
    *,
    runtime: str = "",
    cpus: int = 0,
    gvisor: bool = False,
) -> dict[str, Any]:
    """The body of a container's creation.

    `runtime`: empty for the engine's default; `cpus`: processors of the engine's host; `gvisor`: whether the engine
    is Docker and calls the runtime gVisor's.
    """
    config: dict[str, Any] = api.create_container_config(
        image=spec.image_digest,
        command=None,
        stdin_open=True,  # and closed for good when our end of the attach stream closes: init then exits
        tty=False,
        hostname="sandbox",
        user=user_of(spec, floor),
        working_dir=floor.work_path,
        labels=labels_of(spec),
        network_disabled=True,
        healthcheck={"test": ["NONE"]},  # an extended image may bring one, which would be an exec
        host_config=_host_config(api, dialect, spec, floor, runtime, cpus),
    )
    return _for_gvisor(config, spec, floor) if gvisor else config


def _for_gvisor(config: dict[str, Any], spec: SandboxSpec, floor: Floor) -> dict[str, Any]:
    """The same where gVisor asks for more: room for its own threads, and a cap for the tmpfs that it mounts on /tmp."""
    host = config["HostConfig"]
    mounts = host["Tmpfs"] | {TMP: host["Tmpfs"][floor.work_path]}
    return config | {"HostConfig": host | {"PidsLimit": host_pids(spec.limits.pids), "Tmpfs": mounts}}


def _host_config(
    api: Any, dialect: Dialect, spec: SandboxSpec, floor: Floor, runtime: str, cpus: int
) -> dict[str, Any]:
    limits = spec.limits
    ulimits = {
        "core": floor.core_bytes,
        "nofile": limits.open_files,
        "fsize": limits.disk_bytes,
        **dialect.extra_ulimits,
    }
    masked = masked_paths(floor, cpus)
    config: dict[str, Any] = api.create_host_config(
        network_mode=floor.network,
        read_only=floor.read_only_root,
        cap_drop=list(floor.dropped_capabilities),
        security_opt=["no-new-privileges", f"seccomp={dialect.seccomp(floor)}", *dialect.mask(masked)],
        **{_MODES[name]: "private" for name in floor.namespaces if name in _MODES},
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes + floor.swap_bytes,
        pids_limit=limits.pids,
        nano_cpus=round(limits.cpus * 1e9),
        shm_size=floor.shared_memory_bytes,
        ulimits=[docker.types.Ulimit(name=name, soft=value, hard=value) for name, value in ulimits.items()],
        log_config=docker.types.LogConfig(type=floor.log_driver),
        restart_policy={"Name": "no"},
        init=False,
        runtime=runtime or None,
    )
    config["MaskedPaths"] = masked
    config["ReadonlyPaths"] = list(floor.read_only_paths)
    return config | dialect.mount_work(sandbox_name(spec.run_id), spec, floor)
