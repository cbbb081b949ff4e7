"""What a run may use, with units in the names. `proto/skilljail/v1/limits.proto` says what each limit means."""

import dataclasses

__all__ = ["Limits"]


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run, every one filled in."""

    wall_seconds: float
    cpu_seconds: float
    cpus: float
    memory_bytes: int
    pids: int
    disk_bytes: int
    disk_inodes: int
    open_files: int
    output_bytes: int
    artifact_count: int
    artifact_bytes: int
    egress_bytes: int
    egress_connections: int
