"""The container floor, read from `sandbox-images/floor.toml` and `sandbox-images/seccomp/profile.json`."""

import dataclasses
import functools
import json
import pathlib
import tomllib

from skilljaild.assets import sandbox_images_directory

__all__ = ["Floor", "FloorError", "container_floor"]


class FloorError(Exception):
    """The floor's files are missing or broken: then nothing may run. The message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Floor:
    """What holds for every sandbox. Sizes in bytes; the file says why each line is there."""

    first_user: int
    users: int
    network: str
    read_only_root: bool
    dropped_capabilities: tuple[str, ...]
    no_new_privileges: bool
    namespaces: tuple[str, ...]
    core_bytes: int
    swap_bytes: int
    log_driver: str
    shared_memory_bytes: int
    work_path: str
    work_mode: str
    work_options: tuple[str, ...]
    masked_paths: tuple[str, ...]
    masked_per_cpu_paths: tuple[str, ...]
    """With `{cpu}` for the number of each processor of the engine's host."""
    read_only_paths: tuple[str, ...]
    seccomp: str
    """The profile as compact JSON."""
    seccomp_file: pathlib.Path
    """The same as a file."""

    def user_of(self, place: int) -> int:
        """The user, and group, of the sandbox that has this place among those alive."""
        return self.first_user + place % self.users


@functools.cache
def container_floor() -> Floor:
    """Reads the files once. Raises FloorError."""
    try:
        return _read()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise FloorError(f"the container floor cannot be read ({detail}); install skilljail again") from error


def _read() -> Floor:
    directory = sandbox_images_directory()
    data = tomllib.loads((directory / "floor.toml").read_text())
    work, proc = data.pop("work"), data.pop("proc")
    seccomp_file = directory / "seccomp" / "profile.json"
    profile = json.loads(seccomp_file.read_text())
    return Floor(
        dropped_capabilities=tuple(data.pop("dropped_capabilities")),
        namespaces=tuple(data.pop("namespaces")),
        **data,
        work_path=work["path"],
        work_mode=work["mode"],
        work_options=tuple(work["options"]),
        masked_paths=tuple(proc["masked"]),
        masked_per_cpu_paths=tuple(proc["masked_per_cpu"]),
        read_only_paths=tuple(proc["read_only"]),
        seccomp=json.dumps(profile, separators=(",", ":")),
        seccomp_file=seccomp_file.resolve(),
    )
