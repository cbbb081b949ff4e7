"""Microsoft Agent Framework, asked as a model asks it: with the name of a tool and JSON."""

import pathlib
from collections.abc import Mapping
from typing import Any, cast

from agent_framework import AgentSession, FunctionInvocationContext, FunctionTool, SessionContext, SkillsProvider
from skilljail.adapters.maf import ScriptRunner

__all__ = ["Framework"]

EXTENSIONS = (".py", ".js", ".sh", ".ps1")


class Framework:
    """A skills provider over some folders of skills, with the tools that it gives to an agent."""

    def __init__(self, tools: list[FunctionTool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    @classmethod
    async def over(cls, runner: ScriptRunner, *folders: pathlib.Path) -> "Framework":
        """Discovers the skills, as an agent does before it runs."""
        provider = SkillsProvider.from_paths(list(folders), script_runner=runner, script_extensions=EXTENSIONS)
        context = SessionContext(input_messages=[])
        nobody = cast("Any", None)  # the provider has no use for the agent
        await provider.before_run(agent=nobody, session=AgentSession(), context=context, state={})
        return cls(context.tools)

    @property
    def has_skills(self) -> bool:
        """Whether any skill was discovered."""
        return bool(self._tools)

    async def run_skill_script(
        self, skill_name: str, script_name: str, args: object = None, *, context: Mapping[str, Any] | None = None
    ) -> str:
        """What the model gets to see. Raises what the framework would turn into "Function failed.".

        `context`: what the host passes to `agent.run` as `function_invocation_kwargs`.
        """
        tool = self._tools["run_skill_script"]
        arguments = {"skill_name": skill_name, "script_name": script_name, "args": args}
        invocation = FunctionInvocationContext(tool, arguments, kwargs=context)
        contents = await tool.invoke(arguments=arguments, context=invocation)
        assert [one.type for one in contents] == ["text"]
        return str(contents[0].text)
