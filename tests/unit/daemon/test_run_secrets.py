"""A run's secrets: read when its script is about to start, told to init and nobody else, masked where asked."""

import asyncio
import dataclasses
import gc
import pathlib
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from skilljail_init import frames
from skilljail_init.frames import FrameType
from skilljaild.bundles.store import BlobStore
from skilljaild.egress.hosts import HostPattern
from skilljaild.engines.base import EngineUnavailable
from skilljaild.errors import Reason, Refusal
from skilljaild.network import Network
from skilljaild.policy import SANDBOX_ENVIRONMENT
from skilljaild.runs.admission import Admission
from skilljaild.runs.delivery import Delivery
from skilljaild.runs.events import Finished, Outcome, Output
from skilljaild.runs.run import Run, RunContext
from skilljaild.secrets.automaton import Automaton
from skilljaild.secrets.config import SecretConfig
from skilljaild.secrets.keeper import SecretKeeper
from skilljaild.service.convert import event_message, run_message

from .fake_engine import EXITED, REPORT, Box, FakeEngine, serve_script
from .open_gate import OpenGate
from .orders import make_order
from .test_run import IMAGE, listened

CANARY = "canary-0123456789"
EXIT = (FrameType.EXIT, EXITED)
DONE = (FrameType.DONE, b"")


@dataclasses.dataclass
class Bench:
    """An engine, and a file with a secret."""

    engine: FakeEngine
    file: pathlib.Path
    store: BlobStore
    admission: Admission

    def run(self, **policy: Any) -> Run:
        """A run that was granted the secret `it`."""
        grant = {"tenant": "local", "skill": "demo", "bundle_digest": "sha256:" + "d" * 64}
        secret = SecretConfig.model_validate({"variable": "TOKEN", "file": str(self.file), "grants": [grant]})
        context = RunContext(self.engine, REPORT, "owner", self.admission, OpenGate(), SecretKeeper({"it": secret}))
        order = make_order(argv=("x",))
        order = dataclasses.replace(order, policy=dataclasses.replace(order.policy, secrets=("it",), **policy))
        return Run("run-1", "local", order, IMAGE, self.store, context)


@pytest.fixture
async def bench(tmp_path: pathlib.Path) -> AsyncIterator[Bench]:
    """A daemon for one run at a time, two waiting."""
    file = tmp_path / "token"
    file.write_text(CANARY)  # noqa: ASYNC240
    file.chmod(0o600)  # noqa: ASYNC240
    one = Bench(FakeEngine(), file, BlobStore(tmp_path / "blobs", 1 << 20), Admission(1, 2))
    yield one
    await one.engine.close()


async def outputs(run: Run) -> dict[int, bytes]:
    """What was delivered on each stream, without gaps, and as much as the result tells."""
    events = await listened(run, asyncio.create_task(run.execute()))
    streams = {1: b"", 2: b""}
    for event in events:
        if isinstance(event, Output):
            assert event.offset == len(streams[event.stream])
            assert event.data
            streams[event.stream] += event.data
    last = events[-1]
    assert isinstance(last, Finished)
    assert (last.result.usage.stdout_bytes, last.result.usage.stderr_bytes) == tuple(map(len, streams.values()))
    return streams


async def test_the_script_gets_the_value_and_nobody_else(bench: Bench) -> None:
    bench.engine.init = serve_script((FrameType.STDOUT, b"x"), EXIT, DONE)
    run = bench.run()
    with structlog.testing.capture_logs() as lines:
        events = await listened(run, asyncio.create_task(run.execute()))
    (box,) = bench.engine.boxes
    assert box.orders["start"]["env"] == SANDBOX_ENVIRONMENT | {"TOKEN": CANARY}
    told = [lines, events, bench.engine.specs, box.orders["stage"], vars(run), run_message(run)]
    told += [event_message("run-1", 1, event) for event in events]
    assert CANARY not in repr(told)
    assert run_message(run).policy.secrets == ["it"]


async def test_values_are_read_when_the_sandbox_is_staged_and_not_before(bench: Bench) -> None:
    """A run that waits holds none: what is in the file then counts."""
    bench.engine.gates["stream"] = asyncio.Event()
    run = bench.run()
    execution = asyncio.create_task(run.execute())
    await bench.engine.reached["stream"].wait()
    bench.file.write_text("canary-that-was-rotated")  # noqa: ASYNC240
    bench.engine.gates["stream"].set()
    await listened(run, execution)
    assert bench.engine.boxes[0].orders["start"]["env"]["TOKEN"] == "canary-that-was-rotated"


async def test_a_source_without_a_value_refuses_the_run_before_its_script(bench: Bench) -> None:
    run = bench.run()
    bench.file.write_text("short")  # noqa: ASYNC240
    events = await listened(run, asyncio.create_task(run.execute()))
    assert run.refusal is not None
    assert run.refusal.reason is Reason.SECRET_UNAVAILABLE
    assert run.started is None
    assert [type(event).__name__ for event in events] == ["Queued"]
    assert "start" not in bench.engine.boxes[0].orders
    assert bench.engine.live == {}


async def test_values_that_are_too_much_for_the_kernel_refuse_the_run(bench: Bench) -> None:
    bench.file.write_text("x" * 32_000)  # noqa: ASYNC240
    run = bench.run()
    object.__setattr__(run.order.request, "argv", ("y" * 120_000,) * 9)
    await listened(run, asyncio.create_task(run.execute()))
    assert isinstance(run.refusal, Refusal)
    assert run.refusal.reason is Reason.ARGUMENT_INVALID
    # A number would tell how long the value is.
    assert not re.search(r"\d", run.refusal.message)


async def test_a_sandbox_that_fails_has_read_nothing(bench: Bench) -> None:
    bench.engine.faults["create"] = EngineUnavailable("away")
    run = bench.run()
    bench.file.unlink()  # noqa: ASYNC240
    await listened(run, asyncio.create_task(run.execute()))
    assert run.refusal is not None
    assert run.refusal.reason is Reason.ENGINE_UNAVAILABLE


SAID = ((FrameType.STDOUT, b"a canary-01"), (FrameType.STDERR, b"canary-0123"), (FrameType.STDOUT, b"23456789 b"))


async def test_values_are_masked_across_pieces_where_that_was_asked_for(bench: Bench) -> None:
    bench.engine.init = serve_script(*SAID, (FrameType.STDERR, b"456789"), EXIT, DONE)
    assert await outputs(bench.run(mask_secrets=True)) == {1: b"a *** b", 2: b"***"}
    bench.engine.init = serve_script(*SAID, EXIT, DONE)
    assert await outputs(bench.run()) == {1: b"a canary-0123456789 b", 2: b"canary-0123"}


async def test_values_that_are_too_much_to_be_masked_refuse_the_run_that_asks_for_it(bench: Bench) -> None:
    bench.file.write_text("\n".join(f"{number:08}" for number in range(1_001)))  # noqa: ASYNC240
    run = bench.run(mask_secrets=True)
    await listened(run, asyncio.create_task(run.execute()))
    assert run.refusal is not None
    assert (run.refusal.reason, run.refusal.metadata["secret"]) == (Reason.SECRET_UNAVAILABLE, "it")
    assert "start" not in bench.engine.boxes[0].orders
    bench.engine.init = serve_script(EXIT, DONE)
    run = bench.run()
    await listened(run, asyncio.create_task(run.execute()))
    assert run.refusal is None


def automata() -> int:
    """How many there are in this process."""
    gc.collect()
    return sum(isinstance(one, Automaton) for one in gc.get_objects())


async def test_values_are_masked_in_what_is_told_of_connections(bench: Bench) -> None:
    """In events and in what is remembered; where no masking was asked for the script's host is told."""
    request = f"GET http://{CANARY}.example.com/ HTTP/1.1\r\nHost: {CANARY}.example.com\r\n\r\n".encode()

    async def ask(box: Box) -> None:
        box.stream.put(frames.encode_tunnel(FrameType.TUNNEL_OPEN, 1, b""))
        box.stream.put(frames.encode_tunnel(FrameType.TUNNEL_DATA, 1, request))
        while (await box.stream.received.get()).type is not FrameType.TUNNEL_DATA:
            pass

    hosts = (HostPattern.parse("api.example.com"),)
    before = automata()
    for mask, host in ((True, "***.example.com"), (False, f"{CANARY}.example.com")):
        bench.engine.init = serve_script(EXIT, DONE, hook=ask)
        run = bench.run(mask_secrets=mask, network=Network.ALLOWLIST, allowed_hosts=hosts)
        events = await listened(run, asyncio.create_task(run.execute()))
        assert run.result is not None
        (decision,) = run.result.egress_decisions
        assert decision in events
        assert decision.host == host
        assert f" to {host}:80 was refused" in decision.message
        assert (CANARY in repr([events, vars(run)])) is not mask
        # A run is remembered for long, and what finds values holds them.
        assert automata() == before


async def said(run: Run) -> None:
    """Waits until the daemon has read what the script said."""
    while run.order.policy and (run._delivery is None or run._delivery.stdout_bytes < 2):
        await asyncio.sleep(0)


async def test_what_was_held_back_is_told_and_masked_when_the_run_is_cancelled(bench: Bench) -> None:
    bench.engine.init = serve_script((FrameType.STDOUT, b"a canary-01"))
    run = bench.run(mask_secrets=True)
    reading = asyncio.create_task(outputs(run))
    async with asyncio.timeout(20):
        await said(run)
    run.end(Outcome.CANCELLED)
    assert await reading == {1: b"a ***", 2: b""}
    assert run.result is not None
    assert run.result.outcome is Outcome.CANCELLED


async def test_what_was_held_back_is_told_and_masked_when_the_sandbox_is_lost(bench: Bench) -> None:
    bench.engine.init = serve_script((FrameType.STDOUT, b"a canary-01"), (FrameType.STDERR, b"can"), end=True)
    run = bench.run(mask_secrets=True)
    assert await outputs(run) == {1: b"a ***", 2: b"can"}
    assert run.result is not None
    assert run.result.outcome is Outcome.SANDBOX_ERROR


async def test_nothing_is_lost_for_a_caller_who_reads_late_and_cancels(bench: Bench) -> None:
    """More than the pipe holds: what waited for room when the run was cancelled comes without a gap."""
    pieces = [(FrameType.STDOUT, b"%04d canary-0123456789\n" % number) for number in range(40)]

    async def hook(box: Box) -> None:
        for piece in pieces:
            box.say(*piece)

    bench.engine.init = serve_script(hook=hook)
    run = bench.run(mask_secrets=True)
    execution = asyncio.create_task(run.execute())
    async with asyncio.timeout(20):
        while len(run.events._events) < 16:
            await asyncio.sleep(0.01)
    run.end(Outcome.CANCELLED)
    await execution
    streams = b""
    while (event := await run.events.get()) is not None:
        if isinstance(event, Output):
            assert event.offset == len(streams)
            streams += event.data
    assert CANARY.encode() not in streams
    assert streams.startswith(b"0000 ***\n0001 ***\n")
    assert run.result is not None
    assert run.result.usage.stdout_bytes == len(streams)


async def test_a_fault_of_ours_shows_no_value(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the trace of the fault, which passes through where values are, and not its words."""

    def broken(*_: object) -> None:
        raise RuntimeError(f"broken by {CANARY}")

    monkeypatch.setattr(Delivery, "_count", broken)
    run = bench.run()
    bench.engine.init = serve_script((FrameType.STDOUT, b"x"), EXIT, DONE)
    with structlog.testing.capture_logs(processors=[structlog.processors.format_exc_info]) as lines:
        await listened(run, asyncio.create_task(run.execute()))
    (failed,) = (line for line in lines if line["event"] == "run failed")
    assert failed["error"].startswith("RuntimeError")
    assert "test_run_secrets.py" in failed["trace"]
    assert CANARY not in str(lines) + caplog.text
