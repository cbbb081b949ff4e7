"""How a run ended, and what the daemon remembers of it."""

import dataclasses
import datetime
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from skilljail._artifact import Artifact, ArtifactInfo
from skilljail._duration import datetime_from_timestamp, seconds_from_duration
from skilljail._egress import EgressDecisionInfo
from skilljail._errors import ArtifactRefused
from skilljail._limits import Limits
from skilljail._outcome import Network, Outcome, RunState, SkipReason
from skilljail.v1 import run_pb2

if TYPE_CHECKING:
    from skilljail._events import Started

__all__ = ["Phases", "Policy", "Run", "RunResult", "RunSummary", "SkippedArtifact", "Usage"]


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """What a run really got."""

    interpreter: str
    command: tuple[str, ...]
    """What is executed in the sandbox, script path and arguments included."""
    limits: Limits
    """Every limit, filled in."""
    network: Network
    """What the sandbox may reach."""
    allowed_hosts: tuple[str, ...] = ()
    """With `Network.ALLOWLIST`: the hosts, in the form in which they are compared."""
    secrets: tuple[str, ...] = ()
    """Names of the secrets that the script got."""
    mask_secrets: bool = False
    """Whether their values were masked in the output."""

    @classmethod
    def from_wire(cls, message: run_pb2.EffectivePolicy) -> "Policy":
        """Reads the message of the contract."""
        return cls(
            interpreter=message.interpreter,
            command=tuple(message.command),
            limits=Limits.from_wire(message.limits),
            network=Network.from_wire(run_pb2.Network, message.network, "NETWORK_"),
            allowed_hosts=tuple(message.allowed_hosts),
            secrets=tuple(message.secrets),
            mask_secrets=message.mask_secrets,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a run used. None where the kernel of the sandbox does not count it."""

    wall_seconds: float
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    stdout_bytes: int
    stderr_bytes: int
    output_truncated: bool
    """True when output was cut at `Limits.output_bytes`."""
    oom_kills: int | None
    pids_limit_hits: int | None
    disk_full: bool
    egress_sent_bytes: int = 0
    """Bytes that were sent to hosts."""
    egress_received_bytes: int = 0
    """Bytes that were received from hosts."""
    egress_connections: int = 0
    """Connections that were asked for, refused ones included."""

    @classmethod
    def from_wire(cls, message: run_pb2.Usage) -> "Usage":
        """Reads the message of the contract."""
        return cls(
            wall_seconds=seconds_from_duration(message.wall_time),
            cpu_seconds=seconds_from_duration(message.cpu_time) if message.HasField("cpu_time") else None,
            peak_memory_bytes=message.peak_memory_bytes if message.HasField("peak_memory_bytes") else None,
            stdout_bytes=message.stdout_bytes,
            stderr_bytes=message.stderr_bytes,
            output_truncated=message.output_truncated,
            oom_kills=message.oom_kills if message.HasField("oom_kills") else None,
            pids_limit_hits=message.pids_limit_hits if message.HasField("pids_limit_hits") else None,
            disk_full=message.disk_full,
            egress_sent_bytes=message.egress_sent_bytes,
            egress_received_bytes=message.egress_received_bytes,
            egress_connections=message.egress_connections,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Phases:
    """How long each phase of a run took, in seconds. None for a phase that was not reached."""

    queued_seconds: float | None
    claimed_seconds: float | None
    staged_seconds: float | None
    running_seconds: float | None
    collected_seconds: float | None

    @classmethod
    def from_wire(cls, message: run_pb2.Phases) -> "Phases":
        """Reads the message of the contract."""

        def seconds(name: Literal["queued", "claimed", "staged", "running", "collected"]) -> float | None:
            return seconds_from_duration(getattr(message, name)) if message.HasField(name) else None

        return cls(seconds("queued"), seconds("claimed"), seconds("staged"), seconds("running"), seconds("collected"))


@dataclasses.dataclass(frozen=True, slots=True)
class SkippedArtifact:
    """A file that matched a pattern and was not delivered."""

    path: str
    """With `\\xNN` for each byte that is not printable UTF-8; `.` when the search itself ended early."""
    reason: SkipReason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """How a run ended, without its output and without the content of its artifacts."""

    run_id: str
    outcome: Outcome
    exit_code: int | None
    """0 to 255, exactly as the script ended. None where there is none; it is never made up."""
    signal: int | None
    """The number of the signal that ended the script, where one did."""
    message: str
    """One sentence for a person, from the daemon. Holds no output of the script."""
    usage: Usage
    phases: Phases
    artifacts: tuple[ArtifactInfo, ...]
    skipped_artifacts: tuple[SkippedArtifact, ...]
    skipped_artifacts_omitted: int
    """Skipped files that `skipped_artifacts` had no room for."""
    egress_decisions: tuple[EgressDecisionInfo, ...] = ()
    """What was decided on the script's connections, in order."""
    egress_decisions_omitted: int = 0
    """Decisions that `egress_decisions` had no room for."""

    @property
    def ok(self) -> bool:
        """Whether the script ended by itself with status 0."""
        return self.outcome is Outcome.EXITED and self.exit_code == 0

    @classmethod
    def from_wire(cls, run_id: str, message: run_pb2.RunResult) -> "RunSummary":
        """Reads the message of the contract."""
        return RunSummary(
            run_id=run_id,
            outcome=Outcome.from_wire(run_pb2.Outcome, message.outcome, "OUTCOME_"),
            exit_code=message.exit_code if message.HasField("exit_code") else None,
            signal=message.signal if message.HasField("signal") else None,
            message=message.message,
            usage=Usage.from_wire(message.usage),
            phases=Phases.from_wire(message.phases),
            artifacts=tuple(ArtifactInfo.from_wire(artifact) for artifact in message.artifacts),
            skipped_artifacts=tuple(
                SkippedArtifact(skipped.path, SkipReason.from_wire(run_pb2.SkipReason, skipped.reason, "SKIP_REASON_"))
                for skipped in message.skipped_artifacts
            ),
            skipped_artifacts_omitted=message.skipped_artifacts_omitted,
            egress_decisions=tuple(map(EgressDecisionInfo.from_wire, message.egress_decisions)),
            egress_decisions_omitted=message.egress_decisions_omitted,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(RunSummary):
    """How a run ended, with everything that came out of it. Output and artifacts are hostile input."""

    artifacts: tuple[Artifact, ...]
    stdout: bytes = dataclasses.field(repr=False)
    """Standard output, exactly as written unless secrets are masked; `usage.output_truncated` tells of a cut."""
    stderr: bytes = dataclasses.field(repr=False)
    """Standard error, exactly as written unless secrets are masked."""
    started: "Started | None" = dataclasses.field(repr=False)
    """What the run really got, and in which sandbox. None when the script was never about to start."""

    @property
    def stdout_text(self) -> str:
        """Standard output as text; each byte that is not UTF-8 becomes U+FFFD."""
        return self.stdout.decode("utf-8", errors="replace")

    @property
    def stderr_text(self) -> str:
        """Standard error as text; each byte that is not UTF-8 becomes U+FFFD."""
        return self.stderr.decode("utf-8", errors="replace")

    def text(self, stream: Literal["stdout", "stderr"] = "stdout") -> str:
        """One of the two streams as text."""
        return self.stderr_text if stream == "stderr" else self.stdout_text

    def save_artifacts(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> list[pathlib.Path]:
        """Saves every artifact that can be as `Artifact.save` does, and returns where they are.

        Raises ArtifactRefused when there were others: its `saved` says what was saved, its `refusals` what was not.
        """
        saved: list[pathlib.Path] = []
        refusals: list[ArtifactRefused] = []
        for artifact in self.artifacts:
            try:
                saved.append(artifact.save(directory, overwrite=overwrite))
            except ArtifactRefused as error:
                refusals.append(error)
        if refusals:
            raise ArtifactRefused.together(refusals, saved)
        return saved


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What the daemon remembers of a run."""

    run_id: str
    request_id: str
    """The caller's name for it; empty when there is none."""
    state: RunState
    labels: Mapping[str, str]
    script_path: str
    bundle_digest: str
    policy: Policy | None
    """Set from `RunState.STARTING` on."""
    create_time: datetime.datetime | None
    start_time: datetime.datetime | None
    finish_time: datetime.datetime | None
    result: RunSummary | None
    """Set in `RunState.FINISHED`."""

    @classmethod
    def from_wire(cls, message: run_pb2.Run) -> "Run":
        """Reads the message of the contract."""

        def time(name: Literal["create_time", "start_time", "finish_time"]) -> datetime.datetime | None:
            return datetime_from_timestamp(getattr(message, name)) if message.HasField(name) else None

        return cls(
            run_id=message.run_id,
            request_id=message.request_id,
            state=RunState.from_wire(run_pb2.RunState, message.state, "RUN_STATE_"),
            labels=dict(message.labels),
            script_path=message.script_path,
            bundle_digest=message.bundle_digest,
            policy=Policy.from_wire(message.policy) if message.HasField("policy") else None,
            create_time=time("create_time"),
            start_time=time("start_time"),
            finish_time=time("finish_time"),
            result=RunSummary.from_wire(message.run_id, message.result) if message.HasField("result") else None,
        )
