"""The one place where messages become plain data and plain data becomes messages."""

import dataclasses
import datetime

from google.protobuf import duration_pb2, timestamp_pb2
from skilljail.v1 import limits_pb2, run_pb2, script_runner_pb2

from skilljaild.egress.decision import EgressDecision
from skilljaild.errors import Reason, Refusal
from skilljaild.limits import Limits
from skilljaild.policy import AskedLimits
from skilljaild.runs.events import (
    ArtifactChunk,
    EffectivePolicy,
    Event,
    Finished,
    Output,
    Phases,
    Queued,
    RunResult,
    Started,
    Usage,
)
from skilljaild.runs.order import InputFile, RunRequest
from skilljaild.runs.run import Run

__all__ = ["event_message", "limits_message", "run_message", "run_request"]

_PLAIN_LIMITS = (
    "memory_bytes",
    "pids",
    "disk_bytes",
    "disk_inodes",
    "open_files",
    "output_bytes",
    "artifact_count",
    "artifact_bytes",
    "egress_bytes",
    "egress_connections",
)


_ABSURD = {
    "env": (4_096, Reason.ENVIRONMENT_INVALID),
    "files": (4_096, Reason.REQUEST_INVALID),
    "artifact_patterns": (4_096, Reason.REQUEST_INVALID),
    "labels": (4_096, Reason.REQUEST_INVALID),
    "allowed_hosts": (4_096, Reason.NETWORK_INVALID),
    "secrets": (4_096, Reason.REQUEST_INVALID),
}
"""Far above what is allowed: so many are not even unfolded. There may be many more arguments than that."""


def run_request(message: script_runner_pb2.RunScriptRequest) -> RunRequest:
    """A request as plain data. Only what would make that costly, and its durations, are checked yet."""
    for name, (most, reason) in _ABSURD.items():
        if (count := len(getattr(message, name))) > most:
            raise Refusal(reason, f"{name}: {count:,} entries are far too many; send fewer", field=name)
    return RunRequest(
        request_id=message.request_id,
        bundle_digest=message.bundle_digest,
        script_path=message.script_path,
        argv=tuple(message.argv),
        env=dict(message.env),
        stdin=message.stdin,
        working_directory=message.working_directory,
        files=tuple(_input_file(file) for file in message.files),
        limits=_asked_limits(message.limits),
        artifact_patterns=tuple(message.artifact_patterns),
        labels=dict(message.labels),
        interpreter=message.interpreter,
        network=message.network,
        allowed_hosts=tuple(message.allowed_hosts),
        secrets=tuple(message.secrets),
        mask_secrets=message.mask_secrets,
    )


def _input_file(message: script_runner_pb2.InputFile) -> InputFile:
    content = message.content if message.WhichOneof("source") == "content" else None
    return InputFile(message.path, content, message.digest, message.executable)


def _asked_limits(message: limits_pb2.Limits) -> AskedLimits:
    """Zero and unset mean the same: not asked for."""
    return AskedLimits(
        wall_seconds=_asked_seconds(message, "wall_time"),
        cpu_seconds=_asked_seconds(message, "cpu_time"),
        cpus=message.cpus or None,
        **{name: getattr(message, name) or None for name in _PLAIN_LIMITS},
    )


def _asked_seconds(message: limits_pb2.Limits, name: str) -> float | None:
    if not message.HasField(name):  # type: ignore[arg-type]
        return None
    duration: duration_pb2.Duration = getattr(message, name)
    nanoseconds = duration.seconds * 1_000_000_000 + duration.nanos
    if duration.seconds < 0 or not 0 <= duration.nanos < 1_000_000_000:
        raise Refusal(Reason.LIMIT_INVALID, f"limits.{name}: it must be a positive duration", field=f"limits.{name}")
    # One division, so that a ceiling that we told comes back as the same number and not as one above it.
    return nanoseconds / 1_000_000_000 or None


def limits_message(limits: Limits) -> limits_pb2.Limits:
    """Every limit, filled in."""
    return limits_pb2.Limits(
        wall_time=_duration(limits.wall_seconds),
        cpu_time=_duration(limits.cpu_seconds),
        cpus=limits.cpus,
        **{name: getattr(limits, name) for name in _PLAIN_LIMITS},
    )


def _duration(seconds: float | None) -> duration_pb2.Duration | None:
    if seconds is None:
        return None
    message = duration_pb2.Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def _timestamp(moment: datetime.datetime | None) -> timestamp_pb2.Timestamp | None:
    if moment is None:
        return None
    message = timestamp_pb2.Timestamp()
    message.FromDatetime(moment)
    return message


def event_message(run_id: str, sequence: int, event: Event | None) -> run_pb2.RunEvent:
    """An event of a run; None is a heartbeat."""
    message = run_pb2.RunEvent(sequence=sequence, run_id=run_id, time=_timestamp(datetime.datetime.now(datetime.UTC)))
    match event:
        case None:
            message.heartbeat.SetInParent()
        case Queued():
            message.queued.position = event.position
            message.queued.SetInParent()
        case Started():
            message.started.CopyFrom(_started(event))
        case Output():
            message.output.CopyFrom(
                run_pb2.Output(stream=event.stream, offset=event.offset, data=event.data)  # type: ignore[arg-type]
            )
        case ArtifactChunk():
            message.artifact_chunk.CopyFrom(
                run_pb2.ArtifactChunk(path=event.path, offset=event.offset, data=event.data)
            )
        case EgressDecision():
            message.egress_decision.CopyFrom(_egress_decision(event))
        case Finished():
            message.finished.result.CopyFrom(_result(event.result))
    return message


def _started(event: Started) -> run_pb2.Started:
    return run_pb2.Started(
        policy=_policy(event.policy),
        image_digest=event.image_digest,
        sandbox_id=event.sandbox_id,
        sandbox_start=run_pb2.SANDBOX_START_COLD,
        isolation=run_pb2.Isolation(verified=event.verified, runtime=event.runtime),
    )


def _policy(policy: EffectivePolicy) -> run_pb2.EffectivePolicy:
    return run_pb2.EffectivePolicy(
        interpreter=policy.interpreter,
        command=policy.command,
        limits=limits_message(policy.limits),
        network=int(policy.network),  # type: ignore[arg-type]
        allowed_hosts=map(str, policy.allowed_hosts),
        secrets=policy.secrets,
        mask_secrets=policy.mask_secrets,
    )


def _egress_decision(decision: EgressDecision) -> run_pb2.EgressDecision:
    refusal = decision.refusal.name if decision.refusal else "UNSPECIFIED"
    return run_pb2.EgressDecision(
        time=_timestamp(decision.time),
        host=decision.host,
        port=decision.port,
        allowed=decision.allowed,
        address=decision.address,
        refusal=run_pb2.EgressRefusal.Value(f"EGRESS_REFUSAL_{refusal}"),
        message=decision.message,
    )


def _result(result: RunResult) -> run_pb2.RunResult:
    return run_pb2.RunResult(
        outcome=result.outcome.value,  # type: ignore[arg-type]
        exit_code=result.exit_code,
        signal=result.signal,
        message=result.message,
        usage=_usage(result.usage),
        phases=_phases(result.phases),
        artifacts=[
            run_pb2.Artifact(
                path=one.path,
                size_bytes=one.size,
                digest=one.digest,
                media_type=one.media_type,
                executable=one.executable,
            )
            for one in result.artifacts
        ],
        skipped_artifacts=[
            run_pb2.SkippedArtifact(path=one.path, reason=run_pb2.SkipReason.Value(f"SKIP_REASON_{one.reason.upper()}"))
            for one in result.skipped
        ],
        skipped_artifacts_omitted=result.skipped_omitted,
        egress_decisions=map(_egress_decision, result.egress_decisions),
        egress_decisions_omitted=result.egress_decisions_omitted,
    )


def _usage(usage: Usage) -> run_pb2.Usage:
    return run_pb2.Usage(
        wall_time=_duration(usage.wall_seconds),
        cpu_time=_duration(usage.cpu_seconds),
        peak_memory_bytes=usage.peak_memory_bytes,
        stdout_bytes=usage.stdout_bytes,
        stderr_bytes=usage.stderr_bytes,
        output_truncated=usage.output_truncated,
        oom_kills=usage.oom_kills,
        pids_limit_hits=usage.pids_limit_hits,
        disk_full=usage.disk_full,
        egress_sent_bytes=usage.egress_sent_bytes,
        egress_received_bytes=usage.egress_received_bytes,
        egress_connections=usage.egress_connections,
    )


def _phases(phases: Phases) -> run_pb2.Phases:
    names = ("queued", "claimed", "staged", "running", "collected")
    return run_pb2.Phases(**{name: _duration(getattr(phases, name)) for name in names})


def run_message(run: Run, *, lists: bool = True) -> run_pb2.Run:
    """What the daemon remembers of a run. `lists`: with the files and the egress decisions of its result."""
    message = run_pb2.Run(
        run_id=run.run_id,
        request_id=run.request_id,
        state=int(run.state),  # type: ignore[arg-type]
        labels=run.labels,
        script_path=run.script_path,
        bundle_digest=run.bundle_digest,
        policy=_policy(run.policy),
        create_time=_timestamp(run.created),
        start_time=_timestamp(run.started),
        finish_time=_timestamp(run.finished),
    )
    if run.result is not None:
        short = dataclasses.replace(run.result, artifacts=(), skipped=(), egress_decisions=())
        message.result.CopyFrom(_result(run.result if lists else short))
    return message
