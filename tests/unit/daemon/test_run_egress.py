"""Runs with a network: their connections are carried, told and counted, and end with them; others can have none."""

import asyncio
import datetime
import pathlib
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from skilljail_init import frames
from skilljail_init.frames import FrameType, encode_tunnel
from skilljaild.bundles.store import BlobStore
from skilljaild.egress.decision import EgressDecision, EgressRefusal, Refused
from skilljaild.egress.dialler import SystemDialler
from skilljaild.egress.hosts import HostPattern
from skilljaild.engines.base import Image
from skilljaild.network import Network
from skilljaild.runs import egress as module
from skilljaild.runs.admission import Admission
from skilljaild.runs.egress import RunEgress
from skilljaild.runs.events import EffectivePolicy, Event, Finished, Outcome, RunResult
from skilljaild.runs.pipe import EVENTS_MAX, EventPipe
from skilljaild.runs.run import Run, RunContext

from .facts import LIMITS
from .fake_engine import EXITED, REPORT, Box, FakeEngine, Init, serve_script
from .open_gate import OpenGate
from .orders import make_order

REQUEST = b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
EXIT = (FrameType.EXIT, EXITED)
DONE = (FrameType.DONE, b"")


class Dialler(SystemDialler):
    """An Internet with one host, on a port of the test's own."""

    port = 0
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1

    async def resolve(self, host: str, port: int) -> list[str]:
        del port
        if host != "api.example.com":
            raise OSError
        return ["93.184.215.14"]

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        del address, port
        return await asyncio.open_connection("127.0.0.1", self.port)


class Server:
    """The one host. It answers, and then waits for the other end to go."""

    def __init__(self) -> None:
        self.open = 0
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000))
        try:
            while await reader.read(65_536):
                pass
        except OSError:
            pass
        writer.close()
        self.open -= 1
        self.closed.set()


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """The host, up."""
    one = Server()
    listener = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    monkeypatch.setattr(Dialler, "port", listener.sockets[0].getsockname()[1])
    monkeypatch.setattr(Dialler, "made", 0)
    yield one
    listener.close()


@pytest.fixture
async def make_run(tmp_path: pathlib.Path) -> AsyncIterator[Callable[..., Run]]:
    """Makes a run on an engine of its own, whose init does what a test says."""
    engines = []

    def make(init: Init, network: Network = Network.ALLOWLIST, **fields: Any) -> Run:
        engines.append(FakeEngine(init))
        context = RunContext(engines[-1], REPORT, "owner", Admission(1, 2), OpenGate(), make_dialler=Dialler)
        order = make_order(**fields)
        hosts = (HostPattern.parse("api.example.com"),) if network is Network.ALLOWLIST else ()
        policy = EffectivePolicy(order.policy.interpreter, order.policy.command, LIMITS, network, hosts)
        order = type(order)(order.request, order.bundle, policy, order.env)
        return Run("run-1", "me", order, Image("i", "sha256:" + "a" * 64, {}), BlobStore(tmp_path, 1 << 20), context)

    yield make
    for engine in engines:
        await engine.close()
        assert engine.live == {}


async def finished(run: Run) -> list[Event]:
    """The events of a run."""
    execution = asyncio.create_task(run.execute())
    events: list[Event] = []
    async with asyncio.timeout(20):
        while (event := await run.events.get()) is not None:
            events.append(event)
        await execution
    return events


def result_of(run: Run, events: list[Event]) -> RunResult:
    """The result, which comes last."""
    assert run.refusal is None
    assert isinstance(events[-1], Finished)
    assert events[-1].result is run.result
    return events[-1].result


async def heard(box: Box, frame_type: FrameType) -> tuple[int, bytes]:
    """Waits for a frame of a tunnel."""
    while (frame := await box.stream.received.get()).type is not frame_type:
        assert frame.type in frames.TUNNEL_FRAMES
    return frames.split_tunnel(frame)


def say(box: Box, frame_type: FrameType, number: int, content: bytes | int = b"") -> None:
    """Says something of a tunnel."""
    box.stream.put(encode_tunnel(frame_type, number, content))


async def ask(box: Box) -> None:
    """Opens a tunnel, asks for the one host and reads the beginning of the answer."""
    say(box, FrameType.TUNNEL_OPEN, 1)
    say(box, FrameType.TUNNEL_DATA, 1, REQUEST)
    assert (await heard(box, FrameType.TUNNEL_DATA))[1].startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("network", [Network.ALLOWLIST, Network.OPEN])
async def test_a_connection_is_carried_told_and_counted(
    make_run: Callable[..., Run], server: Server, network: Network
) -> None:
    run = make_run(serve_script(EXIT, DONE, hook=ask), network)
    events = await finished(run)
    result = result_of(run, events)
    assert result.outcome is Outcome.EXITED
    (decision,) = result.egress_decisions
    assert (decision.host, decision.port, decision.allowed, decision.address) == (
        "api.example.com",
        80,
        True,
        "93.184.215.14",
    )
    assert decision in events
    assert (result.egress_decisions_omitted, result.usage.egress_connections) == (0, 1)
    assert result.usage.egress_sent_bytes > 0
    assert result.usage.egress_received_bytes > 1_000
    # It ended with the script, before its artifacts were taken.
    await asyncio.wait_for(server.closed.wait(), 20)
    assert server.open == 0


async def test_init_is_told_to_listen_for_a_run_with_a_network_only(make_run: Callable[..., Run]) -> None:
    for network in Network:
        run = make_run(serve_script(EXIT, DONE), network)
        await finished(run)
        (box,) = run._context.engine.boxes  # type: ignore[attr-defined]
        assert box.orders["start"]["egress"] is (network is not Network.NONE)


async def test_without_a_network_a_tunnel_is_a_broken_protocol_and_there_is_no_dialler(
    make_run: Callable[..., Run], server: Server
) -> None:
    async def opens(box: Box) -> None:
        say(box, FrameType.TUNNEL_OPEN, 1)

    run = make_run(serve_script(EXIT, DONE, hook=opens), Network.NONE)
    result = result_of(run, await finished(run))
    assert (result.outcome, result.egress_decisions) == (Outcome.SANDBOX_ERROR, ())
    assert "TUNNEL_OPEN frame where" in result.message
    assert (Dialler.made, server.open) == (0, 0)


async def test_after_the_scripts_end_a_tunnel_is_a_broken_protocol(make_run: Callable[..., Run]) -> None:
    opened = (FrameType.TUNNEL_OPEN, frames.NUMBER.pack(1))
    run = make_run(serve_script(EXIT, opened, DONE))
    result = result_of(run, await finished(run))
    assert result.outcome is Outcome.EXITED
    assert "TUNNEL_OPEN frame where" in result.message


async def test_a_tunnel_that_breaks_the_protocol_loses_the_sandbox(make_run: Callable[..., Run]) -> None:
    async def opens(box: Box) -> None:
        say(box, FrameType.TUNNEL_OPEN, 5)

    run = make_run(serve_script(hook=opens))
    result = result_of(run, await finished(run))
    assert result.outcome is Outcome.SANDBOX_ERROR
    assert "tunnel 5 where 1 was due" in result.message


async def hang(box: Box) -> None:
    """Asks, and never comes to an end."""
    await ask(box)
    box.say(FrameType.STDOUT, b"x")
    await asyncio.Event().wait()


async def lose(box: Box) -> None:
    """Asks, and is gone."""
    await ask(box)
    box.stream.end()


@pytest.mark.parametrize("how", ["cancelled", "lost", "overdue"])
async def test_no_connection_outlives_its_run_however_that_ends(
    make_run: Callable[..., Run], server: Server, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("skilljaild.runs.death.DEATH_SECONDS", 0.3)
    if how == "overdue":
        monkeypatch.setattr("skilljaild.runs.delivery.WALL_GRACE_SECONDS", -LIMITS.wall_seconds + 0.5)
    run = make_run(serve_script(hook=lose if how == "lost" else hang))
    execution = asyncio.create_task(run.execute())
    async with asyncio.timeout(20):
        while (event := await run.events.get()) is not None:
            if how == "cancelled" and getattr(event, "data", b"") == b"x":
                assert server.open == 1
                run.end(Outcome.CANCELLED)
        await execution
        await server.closed.wait()
    assert run.result is not None
    expected = {
        "cancelled": Outcome.CANCELLED,
        "lost": Outcome.SANDBOX_ERROR,
        "overdue": Outcome.WALL_TIMEOUT,
    }
    assert run.result.outcome is expected[how]
    assert run._egress is None
    assert len(run.result.egress_decisions) == 1
    assert run.result.usage.egress_received_bytes > 1_000
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("tunnel")] == []


# What is kept and told of decisions


def decision(number: int = 0, message: str = "no") -> EgressDecision:
    """A refusal."""
    now = datetime.datetime.now(datetime.UTC)
    return EgressDecision(now, f"h{number}.example.com", 443, False, "", EgressRefusal.HOST_NOT_ALLOWED, message)


def egress(events: EventPipe) -> RunEgress:
    """The egress of a run with an empty list."""
    return RunEgress(EffectivePolicy("bash", (), LIMITS, Network.ALLOWLIST), events, Dialler())


async def tell(one: RunEgress, *decisions: EgressDecision) -> None:
    """Lets decisions be made, with a caller that takes all."""
    for each in decisions:
        await one._decided(each)


@pytest.mark.parametrize(("why", "least", "most"), [("no.", 200, 300), ("x" * 100, 150, 250), ("x" * 3_000, 20, 50)])
async def test_decisions_are_kept_as_far_as_there_is_room_and_the_others_counted(
    why: str, least: int, most: int
) -> None:
    events = EventPipe()
    await events.abandon()
    one = egress(events)
    hosts = [f"h{number}.example.com" for number in range(1_500)]
    await tell(egress(events), decision())  # whatever is made once
    tracemalloc.start()
    try:
        for number in range(len(hosts)):
            # As the daemon makes them: they share nothing.
            host = f"h{number}.example.com"
            await tell(one, Refused(EgressRefusal.HOST_NOT_ALLOWED, host, 1_000 + number, why).decision())
        result = one.told_in(RunResult(Outcome.EXITED, "m"))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = len(result.egress_decisions)
    assert [each.host for each in result.egress_decisions] == hosts[:kept]
    assert result.egress_decisions_omitted == len(hosts) - kept
    assert least < kept < most
    assert held < module.DECISIONS_BYTES + 10 * 1024


async def test_a_caller_that_does_not_read_holds_the_connections_up() -> None:
    events = EventPipe()
    one = egress(events)
    waiting: list[Awaitable[None]] = [asyncio.ensure_future(one._decided(decision(number))) for number in range(40)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert sum(each.done() for each in waiting) == EVENTS_MAX  # type: ignore[attr-defined]
    got = [await events.get() for _ in range(40)]
    await asyncio.wait_for(asyncio.gather(*waiting), 20)
    assert [each.host for each in got if isinstance(each, EgressDecision)] == [f"h{n}.example.com" for n in range(40)]
    assert one.told_in(RunResult(Outcome.EXITED, "m")).egress_decisions == tuple(got)
