"""A real agent of the Microsoft Agent Framework runs a script of the example skill in a real sandbox.

The model is a list of prepared answers: no network, no chance.
"""

import importlib.util
import json
import pathlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest
import skilljail
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    SkillsProvider,
)
from harness import EXAMPLE_SKILL, Daemon, MakeSkill
from skilljail.adapters.maf import ScriptRunner

ARGUMENTS = ["--value", "26.2", "--factor", "1.60934"]


def call(name: str, **arguments: object) -> Content:
    """What a model says when it wants a tool."""
    return Content.from_function_call(f"call-{name}", name, arguments=json.dumps(arguments))


class PreparedModel(FunctionInvocationLayer[Any], BaseChatClient[Any]):
    """A chat client that gives its answers one after the other and keeps what it was told."""

    def __init__(self, *answers: Content | str) -> None:
        super().__init__()
        self.answers = list(answers)
        self.seen: list[Sequence[Message]] = []
        self.instructions = ""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **_options: Any
    ) -> Any:
        assert not stream

        async def answer() -> ChatResponse:
            self.seen.append(list(messages))
            self.instructions = str(options.get("instructions"))
            return ChatResponse(messages=[Message("assistant", [self.answers.pop(0)])], response_id="prepared")

        return answer()

    def result_of(self, name: str) -> str:
        """What the model was told that a tool returned."""
        results = [
            content.result
            for message in self.seen[-1]
            for content in message.contents
            if content.type == "function_result" and content.call_id == f"call-{name}"
        ]
        assert len(results) == 1
        return str(results[0])


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """`examples/maf_agent.py`."""
    path = EXAMPLE_SKILL.parents[1] / "maf_agent.py"
    spec = importlib.util.spec_from_file_location("maf_agent", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_approved_script_runs_in_a_sandbox_and_its_output_reaches_the_model(
    daemon: Daemon, example: ModuleType
) -> None:
    model = PreparedModel(
        call("load_skill", skill_name="unit-converter"),
        call("run_skill_script", skill_name="unit-converter", script_name="scripts/convert.py", args=ARGUMENTS),
        "26.2 miles are 42.1647 kilometres.",
    )
    asked: list[tuple[str, Any]] = []

    def approve(name: str, arguments: object) -> bool:
        asked.append((name, json.loads(str(arguments))))
        return True

    results: list[skilljail.RunResult] = []
    async with skilljail.AsyncClient(daemon.address) as client:
        runner = ScriptRunner(client, on_result=results.append)
        answer = await example.ask(example.build_agent(model, runner), "26.2 miles in km?", approve)

    assert answer == "26.2 miles are 42.1647 kilometres."
    assert [name for name, _ in asked] == ["run_skill_script"]
    assert asked[0][1]["args"] == ARGUMENTS
    assert "unit-converter" in model.instructions
    assert "scripts/convert.py" in model.result_of("load_skill")
    assert json.loads(model.result_of("run_skill_script")) == {"value": 26.2, "factor": 1.60934, "result": 42.1647}
    assert [(one.outcome, one.exit_code, one.stderr) for one in results] == [("EXITED", 0, b"")]
    assert results[0].started is not None


async def test_refused_script_does_not_run(daemon: Daemon, example: ModuleType, client: skilljail.Client) -> None:
    model = PreparedModel(
        call("run_skill_script", skill_name="unit-converter", script_name="scripts/convert.py", args=ARGUMENTS),
        "Then I cannot tell.",
    )
    before = [run.run_id for run in client.list_runs()]
    results: list[skilljail.RunResult] = []
    async with skilljail.AsyncClient(daemon.address) as async_client:
        runner = ScriptRunner(async_client, on_result=results.append)
        agent = example.build_agent(model, runner)
        answer = await example.ask(agent, "26.2 miles in km?", lambda *_: False)

    assert answer == "Then I cannot tell."
    assert "42.1647" not in model.result_of("run_skill_script")
    assert results == []
    assert [run.run_id for run in client.list_runs()] == before


async def test_model_sees_what_it_can_mend_and_what_the_host_gives_reaches_the_script(
    daemon: Daemon, make_skill: MakeSkill
) -> None:
    script = "import os, sys\nprint(os.getcwd(), os.environ['TENANT'])\nprint('oops', file=sys.stderr)\nsys.exit(3)\n"
    skill = make_skill({"scripts/tell.py": script})
    named = skill.with_name("test-skill")
    skill.rename(named)
    model = PreparedModel(
        call("run_skill_script", skill_name="test-skill", script_name="scripts/tell.py", args={"value": 1}),
        call("run_skill_script", skill_name="test-skill", script_name="scripts/tell.py"),
        "done",
    )
    texts: list[str] = []
    async with skilljail.AsyncClient(daemon.address) as client:
        agent = _agent(model, named, ScriptRunner(client, env_from_context=("TENANT",)))
        host = {"TENANT": "acme", "TOKEN": "secret"}
        response = await agent.run("go", function_invocation_kwargs=host)
    texts = [
        str(content.result)
        for message in response.messages
        for content in message.contents
        if content.type == "function_result"
    ]
    assert texts[0] == (
        'Error: Script \'scripts/tell.py\' takes its arguments as a list of strings, such as ["--value", "1"]; '
        "got dict."
    )
    directory, _, rest = texts[1].partition(" ")
    assert directory.endswith("/scripts")
    assert rest == "acme\n\nStderr:\noops\n\nScript exited with code 3"


def _agent(model: PreparedModel, skill: pathlib.Path, runner: ScriptRunner) -> Any:
    provider = SkillsProvider.from_paths(skill.parent, script_runner=runner, disable_run_skill_script_approval=True)
    return Agent(model, context_providers=[provider])
