"""The script runner of the Microsoft Agent Framework: arguments in, text out."""

import asyncio
import importlib
import logging
import pathlib
import sys
from typing import Any

import grpc
import pytest
import skilljail
from agent_framework import FileSkill, FileSkillScript, FunctionInvocationContext, FunctionTool, SkillFrontmatter
from skilljail.adapters.maf import ScriptRunner
from skilljail.v1 import run_pb2

from .fake_daemon import FakeDaemon, Refusal, events, finished, output, queued, started
from .test_stream import endless


async def run(
    fake: FakeDaemon, skill: pathlib.Path, args: Any = None, *, script: str = "scripts/run.py", **options: Any
) -> str:
    context = options.pop("context", None)
    file_skill = FileSkill(frontmatter=SkillFrontmatter(name="demo", description="Demo."), content="", path=str(skill))
    file_script = FileSkillScript(name=script, full_path=str(skill / script))
    async with skilljail.AsyncClient(fake.address) as client:
        return await ScriptRunner(client, **options)(file_skill, file_script, args, context=context)


@pytest.mark.parametrize(
    ("stdout", "stderr", "exit_code", "text"),
    [
        (b"out\n", b"", 0, "out"),
        (b"  out\n", b"err\n", 0, "out\n\nStderr:\nerr"),
        (b"", b"warning\n", 0, "Stderr:\nwarning"),
        (b"", b"", 0, "(no output)"),
        (b"\n", b"", 0, "(no output)"),
        (b"out\n", b"err\n", 3, "out\n\nStderr:\nerr\n\nScript exited with code 3"),
        (b"", b"", 1, "Script exited with code 1"),
        (b"\xff", b"", 0, "\ufffd"),
    ],
)
async def test_text_is_that_of_the_frameworks_sample_runner(
    fake: FakeDaemon, skill: pathlib.Path, stdout: bytes, stderr: bytes, exit_code: int, text: str
) -> None:
    fake.script = lambda *_: events(stdout, stderr, exit_code=exit_code)
    assert await run(fake, skill) == text


@pytest.mark.parametrize(
    ("outcome", "exit_code", "message", "text"),
    [
        ("WALL_TIMEOUT", None, "", "Error: Script 'scripts/run.py' timed out after 30 seconds.\nso far"),
        (
            "OOM_KILLED",
            None,
            "The script used more than 256 MiB.",
            "Error: Script 'scripts/run.py' was stopped (OOM_KILLED): The script used more than 256 MiB.\nso far",
        ),
        (
            "DISK_LIMIT",
            1,
            "The work directory was full.",
            "Error: Script 'scripts/run.py' was stopped (DISK_LIMIT): The work directory was full.\nso far\n"
            "Script exited with code 1",
        ),
        ("SIGNALED", None, "", "Error: Script 'scripts/run.py' was ended by signal 11.\nso far"),
        (
            "SANDBOX_ERROR",
            None,
            "",
            "Error: Script 'scripts/run.py' was stopped (SANDBOX_ERROR): no reason was given\nso far",
        ),
    ],
)
async def test_what_did_not_end_by_itself_says_so_and_keeps_the_output(
    fake: FakeDaemon, skill: pathlib.Path, outcome: str, exit_code: int | None, message: str, text: str
) -> None:
    fake.script = lambda *_: [
        queued(),
        started(),
        output(b"so far", 0),
        finished(
            run_pb2.Outcome.Value(f"OUTCOME_{outcome}"),
            exit_code,
            stdout_bytes=6,
            message=message,
            signal=11 if outcome == "SIGNALED" else None,
        ),
    ]
    assert await run(fake, skill) == text


async def test_cut_output_is_told(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = lambda *_: [
        queued(),
        started(),
        output(b"so far", 0),
        finished(stdout_bytes=6, output_truncated=True),
    ]
    assert await run(fake, skill) == "so far\n(The output was cut at the limit.)"


@pytest.mark.parametrize(("args", "argv"), [(None, []), ([], []), (["a b", "", "$(id)"], ["a b", "", "$(id)"])])
async def test_list_of_strings_becomes_argv(
    fake: FakeDaemon, skill: pathlib.Path, args: list[str] | None, argv: list[str]
) -> None:
    assert await run(fake, skill, args) == "(no output)"
    assert list(fake.requests[-1].argv) == argv


@pytest.mark.parametrize(
    ("args", "got"),
    [
        ({"value": 1}, "got dict."),
        ("--value 1", "got str."),
        (["a", 1], "got int at position 1."),
        ([["a"]], "got list at position 0."),
        ((), "got tuple."),
    ],
)
async def test_other_arguments_are_refused_with_a_text_that_names_the_type(
    fake: FakeDaemon, skill: pathlib.Path, args: Any, got: str
) -> None:
    text = await run(fake, skill, args)
    assert text == (
        'Error: Script \'scripts/run.py\' takes its arguments as a list of strings, such as ["--value", "1"]; ' + got
    )
    assert fake.calls == []


async def test_script_starts_in_its_own_directory_or_in_the_skill(fake: FakeDaemon, skill: pathlib.Path) -> None:
    await run(fake, skill)
    assert fake.requests[-1].working_directory == "scripts"
    (skill / "run.py").touch()
    await run(fake, skill, script="run.py")
    assert fake.requests[-1].working_directory == ""
    await run(fake, skill, start_in="skill")
    assert fake.requests[-1].working_directory == ""


async def test_network_is_the_hosts_choice_for_every_script(fake: FakeDaemon, skill: pathlib.Path) -> None:
    await run(fake, skill, network="allowlist", allowed_hosts=["a.com"])
    assert (fake.requests[-1].network, list(fake.requests[-1].allowed_hosts)) == (2, ["a.com"])
    await run(fake, skill)
    assert (fake.requests[-1].network, list(fake.requests[-1].allowed_hosts)) == (0, [])
    with pytest.raises(skilljail.InvalidRequest, match="allowed_hosts must be a list of names, got str"):
        await run(fake, skill, network="allowlist", allowed_hosts="a.com")


async def test_only_named_values_of_the_host_become_variables(fake: FakeDaemon, skill: pathlib.Path) -> None:
    context = FunctionInvocationContext(
        FunctionTool(name="t", description="t", func=lambda: None), {}, kwargs={"TENANT": "acme", "TOKEN": "secret"}
    )
    options: dict[str, Any] = {"env": {"A": "1", "TENANT": "nobody"}, "env_from_context": ("TENANT", "ABSENT")}
    await run(fake, skill, context=context, **options)
    assert dict(fake.requests[-1].env) == {"A": "1", "TENANT": "acme"}
    await run(fake, skill, **options)
    assert dict(fake.requests[-1].env) == {"A": "1", "TENANT": "nobody"}
    context.kwargs["TENANT"] = 7
    with pytest.raises(TypeError, match=r"function_invocation_kwargs\['TENANT'\] must be str, got int"):
        await run(fake, skill, context=context, **options)


async def test_missing_script_and_wrong_request_are_texts(fake: FakeDaemon, skill: pathlib.Path) -> None:
    def refuse(*_: object) -> None:
        raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "SCRIPT_NOT_FOUND", "no")

    fake.script = refuse  # type: ignore[assignment]
    for raises in (False, True):
        text = await run(fake, skill, raise_on_unavailable=raises)
        assert text == "Error: Script file not found: scripts/run.py"
        text = await run(fake, skill, ["\0"], raise_on_unavailable=raises)
        assert text.startswith("Error: Failed to execute script 'scripts/run.py': argv[0] holds a NUL")


async def test_where_the_skill_lies_is_not_told(fake: FakeDaemon, skill: pathlib.Path) -> None:
    (skill / "x").symlink_to("/etc/passwd")
    assert await run(fake, skill) == (
        "Error: Failed to execute script 'scripts/run.py': 'x' of the skill folder '<demo>' is a link that leads out "
        "of the skill folder; put a copy of its target in its place"
    )


async def test_absent_daemon_is_a_text_or_an_exception_as_the_host_wants(
    skill: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = FakeDaemon("unix:/nowhere/s.sock")
    with caplog.at_level(logging.WARNING, "skilljail"):
        text = await run(nobody, skill)
    assert text == "Error: The sandbox that runs scripts is not available right now. Do not retry; tell the user."
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("skilljail", "WARNING")
    assert record.getMessage().startswith(
        "script 'scripts/run.py' of skill 'demo' could not run: no skilljail daemon answers at unix:/nowhere/s.sock ("
    )
    caplog.clear()
    with pytest.raises(skilljail.DaemonUnavailable):
        await run(nobody, skill, raise_on_unavailable=True)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("QUEUE_FULL", "Error: The sandbox that runs scripts is busy right now. Try again later."),
        (
            "INTERPRETER_UNAVAILABLE",
            "Error: The sandbox has nothing that can run script 'scripts/run.py'. Do not retry; tell the user.",
        ),
        (
            "INTERNAL",
            "Error: The sandbox that runs scripts is not available right now. Do not retry; tell the user.",
        ),
    ],
)
async def test_what_only_an_operator_can_mend_is_logged_and_not_told_to_the_model(
    fake: FakeDaemon, skill: pathlib.Path, caplog: pytest.LogCaptureFixture, reason: str, text: str
) -> None:
    def refuse(*_: object) -> None:
        raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, reason, "see /var/log; run `skilljaild images build`")

    fake.script = refuse  # type: ignore[assignment]
    assert await run(fake, skill) == text
    assert [one.getMessage() for one in caplog.records] == [
        "script 'scripts/run.py' of skill 'demo' could not run: see /var/log; run `skilljaild images build`"
    ]


async def test_lost_stream_is_told_without_saying_where(
    fake: FakeDaemon, skill: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake.script = lambda *_: [queued(), started()]
    assert await run(fake, skill) == (
        "Error: The sandbox was lost while script 'scripts/run.py' ran, and how far it came is not known. "
        "Do not retry; tell the user."
    )
    assert len(caplog.records) == 1


async def test_wrong_address_of_the_host_is_not_told_to_the_model(
    skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKILLJAIL_ADDRESS", "secret host")
    script = FileSkillScript(name="scripts/run.py", full_path=str(skill / "scripts" / "run.py"))
    demo = FileSkill(frontmatter=SkillFrontmatter(name="demo", description="Demo."), content="", path=str(skill))
    async with ScriptRunner() as runner:
        assert await runner(demo, script) == (
            "Error: The sandbox that runs scripts is not available right now. Do not retry; tell the user."
        )
    with pytest.raises(skilljail.InvalidAddress):
        await ScriptRunner(raise_on_unavailable=True)(demo, script)


async def test_result_goes_to_the_host(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = lambda *_: events(b"out", artifacts={"a": b"b"})
    results: list[skilljail.RunResult] = []

    async def keep(result: skilljail.RunResult) -> None:
        await asyncio.sleep(0)
        results.append(result)

    limits = skilljail.Limits(wall_seconds=5)
    assert await run(fake, skill, artifacts=["a"], on_result=keep, limits=limits) == "out"
    assert await run(fake, skill, on_result=results.append) == "out"
    assert [one.artifacts[0].content for one in results] == [b"b", b"b"]
    assert (list(fake.requests[0].artifact_patterns), fake.requests[0].limits.wall_time.seconds) == (["a"], 5)


async def test_cancelled_agent_kills_the_run(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = endless
    task = asyncio.create_task(run(fake, skill))
    await asyncio.to_thread(fake.running.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(fake.dropped.wait, 30)


def test_runner_without_a_client_finds_the_daemon_in_every_loop(
    fake: FakeDaemon, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKILLJAIL_ADDRESS", fake.address)
    runner = ScriptRunner()
    file_skill = FileSkill(frontmatter=SkillFrontmatter(name="demo", description="Demo."), content="", path=str(skill))
    script = FileSkillScript(name="scripts/run.py", full_path=str(skill / "scripts" / "run.py"), runner=runner)

    async def once() -> str:
        async with runner:
            return str(await script.run(file_skill, ["x"]))

    assert asyncio.run(once()) == "(no output)"
    assert asyncio.run(once()) == "(no output)"


def test_absent_framework_is_named_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agent_framework", None)
    monkeypatch.delitem(sys.modules, "skilljail.adapters.maf")
    with pytest.raises(ImportError) as caught:
        importlib.import_module("skilljail.adapters.maf")
    assert str(caught.value) == (
        "skilljail.adapters.maf needs the package agent-framework-core; install it with `pip install 'skilljail[maf]'` "
        "(in a checkout: `pip install '.[maf]'`)"
    )
