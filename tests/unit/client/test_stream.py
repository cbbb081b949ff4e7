"""The stream of a run: what it yields, what breaks it, and how it is cancelled."""

import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import skilljail
from google.protobuf import duration_pb2
from harness import wait_until
from skilljail.v1 import run_pb2

from .fake_daemon import (
    RUN_ID,
    FakeDaemon,
    Refusal,
    artifact,
    chunk,
    decided,
    decision,
    digest_of,
    events,
    finished,
    output,
    queued,
    started,
)

SIGNALED, CANCELLED = run_pb2.OUTCOME_SIGNALED, run_pb2.OUTCOME_CANCELLED
STDERR = run_pb2.OUTPUT_STREAM_STDERR


def test_result_has_everything(fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path) -> None:
    fake.script = lambda *_: events(
        b"out\xff", b"err", exit_code=3, message="", artifacts={"out/a.txt": b"abc", "empty": b""}
    )
    result = client.run(skill, "scripts/run.py")
    assert (result.run_id, result.outcome, result.exit_code, result.signal) == (RUN_ID, "EXITED", 3, None)
    assert (result.stdout, result.stderr) == (b"out\xff", b"err")
    assert (result.stdout_text, result.text("stderr"), result.text()) == ("out\ufffd", "err", "out\ufffd")
    assert not result.ok
    assert [(one.path, one.name, one.size_bytes, one.content) for one in result.artifacts] == [
        ("out/a.txt", "a.txt", 3, b"abc"),
        ("empty", "empty", 0, b""),
    ]
    assert result.usage.wall_seconds == 0.25
    assert result.usage.cpu_seconds is None
    assert result.phases.queued_seconds == 0.001
    assert result.phases.running_seconds is None
    assert result.started is not None
    assert result.started.policy.limits.wall_seconds == 30
    assert (result.started.sandbox_start, result.started.runtime, result.started.verified) == (
        "COLD",
        "runc",
        ("no network",),
    )


def test_events_come_one_by_one_and_typed(fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path) -> None:
    fake.script = lambda *_: [
        queued(),
        started(),
        run_pb2.RunEvent(heartbeat=run_pb2.Heartbeat()),
        output(b"a\xc3", 0),
        output(b"\xa9b", 2),
        chunk("x", b"1"),
        chunk("x", b"2", 1),
        finished(stdout_bytes=4, artifacts=[artifact("x", b"12")]),
    ]
    with client.stream(skill, "scripts/run.py") as stream:
        seen = list(stream)
        assert list(stream) == []
    assert [type(one).__name__ for one in seen] == [
        "Queued",
        "Started",
        "Heartbeat",
        "Output",
        "Output",
        "ArtifactChunk",
        "ArtifactChunk",
        "Finished",
    ]
    assert [one.sequence for one in seen] == list(range(1, 9))
    texts = [one.text for one in seen if isinstance(one, skilljail.Output)]
    assert texts == ["a", "éb"]
    assert stream.result.stdout_text == "aéb"
    assert stream.result.artifacts[0].content == b"12"
    assert stream.run_id == RUN_ID


def test_events_of_later_versions_are_passed_over(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    fake.script = lambda *_: [queued(), run_pb2.RunEvent(), started(), finished()]
    assert client.run(skill, "scripts/run.py").ok


def test_outcome_of_later_versions_is_kept(fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path) -> None:
    fake.script = lambda *_: [queued(), started(), finished(99, None)]
    result = client.run(skill, "scripts/run.py")
    assert isinstance(result.outcome, skilljail.Outcome)
    assert result.outcome == "UNKNOWN_99"
    assert result.outcome not in list(skilljail.Outcome)
    assert not result.ok


def with_fields(event: run_pb2.RunEvent, **fields: Any) -> run_pb2.RunEvent:
    for name, value in fields.items():
        setattr(event, name, value)
    return event


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ([], "stream ended before the run's result; whether anything ran is not known"),
        ([queued()], "stream ended before"),
        ([queued(), started(), output(b"x", 0)], "stream ended before"),
        ([started(), finished()], "did not begin with the queued event"),
        ([queued(), output(b"x", 0), started(), finished()], "output before the script started"),
        ([queued(), started(), started(), finished()], "started the run twice"),
        ([queued(), started(), queued(), finished()], "queued the run after"),
        ([queued(), started(), output(b"x", 1), finished()], "stdout has a gap: byte 0 was due"),
        ([queued(), started(), output(b"xy", 0), output(b"x", 1), finished()], "stdout has a gap: byte 2 was due"),
        ([queued(), started(), output(b"x", 0, 7), finished()], "unknown stream"),
        ([queued(), started(), output(b"xy", 0), finished(stdout_bytes=3)], "2 bytes of stdout .* delivered 3"),
        ([queued(), started(), finished(stderr_bytes=1)], "0 of stderr arrived"),
        ([queued(), with_fields(started(), sequence=3), finished()], "event 2 was due and the daemon sent event 3"),
        ([queued(), with_fields(started(), run_id="other"), finished()], "of another run"),
        ([queued(), started(), finished(exit_code=None)], "has no exit code"),
        ([queued(), started(), finished(0)], "has no outcome"),
        ([queued(), started(), finished(exit_code=256)], "impossible exit code 256"),
        ([queued(), started(), finished(exit_code=-1)], "impossible exit code -1"),
        ([queued(), finished()], "never started"),
        ([queued(), started(), finished(), queued()], "after the last one"),
        ([queued(), started(), finished(), finished()], "after the last one"),
        ([queued(), chunk("x", b"1"), started(), finished()], "artifact before the script started"),
        ([queued(), started(), chunk("x", b"1", 1), finished()], "artifact 'x' has a gap"),
        ([queued(), started(), chunk("x", b"1"), finished(artifacts=[artifact("x", b"2")])], "other content"),
        ([queued(), started(), finished(artifacts=[artifact("x", b"2")])], "other content"),
        (
            [queued(), started(), chunk("x", b"1"), finished(artifacts=[artifact("x", b"1")] * 2)],
            "names the artifact 'x' twice",
        ),
        ([queued(), started(), finished(SIGNALED, None, signal=128)], "impossible signal 128"),
        ([queued(), started(), finished(SIGNALED, None, signal=65)], "impossible signal 65"),
        ([queued(), started(), finished(SIGNALED, None, signal=0)], "impossible signal 0"),
        ([queued(), started(), finished(run_pb2.OUTCOME_WALL_TIMEOUT, None, signal=-1)], "impossible signal -1"),
        ([queued(), started(), finished(SIGNALED, None)], "a signal ended the script and has none"),
        ([queued(), finished(SIGNALED, None, signal=9)], "a signal of a script that never started"),
        ([queued(), started(), output(b"", 0), finished()], "a piece of output of 0 bytes"),
        ([queued(), started(), output(b"x" * 65_537, 0), finished()], "a piece of output of 65,537 bytes"),
        (
            [queued(), started(output_bytes=3), output(b"ab", 0), output(b"cd", 0, STDERR), finished()],
            "more output than the 3 bytes",
        ),
        ([queued(), started(artifact_count=1), chunk("a", b""), chunk("b", b"")], "more artifacts than the 1 that"),
        (
            [queued(), started(artifact_count=1), finished(artifacts=[artifact("a", b""), artifact("b", b"")])],
            "more artifacts than the 1 that",
        ),
        (
            [queued(), started(artifact_bytes=3), chunk("a", b"12"), chunk("b", b"34"), finished()],
            "more of artifacts than the 3 bytes",
        ),
        ([queued(), started(), chunk("a", b""), chunk("a", b""), finished()], "a piece of an artifact of 0 bytes"),
        ([queued(), started(), chunk("a", b"x" * 65_537), finished()], "a piece of an artifact of 65,537 bytes"),
        ([queued(), started(), chunk("a" * 1025, b"x"), finished()], "path of an artifact is longer than 1,024 bytes"),
        ([queued(), finished(exit_code=None, outcome=CANCELLED, artifacts=[artifact("a", b"")])], "never started"),
        ([queued(), started(output_bytes=0), finished()], "without telling its output_bytes"),
        ([queued(), started(wall_time=None), finished()], "without telling its wall_seconds"),
        ([queued(), started(wall_time=duration_pb2.Duration(seconds=2**40)), finished()], "limits.wall_seconds must"),
        ([queued(), started(cpus=float("inf")), finished()], "limits.cpus must"),
    ],
)
def test_stream_that_breaks_the_contract_has_no_result(
    fake: FakeDaemon,
    client: skilljail.Client,
    skill: pathlib.Path,
    broken: list[run_pb2.RunEvent],
    fault: str,
) -> None:
    fake.script = lambda *_: broken
    with pytest.raises(skilljail.StreamBroken, match=fault) as caught:
        client.run(skill, "scripts/run.py")
    assert caught.value.reason == "STREAM_BROKEN"
    stream = client.stream(skill, "scripts/run.py")
    with pytest.raises(skilljail.StreamBroken), stream:
        stream.wait()
    with pytest.raises(skilljail.StreamBroken):
        _ = stream.result


@pytest.mark.parametrize(
    ("asked", "got", "fault"),
    [
        ({"wall_seconds": 1.0}, {"wall_time": duration_pb2.Duration(seconds=2)}, "wall_seconds of 2, and 1 was asked"),
        ({"output_bytes": 10}, {"output_bytes": 11}, "output_bytes of 11, and 10 was asked"),
        ({"artifact_count": 1}, {"artifact_count": 2}, "artifact_count of 2, and 1 was asked"),
        ({"artifact_bytes": 10}, {"artifact_bytes": 11}, "artifact_bytes of 11, and 10 was asked"),
        ({"memory_bytes": 10}, {"memory_bytes": 11}, "memory_bytes of 11, and 10 was asked"),
    ],
)
def test_run_that_gets_more_than_was_asked_for_is_left(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, asked: Any, got: Any, fault: str
) -> None:
    fake.grants_more = True
    fake.script = lambda *_: [queued(), started(**got), finished()]
    with pytest.raises(skilljail.StreamBroken, match=fault):
        client.run(skill, "scripts/run.py", limits=skilljail.Limits(**asked))
    fake.script = lambda *_: [queued(), started(), finished()]
    usual = {"wall_seconds": 30.0, "output_bytes": 1024, "artifact_count": 10, "artifact_bytes": 4096}
    assert client.run(skill, "scripts/run.py", limits=skilljail.Limits(**usual)).ok  # type: ignore[arg-type]


def test_output_and_artifacts_up_to_the_limits_are_good(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    fake.script = lambda *_: [
        queued(),
        started(output_bytes=4, artifact_count=2, artifact_bytes=3),
        output(b"ab", 0),
        output(b"cd", 0, STDERR),
        chunk("a", b"12"),
        chunk("a", b"3", 2),
        chunk("b", b""),
        finished(stdout_bytes=2, stderr_bytes=2, artifacts=[artifact("a", b"123"), artifact("b", b"")]),
    ]
    result = client.run(skill, "scripts/run.py")
    assert (result.stdout, result.stderr) == (b"ab", b"cd")
    assert [(one.path, one.content) for one in result.artifacts] == [("a", b"123"), ("b", b"")]


ALLOWLIST: skilljail.RunOptions = {"network": "allowlist", "allowed_hosts": ["api.example.com"]}
BYTE_LIMIT = run_pb2.EGRESS_REFUSAL_BYTE_LIMIT
REFUSED = decision("evil.net", refusal=BYTE_LIMIT, port=0)


def test_egress_decisions_come_as_events_and_in_the_result(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    both = (decision(), REFUSED)
    counted = {"egress_sent_bytes": 1, "egress_received_bytes": 2, "egress_connections": 3}
    fake.script = lambda *_: [
        queued(),
        started(),
        *decided(*both),
        finished(egress_decisions=both, egress_decisions_omitted=4, **counted),
    ]
    with client.stream(skill, "scripts/run.py", **ALLOWLIST) as stream:
        told = [event for event in stream if isinstance(event, skilljail.EgressDecision)]
    result = stream.result
    assert [(one.host, one.port, one.allowed, one.address, one.refusal, one.message) for one in told] == [
        ("api.example.com", 443, True, "93.184.215.14", None, "about api.example.com"),
        ("evil.net", 0, False, "", skilljail.EgressRefusal.BYTE_LIMIT, "about evil.net"),
    ]
    assert [(one.host, one.refusal, one.message) for one in result.egress_decisions] == [
        (one.host, one.refusal, one.message) for one in told
    ]
    assert result.egress_decisions_omitted == 4
    usage = result.usage
    assert (usage.egress_sent_bytes, usage.egress_received_bytes, usage.egress_connections) == (1, 2, 3)
    assert result.started is not None
    assert result.started.policy.network is skilljail.Network.ALLOWLIST
    assert result.started.policy.allowed_hosts == ("api.example.com",)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ([queued(), *decided(REFUSED), started(), finished()], "egress decision before the script started"),
        ([queued(), started(), *decided(decision(port=65_536))], "has the impossible port 65536"),
        ([queued(), started(), *decided(decision(port=-1))], "has the impossible port -1"),
        ([queued(), started(), *decided(decision("x" * 254))], "is too long"),
        ([queued(), started(), *decided(decision(message="x" * 20_000))], "is too long"),
        ([queued(), started(), *decided(decision(allowed=False))], "refuses without a reason"),
        ([queued(), started(), *decided(decision(refusal=BYTE_LIMIT, allowed=True))], "both allows and refuses"),
        ([queued(), started(), finished(egress_decisions=[decision(allowed=False)])], "refuses without a reason"),
        ([queued(), started(), *decided(REFUSED, REFUSED), finished(egress_decisions=[REFUSED])], "sent 2 egress"),
        ([queued(), started(), finished(egress_decisions=[REFUSED] * 1_001)], "its result has 1001"),
        ([queued(), finished(CANCELLED, None, egress_decisions=[REFUSED])], "of a script that never started"),
    ],
)
def test_egress_decisions_that_break_the_contract_leave_no_result(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, broken: list[run_pb2.RunEvent], fault: str
) -> None:
    fake.script = lambda *_: broken
    with pytest.raises(skilljail.StreamBroken, match=fault):
        client.run(skill, "scripts/run.py", **ALLOWLIST)


@pytest.mark.parametrize("sent", [[*decided(REFUSED), finished()], [finished(egress_decisions=[REFUSED])]])
def test_a_run_without_a_network_has_no_egress_decisions(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, sent: list[run_pb2.RunEvent]
) -> None:
    fake.script = lambda *_: [queued(), started(), *sent]
    with pytest.raises(skilljail.StreamBroken, match="of a run without a network"):
        client.run(skill, "scripts/run.py")


@pytest.mark.parametrize(
    ("options", "network", "hosts", "fault"),
    [
        ({}, run_pb2.NETWORK_OPEN, [], "the network OPEN, and NONE was asked for"),
        ({}, run_pb2.NETWORK_UNSPECIFIED, [], "the network UNSPECIFIED, and NONE was asked for"),
        ({}, run_pb2.NETWORK_NONE, ["a.com"], "1 allowed hosts, and 0 were asked for"),
        (ALLOWLIST, run_pb2.NETWORK_OPEN, [], "the network OPEN, and ALLOWLIST was asked for"),
        (ALLOWLIST, run_pb2.NETWORK_NONE, [], "the network NONE, and ALLOWLIST was asked for"),
        (ALLOWLIST, run_pb2.NETWORK_ALLOWLIST, ["a.com", "b.com"], "2 allowed hosts, and 1 were asked for"),
    ],
)
def test_run_that_gets_another_network_than_was_asked_for_is_left(
    fake: FakeDaemon,
    client: skilljail.Client,
    skill: pathlib.Path,
    options: skilljail.RunOptions,
    network: run_pb2.Network.ValueType,
    hosts: list[str],
    fault: str,
) -> None:
    event = started()
    event.started.policy.network = network
    event.started.policy.allowed_hosts.extend(hosts)
    fake.grants_more = True
    fake.script = lambda *_: [queued(), event, finished()]
    with pytest.raises(skilljail.StreamBroken, match=fault):
        client.run(skill, "scripts/run.py", **options)


def heartbeat() -> run_pb2.RunEvent:
    return run_pb2.RunEvent(heartbeat=run_pb2.Heartbeat())


SHORT = {"wall_time": duration_pb2.Duration(nanos=100_000_000), "artifact_bytes": 1}


def beats_for_ever(_request: object, context: grpc.ServicerContext) -> Iterator[run_pb2.RunEvent]:
    yield queued()
    yield started(**SHORT)
    while context.is_active():
        yield heartbeat()
        time.sleep(0.02)


def drips_for_ever(_request: object, context: grpc.ServicerContext) -> Iterator[run_pb2.RunEvent]:
    yield queued()
    yield started(**SHORT)
    offset = 0
    while context.is_active():
        yield output(b"x", offset)
        offset += 1
        time.sleep(0.02)


def silent_for_ever(_request: object, context: grpc.ServicerContext) -> Iterator[run_pb2.RunEvent]:
    yield queued()
    yield started(**SHORT)
    while context.is_active():
        time.sleep(0.02)


@pytest.mark.parametrize("script", [beats_for_ever, drips_for_ever, silent_for_ever])
def test_run_that_never_ends_is_given_up(
    fake: FakeDaemon,
    client: skilljail.Client,
    skill: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Any,
) -> None:
    monkeypatch.setattr("skilljail._patience.GRACE_SECONDS", 0.4)
    fake.script = script
    timer = threading.Timer(60, fake.stop)
    timer.start()
    before = time.monotonic()
    with pytest.raises(
        skilljail.StreamBroken, match=r"has not ended the run 0\.5 s after its start.* get_run"
    ) as caught:
        client.run(skill, "scripts/run.py")
    assert timer.is_alive()
    timer.cancel()
    assert time.monotonic() - before > 0.4
    assert caught.value.run_id == RUN_ID
    assert fake.dropped.wait(30)


@pytest.mark.parametrize("begun", [[queued(), started()], [queued()]])
def test_stream_that_stays_open_after_its_result_takes_nothing_from_it(
    fake: FakeDaemon,
    client: skilljail.Client,
    skill: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: list[run_pb2.RunEvent],
) -> None:
    def stay(_request: object, context: grpc.ServicerContext) -> Iterator[run_pb2.RunEvent]:
        yield from begun
        yield finished(run_pb2.OUTCOME_CANCELLED, None)
        while context.is_active():
            time.sleep(0.02)

    monkeypatch.setattr("skilljail._patience.END_SECONDS", 0.2)
    fake.script = stay
    timer = threading.Timer(60, fake.stop)
    timer.start()
    assert client.run(skill, "scripts/run.py").outcome == "CANCELLED"
    assert timer.is_alive()
    timer.cancel()


def test_caller_that_reads_slowly_uses_up_no_patience(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skilljail._patience.GRACE_SECONDS", 2)
    fake.script = lambda *_: [queued(), started(**SHORT), heartbeat(), output(b"x", 0), finished(stdout_bytes=1)]
    with client.stream(skill, "scripts/run.py") as stream:
        for event in stream:
            if isinstance(event, skilljail.Started):
                time.sleep(3)
    assert stream.result.stdout == b"x"


def test_time_in_the_queue_uses_up_no_patience(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object) -> Iterator[run_pb2.RunEvent]:
        yield queued()
        time.sleep(3)
        yield heartbeat()
        yield started(**SHORT)
        yield finished()

    monkeypatch.setattr("skilljail._patience.GRACE_SECONDS", 2)
    fake.script = late
    assert client.run(skill, "scripts/run.py").ok


def test_finished_stream_leaves_no_thread_behind(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    client.run(skill, "scripts/run.py")
    assert list(client.stream(skill, "scripts/run.py"))
    with client.stream(skill, "scripts/run.py") as stream:
        assert isinstance(next(stream), skilljail.Queued)
        assert isinstance(next(stream), skilljail.Started)
    wait_until(lambda: not any(isinstance(one, threading.Timer) for one in threading.enumerate()))


def test_chunks_that_the_result_does_not_name_are_no_artifacts(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    skipped = run_pb2.SkippedArtifact(path="big", reason=run_pb2.SKIP_REASON_SIZE_LIMIT)
    fake.script = lambda *_: [
        queued(),
        started(),
        chunk("big", b"part"),
        finished(skipped_artifacts=[skipped], skipped_artifacts_omitted=2),
    ]
    result = client.run(skill, "scripts/run.py")
    assert result.artifacts == ()
    assert result.skipped_artifacts == (skilljail.SkippedArtifact("big", skilljail.SkipReason.SIZE_LIMIT),)
    assert result.skipped_artifacts_omitted == 2


def test_lost_connection_is_no_result(fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path) -> None:
    def vanish(*_: object) -> Iterator[run_pb2.RunEvent]:
        yield queued()
        yield started()
        yield output(b"x", 0)
        threading.Thread(target=fake.stop).start()
        time.sleep(2)

    fake.script = vanish
    with pytest.raises(skilljail.StreamBroken, match=r"was lost .* get_run") as caught:
        client.run(skill, "scripts/run.py")
    assert caught.value.run_id == RUN_ID


def test_error_of_the_daemon_after_the_start_is_no_result(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    def fail(*_: object) -> Iterator[run_pb2.RunEvent]:
        yield queued()
        yield started()
        raise Refusal(grpc.StatusCode.INTERNAL, "INTERNAL", "a fault")

    fake.script = fail
    with pytest.raises(skilljail.StreamBroken, match="gave the run up: a fault"):
        client.run(skill, "scripts/run.py")


def endless(_request: object, context: grpc.ServicerContext) -> Iterator[run_pb2.RunEvent]:
    yield queued()
    yield started(output_bytes=1 << 20)
    offset = 0
    while context.is_active():
        yield output(b"tick", offset)
        offset += 4
        time.sleep(0.02)


def test_leaving_the_block_kills_the_run(fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path) -> None:
    fake.script = endless
    with client.stream(skill, "scripts/run.py") as stream:
        for event in stream:
            if isinstance(event, skilljail.Output):
                break
    assert fake.dropped.wait(30)
    with pytest.raises(skilljail.StreamBroken, match="closed before"):
        stream.wait()


def test_interrupt_inside_the_iteration_kills_the_run(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script = endless
    stream = client.stream(skill, "scripts/run.py")
    next(stream)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("skilljail._transcript.Transcript.accept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert fake.dropped.wait(30)


def test_cancel_asks_the_daemon_and_goes_on_to_its_result(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    def until_cancelled(*_: object) -> Iterator[run_pb2.RunEvent]:
        yield queued()
        yield started()
        yield output(b"so far", 0)
        while not fake.cancelled:
            time.sleep(0.01)
        yield finished(run_pb2.OUTCOME_CANCELLED, None, stdout_bytes=6)

    fake.script = until_cancelled
    with client.stream(skill, "scripts/run.py") as stream:
        for event in stream:
            if isinstance(event, skilljail.Output):
                stream.cancel()
        stream.cancel()
    assert fake.cancelled == [RUN_ID]
    assert (stream.result.outcome, stream.result.exit_code, stream.result.stdout) == ("CANCELLED", None, b"so far")


def test_cancel_before_the_run_is_known_drops_it(client: skilljail.Client, skill: pathlib.Path) -> None:
    stream = client.stream(skill, "scripts/run.py")
    stream.cancel()
    with pytest.raises(skilljail.RunCancelled):
        stream.wait()


def test_cancel_drops_a_run_that_the_daemon_cannot_cancel(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script = endless

    def refuse(_run_id: str) -> None:
        raise skilljail.DaemonFault("no")

    monkeypatch.setattr(client, "cancel_run", refuse)
    with client.stream(skill, "scripts/run.py") as stream:
        next(stream)
        threading.Timer(0.1, stream.cancel).start()
        with pytest.raises(skilljail.RunCancelled) as caught:
            stream.wait()
    assert caught.value.metadata == {"run_id": RUN_ID}
    assert fake.dropped.wait(30)


def test_large_output_arrives_whole(fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path) -> None:
    piece = bytes(range(256)) * 256
    count = 128

    def large(*_: object) -> Iterator[run_pb2.RunEvent]:
        yield queued()
        yield started(output_bytes=2 * count * len(piece))
        for number in range(count):
            yield output(piece, number * len(piece))
            yield output(piece, number * len(piece), run_pb2.OUTPUT_STREAM_STDERR)
        yield finished(stdout_bytes=count * len(piece), stderr_bytes=count * len(piece))

    fake.script = large
    result = client.run(skill, "scripts/run.py")
    assert digest_of(result.stdout) == digest_of(result.stderr) == digest_of(piece * count)
