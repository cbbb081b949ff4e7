"""What happens in a run, as plain data. The service turns these into `RunEvent` messages."""

import dataclasses
import enum

from skilljaild.egress.decision import EgressDecision
from skilljaild.egress.hosts import HostPattern
from skilljaild.limits import Limits
from skilljaild.network import Network

__all__ = [
    "Artifact",
    "ArtifactChunk",
    "EffectivePolicy",
    "Event",
    "Finished",
    "Outcome",
    "Output",
    "Phases",
    "Queued",
    "RunResult",
    "RunState",
    "SkippedArtifact",
    "Started",
    "Usage",
]


class Outcome(enum.Enum):
    """Why a run ended; the values are those of `Outcome` in `run.proto`."""

    EXITED = 1
    SIGNALED = 2
    WALL_TIMEOUT = 3
    CPU_TIMEOUT = 4
    OOM_KILLED = 5
    PIDS_LIMIT = 6
    DISK_LIMIT = 7
    OUTPUT_LIMIT = 8
    CANCELLED = 9
    CLIENT_DISCONNECTED = 10
    SHUTDOWN = 11
    START_FAILED = 12
    SANDBOX_ERROR = 13


class RunState(enum.IntEnum):
    """Where a run is; it only moves forward. The values are those of `RunState` in `run.proto`."""

    QUEUED = 1
    STARTING = 2
    RUNNING = 3
    COLLECTING = 4
    FINISHED = 5


@dataclasses.dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """What a run really got."""

    interpreter: str
    command: tuple[str, ...]
    limits: Limits
    network: Network = Network.NONE
    allowed_hosts: tuple[HostPattern, ...] = ()
    """With `Network.ALLOWLIST`."""
    secrets: tuple[str, ...] = ()
    """Names; never a value."""
    mask_secrets: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a run used; None where the sandbox's kernel does not tell."""

    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    output_truncated: bool = False
    oom_kills: int | None = None
    pids_limit_hits: int | None = None
    disk_full: bool = False
    egress_sent_bytes: int = 0
    egress_received_bytes: int = 0
    egress_connections: int = 0


@dataclasses.dataclass(slots=True)
class Phases:
    """Seconds that each phase took; None when it was not reached."""

    queued: float | None = None
    claimed: float | None = None
    staged: float | None = None
    running: float | None = None
    collected: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Artifact:
    """A file that was delivered."""

    path: str
    size: int
    digest: str
    media_type: str
    executable: bool


@dataclasses.dataclass(frozen=True, slots=True)
class SkippedArtifact:
    """A file that matched and was not delivered. `reason`: a `skilljail_init.frames.SkipReason` value."""

    path: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    outcome: Outcome
    message: str
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage = dataclasses.field(default_factory=Usage)
    phases: Phases = dataclasses.field(default_factory=Phases)
    artifacts: tuple[Artifact, ...] = ()
    skipped: tuple[SkippedArtifact, ...] = ()
    skipped_omitted: int = 0
    egress_decisions: tuple[EgressDecision, ...] = ()
    egress_decisions_omitted: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Queued:
    """The run was admitted. `position`: its place in the queue; 1 is next, 0 starts at once."""

    position: int


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """A verified sandbox is ready and the script is about to start."""

    policy: EffectivePolicy
    image_digest: str
    sandbox_id: str
    runtime: str
    verified: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """A piece of output. `stream`: 1 is standard output, 2 standard error; `offset`: bytes before it."""

    stream: int
    offset: int
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class ArtifactChunk:
    """A piece of an artifact."""

    path: str
    offset: int
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """The run is over."""

    result: RunResult


Event = Queued | Started | Output | EgressDecision | ArtifactChunk | Finished
