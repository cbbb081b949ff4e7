"""The stream of a run, checked against the contract event by event, and what comes of it."""

import codecs
import dataclasses
import datetime
from typing import Literal, NoReturn

from skilljail._artifact import Artifact, ArtifactInfo
from skilljail._blob import digest_of
from skilljail._duration import datetime_from_timestamp
from skilljail._egress import decision_fault, decision_fields
from skilljail._errors import DaemonFault, StreamBroken
from skilljail._events import (
    ArtifactChunk,
    EgressDecision,
    Event,
    Finished,
    Heartbeat,
    Output,
    Queued,
    Started,
    started_from_wire,
)
from skilljail._limits import Limits
from skilljail._outcome import Network, Outcome
from skilljail._paths import PATH_BYTES_MAX
from skilljail._patience import Patience
from skilljail._result import Policy, RunResult, RunSummary
from skilljail.v1 import run_pb2, script_runner_pb2

__all__ = ["Transcript"]

_EXIT_CODE_MAX = 255
_SIGNAL_MAX = 64
_PIECE_BYTES_MAX = 65_536
_DECISIONS_MAX = 1_000
_DURATION_SLACK_SECONDS = 0.001  # the contract's resolution
_BOUNDS = ("wall_seconds", "output_bytes", "artifact_count", "artifact_bytes")


class _Stream:
    """One of the two output streams: its bytes so far, and a decoder that is somewhere inside a character."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, data: bytes) -> str:
        self.data += data
        return self._decoder.decode(data)


class Transcript:
    """Takes the events of one run in the order in which they come.

    Whatever breaks the contract raises StreamBroken: nothing is ever put in place of what is missing.
    """

    def __init__(self, request: script_runner_pb2.RunScriptRequest) -> None:
        """`request`: what was asked for; a run that gets more than that is not the one that was asked for."""
        self.patience = Patience()
        self._asked = Limits.from_wire(request.limits)
        self._asked_network = Network.from_wire(run_pb2.Network, request.network or run_pb2.NETWORK_NONE, "NETWORK_")
        self._asked_hosts = len(request.allowed_hosts)
        self._limits = Limits()
        self.run_id = ""
        self.result: RunResult | None = None
        self._sequence = 0
        self._queued = False
        self._started: Started | None = None
        self._streams: dict[Literal["stdout", "stderr"], _Stream] = {"stdout": _Stream(), "stderr": _Stream()}
        self._artifacts: dict[str, bytearray] = {}
        self._artifact_bytes = 0
        self._decisions = 0

    @property
    def is_started(self) -> bool:
        """Whether the script may have run."""
        return self._started is not None

    def accept(self, message: run_pb2.RunEvent) -> Event | None:
        """Checks an event and keeps what it brings. None for a kind that this version does not know."""
        if self.result is not None:
            self._broken("the daemon sent an event after the last one")
        self._sequence += 1
        if message.sequence != self._sequence:
            self._broken(f"event {self._sequence} was due and the daemon sent event {message.sequence}")
        self.run_id = self.run_id or message.run_id
        if not message.run_id or message.run_id != self.run_id:
            self._broken("the daemon sent an event of another run")
        kind = message.WhichOneof("event")
        if not self._queued and kind != "queued":
            self._broken("the daemon did not begin with the queued event")
        if kind != "finished" and self.patience.left_seconds <= 0:
            self.give_up()
        return self._take(kind, message, datetime_from_timestamp(message.time))

    def ended(self) -> RunResult:
        """The result, now that the stream has ended. Raises StreamBroken when it ended before the last event."""
        if self.result is None:
            self._broken("the daemon's stream ended before the run's result")
        return self.result

    def overdue(self) -> StreamBroken:
        """The error for a run that must have ended by now, whatever happened to it."""
        return broken(
            f"the daemon has not ended the run {self.patience.allowed_seconds:.1f} s after its start, "
            f"and its wall time was {self._limits.wall_seconds:g} s",
            self.run_id,
        )

    def give_up(self) -> NoReturn:
        """Raises StreamBroken: nothing is waited for any more."""
        raise self.overdue()

    def _take(self, kind: str | None, message: run_pb2.RunEvent, time: datetime.datetime) -> Event | None:
        event: Event | None = None
        match kind:
            case "queued":
                event = self._accept_queued(message.queued, time)
            case "started":
                event = self._accept_started(message.started, time)
            case "output":
                event = self._accept_output(message.output, time)
            case "egress_decision":
                event = self._accept_decision(message.egress_decision, time)
            case "artifact_chunk":
                event = self._accept_chunk(message.artifact_chunk, time)
            case "heartbeat":
                event = Heartbeat(sequence=self._sequence, time=time, run_id=self.run_id)
            case "finished":
                event = self._accept_finished(message.finished.result, time)
        return event

    def _accept_queued(self, message: run_pb2.Queued, time: datetime.datetime) -> Queued:
        if self._started is not None:
            self._broken("the daemon queued the run after it had started")
        self._queued = True
        return Queued(sequence=self._sequence, time=time, run_id=self.run_id, position=message.position)

    def _accept_started(self, message: run_pb2.Started, time: datetime.datetime) -> Started:
        if self._started is not None:
            self._broken("the daemon started the run twice")
        try:
            started = started_from_wire(message, sequence=self._sequence, time=time, run_id=self.run_id)
        except DaemonFault as error:
            self._broken(str(error))
        self._check_limits(started.policy.limits)
        self._check_network(started.policy)
        self._started, self._limits = started, started.policy.limits
        self.patience.begin(self._limits)
        return started

    def _check_limits(self, limits: Limits) -> None:
        """What holds a daemon to its word must be there, and be no more than was asked for."""
        for name in _BOUNDS:
            if getattr(limits, name) is None:
                self._broken(f"the daemon started the run without telling its {name}")
        for field in dataclasses.fields(limits):
            got, asked = getattr(limits, field.name), getattr(self._asked, field.name)
            slack = _DURATION_SLACK_SECONDS if field.name.endswith("_seconds") else 0
            if got is not None and asked is not None and got > asked + slack:
                self._broken(
                    f"the daemon started the run with {field.name} of {got:.12g}, and {asked:.12g} was asked for"
                )

    def _check_network(self, policy: Policy) -> None:
        if policy.network != self._asked_network:
            self._broken(
                f"the daemon started the run with the network {policy.network}, and {self._asked_network} was asked for"
            )
        if len(policy.allowed_hosts) > self._asked_hosts:
            self._broken(
                f"the daemon started the run with {len(policy.allowed_hosts)} allowed hosts, and {self._asked_hosts} "
                "were asked for"
            )

    def _accept_decision(self, message: run_pb2.EgressDecision, time: datetime.datetime) -> EgressDecision:
        if self._started is None:
            self._broken("the daemon sent an egress decision before the script started")
        self._check_decision(message)
        self._decisions += 1
        return EgressDecision(sequence=self._sequence, time=time, run_id=self.run_id, **decision_fields(message))

    def _check_decision(self, message: run_pb2.EgressDecision) -> None:
        if self._asked_network is Network.NONE:
            self._broken("the daemon sent an egress decision of a run without a network")
        fault = decision_fault(message)
        if fault is not None:
            self._broken(f"the daemon sent an egress decision that {fault}")

    def _accept_output(self, message: run_pb2.Output, time: datetime.datetime) -> Output:
        if self._started is None:
            self._broken("the daemon sent output before the script started")
        name = _STREAM_NAMES.get(message.stream)
        if name is None:
            self._broken(f"the daemon sent output of an unknown stream ({message.stream})")
        self._check_output(len(message.data))
        stream = self._streams[name]
        if message.offset != len(stream.data):
            self._broken(f"{name} has a gap: byte {len(stream.data)} was due and the daemon sent byte {message.offset}")
        self.patience.earn(len(message.data))
        return Output(
            sequence=self._sequence,
            time=time,
            run_id=self.run_id,
            stream=name,
            offset=message.offset,
            data=message.data,
            text=stream.add(message.data),
        )

    def _check_output(self, size: int) -> None:
        if not 0 < size <= _PIECE_BYTES_MAX:
            self._broken(f"the daemon sent a piece of output of {size:,} bytes")
        total, most = sum(len(one.data) for one in self._streams.values()) + size, self._limits.output_bytes
        if most is not None and total > most:
            self._broken(f"the daemon sent more output than the {most:,} bytes that it said are the limit")

    def _accept_chunk(self, message: run_pb2.ArtifactChunk, time: datetime.datetime) -> ArtifactChunk:
        if self._started is None:
            self._broken("the daemon sent an artifact before the script started")
        self._check_chunk(message.path, len(message.data))
        content = self._artifacts.setdefault(message.path, bytearray())
        if message.offset != len(content):
            self._broken(
                f"the artifact {message.path!a} has a gap: byte {len(content)} was due and the daemon sent "
                f"byte {message.offset}"
            )
        content += message.data
        self._artifact_bytes += len(message.data)
        self.patience.earn(len(message.data))
        return ArtifactChunk(
            sequence=self._sequence,
            time=time,
            run_id=self.run_id,
            path=message.path,
            offset=message.offset,
            data=message.data,
        )

    def _check_chunk(self, path: str, size: int) -> None:
        is_new, most = path not in self._artifacts, self._limits.artifact_bytes
        if not (0 if is_new else 1) <= size <= _PIECE_BYTES_MAX:
            self._broken(f"the daemon sent a piece of an artifact of {size:,} bytes")
        if len(path.encode(errors="surrogatepass")) > PATH_BYTES_MAX:
            self._broken(f"the path of an artifact is longer than {PATH_BYTES_MAX:,} bytes")
        if most is not None and self._artifact_bytes + size > most:
            self._broken(f"the daemon sent more of artifacts than the {most:,} bytes that it said are the limit")
        self._check_count(len(self._artifacts) + is_new)

    def _check_count(self, count: int) -> None:
        most = self._limits.artifact_count
        if most is not None and count > most:
            self._broken(f"the daemon sent more artifacts than the {most:,} that it said are the limit")

    def _accept_finished(self, message: run_pb2.RunResult, time: datetime.datetime) -> Finished:
        for decision in message.egress_decisions:
            self._check_decision(decision)
        summary = RunSummary.from_wire(self.run_id, message)
        self._check_end(summary)
        stdout, stderr = (bytes(self._streams[name].data) for name in ("stdout", "stderr"))
        if (len(stdout), len(stderr)) != (summary.usage.stdout_bytes, summary.usage.stderr_bytes):
            self._broken(
                f"{len(stdout)} bytes of stdout and {len(stderr)} of stderr arrived, and the daemon delivered "
                f"{summary.usage.stdout_bytes} and {summary.usage.stderr_bytes}"
            )
        fields = {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary)}
        fields["artifacts"] = self._collect(summary.artifacts)
        self.result = RunResult(**fields, stdout=stdout, stderr=stderr, started=self._started)
        self.patience.end()
        return Finished(sequence=self._sequence, time=time, run_id=self.run_id, result=self.result)

    def _check_end(self, summary: RunSummary) -> None:
        """An outcome that the daemon's own account contradicts is no result."""
        if summary.outcome == "UNSPECIFIED":
            self._broken("the daemon's result has no outcome")
        if summary.signal is not None and not 1 <= summary.signal <= _SIGNAL_MAX:
            self._broken(f"the daemon's result has the impossible signal {summary.signal}")
        if summary.outcome is Outcome.SIGNALED and summary.signal is None:
            self._broken("the daemon's result says that a signal ended the script and has none")
        if summary.outcome is Outcome.EXITED and summary.exit_code is None:
            self._broken("the daemon's result says that the script exited and has no exit code")
        if summary.exit_code is not None and not 0 <= summary.exit_code <= _EXIT_CODE_MAX:
            self._broken(f"the daemon's result has the impossible exit code {summary.exit_code}")
        if summary.exit_code is not None and self._started is None:
            self._broken("the daemon's result has an exit code of a script that never started")
        if summary.signal is not None and self._started is None:
            self._broken("the daemon's result has a signal of a script that never started")
        if summary.artifacts and self._started is None:
            self._broken("the daemon's result has artifacts of a script that never started")
        self._check_decisions(summary)
        self._check_count(len(summary.artifacts))

    def _check_decisions(self, summary: RunSummary) -> None:
        if summary.egress_decisions and self._started is None:
            self._broken("the daemon's result has egress decisions of a script that never started")
        decisions = len(summary.egress_decisions)
        if decisions > _DECISIONS_MAX or self._decisions > decisions + summary.egress_decisions_omitted:
            self._broken(
                f"the daemon sent {self._decisions} egress decisions, and its result has {decisions} and tells of "
                f"{summary.egress_decisions_omitted} more"
            )

    def _collect(self, infos: tuple[ArtifactInfo, ...]) -> tuple[Artifact, ...]:
        artifacts: dict[str, Artifact] = {}
        for info in infos:
            content = bytes(self._artifacts.get(info.path, b""))
            if info.path in artifacts:
                self._broken(f"the daemon's result names the artifact {info.path!a} twice")
            if len(content) != info.size_bytes or digest_of(content) != info.digest:
                self._broken(f"the artifact {info.path!a} arrived with other content than the daemon's result says")
            fields = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
            artifacts[info.path] = Artifact(**fields, content=content)
        return tuple(artifacts.values())

    def _broken(self, fault: str) -> NoReturn:
        self.result = None  # what follows a result can still take its truth away
        raise broken(fault, self.run_id)


def broken(fault: str, run_id: str) -> StreamBroken:
    """The error for a stream that has no result, with what can be done then."""
    if not run_id:
        return StreamBroken(f"{fault}; whether anything ran is not known")
    return StreamBroken(
        f"{fault}; whether the script of run {run_id!a} ran to its end is not known, get_run tells what the "
        "daemon knows",
        metadata={"run_id": run_id},
    )


_STREAM_NAMES: dict[int, Literal["stdout", "stderr"]] = {
    run_pb2.OUTPUT_STREAM_STDOUT: "stdout",
    run_pb2.OUTPUT_STREAM_STDERR: "stderr",
}
