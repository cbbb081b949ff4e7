"""Everything but runs: capabilities, waiting, and what the daemon remembers."""

import pathlib
import threading
import time

import pytest
import skilljail
from skilljail.v1 import run_pb2, script_runner_pb2

from .fake_daemon import FakeDaemon


def test_capabilities_are_typed(client: skilljail.Client) -> None:
    capabilities = client.capabilities()
    assert capabilities.daemon_version == "0.1.0"
    assert [(one.name, one.available, one.suffixes) for one in capabilities.interpreters] == [
        ("python", True, (".py",)),
        ("pwsh", False, (".ps1",)),
    ]
    assert capabilities.interpreter("pwsh") is capabilities.interpreters[1]
    assert capabilities.interpreter("perl") is None
    assert capabilities.default_limits == skilljail.Limits(wall_seconds=30, cpus=1)
    assert capabilities.limit_ceilings == skilljail.Limits(wall_seconds=300, memory_bytes=1 << 30)
    assert capabilities.engine == skilljail.Engine("docker", "29.0", "runc", (), skilljail.IsolationLevel.CONTAINER)


def test_waiting_ends_when_the_daemon_comes(tmp_path: pathlib.Path) -> None:
    late = FakeDaemon(f"unix:{tmp_path}/late.sock")
    threading.Timer(0.5, late.start).start()
    with skilljail.Client(late.address) as client:
        assert client.wait_ready(60).daemon_version == "0.1.0"
    late.stop()


def test_waiting_ends_when_the_time_is_over(tmp_path: pathlib.Path) -> None:
    before = time.monotonic()
    with (
        skilljail.Client(f"unix:{tmp_path}/absent.sock") as client,
        pytest.raises(skilljail.DaemonUnavailable, match=r"within 0\.3 seconds; start it with"),
    ):
        client.wait_ready(0.3)
    assert 0.2 < time.monotonic() - before < 30


def remembered(number: int) -> run_pb2.Run:
    run = run_pb2.Run(run_id=f"run-{number}", state=run_pb2.RUN_STATE_FINISHED, labels={"n": str(number)})
    run.create_time.seconds = 1_700_000_000
    run.result.outcome = run_pb2.OUTCOME_SIGNALED
    run.result.signal = 9
    return run


def test_remembered_run_is_typed(fake: FakeDaemon, client: skilljail.Client) -> None:
    fake.runs = [remembered(1)]
    run = client.get_run("run-1")
    assert (run.run_id, run.state, run.labels) == ("run-1", "FINISHED", {"n": "1"})
    assert run.create_time is not None
    assert run.create_time.isoformat() == "2023-11-14T22:13:20+00:00"
    assert (run.start_time, run.policy) == (None, None)
    assert run.result is not None
    assert (run.result.outcome, run.result.signal, run.result.exit_code) == ("SIGNALED", 9, None)
    with pytest.raises(skilljail.RunNotFound, match="there is no run nobody"):
        client.get_run("nobody")


def test_time_out_of_range_does_not_break_the_answer(fake: FakeDaemon, client: skilljail.Client) -> None:
    run = remembered(1)
    run.create_time.seconds = 2**62
    fake.runs = [run]
    created = client.get_run("run-1").create_time
    assert created is not None
    assert created.year == 9999


def test_runs_are_listed_over_all_pages_as_they_are_asked_for(fake: FakeDaemon, client: skilljail.Client) -> None:
    fake.runs = [remembered(number) for number in range(5)]
    listed = client.list_runs(page_size=2)
    assert fake.calls == []
    assert next(listed).run_id == "run-0"
    assert fake.calls == ["ListRuns"]
    assert [one.run_id for one in listed] == ["run-1", "run-2", "run-3", "run-4"]
    assert fake.calls == ["ListRuns"] * 3
    with pytest.raises(skilljail.InvalidRequest, match="page_size"):
        next(client.list_runs(page_size=501))


def page(token: str, *runs: run_pb2.Run) -> script_runner_pb2.ListRunsResponse:
    return script_runner_pb2.ListRunsResponse(runs=runs, next_page_token=token)


@pytest.mark.parametrize(
    ("pages", "seen", "fault"),
    [
        ({"": page("a", remembered(1)), "a": page("a", remembered(1))}, 2, "a page token that it sent before"),
        (
            {"": page("a", remembered(1)), "a": page("b", remembered(2)), "b": page("a", remembered(3))},
            3,
            "a page token that it sent before",
        ),
        ({"": page("a", remembered(1)), "a": page("b")}, 1, "a page without runs that is not the last"),
    ],
)
async def test_list_that_gets_nowhere_is_ended(
    fake: FakeDaemon,
    client: skilljail.Client,
    pages: dict[str, script_runner_pb2.ListRunsResponse],
    seen: int,
    fault: str,
) -> None:
    def serve(token: str) -> script_runner_pb2.ListRunsResponse:
        assert fake.calls.count("ListRuns") < 10
        return pages[token]

    fake.pages = serve
    listed = client.list_runs()
    assert len([next(listed) for _ in range(seen)]) == seen
    with pytest.raises(skilljail.DaemonFault, match=fault):
        next(listed)
    fake.calls.clear()
    async with skilljail.AsyncClient(fake.address) as other:
        following = other.list_runs()
        for _ in range(seen):
            await anext(following)
        with pytest.raises(skilljail.DaemonFault, match=fault):
            await anext(following)


def test_impossible_limits_of_a_remembered_run_are_the_daemons_fault(
    fake: FakeDaemon, client: skilljail.Client
) -> None:
    run = remembered(1)
    run.policy.limits.cpus = float("inf")
    fake.runs = [run]
    with pytest.raises(skilljail.DaemonFault, match=r"limits\.cpus must"):
        client.get_run("run-1")


async def test_asynchronous_client_has_the_same_methods(fake: FakeDaemon) -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(skilljail.AsyncClient) == public(skilljail.Client)
    assert public(skilljail.AsyncRunStream) == public(skilljail.RunStream)
    fake.runs = [remembered(number) for number in range(3)]
    async with skilljail.AsyncClient(fake.address) as client:
        assert (await client.wait_ready(5)) == (await client.capabilities())
        assert [one.run_id async for one in client.list_runs(page_size=2)] == ["run-0", "run-1", "run-2"]
        assert (await client.get_run("run-1")).run_id == "run-1"
        assert (await client.cancel_run("run-2")).state == "FINISHED"
        with pytest.raises(skilljail.RunNotFound):
            await client.get_run("nobody")
    assert fake.cancelled == ["run-2"]
