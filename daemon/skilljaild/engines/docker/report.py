"""What an engine says about itself, and what that means for the floor."""

from typing import Any

from skilljaild.engines.base import EngineReport
from skilljaild.engines.docker.gvisor import argument_faults, is_gvisor
from skilljaild.engines.finding import Finding, Severity
from skilljaild.engines.known_bad import known_bad

__all__ = ["API_VERSION_MIN", "engine_report", "is_podman"]

API_VERSION_MIN = "1.41"
"""Docker 20.10: the first with `CgroupnsMode`."""


def is_podman(version: dict[str, Any]) -> bool:
    """Whether `GET /version` was answered by Podman."""
    return "Podman Engine" in _components(version)


def engine_report(info: dict[str, Any], version: dict[str, Any], asked_runtime: str) -> EngineReport:
    """Reads `GET /info` and `GET /version`. `asked_runtime`: from the configuration, empty for the default."""
    components = _components(version)
    podman = "Podman Engine" in components
    product = "Podman" if podman else "Docker"
    engine_version = components["Podman Engine"]["Version"] if podman else version["Version"]
    runtime = asked_runtime or info.get("DefaultRuntime") or "runc"
    runtime_version = str(components.get(runtime, {}).get("Version", "")).split("+", 1)[0]
    cgroup_version = int(info.get("CgroupVersion") or 1)
    options = _security_options(info)
    return EngineReport(
        name="docker",
        product=product,
        version=engine_version,
        runtime=runtime,
        runtime_version=runtime_version,
        kernel=str(info.get("KernelVersion", "")),
        cgroup_version=cgroup_version,
        missing=tuple(_missing(info, version, asked_runtime) + _missing_on_gvisor(info, asked_runtime, podman=podman)),
        findings=tuple(known_bad(product, engine_version, runtime, runtime_version) + _weak(options, cgroup_version)),
        user_namespace=_has_user_namespace(options),
        lsms=tuple(name for name in _LSMS if name in options),
        rootless="rootless" in options,
    )


def _components(version: dict[str, Any]) -> dict[str, Any]:
    return {one["Name"]: one for one in version.get("Components") or []}


_NEEDED = {
    "MemoryLimit": "memory limits: enable the kernel's memory cgroup (cgroup_enable=memory) and restart the engine",
    "SwapLimit": "swap limits: boot with swapaccount=1, or use a host with cgroup v2",
    "PidsLimit": "pids limits: enable the pids cgroup controller; a rootless engine needs cgroup v2 for it",
    "CpuCfsQuota": "CPU limits: enable the kernel's CFS bandwidth control",
}


def _missing(info: dict[str, Any], version: dict[str, Any], asked_runtime: str) -> list[str]:
    """Controls that every run needs and that this engine does not offer, each with its mend.

    What an engine does not mention is not taken for missing: the made sandbox is inspected in any case.
    """
    missing = [mend for name, mend in _NEEDED.items() if not info.get(name, True)]
    if info.get("OSType", "linux") != "linux":
        missing.append("Linux containers: switch the engine to them")
    if not any("seccomp" in option for option in info.get("SecurityOptions") or []):
        missing.append("seccomp: use a kernel and an engine that are built with it")
    runtimes = info.get("Runtimes") or {}
    if asked_runtime and runtimes and asked_runtime not in runtimes:
        missing.append(f"runtime {asked_runtime}: the engine has {', '.join(sorted(runtimes))}; add it to the engine")
    api_version = version.get("ApiVersion", "0")
    if _numbers(api_version) < _numbers(API_VERSION_MIN):
        missing.append(f"API {API_VERSION_MIN}: the engine speaks {api_version}; update it (Docker 20.10, Podman 4.0)")
    return missing


def _missing_on_gvisor(info: dict[str, Any], asked_runtime: str, *, podman: bool) -> list[str]:
    if not is_gvisor(info, asked_runtime):
        return []
    return ["gVisor under Podman: use Docker for it"] if podman else argument_faults(info, asked_runtime)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


_LSMS = ("apparmor", "selinux")


def _security_options(info: dict[str, Any]) -> set[str]:
    """The names in `SecurityOptions`, each of which is such as `name=seccomp,profile=default`."""
    return {str(option).split(",", 1)[0].removeprefix("name=") for option in info.get("SecurityOptions") or []}


def _has_user_namespace(options: set[str]) -> bool:
    return not options.isdisjoint({"userns", "rootless"})


def _weak(options: set[str], cgroup_version: int) -> list[Finding]:
    """What is weaker here than on the best host, worst first."""
    found = []
    if cgroup_version == 1:
        message = (
            "buffers of sockets are no memory of a run, and there is release_agent to escape through; use a host with "
            "cgroup v2"
        )
        found.append(Finding(Severity.KNOWN_BAD, "cgroup v1", message, "CVE-2022-0492"))
    if not _has_user_namespace(options):
        message = "the sandbox's user is a user of the host; enable userns-remap or go rootless"
        found.append(Finding(Severity.WARNING, "no user namespace", message))
    if options.isdisjoint(_LSMS):
        message = "load AppArmor or SELinux for a second wall behind seccomp"
        found.append(Finding(Severity.WARNING, "no LSM", message))
    return found
