"""Names are looked up in threads that hold up neither another run nor the daemon's end."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest
from skilljaild.egress import EgressDecision, EgressProxy, EgressRules, HostPattern, resolver
from skilljaild.egress.dialler import SystemDialler
from skilljaild.egress.resolver import LOOKUPS_MAX

from .world import SECONDS, World

GET = b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"


class NameServer:
    """It answers when it is told to. `asked`: the names, with a dot at the end."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.changed = threading.Condition()

    def getaddrinfo(self, name: str, port: int, **_: object) -> list[tuple[object, ...]]:
        with self.changed:
            self.asked.append(name)
            self.changed.notify_all()
        self.answers.wait(SECONDS)
        if name.startswith("fault"):
            raise ValueError(name)
        if name.startswith("no"):
            raise socket.gaierror
        return [(0, 0, 0, "", (address, port)) for address in ("192.0.2.2", "192.0.2.1", "192.0.2.2")]

    async def until_asked(self, count: int) -> None:
        def wait() -> bool:
            with self.changed:
                return self.changed.wait_for(lambda: len(self.asked) >= count, SECONDS)

        assert await asyncio.to_thread(wait)


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NameServer]:
    """In place of the host's resolver; at the end every thread must be gone."""
    server = NameServer()
    monkeypatch.setattr(resolver, "_threads", threading.BoundedSemaphore(resolver.THREADS_MAX))
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    server.answers.set()
    for thread in threads():
        await asyncio.to_thread(thread.join, SECONDS)
    assert threads() == []


def threads() -> list[threading.Thread]:
    """Those of lookups."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("egress-resolver")]


async def test_a_name_has_its_addresses_once_each_and_in_order_and_is_absolute(names: NameServer) -> None:
    names.answers.set()
    assert await SystemDialler().resolve("example.com", 80) == ["192.0.2.2", "192.0.2.1"]
    assert names.asked == ["example.com."]


@pytest.mark.parametrize("name", ["no.example", "fault.example"])
async def test_a_lookup_that_fails_is_an_error_and_gives_its_place_back(names: NameServer, name: str) -> None:
    names.answers.set()
    dialler = SystemDialler()
    for _ in range(LOOKUPS_MAX + 1):
        with pytest.raises(OSError, match="no address"):
            await dialler.resolve(name, 80)
    assert await dialler.resolve("example.com", 80)


async def test_no_thread_is_left_when_a_run_has_its_answers(names: NameServer) -> None:
    names.answers.set()
    dialler = SystemDialler()
    await asyncio.gather(*(dialler.resolve("example.com", 80) for _ in range(10)))
    for thread in threads():
        await asyncio.to_thread(thread.join, SECONDS)
    assert threads() == []


async def test_names_that_are_never_answered_hold_up_one_run_alone(names: NameServer) -> None:
    one, other = SystemDialler(), SystemDialler()
    lost = [asyncio.create_task(one.resolve("lost.example", 80)) for _ in range(LOOKUPS_MAX + 5)]
    await names.until_asked(LOOKUPS_MAX)
    for task in lost:
        task.cancel()
    await asyncio.wait(lost)
    # Those that nobody waits for are under way all the same.
    waiting = asyncio.create_task(one.resolve("example.com", 80))
    asked = asyncio.create_task(other.resolve("example.com", 80))
    await names.until_asked(LOOKUPS_MAX + 1)
    assert names.asked.count("example.com.") == 1
    assert len(threads()) == LOOKUPS_MAX + 1
    names.answers.set()
    async with asyncio.timeout(SECONDS):
        assert await asked == await waiting


async def refused(world: World) -> bytes:
    """What a script is told whose host cannot be looked up."""

    async def decided(decision: EgressDecision) -> None:
        world.decisions.append(decision)

    rules = EgressRules("allowlist", (HostPattern.parse("example.com"),))
    proxy = EgressProxy(rules, bytes_max=1_000, connections_max=9, decided=decided, dialler=SystemDialler())
    return await world.ask(proxy, GET)


async def test_the_threads_of_all_runs_are_bounded(
    world: World, names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "_threads", threading.BoundedSemaphore(1))
    first = asyncio.create_task(SystemDialler().resolve("example.com", 80))
    await names.until_asked(1)
    assert b"X-Skilljail-Refusal: name_not_resolved" in await refused(world)
    assert world.verdicts() == ["name_not_resolved"]
    names.answers.set()
    async with asyncio.timeout(SECONDS):
        await first
    assert await SystemDialler().resolve("example.com", 80)


async def test_without_a_thread_a_name_is_not_resolved(
    world: World, names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    names.answers.set()
    dialler = SystemDialler()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        assert b"X-Skilljail-Refusal: name_not_resolved" in await refused(world)
        for _ in range(LOOKUPS_MAX + 1):
            with pytest.raises(OSError, match="no thread"):
                await dialler.resolve("example.com", 80)
    assert await dialler.resolve("example.com", 80)


HANGS = """
import asyncio, contextlib, socket, threading
from skilljaild.egress.dialler import SystemDialler
socket.getaddrinfo = lambda *_, **__: threading.Event().wait()
async def main():
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await SystemDialler().resolve("example.com", 80)
asyncio.run(main())
"""


def test_a_lookup_that_hangs_does_not_hold_up_the_daemons_end() -> None:
    subprocess.run([sys.executable, "-c", HANGS], check=True, timeout=60)
