"""The events of a run's stream."""

import dataclasses
import datetime
from typing import Literal

from skilljail._outcome import EgressRefusal, OpenEnum
from skilljail._result import Policy, RunResult
from skilljail.v1 import run_pb2

__all__ = ["ArtifactChunk", "EgressDecision", "Event", "Finished", "Heartbeat", "Output", "Queued", "Started"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _EventBase:
    sequence: int
    """Starts at 1 and grows by 1 with each event of the run."""
    time: datetime.datetime
    """When the daemon made the event."""
    run_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queued(_EventBase):
    """The run was admitted. Always the first event."""

    position: int
    """Runs that are before this one; 0 when it can start at once."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Started(_EventBase):
    """A sandbox is ready and verified, and the script is about to start."""

    policy: Policy
    image_digest: str
    sandbox_id: str
    sandbox_start: str
    """`COLD` when the sandbox was made for this run."""
    runtime: str
    """The engine's runtime, such as `runc`."""
    verified: tuple[str, ...]
    """The controls that were read back before the script started, as short sentences."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Output(_EventBase):
    """The script wrote something."""

    stream: Literal["stdout", "stderr"]
    offset: int
    """Position of the first byte in its stream."""
    data: bytes
    """Exactly as written."""
    text: str
    """The text that these bytes complete: a character that two pieces share comes with the second one, and what is not
    UTF-8 becomes U+FFFD. A stream that ends inside a character shows that in `RunResult.stdout_text` only."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EgressDecision(_EventBase):
    """The daemon allowed or refused a connection of the script. The fields are those of `EgressDecisionInfo`."""

    host: str
    port: int
    allowed: bool
    address: str
    refusal: EgressRefusal | None
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactChunk(_EventBase):
    """A piece of an artifact. It is good when the result names it; until then the script chose all of it."""

    path: str
    offset: int
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(_EventBase):
    """Nothing else happened for some seconds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished(_EventBase):
    """The run is over. Exactly once, and last."""

    result: RunResult


Event = Queued | Started | Output | EgressDecision | ArtifactChunk | Heartbeat | Finished


class SandboxStart(OpenEnum):
    """Whether a sandbox was made for the run."""

    COLD = "COLD"


def started_from_wire(message: run_pb2.Started, *, sequence: int, time: datetime.datetime, run_id: str) -> Started:
    """Reads the message of the contract."""
    return Started(
        sequence=sequence,
        time=time,
        run_id=run_id,
        policy=Policy.from_wire(message.policy),
        image_digest=message.image_digest,
        sandbox_id=message.sandbox_id,
        sandbox_start=SandboxStart.from_wire(run_pb2.SandboxStart, message.sandbox_start, "SANDBOX_START_"),
        runtime=message.isolation.runtime,
        verified=tuple(message.isolation.verified),
    )
