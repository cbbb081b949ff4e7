"""What init is told to start: the START frame of `skilljail_init.frames`, but for the size of standard input."""

from collections.abc import Mapping, Sequence

from skilljaild.limits import Limits

__all__ = ["start_order"]


def start_order(
    command: Sequence[str],
    env: Mapping[str, str],
    limits: Limits,
    *,
    working_directory: str = "",
    egress: bool = False,
    artifact_patterns: Sequence[str] = (),
) -> dict[str, object]:
    """`command`: argv; `env`: the whole environment; `working_directory`: below the skill root, "" is the root."""
    return {
        "argv": list(command),
        "env": dict(env),
        "cwd": working_directory,
        "wall_seconds": limits.wall_seconds,
        "cpu_seconds": limits.cpu_seconds,
        "output_bytes": limits.output_bytes,
        "open_files": limits.open_files,
        "disk_bytes": limits.disk_bytes,
        "pids": limits.pids,
        "cpus": limits.cpus,
        "disk_inodes": limits.disk_inodes,
        "egress": egress,
        "artifact_patterns": list(artifact_patterns),
        "artifact_count": limits.artifact_count,
        "artifact_bytes": limits.artifact_bytes,
    }
