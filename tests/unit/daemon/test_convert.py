"""Messages to plain data and back."""

import dataclasses
import datetime
import math
import pathlib

import pytest
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st
from skilljail.v1 import limits_pb2, run_pb2, script_runner_pb2
from skilljaild.bundles.store import BlobStore
from skilljaild.egress.decision import EgressDecision, EgressRefusal
from skilljaild.egress.hosts import HostPattern
from skilljaild.engines.base import Image
from skilljaild.errors import Reason, Refusal
from skilljaild.limits import Limits
from skilljaild.network import Network
from skilljaild.policy import AskedLimits
from skilljaild.runs.admission import Admission
from skilljaild.runs.events import (
    Artifact,
    ArtifactChunk,
    EffectivePolicy,
    Event,
    Finished,
    Outcome,
    Output,
    Phases,
    Queued,
    RunResult,
    SkippedArtifact,
    Started,
    Usage,
)
from skilljaild.runs.order import InputFile, RunRequest
from skilljaild.runs.run import Run, RunContext
from skilljaild.service.convert import event_message, limits_message, run_message, run_request

from .attempt import attempt
from .facts import LIMITS
from .fake_engine import REPORT, FakeEngine
from .open_gate import OpenGate
from .orders import make_order

DIGEST = "sha256:" + "b" * 64
PLAIN = ("memory_bytes", "pids", "disk_bytes", "disk_inodes", "open_files", "output_bytes", "artifact_count")


def asked(**limits: object) -> AskedLimits:
    """The limits of a request message."""
    message = script_runner_pb2.RunScriptRequest(limits=limits_pb2.Limits(**limits))  # type: ignore[arg-type]
    return run_request(message).limits


def test_a_request_is_carried_over_whole() -> None:
    message = script_runner_pb2.RunScriptRequest(
        request_id="id",
        bundle_digest=DIGEST,
        script_path="a/b.py",
        argv=["", "--x", "\n"],
        env={"A": "1"},
        stdin=b"\xff\0",
        working_directory="a",
        files=[
            script_runner_pb2.InputFile(path="in", content=b"", executable=True),
            script_runner_pb2.InputFile(path="big", digest=DIGEST),
            script_runner_pb2.InputFile(path="nothing"),
        ],
        limits=limits_pb2.Limits(pids=7),
        artifact_patterns=["**"],
        labels={"l": "v"},
        interpreter="bash",
        network=run_pb2.NETWORK_ALLOWLIST,
        allowed_hosts=["a.com", "*.B.com"],
        secrets=["b", "a"],
        mask_secrets=True,
    )
    assert run_request(message) == RunRequest(
        request_id="id",
        bundle_digest=DIGEST,
        script_path="a/b.py",
        argv=("", "--x", "\n"),
        env={"A": "1"},
        stdin=b"\xff\0",
        working_directory="a",
        files=(
            InputFile("in", b"", "", executable=True),
            InputFile("big", None, DIGEST, executable=False),
            InputFile("nothing", None, "", executable=False),
        ),
        limits=AskedLimits(pids=7),
        artifact_patterns=("**",),
        labels={"l": "v"},
        interpreter="bash",
        network=2,
        allowed_hosts=("a.com", "*.B.com"),
        secrets=("b", "a"),
        mask_secrets=True,
    )


def test_unset_and_zero_are_not_asked_for() -> None:
    zero = duration_pb2.Duration()
    assert asked() == asked(wall_time=zero, cpu_time=zero, cpus=0.0, **dict.fromkeys(PLAIN, 0)) == AskedLimits()


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ((1, 500_000_000), 1.5),
        ((0, 1), 1e-9),
        ((0, 999_999_999), 0.999999999),
        ((1, 281_000_000), 1.281),
        ((2**62, 0), float(2**62)),
    ],
)
def test_durations_are_seconds(duration: tuple[int, int], seconds: float) -> None:
    message = duration_pb2.Duration(seconds=duration[0], nanos=duration[1])
    assert asked(wall_time=message, cpu_time=message) == AskedLimits(wall_seconds=seconds, cpu_seconds=seconds)


@pytest.mark.parametrize("duration", [(-1, 0), (0, -1), (-(2**63), 0), (0, 1_000_000_000), (5, -1)])
@pytest.mark.parametrize("name", ["wall_time", "cpu_time"])
def test_a_negative_or_broken_duration_is_refused(duration: tuple[int, int], name: str) -> None:
    with pytest.raises(Refusal, match=f"limits.{name}: it must be a positive duration") as caught:
        asked(**{name: duration_pb2.Duration(seconds=duration[0], nanos=duration[1])})
    assert (caught.value.reason, caught.value.field) == (Reason.LIMIT_INVALID, f"limits.{name}")


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
def test_any_duration_is_a_finite_number_of_seconds_or_refused(seconds: int, nanos: int) -> None:
    found = attempt(lambda: asked(wall_time=duration_pb2.Duration(seconds=seconds, nanos=nanos)))
    if isinstance(found, Refusal):
        assert found.reason is Reason.LIMIT_INVALID
    else:
        assert found.wall_seconds is None or (math.isfinite(found.wall_seconds) and found.wall_seconds > 0)


@given(
    st.builds(
        Limits,
        wall_seconds=st.integers(1, 86_400_000).map(lambda number: number / 1000),
        cpu_seconds=st.integers(1, 86_400_000).map(lambda number: number / 1000),
        cpus=st.floats(0.01, 1_024),
        memory_bytes=st.integers(1, 2**62),
        pids=st.integers(1, 32_768),
        disk_bytes=st.integers(1, 2**62),
        disk_inodes=st.integers(1, 2**62),
        open_files=st.integers(1, 1_048_576),
        output_bytes=st.integers(1, 2**62),
        artifact_count=st.integers(1, 10_000),
        artifact_bytes=st.integers(1, 2**62),
        egress_bytes=st.integers(1, 2**62),
        egress_connections=st.integers(1, 2**31 - 1),
    )
)
def test_limits_come_back_as_they_went_out(limits: Limits) -> None:
    message = script_runner_pb2.RunScriptRequest(limits=limits_message(limits))
    again = script_runner_pb2.RunScriptRequest.FromString(message.SerializeToString())
    assert dataclasses.asdict(run_request(again).limits) == dataclasses.asdict(limits)


MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
ALLOWED = EgressDecision(MOMENT, "a.com", 443, True, "93.184.215.14", None, "Allowed.")
REFUSED = EgressDecision(MOMENT, "b.com", 0, False, "", EgressRefusal.BYTE_LIMIT, "Refused.")
ALLOWED_MESSAGE = run_pb2.EgressDecision(
    host="a.com", port=443, allowed=True, address="93.184.215.14", message="Allowed."
)
REFUSED_MESSAGE = run_pb2.EgressDecision(host="b.com", refusal=run_pb2.EGRESS_REFUSAL_BYTE_LIMIT, message="Refused.")
for one in (ALLOWED_MESSAGE, REFUSED_MESSAGE):
    one.time.FromDatetime(MOMENT)
RESULT = RunResult(
    Outcome.DISK_LIMIT,
    "Full.",
    exit_code=1,
    usage=Usage(
        1.5,
        0.25,
        10,
        20,
        30,
        output_truncated=True,
        oom_kills=0,
        pids_limit_hits=4,
        disk_full=True,
        egress_sent_bytes=11,
        egress_received_bytes=12,
        egress_connections=13,
    ),
    phases=Phases(queued=0.0, claimed=0.5),
    artifacts=(Artifact("out/a", 3, DIGEST, "text/plain", executable=True),),
    skipped=(SkippedArtifact("x", "not_a_regular_file"), SkippedArtifact("\\xff", "unsafe_name")),
    skipped_omitted=9,
    egress_decisions=(ALLOWED, REFUSED),
    egress_decisions_omitted=14,
)
RESULT_MESSAGE = run_pb2.RunResult(
    outcome=run_pb2.OUTCOME_DISK_LIMIT,
    exit_code=1,
    message="Full.",
    usage=run_pb2.Usage(
        wall_time=duration_pb2.Duration(seconds=1, nanos=500_000_000),
        cpu_time=duration_pb2.Duration(nanos=250_000_000),
        peak_memory_bytes=10,
        stdout_bytes=20,
        stderr_bytes=30,
        output_truncated=True,
        oom_kills=0,
        pids_limit_hits=4,
        disk_full=True,
        egress_sent_bytes=11,
        egress_received_bytes=12,
        egress_connections=13,
    ),
    phases=run_pb2.Phases(queued=duration_pb2.Duration(), claimed=duration_pb2.Duration(nanos=500_000_000)),
    artifacts=[
        run_pb2.Artifact(path="out/a", size_bytes=3, digest=DIGEST, media_type="text/plain", executable=True),
    ],
    skipped_artifacts=[
        run_pb2.SkippedArtifact(path="x", reason=run_pb2.SKIP_REASON_NOT_A_REGULAR_FILE),
        run_pb2.SkippedArtifact(path="\\xff", reason=run_pb2.SKIP_REASON_UNSAFE_NAME),
    ],
    skipped_artifacts_omitted=9,
    egress_decisions=[ALLOWED_MESSAGE, REFUSED_MESSAGE],
    egress_decisions_omitted=14,
)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (None, run_pb2.RunEvent(heartbeat=run_pb2.Heartbeat())),
        (Queued(0), run_pb2.RunEvent(queued=run_pb2.Queued())),
        (Queued(3), run_pb2.RunEvent(queued=run_pb2.Queued(position=3))),
        (
            Started(
                EffectivePolicy("bash", ("sh", "x"), LIMITS, secrets=("a",), mask_secrets=True),
                DIGEST,
                "box",
                "runsc",
                ("no network",),
            ),
            run_pb2.RunEvent(
                started=run_pb2.Started(
                    policy=run_pb2.EffectivePolicy(
                        interpreter="bash",
                        command=["sh", "x"],
                        limits=limits_message(LIMITS),
                        network=run_pb2.NETWORK_NONE,
                        secrets=["a"],
                        mask_secrets=True,
                    ),
                    image_digest=DIGEST,
                    sandbox_id="box",
                    sandbox_start=run_pb2.SANDBOX_START_COLD,
                    isolation=run_pb2.Isolation(verified=["no network"], runtime="runsc"),
                )
            ),
        ),
        (
            Started(
                EffectivePolicy("bash", (), LIMITS, Network.ALLOWLIST, (HostPattern.parse("*.A.com:8443"),)),
                DIGEST,
                "box",
                "runc",
                (),
            ),
            run_pb2.RunEvent(
                started=run_pb2.Started(
                    policy=run_pb2.EffectivePolicy(
                        interpreter="bash",
                        limits=limits_message(LIMITS),
                        network=run_pb2.NETWORK_ALLOWLIST,
                        allowed_hosts=["*.a.com:8443"],
                    ),
                    image_digest=DIGEST,
                    sandbox_id="box",
                    sandbox_start=run_pb2.SANDBOX_START_COLD,
                    isolation=run_pb2.Isolation(runtime="runc"),
                )
            ),
        ),
        (ALLOWED, run_pb2.RunEvent(egress_decision=ALLOWED_MESSAGE)),
        (REFUSED, run_pb2.RunEvent(egress_decision=REFUSED_MESSAGE)),
        (
            Output(2, 5, b"\xff"),
            run_pb2.RunEvent(output=run_pb2.Output(stream=run_pb2.OUTPUT_STREAM_STDERR, offset=5, data=b"\xff")),
        ),
        (
            ArtifactChunk("a", 7, b""),
            run_pb2.RunEvent(artifact_chunk=run_pb2.ArtifactChunk(path="a", offset=7)),
        ),
        (Finished(RESULT), run_pb2.RunEvent(finished=run_pb2.Finished(result=RESULT_MESSAGE))),
    ],
)
def test_an_event_is_carried_over_whole(event: Event | None, expected: run_pb2.RunEvent) -> None:
    before = datetime.datetime.now(datetime.UTC)
    message = event_message("run", 12, event)
    moment = message.time.ToDatetime(datetime.UTC)
    assert before <= moment <= datetime.datetime.now(datetime.UTC)
    message.ClearField("time")
    expected.run_id, expected.sequence = "run", 12
    assert message == expected


def test_what_a_kernel_does_not_tell_stays_unset() -> None:
    finished = event_message("run", 1, Finished(RunResult(Outcome.SIGNALED, "m", signal=11)))
    result = finished.finished.result
    assert result == run_pb2.RunResult(
        outcome=run_pb2.OUTCOME_SIGNALED,
        signal=11,
        message="m",
        usage=run_pb2.Usage(wall_time=duration_pb2.Duration()),
        phases=run_pb2.Phases(),
    )
    assert not result.HasField("exit_code")
    assert not any(result.usage.HasField(name) for name in ("cpu_time", "peak_memory_bytes", "oom_kills"))
    assert not result.phases.HasField("queued")


def test_exit_code_zero_is_set() -> None:
    result = event_message("run", 1, Finished(RunResult(Outcome.EXITED, "m", exit_code=0))).finished.result
    assert result.HasField("exit_code")
    assert result.exit_code == 0


async def test_a_run_is_told_with_what_is_known_so_far_and_without_its_arguments(tmp_path: pathlib.Path) -> None:
    order = make_order(request_id="mine", labels={"a": "b"}, argv=("--token=secret",))
    context = RunContext(FakeEngine(), REPORT, "owner", Admission(1, 0), OpenGate())
    run = Run("id", "me", order, Image("python", DIGEST, {}), BlobStore(tmp_path, 1), context)
    message = run_message(run)
    assert message == run_pb2.Run(
        run_id="id",
        request_id="mine",
        state=run_pb2.RUN_STATE_QUEUED,
        labels={"a": "b"},
        script_path="scripts/run.py",
        policy=run_pb2.EffectivePolicy(
            interpreter="python",
            limits=limits_message(LIMITS),
            network=run_pb2.NETWORK_NONE,
        ),
        create_time=message.create_time,
    )
    run._finish(RESULT)
    message = run_message(run)
    assert (message.state, message.result) == (run_pb2.RUN_STATE_FINISHED, RESULT_MESSAGE)
    assert message.finish_time.ToDatetime(datetime.UTC) == run.finished
    short = run_message(run, lists=False).result
    assert (len(short.artifacts), len(short.skipped_artifacts), len(short.egress_decisions)) == (0, 0, 0)
    assert (short.skipped_artifacts_omitted, short.egress_decisions_omitted) == (9, 14)
    assert not message.HasField("start_time")
