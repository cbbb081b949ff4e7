"""An agent of the Microsoft Agent Framework whose skill scripts run in skilljail.

    pip install 'skilljail[maf]' agent-framework-openai     # in a checkout: pip install '.[maf]' agent-framework-openai
    skilljaild serve &
    OPENAI_API_KEY=… OPENAI_MODEL=… python examples/maf_agent.py "How many kilometres are 26.2 miles?"

The model may ask to run a script of a skill in `examples/skills`. You are asked before anything runs; what then runs,
runs in a sandbox without a network, and its output goes back to the model.
"""

import asyncio
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from agent_framework import Agent, Content, Message, SkillsProvider
from skilljail import Limits
from skilljail.adapters.maf import ScriptRunner

SKILLS = pathlib.Path(__file__).parent / "skills"

Approve = Callable[[str, object], bool]


def build_agent(chat_client: Any, runner: ScriptRunner) -> Agent[Any]:
    """An agent with the example skills. Reading a skill needs no approval; running a script does."""
    provider = SkillsProvider.from_paths(
        SKILLS,
        script_runner=runner,
        script_extensions=(".py", ".js", ".sh", ".ps1"),
        disable_load_skill_approval=True,
        disable_read_skill_resource_approval=True,
    )
    return Agent(
        chat_client,
        instructions="Answer with the help of your skills. Never calculate yourself.",
        context_providers=[provider],
    )


async def ask(agent: Agent[Any], question: str, approve: Approve) -> str:
    """The agent's answer. `approve` is asked for each script, with the tool's name and its arguments."""
    session = agent.create_session()
    response = await agent.run(question, session=session)
    while response.user_input_requests:
        answers: list[Content] = []
        for request in response.user_input_requests:
            call = request.function_call
            approved = call is not None and approve(str(call.name), call.arguments)
            answers.append(request.to_function_approval_response(approved))
        response = await agent.run(Message("user", answers), session=session)
    return response.text


def approve_at_the_terminal(name: str, arguments: object) -> bool:
    """Shows what the model wants and asks."""
    return input(f"{name} {arguments!r}\nRun it? [y/N] ").strip().lower() == "y"


async def main() -> None:
    """Asks the question of the command line."""
    from agent_framework.openai import OpenAIChatClient  # noqa: PLC0415  # the rest works with any chat client

    question = " ".join(sys.argv[1:]) or "How many kilometres are 26.2 miles?"
    async with ScriptRunner(limits=Limits(wall_seconds=30, memory_bytes=256 * 1024 * 1024)) as runner:
        print(await ask(build_agent(OpenAIChatClient(), runner), question, approve_at_the_terminal))


if __name__ == "__main__":
    asyncio.run(main())
