"""All runs that the daemon knows."""

import asyncio
import pathlib
from collections.abc import AsyncIterator

import pytest
from skilljaild.bundles.store import BlobStore
from skilljaild.engines.base import EngineUnavailable, Image
from skilljaild.errors import Reason, Refusal
from skilljaild.runs.admission import Admission
from skilljaild.runs.events import Outcome, RunState
from skilljaild.runs.registry import RunRegistry
from skilljaild.runs.run import Run, RunContext

from .fake_engine import REPORT, FakeEngine, serve_script
from .open_gate import OpenGate
from .orders import make_order

IMAGE = Image("skilljail/python", "sha256:" + "a" * 64, {})


class Desk:
    """A registry, and runs that a test starts on it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.engine = FakeEngine()
        self.store = BlobStore(directory, 1_000)
        self.admission = Admission(100, 0)
        self.registry = RunRegistry(remembered_runs=3)

    def start(self, tenant: str = "me", request_id: str = "") -> Run:
        """Starts a run whose events nobody reads: there are few enough of them."""
        context = RunContext(self.engine, REPORT, "owner", self.admission, OpenGate())
        order = make_order(request_id=request_id)
        return self.registry.start(
            tenant, request_id, lambda run_id: Run(run_id, tenant, order, IMAGE, self.store, context)
        )

    async def start_endless(self, request_id: str = "") -> Run:
        """Starts a run whose script goes on until it is ended."""
        before, self.engine.init = self.engine.init, serve_script()
        run = self.start(request_id=request_id)
        async with asyncio.timeout(30):
            while run.state is not RunState.RUNNING:
                await asyncio.sleep(0.001)
        self.engine.init = before
        return run

    async def finish(self, tenant: str = "me", request_id: str = "") -> Run:
        """A run from its start to its end."""
        run = self.start(tenant, request_id)
        await asyncio.wait_for(run.over.wait(), 30)
        await asyncio.sleep(0.01)
        return run

    def refused(self, tenant: str = "me", request_id: str = "") -> Refusal:
        """Why a run is refused."""
        with pytest.raises(Refusal) as caught:
            self.start(tenant, request_id)
        return caught.value

    def page(self, tenant: str = "me", size: int = 10, before: str = "") -> tuple[list[str], str]:
        """Ids of a page of runs, and the next token."""
        runs, token = self.registry.page(tenant, size, before)
        return [run.run_id for run in runs], token


@pytest.fixture
async def desk(tmp_path: pathlib.Path) -> AsyncIterator[Desk]:
    """A desk whose runs are all ended at the end."""
    one = Desk(tmp_path)
    yield one
    await asyncio.wait_for(one.registry.close(0), 30)
    await one.engine.close()


async def test_a_run_goes_by_itself_and_is_known_by_its_id(desk: Desk) -> None:
    run = desk.start()
    assert desk.registry.under_way() == {run.run_id}
    assert desk.registry.get("me", run.run_id) is run
    await asyncio.wait_for(run.over.wait(), 30)
    await asyncio.sleep(0.01)
    assert desk.registry.under_way() == frozenset()
    assert desk.registry.get("me", run.run_id) is run
    assert run.result is not None
    assert run.result.outcome is Outcome.EXITED


async def test_ids_sort_as_runs_were_created_also_within_a_millisecond(desk: Desk) -> None:
    desk.registry = RunRegistry(1_000)
    ids = [desk.start().run_id for _ in range(100)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 100
    assert all(len(one) == 32 and int(one, 16) for one in ids)
    # Twenty digits of each are random: nobody guesses another's.
    assert len({one[12:] for one in ids}) == 100


async def test_another_tenant_sees_nothing_and_cannot_even_tell_that_there_is_something(desk: Desk) -> None:
    run = await desk.finish("me")
    with pytest.raises(Refusal) as others:
        desk.registry.get("other", run.run_id)
    with pytest.raises(Refusal) as nobodys:
        desk.registry.get("me", "f" * 32)
    for caught in (others, nobodys):
        assert (caught.value.reason, caught.value.field) == (Reason.RUN_NOT_FOUND, "run_id")
    assert others.value.message == nobodys.value.message
    assert desk.page("other") == ([], "")
    assert desk.page("me") == ([run.run_id], "")


async def test_a_request_id_runs_once_under_way_or_over(desk: Desk) -> None:
    run = desk.start(request_id="r1")
    for _ in range(2):
        refusal = desk.refused(request_id="r1")
        assert (refusal.reason, refusal.field) == (Reason.REQUEST_ID_IN_USE, "request_id")
        assert refusal.metadata == {"run_id": run.run_id}
        await asyncio.wait_for(run.over.wait(), 30)
    assert desk.start("other", "r1").run_id != run.run_id
    assert desk.start(request_id="r2")
    # No id is no id: there may be any number without one.
    desk.start()
    desk.start()


async def test_a_run_that_is_refused_leaves_no_trace(desk: Desk) -> None:
    desk.admission = Admission(1, 0)
    first = await desk.start_endless("r1")
    assert desk.refused(request_id="r2").reason is Reason.QUEUE_FULL
    assert desk.registry.under_way() == {first.run_id}
    assert desk.page() == ([first.run_id], "")
    first.end(Outcome.CANCELLED)
    await asyncio.wait_for(first.over.wait(), 30)
    desk.start(request_id="r2")


async def test_a_run_that_could_not_start_may_be_tried_again_under_the_same_name(desk: Desk) -> None:
    desk.engine.faults["create"] = EngineUnavailable("away")
    first = await desk.finish(request_id="r1")
    assert first.refusal is not None
    del desk.engine.faults["create"]
    second = await desk.finish(request_id="r1")
    assert second.refusal is None
    assert desk.refused(request_id="r1").metadata == {"run_id": second.run_id}
    # Forgetting the first one does not set the name free again.
    for _ in range(2):
        await desk.finish()
    with pytest.raises(Refusal):
        desk.registry.get("me", first.run_id)
    assert desk.refused(request_id="r1").metadata == {"run_id": second.run_id}


async def test_a_long_run_is_remembered_as_long_as_a_short_one_that_ended_with_it(desk: Desk) -> None:
    long = await desk.start_endless()
    for _ in range(3):
        await desk.finish()
    long.end(Outcome.CANCELLED)
    await asyncio.wait_for(long.over.wait(), 30)
    await asyncio.sleep(0.01)
    assert desk.registry.get("me", long.run_id) is long
    assert len(desk.page()[0]) == 3


async def test_the_oldest_finished_runs_are_forgotten_with_their_request_ids(desk: Desk) -> None:
    going = await desk.start_endless("going")
    finished = [await desk.finish(request_id=f"r{number}") for number in range(5)]
    assert desk.page()[0] == [*(run.run_id for run in reversed(finished[2:])), going.run_id]
    with pytest.raises(Refusal):
        desk.registry.get("me", finished[1].run_id)
    assert desk.refused(request_id="r2").metadata == {"run_id": finished[2].run_id}
    await desk.finish(request_id="r1")


async def test_pages_show_each_run_once_newest_first(desk: Desk) -> None:
    desk.registry = RunRegistry(1_000)
    mine = []
    for number in range(25):
        mine.append(desk.start("me").run_id)
        desk.start("other" if number % 2 else "third")
    seen: list[str] = []
    token = ""
    for size in (10, 10, 5):
        page, token = desk.page(size=size, before=token)
        assert len(page) == size
        seen += page
    assert (seen, token) == (mine[::-1], "")
    assert desk.page(size=25) == (mine[::-1], "")
    assert desk.page(size=24) == (mine[:0:-1], mine[1])


async def test_a_page_goes_on_where_the_one_before_ended_whatever_happened_meanwhile(desk: Desk) -> None:
    runs = [await desk.finish() for _ in range(3)]
    page, token = desk.page(size=2)
    assert page == [runs[2].run_id, runs[1].run_id]
    for _ in range(2):
        await desk.finish()
    # The run that the token names is forgotten, and newer ones are not shown again.
    assert desk.page(before=token) == ([], "")
    assert token == runs[1].run_id


@pytest.mark.parametrize("token", ["x", "0", "A" * 32, "f" * 31, "f" * 33, "f" * 32 + "\n", "../" * 10])
async def test_a_page_token_that_was_never_given_is_refused(desk: Desk, token: str) -> None:
    with pytest.raises(Refusal) as caught:
        desk.registry.page("me", 10, token)
    assert (caught.value.reason, caught.value.field) == (Reason.PAGE_TOKEN_INVALID, "page_token")


async def test_closing_takes_no_more_runs_waits_and_then_ends_them(desk: Desk) -> None:
    slow = await desk.start_endless()
    quick = desk.start()
    await asyncio.wait_for(desk.registry.close(2), 30)
    results = [run.result.outcome if run.result else None for run in (quick, slow)]
    assert results == [Outcome.EXITED, Outcome.SHUTDOWN]
    assert desk.registry.under_way() == frozenset()
    assert desk.engine.live == {}
    refusal = desk.refused()
    assert (refusal.reason, refusal.retry_seconds) == (Reason.SHUTTING_DOWN, 5)


async def test_closing_does_not_wait_when_nothing_goes(desk: Desk) -> None:
    await asyncio.wait_for(desk.registry.close(3_600), 30)
