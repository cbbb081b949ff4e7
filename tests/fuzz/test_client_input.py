"""What the client reads: events, results and errors of a daemon that may be anybody. It never makes an end up."""

import os
import pathlib
import tempfile
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2
from hypothesis import strategies as st
from skilljail import Limits, SkilljailError, StreamBroken
from skilljail._address import Address
from skilljail._errors import ArtifactRefused
from skilljail._output_directory import OutputDirectory
from skilljail._status import error_from_rpc
from skilljail._transcript import Transcript
from skilljail.v1 import run_pb2, script_runner_pb2
from unit.client import fake_daemon

from .hunt import target
from .mutation import mutated, mutated_messages

ASKED = script_runner_pb2.RunScriptRequest(limits=Limits(output_bytes=2_000).to_wire())


def _streams() -> list[list[run_pb2.RunEvent]]:
    """Runs that went well, as a daemon sends them."""
    files = {"out/a.csv": b"1,2\n", "empty": b""}
    runs = [
        fake_daemon.events(b"out", b"error", artifacts=files),
        fake_daemon.events(b"out", outcome=run_pb2.OUTCOME_SIGNALED, exit_code=None, signal=9),
        fake_daemon.events(b"x" * 1_000, outcome=run_pb2.OUTCOME_OUTPUT_LIMIT, exit_code=None, output_truncated=True),
        [fake_daemon.queued(), fake_daemon.finished(outcome=run_pb2.OUTCOME_CANCELLED, exit_code=None)],
    ]
    return [list(fake_daemon.numbered(run)) for run in runs]


STREAMS = _streams()


@st.composite
def streams(draw: st.DrawFn) -> list[run_pb2.RunEvent]:
    """A run with events lost, doubled, swapped or changed. Some are numbered as if nothing had happened."""
    events = list(draw(st.sampled_from(STREAMS)))
    every = [event for stream in STREAMS for event in stream]
    for _ in range(draw(st.integers(0, 3))):
        index = draw(st.integers(0, max(0, len(events) - 1)))
        match draw(st.integers(0, 4)):
            case 0:
                del events[index : index + 1]
            case 1:
                events[index:index] = [draw(st.sampled_from(every))] * draw(st.sampled_from([1, 2, 30]))
            case 2:
                events[index : index + 2] = events[index : index + 2][::-1]
            case _:
                events[index : index + 1] = [draw(mutated_messages([*events[index : index + 1], *every]))]
    if draw(st.booleans()):
        copies = [run_pb2.RunEvent.FromString(event.SerializeToString()) for event in events]
        for number, event in enumerate(copies, 1):
            event.sequence, event.run_id = number, fake_daemon.RUN_ID
        return copies
    return events


@target(streams(), examples=500, share=2)
def test_a_stream_gives_the_result_that_the_daemon_sent_or_is_broken(events: list[run_pb2.RunEvent]) -> None:
    transcript = Transcript(ASKED)
    output = {1: b"", 2: b""}
    try:
        for event in events:
            transcript.accept(event)
            if event.WhichOneof("event") == "output":
                output[event.output.stream] += event.output.data
        result = transcript.ended()
    except StreamBroken as error:
        assert transcript.result is None
        assert error.run_id == transcript.run_id
        return
    assert [event.WhichOneof("event") for event in events].count("finished") == 1
    last = events[-1].finished.result
    assert result.exit_code == (last.exit_code if last.HasField("exit_code") else None)
    assert result.signal == (last.signal if last.HasField("signal") else None)
    assert (result.stdout, result.stderr) == (output[1], output[2])
    assert len(result.stdout) + len(result.stderr) <= 2_000
    assert [(one.path, one.size_bytes) for one in result.artifacts] == [
        (one.path, one.size_bytes) for one in last.artifacts
    ]
    assert (result.exit_code == 0) is (last.HasField("exit_code") and last.exit_code == 0)


def test_the_streams_start_from_good_ones() -> None:
    """The seeds are what they should be."""
    for events in STREAMS:
        transcript = Transcript(ASKED)
        for event in events:
            transcript.accept(event)
        assert transcript.ended().run_id == fake_daemon.RUN_ID


class Failed(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: grpc.StatusCode, text: str | None, details: bytes | None) -> None:
        self._code, self._text, self._details = code, text, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._text

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        return () if self._details is None else (("grpc-status-details-bin", self._details),)


def _status() -> bytes:
    status = status_pb2.Status(code=9, message="upload it again")
    details: list[message.Message] = [
        error_details_pb2.ErrorInfo(domain="skilljail", reason="BUNDLE_MISSING", metadata={"limit": "pids"}),
        error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500)),
        error_details_pb2.BadRequest(field_violations=[{"field": "argv", "description": "x"}]),
        error_details_pb2.PreconditionFailure(violations=[{"type": "MISSING", "subject": "x", "description": "y"}]),
    ]
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status.SerializeToString()


ADDRESS = Address.parse("unix:/nowhere/skilljail.sock")


@target(
    st.sampled_from(list(grpc.StatusCode)),
    st.none() | st.text(max_size=30),
    st.none() | mutated([_status()]),
    st.sampled_from(["", "run-1"]),
    st.booleans(),
    examples=400,
)
def test_whatever_a_call_fails_with_is_an_error_of_the_tree(
    code: grpc.StatusCode, text: str | None, details: bytes | None, run_id: str, started: bool
) -> None:
    error = error_from_rpc(Failed(code, text, details), ADDRESS, run_id=run_id, started=started)
    assert isinstance(error, SkilljailError)
    assert str(error)


NAMES = st.sampled_from(
    ["a", "b", "out", "..", ".", "", "/", "\\", ".git", ".GIT", ".g\u200cit", "git~1", "HEAD", "link", "\0", "C:", "~"]
)


@target(
    st.lists(st.lists(NAMES, max_size=4).map("/".join) | st.text(max_size=10), max_size=6),
    st.booleans(),
    st.sampled_from([b"", b"ref: x", b"content"]),
    examples=200,
)
def test_no_artifact_is_written_outside_of_its_directory(paths: list[str], overwrite: bool, content: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="skilljail-test-") as name:
        outside = pathlib.Path(name)
        inside = outside / "inside"
        inside.mkdir()
        (outside / "secret").write_bytes(b"secret")
        (inside / "link").symlink_to("..")
        for path in paths:
            try:
                written = OutputDirectory(inside).write(path, content, overwrite=overwrite)
            except ArtifactRefused:
                continue
            assert written.resolve().is_relative_to(inside.resolve())
            assert written.read_bytes() == content
        assert {one.name for one in outside.iterdir()} == {"inside", "secret"}
        assert (outside / "secret").read_bytes() == b"secret"
        assert not [one for _, folders, _ in os.walk(inside) for one in folders if one.lower().startswith(".git")]
        assert not list(inside.rglob(".skilljail-*"))


def test_an_artifact_that_is_harmless_is_written(tmp_path: pathlib.Path) -> None:
    """Not everything is refused."""
    assert OutputDirectory(tmp_path).write("out/a", b"x", overwrite=False).read_bytes() == b"x"
    with pytest.raises(ArtifactRefused):
        OutputDirectory(tmp_path).write("../a", b"x", overwrite=False)
