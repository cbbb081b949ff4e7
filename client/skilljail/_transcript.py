"""The stream of a run, checked against the contract event by event, and what comes of it."""

import codecs
import dataclasses
import datetime
from typing import Literal, NoReturn

from skilljail._artifact import Artifact, ArtifactInfo
from skilljail._blob import digest_of
from skilljail._duration import datetime_from_timestamp
from skilljail._errors import StreamBroken
from skilljail._events import ArtifactChunk, Event, Finished, Heartbeat, Output, Queued, Started, started_from_wire
from skilljail._outcome import Outcome
from skilljail._result import RunResult, RunSummary
from skilljail.v1 import run_pb2

__all__ = ["Transcript"]

_EXIT_CODE_MAX = 255


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

    def __init__(self) -> None:
        self.run_id = ""
        self.result: RunResult | None = None
        self._sequence = 0
        self._queued = False
        self._started: Started | None = None
        self._streams: dict[Literal["stdout", "stderr"], _Stream] = {"stdout": _Stream(), "stderr": _Stream()}
        self._artifacts: dict[str, bytearray] = {}

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
        return self._take(kind, message, datetime_from_timestamp(message.time))

    def ended(self) -> RunResult:
        """The result, now that the stream has ended. Raises StreamBroken when it ended before the last event."""
        if self.result is None:
            self._broken("the daemon's stream ended before the run's result")
        return self.result

    def _take(self, kind: str | None, message: run_pb2.RunEvent, time: datetime.datetime) -> Event | None:
        event: Event | None = None
        match kind:
            case "queued":
                event = self._accept_queued(message.queued, time)
            case "started":
                event = self._accept_started(message.started, time)
            case "output":
                event = self._accept_output(message.output, time)
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
        self._started = started_from_wire(message, sequence=self._sequence, time=time, run_id=self.run_id)
        return self._started

    def _accept_output(self, message: run_pb2.Output, time: datetime.datetime) -> Output:
        if self._started is None:
            self._broken("the daemon sent output before the script started")
        name = _STREAM_NAMES.get(message.stream)
        if name is None:
            self._broken(f"the daemon sent output of an unknown stream ({message.stream})")
        stream = self._streams[name]
        if message.offset != len(stream.data):
            self._broken(f"{name} has a gap: byte {len(stream.data)} was due and the daemon sent byte {message.offset}")
        return Output(
            sequence=self._sequence,
            time=time,
            run_id=self.run_id,
            stream=name,
            offset=message.offset,
            data=message.data,
            text=stream.add(message.data),
        )

    def _accept_chunk(self, message: run_pb2.ArtifactChunk, time: datetime.datetime) -> ArtifactChunk:
        if self._started is None:
            self._broken("the daemon sent an artifact before the script started")
        content = self._artifacts.setdefault(message.path, bytearray())
        if message.offset != len(content):
            self._broken(
                f"the artifact {message.path!a} has a gap: byte {len(content)} was due and the daemon sent "
                f"byte {message.offset}"
            )
        content += message.data
        return ArtifactChunk(
            sequence=self._sequence,
            time=time,
            run_id=self.run_id,
            path=message.path,
            offset=message.offset,
            data=message.data,
        )

    def _accept_finished(self, message: run_pb2.RunResult, time: datetime.datetime) -> Finished:
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
        return Finished(sequence=self._sequence, time=time, run_id=self.run_id, result=self.result)

    def _check_end(self, summary: RunSummary) -> None:
        """An outcome that the daemon's own account contradicts is no result."""
        if summary.outcome == "UNSPECIFIED":
            self._broken("the daemon's result has no outcome")
        if summary.outcome is Outcome.EXITED and summary.exit_code is None:
            self._broken("the daemon's result says that the script exited and has no exit code")
        if summary.exit_code is not None and not 0 <= summary.exit_code <= _EXIT_CODE_MAX:
            self._broken(f"the daemon's result has the impossible exit code {summary.exit_code}")
        if summary.exit_code is not None and self._started is None:
            self._broken("the daemon's result has an exit code of a script that never started")

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
