"""The container floor, read from `sandbox-images/floor.toml` and `sandbox-images/seccomp/profile.json`."""

import dataclasses
import functools
import json
import pathlib
import tomllib

from skilljaild.assets import sandbox_images_directory

__all__ = ["Floor", "container_floor"]


@dataclasses.dataclass(frozen=True, slots=True)
class Floor:
    """What holds for every sandbox. Sizes in bytes; the file says why each line is there."""

    user: int
    group: int
    network: str
    read_only_root: bool
    capabilities: tuple[str, ...]
    no_new_privileges: bool
    namespaces: tuple[str, ...]
    core_bytes: int
    swap_bytes: int
    log_driver: str
    work_path: str
    work_mode: str
    work_options: tuple[str, ...]
    shared_memory_path: str
    shared_memory_bytes: int
    masked_paths: tuple[str, ...]
    masked_per_cpu_paths: tuple[str, ...]
    """With `{cpu}` for the number of each processor of the engine's host."""
    read_only_paths: tuple[str, ...]
    seccomp: str
    """The profile as compact JSON."""
    seccomp_file: pathlib.Path
    """The same as a file."""


@functools.cache
def container_floor() -> Floor:
    """Reads the files once. Raises OSError or ValueError when they are broken: then nothing may run."""
    directory = sandbox_images_directory()
    data = tomllib.loads((directory / "floor.toml").read_text())
    work, shared, proc = data.pop("work"), data.pop("shared_memory"), data.pop("proc")
    seccomp_file = directory / "seccomp" / "profile.json"
    profile = json.loads(seccomp_file.read_text())
    return Floor(
        capabilities=tuple(data.pop("capabilities")),
        namespaces=tuple(data.pop("namespaces")),
        **data,
        work_path=work["path"],
        work_mode=work["mode"],
        work_options=tuple(work["options"]),
        shared_memory_path=shared["path"],
        shared_memory_bytes=shared["bytes"],
        masked_paths=tuple(proc["masked"]),
        masked_per_cpu_paths=tuple(proc["masked_per_cpu"]),
        read_only_paths=tuple(proc["read_only"]),
        seccomp=json.dumps(profile, separators=(",", ":")),
        seccomp_file=seccomp_file.resolve(),
    )
