"""The closed lists of the contract, as enums that stay open for values of later versions."""

import enum
from collections.abc import Sequence
from typing import Protocol, Self

__all__ = ["EgressRefusal", "Network", "OpenEnum", "Outcome", "RunState", "SkipReason"]


class _WireEnum(Protocol):
    """What is needed of a generated enum."""

    def items(self) -> Sequence[tuple[str, int]]: ...


class OpenEnum(enum.StrEnum):
    """A string enum that takes values it does not know: a newer daemon may send them.

    An unknown value is a member of its own that equals its text and is in no list of members.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_ = value
        member._value_ = value
        return member

    @classmethod
    def from_wire(cls, wire: _WireEnum, number: int, prefix: str) -> Self:
        """The member for a number of the generated enum `wire`, whose names start with `prefix`."""
        for name, value in wire.items():
            if value == number:
                return cls(name.removeprefix(prefix))
        return cls(f"UNKNOWN_{number}")


class Outcome(OpenEnum):
    """Why a run ended. `proto/skilljail/v1/run.proto` says what each one means."""

    EXITED = "EXITED"
    SIGNALED = "SIGNALED"
    WALL_TIMEOUT = "WALL_TIMEOUT"
    CPU_TIMEOUT = "CPU_TIMEOUT"
    OOM_KILLED = "OOM_KILLED"
    PIDS_LIMIT = "PIDS_LIMIT"
    DISK_LIMIT = "DISK_LIMIT"
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    CANCELLED = "CANCELLED"
    CLIENT_DISCONNECTED = "CLIENT_DISCONNECTED"
    SHUTDOWN = "SHUTDOWN"
    START_FAILED = "START_FAILED"
    SANDBOX_ERROR = "SANDBOX_ERROR"


class Network(OpenEnum):
    """What a sandbox may reach, each more than the last."""

    NONE = "NONE"
    """Nothing but its own loopback interface."""
    ALLOWLIST = "ALLOWLIST"
    """HTTP and HTTPS to the hosts that were named, through a proxy on loopback over which the daemon decides."""
    OPEN = "OPEN"
    """The same to every public host."""


class EgressRefusal(OpenEnum):
    """Why a connection was refused or cut. `proto/skilljail/v1/run.proto` says what each one means."""

    HOST_INVALID = "HOST_INVALID"
    HOST_NOT_ALLOWED = "HOST_NOT_ALLOWED"
    PORT_NOT_ALLOWED = "PORT_NOT_ALLOWED"
    NAME_NOT_RESOLVED = "NAME_NOT_RESOLVED"
    ADDRESS_NOT_PUBLIC = "ADDRESS_NOT_PUBLIC"
    CONNECT_FAILED = "CONNECT_FAILED"
    HOST_MISMATCH = "HOST_MISMATCH"
    PROTOCOL_INVALID = "PROTOCOL_INVALID"
    CONNECTION_LIMIT = "CONNECTION_LIMIT"
    BYTE_LIMIT = "BYTE_LIMIT"


class RunState(OpenEnum):
    """Where a run is in its life."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    COLLECTING = "COLLECTING"
    FINISHED = "FINISHED"


class SkipReason(OpenEnum):
    """Why a file that matched was not delivered as an artifact."""

    NOT_A_REGULAR_FILE = "NOT_A_REGULAR_FILE"
    COUNT_LIMIT = "COUNT_LIMIT"
    SIZE_LIMIT = "SIZE_LIMIT"
    DEPTH_LIMIT = "DEPTH_LIMIT"
    TIME_LIMIT = "TIME_LIMIT"
    UNSAFE_NAME = "UNSAFE_NAME"
    UNREADABLE = "UNREADABLE"
