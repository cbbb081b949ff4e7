"""Reads every control back from an inspected container."""

from typing import Any

from skilljaild.engines.base import SandboxSpec
from skilljaild.engines.docker.config import masked_paths, sandbox_name, user_of
from skilljaild.engines.docker.dialect import Dialect
from skilljaild.engines.docker.gvisor import TMP, host_pids
from skilljaild.engines.floor import Floor

__all__ = ["checks"]


def checks(
    api: Any,
    inspected: dict[str, Any],
    dialect: Dialect,
    spec: SandboxSpec,
    floor: Floor,
    runtime: str,
    *,
    cpus: int = 0,
    gvisor: bool = False,
) -> dict[str, bool]:
    """Each control and whether the engine says that it holds.

    `inspected`: from `GET /containers/…/json`; `cpus` and `gvisor`: as in `container_config`.
    """
    name = sandbox_name(spec.run_id)
    work = dialect.work_options(api, name, inspected, floor)
    return _walls(inspected, dialect, spec, floor) | {
        "no capabilities": not dialect.capabilities(api, name, inspected, floor),
        "image by digest": _hex(inspected["Image"]) == _hex(spec.image_digest),
        "runtime": not runtime or inspected["HostConfig"].get("Runtime") in {runtime, "oci"},
        "limits of the work directory": set(dialect.file_system_options(spec, floor)) <= work,
        "work directory nosuid and nodev": {"nosuid", "nodev"} <= work,
        **(_paths(inspected["HostConfig"], floor, cpus) if dialect.tells_paths else {}),
        **_limits(inspected["HostConfig"], spec, floor, host_pids(spec.limits.pids) if gvisor else spec.limits.pids),
        **(_tmp(inspected["HostConfig"], dialect, spec, floor) if gvisor else {}),
    }


def _walls(inspected: dict[str, Any], dialect: Dialect, spec: SandboxSpec, floor: Floor) -> dict[str, bool]:
    """What holds for every sandbox."""
    host, config = inspected["HostConfig"], inspected["Config"]
    security = host.get("SecurityOpt") or []
    return {
        "user": config.get("User") == user_of(spec, floor),
        "no network": host.get("NetworkMode") == floor.network,
        "read-only root": host.get("ReadonlyRootfs") is floor.read_only_root,
        "not privileged": host.get("Privileged") is False,
        "no new privileges": _no_new_privileges(security),
        "seccomp profile": any(
            option.startswith("seccomp=") and dialect.is_our_profile(option.removeprefix("seccomp="), floor)
            for option in security
        ),
        "no host namespaces": all(_is_own(name, host, dialect) for name in floor.namespaces),
        "no foreign mounts": not dialect.foreign_mounts(sandbox_name(spec.run_id), inspected),
        "no devices": not host.get("Devices") and not host.get("DeviceRequests"),
        "no terminal": config.get("Tty") is False,
        "no log": (host.get("LogConfig") or {}).get("Type") == floor.log_driver,
    }


_MODES = {"pid": "PidMode", "ipc": "IpcMode", "uts": "UTSMode", "cgroup": "CgroupnsMode"}
"""Where an inspection tells each of the floor's namespaces."""


def _is_own(namespace: str, host: dict[str, Any], dialect: Dialect) -> bool:
    mode = host.get(_MODES[namespace]) or ""
    return mode in (dialect.private_ipc if namespace == "ipc" else {"", "private"})


def _paths(host: dict[str, Any], floor: Floor, cpus: int) -> dict[str, bool]:
    """What the kernel's file systems hide and protect; an engine may do more of both."""
    return {
        "masked paths": set(masked_paths(floor, cpus)) <= set(host.get("MaskedPaths") or []),
        "read-only paths": set(floor.read_only_paths) <= set(host.get("ReadonlyPaths") or []),
    }


def _tmp(host: dict[str, Any], dialect: Dialect, spec: SandboxSpec, floor: Floor) -> dict[str, bool]:
    options = set((host.get("Tmpfs") or {}).get(TMP, "").split(","))
    return {"limits of /tmp": {*dialect.file_system_options(spec, floor), "nosuid", "nodev"} <= options}


def _limits(host: dict[str, Any], spec: SandboxSpec, floor: Floor, pids: int) -> dict[str, bool]:
    """What the run's limits ask for. `pids`: of the control group."""
    limits = spec.limits
    ulimits = {
        one["Name"].lower().removeprefix("rlimit_"): (one["Soft"], one["Hard"]) for one in host.get("Ulimits") or []
    }
    return {
        "memory limit": host.get("Memory") == limits.memory_bytes,
        "no swap": host.get("MemorySwap") == limits.memory_bytes + floor.swap_bytes,
        "out-of-memory killer": not host.get("OomKillDisable"),
        "pids limit": host.get("PidsLimit") == pids,
        "CPU limit": _cpus_hold(host, limits.cpus),
        "shared memory limit": host.get("ShmSize") == floor.shared_memory_bytes,
        "no core files": ulimits.get("core") == (floor.core_bytes,) * 2,
        "open files limit": ulimits.get("nofile") == (limits.open_files,) * 2,
        "file size limit": ulimits.get("fsize") == (limits.disk_bytes,) * 2,
    }


def _no_new_privileges(security: list[str]) -> bool:
    """The option with or without a value, which stands behind `=` or `:`; `false` switches it off."""
    values = [option.replace(":", "=").partition("=")[2] for option in security if option.startswith("no-new-priv")]
    return bool(values) and all(value in {"", "true"} for value in values)


def _cpus_hold(host: dict[str, Any], cpus: float) -> bool:
    """NanoCpus in Docker; Podman may turn it into quota and period."""
    if host.get("NanoCpus"):
        return bool(host["NanoCpus"] == round(cpus * 1e9))
    period = host.get("CpuPeriod") or 0
    return bool(period) and abs(host.get("CpuQuota", 0) / period - cpus) < 0.01


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
