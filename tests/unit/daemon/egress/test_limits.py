"""What a run's egress may use, and that a proxy stays well whatever becomes of one connection."""

import asyncio

import pytest
import structlog
from skilljaild.egress import EgressDecision
from skilljaild.egress import proxy as proxy_module
from skilljaild.egress.budget import Budget
from skilljaild.egress.forward import plain_errors
from skilljaild.egress.upstream import Upstream

from .test_hello import GOOD
from .world import SECONDS, World, answer_requests, echo, silence

GET = b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"


def test_a_budget_is_exact() -> None:
    shortages = []
    budget = Budget(10, lambda: shortages.append(True))
    assert budget.take_sent(4) == 4
    assert budget.take_received(6) == 6
    assert (budget.left, shortages) == (0, [])
    assert budget.take_sent(0) == 0
    assert shortages == []
    assert budget.take_received(1) == 0
    assert shortages == [True]
    assert (budget.sent, budget.received) == (4, 6)


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_bytes_are_capped_in_both_directions_together(world: World, direction: str) -> None:
    limit = 300_000
    got = 0

    async def counts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        if direction == "down":
            while True:
                writer.write(bytes(65_536))
                await writer.drain()
        while data := await reader.read(65_536):
            got += len(data)

    await world.serve(counts, port=443)
    await world.serve(silence, "www.example.com", port=443, address="93.184.215.15")
    proxy = world.proxy("example.com", "www.example.com", bytes_max=limit)
    idle = await world.connected(proxy, "www.example.com")
    unasked = world.connection(proxy)
    script = await world.connected(proxy)

    async def send() -> None:
        await script.send(GOOD)
        if direction == "up":
            await script.send_until_reset(bytes(10_000))

    sending = asyncio.create_task(send())
    received = await script.until_reset()
    await sending
    # Every other connection is cut as well, whatever it waits for.
    assert b"X-Skilljail-Refusal: byte_limit" in await unasked.refused()
    for one in (script, idle):
        await one.served()
        assert one.was_reset
    assert proxy.sent_bytes + proxy.received_bytes == limit
    assert received <= limit
    assert got <= limit
    # And further ones are refused.
    answer = await world.ask(proxy, b"CONNECT example.com:443 HTTP/1.0\r\n\r\n")
    assert b"X-Skilljail-Refusal: byte_limit" in answer
    assert b"300,000 bytes" in answer
    assert world.verdicts()[:2] == ["allowed", "allowed"]
    assert world.verdicts()[2:] == ["byte_limit"] * 4
    assert {decision.host for decision in world.decisions[2:]} == {"example.com", "www.example.com", ""}


async def test_bytes_of_plain_http_are_capped_too(world: World) -> None:
    await world.serve(answer_requests)
    proxy = world.proxy("example.com", bytes_max=200)
    script = world.connection(proxy)
    await script.send(GET * 10)
    await script.until_reset()
    await script.served()
    assert proxy.sent_bytes + proxy.received_bytes == 200
    assert world.verdicts() == ["allowed", "byte_limit"]


async def test_connections_are_counted_refused_ones_too(world: World) -> None:
    await world.serve(answer_requests)
    proxy = world.proxy("example.com", connections_max=3)
    assert (await world.ask(proxy, GET)).startswith(b"HTTP/1.1 200 ")
    assert (await world.ask(proxy, GET.replace(b"example.com", b"evil.example"))).startswith(b"HTTP/1.1 403 ")
    assert (await world.ask(proxy, b"garbage\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    for _ in range(2):
        answer = await world.ask(proxy, GET)
        assert b"X-Skilljail-Refusal: connection_limit" in answer
    assert world.verdicts() == ["allowed", "host_not_allowed", "protocol_invalid"] + ["connection_limit"] * 2
    assert proxy.connections == 5


async def test_one_connection_of_a_script_cannot_make_many_to_hosts(world: World) -> None:
    await world.serve(answer_requests)
    await world.serve(answer_requests, "www.example.com", address="93.184.215.15")
    proxy = world.proxy("example.com", "www.example.com", connections_max=3)
    script = world.connection(proxy)
    for host in (b"example.com", b"www.example.com") * 2:
        await script.send(GET.replace(b"example.com", host))
    answer = await script.refused()
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert world.verdicts() == ["allowed"] * 3 + ["connection_limit"]
    assert world.decisions[3].host == "www.example.com"
    assert len(world.dialled) == 3


async def test_of_a_hundred_connections_thirty_two_are_open_at_one_time(world: World) -> None:
    await world.serve(echo, port=443)
    proxy = world.proxy("example.com")
    scripts = [world.connection(proxy) for _ in range(100)]
    for script in scripts:
        await script.send(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
    heads = [await script.until(b"\r\n\r\n") for script in scripts]
    assert [head[9:12] for head in heads].count(b"200") == 32
    assert sum(b"X-Skilljail-Refusal: connection_limit" in head for head in heads) == 68
    for script, head in zip(scripts, heads, strict=True):
        await script.finish()
        if b" 200 " not in head:
            await script.rest()
        await script.served()
    # Their places are free again.
    await world.connected(proxy)
    assert proxy.connections == 101
    assert sorted(set(world.verdicts())) == ["allowed", "connection_limit"]


async def test_more_refusals_than_can_be_told_are_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens to decisions may be slow; a script that asks on and on must not fill the daemon's memory."""
    monkeypatch.setattr(proxy_module, "SERVED_MAX", 10)
    listening = asyncio.Event()
    told = []

    async def slow(decision: EgressDecision) -> None:
        await listening.wait()
        told.append(decision)

    proxy = world.proxy(connections_max=1, decided=slow)
    waiting = [world.connection(proxy) for _ in range(10)]
    await asyncio.sleep(0)
    dropped = [world.connection(proxy) for _ in range(50)]
    for script in dropped:
        await script.served()
        assert script.was_reset
    await waiting[0].send(GET)
    listening.set()
    for script in waiting:
        assert b" 403 " in await script.refused()
    assert len(told) == 10
    assert proxy.connections == 60


async def test_nothing_flows_before_the_decision_was_taken_down(world: World) -> None:
    await world.serve(answer_requests)
    asked = asyncio.Event()
    taken = asyncio.Event()

    async def slow(_: EgressDecision) -> None:
        asked.set()
        await taken.wait()

    proxy = world.proxy("example.com", decided=slow)
    script = world.connection(proxy)
    await script.send(GET)
    async with asyncio.timeout(SECONDS):
        await asked.wait()
    assert proxy.sent_bytes == 0
    taken.set()
    assert (await script.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_refused_script_that_sends_on_is_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "REFUSED_SECONDS", 1_000)
    proxy = world.proxy()
    script = world.connection(proxy)
    await script.send(b"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nContent-Length: 99999999\r\n\r\n")
    await script.send_until_reset(bytes(60_000))
    await script.served()
    assert script.was_reset
    assert world.verdicts() == ["host_not_allowed"]


async def test_a_refused_script_that_never_ends_is_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "REFUSED_SECONDS", 0.1)
    script = world.connection(world.proxy())
    await script.send(GET)
    assert b" 403 " in await script.rest()
    await script.served()
    assert script.was_reset


@pytest.mark.parametrize("where", ["is_public", "decided"])
async def test_a_fault_of_ours_ends_one_connection_and_tells_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    await world.serve(answer_requests)
    real = World.is_public

    async def fails(_: EgressDecision) -> None:
        raise RuntimeError("/path?token=secret")

    def broken(*_: object) -> bool:
        raise RuntimeError("/path?token=secret")

    proxy = world.proxy("example.com", decided=fails if where == "decided" else None)
    if where == "is_public":
        monkeypatch.setattr(World, "is_public", broken)
    script = world.connection(proxy)
    with structlog.testing.capture_logs() as logs:
        await script.send(GET)
        await script.served()
    assert script.was_reset
    (line,) = logs
    assert line["error"] == "RuntimeError"
    assert "secret" not in repr(logs)
    if where == "is_public":
        monkeypatch.setattr(World, "is_public", real)
        assert (await world.ask(proxy, GET)).startswith(b"HTTP/1.1 200 ")


async def test_a_connection_that_times_out_is_not_taken_for_one_that_was_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's ETIMEDOUT is Python's TimeoutError, too."""

    async def times_out(_: Upstream) -> bytes:
        raise TimeoutError

    monkeypatch.setattr(Upstream, "receive", times_out)
    await world.serve(echo, port=443)
    script = await world.connected(world.proxy("example.com"))
    await script.send(GOOD)
    await script.served()
    assert script.was_reset
    assert world.verdicts() == ["allowed"]


async def test_a_cancellation_comes_before_an_error() -> None:
    """A run that ends must not be held up by what its connections make of that."""

    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError from None

    async def work() -> None:
        with plain_errors():
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                started.set()
                await asyncio.Event().wait()

    started = asyncio.Event()
    task = asyncio.create_task(work())
    await started.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
