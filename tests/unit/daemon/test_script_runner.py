"""The service on a socket, over an engine in memory."""

import asyncio
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from skilljail.v1 import limits_pb2, posture_pb2, run_pb2, script_runner_pb2
from skilljail_init.frames import FrameType
from skilljaild.engines.base import EngineError, EngineUnavailable, Image
from skilljaild.errors import Reason, Refusal
from skilljaild.runs.level import IsolationLevel
from skilljaild.service import script_runner as module
from skilljaild.service.convert import limits_message

from .fake_engine import EXITED, Box, FakeEngine, serve_script
from .fake_service import Service, reason_of, serving
from .orders import SKILL_MD

HELLO = (FrameType.STDOUT, b"hello\n")
EXIT = (FrameType.EXIT, EXITED)
DONE = (FrameType.DONE, b"")


def request(**fields: Any) -> script_runner_pb2.RunScriptRequest:
    """A request for `run.py` of a skill that comes inline."""
    message = script_runner_pb2.RunScriptRequest(
        script_path="run.py",
        files=[
            script_runner_pb2.InputFile(path="SKILL.md", content=SKILL_MD),
            script_runner_pb2.InputFile(path="run.py", content=b"print('hello')\n"),
        ],
    )
    message.MergeFrom(script_runner_pb2.RunScriptRequest(**fields))
    return message


@pytest.fixture
async def service(tmp_path: pathlib.Path) -> AsyncIterator[Service]:
    """A daemon for two runs at a time, one waiting."""
    async with serving(tmp_path, admission={"concurrent_runs": 2, "queued_runs": 1}) as one:
        yield one


async def events(service: Service, **fields: Any) -> list[run_pb2.RunEvent]:
    """All events of a run."""
    return [answer.event async for answer in service.runner.RunScript(request(**fields), timeout=60)]


def kinds(some: list[run_pb2.RunEvent]) -> list[str | None]:
    """What happened."""
    return [event.WhichOneof("event") for event in some]


async def rest(call: Any) -> list[run_pb2.RunEvent]:
    """The events that are left of a call."""
    found = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        found.append(answer.event)
    return found


async def failure(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Code, reason and metadata of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return reason_of(caught.value)


async def get(service: Service, run_id: str) -> run_pb2.Run:
    """What the daemon remembers of a run."""
    answer = await service.runner.GetRun(script_runner_pb2.GetRunRequest(run_id=run_id))
    run: run_pb2.Run = answer.run
    return run


async def started(service: Service, **fields: Any) -> tuple[Any, str]:
    """A call whose script runs and goes on, and the run's id."""
    service.engine.init = serve_script(HELLO)
    call = service.runner.RunScript(request(**fields), timeout=60)
    while (event := (await call.read()).event).WhichOneof("event") != "output":
        pass
    return call, event.run_id


async def test_a_run_streams_its_events_numbered_and_is_remembered(service: Service) -> None:
    service.engine.init = serve_script(HELLO, EXIT, DONE)
    found = await events(service, request_id="r1", labels={"a": "b"})
    assert kinds(found) == ["queued", "started", "output", "finished"]
    assert [event.sequence for event in found] == [1, 2, 3, 4]
    (run_id,) = {event.run_id for event in found}
    result = found[-1].finished.result
    assert (result.outcome, result.exit_code) == (run_pb2.OUTCOME_EXITED, 0)
    assert found[1].started.isolation.runtime == "runc"
    run = await get(service, run_id)
    assert (run.state, run.request_id, run.result) == (run_pb2.RUN_STATE_FINISHED, "r1", result)
    assert dict(run.labels) == {"a": "b"}


async def test_a_run_that_could_not_start_ends_the_call_with_an_error_and_no_result(service: Service) -> None:
    service.engine.faults["create"] = EngineUnavailable("away")
    assert (await failure(events(service, request_id="r1")))[:2] == (
        grpc.StatusCode.UNAVAILABLE,
        "ENGINE_UNAVAILABLE",
    )
    (run,) = (await service.runner.ListRuns(script_runner_pb2.ListRunsRequest())).runs
    assert run.result.outcome == run_pb2.OUTCOME_SANDBOX_ERROR
    assert not run.result.HasField("exit_code")


async def test_a_request_that_is_wrong_starts_nothing(service: Service) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"script_path": "../x"}, "PATH_INVALID"),
        ({"script_path": "x.py"}, "SCRIPT_NOT_FOUND"),
        ({"argv": ["\0"]}, "ARGUMENT_INVALID"),
        ({"env": {"1": "x"}}, "ENVIRONMENT_INVALID"),
        ({"limits": limits_pb2.Limits(pids=-1)}, "LIMIT_INVALID"),
        ({"limits": limits_pb2.Limits(pids=10**6)}, "LIMIT_ABOVE_CEILING"),
        ({"interpreter": "ruby"}, "INTERPRETER_UNKNOWN"),
        ({"bundle_digest": "x"}, "REQUEST_INVALID"),
    ]
    for fields, reason in wrong:
        message = request()
        message.script_path = fields.pop("script_path", message.script_path)
        message.MergeFrom(script_runner_pb2.RunScriptRequest(**fields))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.runner.RunScript(message).read()
        assert reason_of(caught.value)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert await failure(events(service, bundle_digest="sha256:" + "0" * 64)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "BUNDLE_MISSING",
        {},
    )
    assert service.engine.calls == []
    assert not (await service.runner.ListRuns(script_runner_pb2.ListRunsRequest())).runs


async def test_a_request_id_runs_once_and_the_second_call_learns_which_run_it_was(service: Service) -> None:
    (run_id,) = {event.run_id for event in await events(service, request_id="r1")}
    assert await failure(events(service, request_id="r1")) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "REQUEST_ID_IN_USE",
        {"run_id": run_id},
    )
    assert service.engine.calls.count("create") == 1


async def test_a_full_queue_is_told_and_the_waiting_run_goes_when_there_is_room(service: Service) -> None:
    first, _ = await started(service)
    second, _ = await started(service)
    waiting = service.runner.RunScript(request(), timeout=60)
    assert (await waiting.read()).event.queued.position == 1
    assert (await failure(events(service)))[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    service.engine.init = FakeEngine().init
    first.cancel()
    assert kinds(await rest(waiting)) == ["started", "finished"]
    second.cancel()


async def test_a_caller_that_cancels_ends_its_run_and_its_sandbox(service: Service) -> None:
    call, run_id = await started(service)
    call.cancel()
    async with asyncio.timeout(30):
        while (await get(service, run_id)).state != run_pb2.RUN_STATE_FINISHED:
            await asyncio.sleep(0.01)
    result = (await get(service, run_id)).result
    assert (result.outcome, result.usage.stdout_bytes) == (run_pb2.OUTCOME_CLIENT_DISCONNECTED, 6)
    assert service.engine.live == {}


async def test_cancel_run_ends_it_for_whoever_listens_and_returns_when_its_sandbox_is_gone(service: Service) -> None:
    call, run_id = await started(service)
    answer = await service.runner.CancelRun(script_runner_pb2.CancelRunRequest(run_id=run_id))
    assert service.engine.live == {}
    assert answer.run.state == run_pb2.RUN_STATE_FINISHED
    assert answer.run.result.outcome == run_pb2.OUTCOME_CANCELLED
    assert [event.finished.result for event in await rest(call)] == [answer.run.result]
    # A second time changes nothing.
    again = await service.runner.CancelRun(script_runner_pb2.CancelRunRequest(run_id=run_id))
    assert again.run == answer.run


async def test_a_run_that_is_not_there_is_not_found(service: Service) -> None:
    for call in (
        service.runner.GetRun(script_runner_pb2.GetRunRequest(run_id="x")),
        service.runner.GetRun(script_runner_pb2.GetRunRequest()),
        service.runner.CancelRun(script_runner_pb2.CancelRunRequest(run_id="f" * 32)),
    ):
        assert (await failure(call))[:2] == (grpc.StatusCode.NOT_FOUND, "RUN_NOT_FOUND")


async def test_a_silent_run_sends_heartbeats(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.05)

    async def silence(_: Box) -> None:
        await asyncio.sleep(1)

    service.engine.init = serve_script(EXIT, DONE, hook=silence)
    found = await events(service)
    assert kinds(found)[:3] == ["queued", "started", "heartbeat"]
    assert kinds(found)[-1] == "finished"
    assert [event.sequence for event in found] == list(range(1, len(found) + 1))


async def test_runs_are_listed_in_pages_newest_first(service: Service) -> None:
    ids = [(await events(service))[0].run_id for _ in range(5)]

    async def page(size: int, token: str = "") -> tuple[list[str], str]:
        answer = await service.runner.ListRuns(script_runner_pb2.ListRunsRequest(page_size=size, page_token=token))
        return [run.run_id for run in answer.runs], answer.next_page_token

    first, token = await page(2)
    second, token = await page(2, token)
    third, token = await page(2, token)
    assert (first + second + third, token) == (ids[::-1], "")
    assert await page(0) == await page(10_000) == (ids[::-1], "")
    assert (await failure(page(2, "nonsense")))[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID")
    assert (await failure(page(-1)))[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_INVALID")


async def test_capabilities_tell_what_there_is_and_where_its_bounds_are(service: Service) -> None:
    images = service.config.images
    python = Image(images.python, "sha256:" + "a" * 64, {"io.skilljail.interpreter-version": "3.13.5"})
    service.engine.images = {images.python: python}
    answer = await service.runner.GetCapabilities(script_runner_pb2.GetCapabilitiesRequest())
    assert [(one.name, one.available, one.version) for one in answer.interpreters] == [
        ("python", True, "3.13.5"),
        ("node", False, ""),
        ("bash", False, ""),
        ("pwsh", False, ""),
    ]
    node = answer.interpreters[1]
    assert node.unavailable_reason == (
        f"there is no image {images.node} on the engine; build it with `skilljail images build node`"
    )
    assert list(node.suffixes) == [".js", ".mjs", ".cjs"]
    assert answer.default_limits == limits_message(service.config.limits.default.limits())
    assert answer.limit_ceilings == limits_message(service.config.limits.ceiling.limits())
    assert (answer.concurrent_runs_max, answer.queued_runs_max) == (2, 1)
    assert (answer.engine.name, answer.engine.version, list(answer.engine.warnings)) == (
        "docker",
        "Docker 29.7.0",
        ["no LSM: load one"],
    )
    # What the daemon tells as its ceilings can be asked for.
    ceilings = answer.limit_ceilings
    assert kinds(await events(service, limits=ceilings))[-1] == "finished"


async def test_an_interpreter_without_an_image_is_unavailable_with_the_mend(service: Service) -> None:
    service.engine.images = {}
    assert await failure(events(service)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "INTERPRETER_UNAVAILABLE",
        {"interpreter": "python"},
    )
    assert "create" not in service.engine.calls


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(EngineUnavailable("away"), "ENGINE_UNAVAILABLE"), (EngineError("invalid reference"), "INTERPRETER_UNAVAILABLE")],
)
async def test_an_engine_that_cannot_look_an_image_up_is_told(service: Service, fault: Exception, reason: str) -> None:
    service.engine.faults["image"] = fault
    assert (await failure(events(service)))[1] == reason


async def test_an_image_is_looked_up_once_for_runs_that_follow_each_other(service: Service) -> None:
    for _ in range(3):
        await events(service)
    assert service.engine.calls.count("image") == 1


async def test_a_daemon_that_is_stopped_takes_no_more_and_ends_what_goes(service: Service) -> None:
    call, run_id = await started(service)
    await service.registry.close(0)
    assert [event.finished.result.outcome for event in await rest(call)] == [run_pb2.OUTCOME_SHUTDOWN]
    assert (await failure(events(service)))[:2] == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    assert (await get(service, run_id)).result.outcome == run_pb2.OUTCOME_SHUTDOWN


async def test_a_message_above_every_bound_is_refused_by_the_server(service: Service) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events(service, stdin=bytes(10 * 1024 * 1024))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_capabilities_tell_the_level_and_which_images_failed_their_self_test(service: Service) -> None:
    service.gate.level = IsolationLevel.GVISOR
    service.gate.faults["sha256:" + "a" * 64] = "in its sandbox this does not hold: x"
    answer = await service.runner.GetCapabilities(script_runner_pb2.GetCapabilitiesRequest())
    assert answer.engine.isolation_level == posture_pb2.ISOLATION_LEVEL_GVISOR
    assert {(one.available, one.unavailable_reason) for one in answer.interpreters} == {
        (False, "in its sandbox this does not hold: x")
    }
    service.gate.level = None
    service.gate.faults.clear()
    answer = await service.runner.GetCapabilities(script_runner_pb2.GetCapabilitiesRequest())
    assert answer.engine.isolation_level == posture_pb2.ISOLATION_LEVEL_UNSPECIFIED
    assert all(one.available for one in answer.interpreters)


async def test_an_image_that_failed_its_self_test_ends_the_call_with_an_error(service: Service) -> None:
    service.gate.refusal = Refusal(Reason.ISOLATION_POSTURE, "it does not hold; mend it", interpreter="python")
    assert await failure(events(service)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "ISOLATION_POSTURE",
        {"interpreter": "python"},
    )
    assert service.engine.specs == []
