"""What a run may use."""

import dataclasses
import math

from skilljail._duration import duration_from_seconds, seconds_from_duration
from skilljail._errors import DaemonFault, InvalidRequest
from skilljail.v1 import limits_pb2

__all__ = ["Limits"]

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
# Field of this class -> field of the message, for those that are durations there.
_DURATIONS = {"wall_seconds": "wall_time", "cpu_seconds": "cpu_time"}
_INT32 = frozenset({"pids", "open_files", "artifact_count", "egress_connections"})


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use. None takes the operator's default; above the operator's ceiling is refused.

    Raises InvalidRequest for a value that is no number above zero.
    """

    wall_seconds: float | None = None
    """From the start of the script to its end; millisecond resolution."""
    cpu_seconds: float | None = None
    """User and system time of all processes together."""
    cpus: float | None = None
    """Cores; 0.5 is half of one. The run is slowed down, not ended."""
    memory_bytes: int | None = None
    """All processes and the work directory together, without swap."""
    pids: int | None = None
    """Processes and threads at one time."""
    disk_bytes: int | None = None
    """The work directory; it lives in memory, so it must be below `memory_bytes`."""
    disk_inodes: int | None = None
    """Files and directories in the work directory."""
    open_files: int | None = None
    """Open file descriptors of each process."""
    output_bytes: int | None = None
    """Standard output and standard error together."""
    artifact_count: int | None = None
    """Artifacts that are collected at most."""
    artifact_bytes: int | None = None
    """All collected artifacts together."""
    egress_bytes: int | None = None
    """What is sent to hosts and received from them, together."""
    egress_connections: int | None = None
    """Connections to hosts that are asked for, refused ones included."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name))

    def to_wire(self) -> limits_pb2.Limits:
        """The message of the contract; what is None stays unset."""
        message = limits_pb2.Limits()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name in _DURATIONS:
                getattr(message, _DURATIONS[field.name]).CopyFrom(duration_from_seconds(value))
            else:
                setattr(message, field.name, value)
        return message

    @classmethod
    def from_wire(cls, message: limits_pb2.Limits) -> "Limits":
        """Reads the message of the contract; what is unset there is None. Raises DaemonFault for impossible limits."""
        values: dict[str, float | int | None] = {}
        for field in dataclasses.fields(cls):
            wire_name = _DURATIONS.get(field.name)
            value = seconds_from_duration(getattr(message, wire_name)) if wire_name else getattr(message, field.name)
            values[field.name] = value if value > 0 else None
        try:
            return cls(**values)  # type: ignore[arg-type]  # the fields of both are the same ones
        except InvalidRequest as error:
            raise DaemonFault(f"the daemon told of impossible limits: {error}") from error


def _check(name: str, value: object) -> None:
    if value is None:
        return
    is_real = name in _DURATIONS or name == "cpus"
    kinds = (int, float) if is_real else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds):
        wanted = "a number" if is_real else "a whole number"
        raise InvalidRequest(f"limits.{name} must be {wanted}, got {type(value).__name__}", reason="LIMIT_INVALID")
    largest = _INT32_MAX if name in _INT32 or is_real else _INT64_MAX
    if not math.isfinite(value) or not 0 < value <= largest:
        raise InvalidRequest(
            f"limits.{name} must be above zero and at most {largest:,}, got {value}; "
            "leave it out (None) to take the operator's default",
            reason="LIMIT_INVALID",
        )
    if name in _DURATIONS and value < 0.001:  # the contract's resolution: shorter would round to "unset"
        raise InvalidRequest(f"limits.{name} must be at least 0.001 seconds, got {value}", reason="LIMIT_INVALID")
