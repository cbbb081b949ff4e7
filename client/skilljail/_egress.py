"""What a daemon decided on the connections of a script."""

import dataclasses
import datetime
from typing import Any

from skilljail._duration import datetime_from_timestamp
from skilljail._outcome import EgressRefusal
from skilljail.v1 import run_pb2

__all__ = ["EgressDecisionInfo", "decision_fault", "decision_fields"]

_HOST_LENGTH_MAX = 253
_MESSAGE_LENGTH_MAX = 16_384
_PORT_MAX = 65_535


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EgressDecisionInfo:
    """What was decided on one connection. One that was allowed and then cut has a second decision."""

    time: datetime.datetime
    """When it was decided."""
    host: str
    """In the form in which it was compared, or, where it is no host, what was asked for."""
    port: int
    """0 where none could be told."""
    allowed: bool
    address: str
    """What was dialled, when allowed."""
    refusal: EgressRefusal | None
    """Why not, when refused."""
    message: str
    """One or more sentences for a person, the same that the script was told."""

    @classmethod
    def from_wire(cls, message: run_pb2.EgressDecision) -> "EgressDecisionInfo":
        """Reads the message of the contract."""
        return cls(time=datetime_from_timestamp(message.time), **decision_fields(message))


def decision_fields(message: run_pb2.EgressDecision) -> dict[str, Any]:
    """All of a decision but its time, by the names of `EgressDecisionInfo`."""
    refusal = EgressRefusal.from_wire(run_pb2.EgressRefusal, message.refusal, "EGRESS_REFUSAL_")
    return {
        "host": message.host,
        "port": message.port,
        "allowed": message.allowed,
        "address": message.address,
        "refusal": None if message.refusal == run_pb2.EGRESS_REFUSAL_UNSPECIFIED else refusal,
        "message": message.message,
    }


def decision_fault(message: run_pb2.EgressDecision) -> str | None:
    """What makes a decision none that a daemon may send, or None."""
    if len(message.host) > _HOST_LENGTH_MAX or len(message.message) > _MESSAGE_LENGTH_MAX:
        return "is too long"
    if not 0 <= message.port <= _PORT_MAX:
        return f"has the impossible port {message.port}"
    if message.allowed is not (message.refusal == run_pb2.EGRESS_REFUSAL_UNSPECIFIED):
        return "both allows and refuses" if message.allowed else "refuses without a reason"
    return None
