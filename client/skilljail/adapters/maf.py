"""Microsoft Agent Framework: `ScriptRunner` is the `script_runner` of a `SkillsProvider`.

from agent_framework import SkillsProvider
from skilljail.adapters.maf import ScriptRunner

provider = SkillsProvider.from_paths(
    "skills", script_runner=ScriptRunner(), script_extensions=(".py", ".js", ".sh", ".ps1")
)

It needs `pip install 'skilljail[maf]'` (in a checkout: `pip install '.[maf]'`). What the model cannot mend is told to
the model in general words; the logger `skilljail` gets the error itself.
"""

import inspect
import logging
import os
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Self

from skilljail import (
    AsyncClient,
    InterpreterUnavailable,
    InvalidAddress,
    InvalidRequest,
    Limits,
    Network,
    Outcome,
    QueueFull,
    RunResult,
    ScriptNotFound,
    SecretNotGranted,
    SecretUnavailable,
    SkilljailError,
    StreamBroken,
)

try:
    from agent_framework import FileSkill, FileSkillScript, FunctionInvocationContext
except ImportError as error:
    raise ImportError(
        "skilljail.adapters.maf needs the package agent-framework-core; install it with `pip install 'skilljail[maf]'` "
        "(in a checkout: `pip install '.[maf]'`)"
    ) from error

__all__ = ["ScriptRunner"]

_LOG = logging.getLogger("skilljail")

ResultHook = Callable[[RunResult], Awaitable[None] | None]


class ScriptRunner:
    """Runs the scripts of file skills on a skilljail daemon.

    Every end of a run is returned as text, formatted as the framework's own sample runner does it, so that a model
    sees the same with and without skilljail: an exception would reach the model as "Function failed." and nothing
    else. One runner may serve many agents and event loops.
    """

    def __init__(
        self,
        client: AsyncClient | None = None,
        *,
        limits: Limits | None = None,
        network: Network | Literal["none", "allowlist", "open"] | None = None,
        allowed_hosts: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        env_from_context: Sequence[str] = (),
        artifacts: Sequence[str] = (),
        start_in: Literal["script", "skill"] = "script",
        secrets: Mapping[str, Sequence[str]] | None = None,
        mask_secrets: bool = False,
        on_result: ResultHook | None = None,
        raise_on_unavailable: bool = False,
    ) -> None:
        """
        `client`: None makes an `AsyncClient()` with the first script.
        `limits`: what to ask for; None takes the operator's defaults.
        `network`, `allowed_hosts`: what every script may reach, of what the operator grants; None is nothing.
        `env`: variables of every run.
        `env_from_context`: names of variables that the host gives per call, with
        `agent.run(…, function_invocation_kwargs={"NAME": "value"})`; they win over `env`. No other value of the host
        and nothing that the model says becomes a variable.
        `artifacts`: glob patterns of files to bring back; `on_result` gets them.
        `start_in`: the directory to start in, the script's own or the skill root.
        `secrets`: by name of a skill, the names of the secrets that its scripts get; the operator must have granted
        them. Neither `env` nor `env_from_context` goes to these skills: a run with secrets takes no other variables.
        `mask_secrets`: put `***` in place of the secrets' values in what the model sees; helps against accidents only.
        `on_result`: gets the RunResult of every run before its text is returned; may be a coroutine function.
        `raise_on_unavailable`: raise what the model cannot mend (daemon not there, no sandbox, a broken stream)
        instead of logging it as a warning and telling the model in general words, without addresses and commands.
        """
        for name, names in (("env_from_context", env_from_context), ("allowed_hosts", allowed_hosts)):
            if isinstance(names, str):
                raise InvalidRequest(f"{name} must be a list of names, got str")
        for name, names in (secrets or {}).items():
            if isinstance(names, str):
                raise InvalidRequest(f"secrets['{name}'] must be a list of names, got str")
        self._client = client
        self._owns_client = client is None
        self._limits = limits
        self._network = network
        self._allowed_hosts = tuple(allowed_hosts)
        self._env = dict(env or {})
        self._env_from_context = tuple(env_from_context)
        self._artifacts = tuple(artifacts)
        self._start_in = start_in
        self._secrets = {name: tuple(names) for name, names in (secrets or {}).items()}
        self._mask_secrets = mask_secrets
        self._on_result = on_result
        self._raise_on_unavailable = raise_on_unavailable

    async def __call__(
        self,
        skill: FileSkill,
        script: FileSkillScript,
        args: dict[str, Any] | list[str] | None = None,
        *,
        context: FunctionInvocationContext | None = None,
    ) -> str:
        """Runs `script` of `skill` with `args` and returns what happened, as text for the model.

        Raises TypeError for a variable of the host that is no text, and with `raise_on_unavailable` the errors named
        there.
        """
        fault = _arguments_fault(args)
        if fault is not None:
            return f"Error: Script '{script.name}' {fault}"
        try:
            result = await self._run(skill, script, args, context)
        except ScriptNotFound:
            return f"Error: Script file not found: {script.name}"
        except SkilljailError as error:
            if not isinstance(error, InvalidRequest) or isinstance(error, InvalidAddress):
                if self._raise_on_unavailable:
                    raise
                _LOG.warning("script %r of skill %r could not run: %s", script.name, skill.frontmatter.name, error)
                return _unavailable_text(script.name, error)
            return _without_host_path(f"Error: Failed to execute script '{script.name}': {error}", skill)
        if self._on_result is not None:
            hooked = self._on_result(result)
            if inspect.isawaitable(hooked):
                await hooked
        return _text(script.name, result)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the client if this runner made it; one that was given is its owner's."""
        if self._owns_client and self._client is not None:
            await self._client.close()

    async def _run(
        self,
        skill: FileSkill,
        script: FileSkillScript,
        args: dict[str, Any] | list[str] | None,
        context: FunctionInvocationContext | None,
    ) -> RunResult:
        if self._client is None:
            self._client = AsyncClient()
        secrets = self._secrets.get(skill.frontmatter.name, ())
        return await self._client.run(
            skill.path,
            script.name,
            args if isinstance(args, list) else (),
            env={} if secrets else {**self._env, **self._context_env(context)},
            working_directory=posixpath.dirname(script.name) if self._start_in == "script" else "",
            limits=self._limits,
            network=self._network,
            allowed_hosts=self._allowed_hosts,
            artifacts=self._artifacts,
            secrets=secrets,
            mask_secrets=self._mask_secrets,
        )

    def _context_env(self, context: FunctionInvocationContext | None) -> dict[str, str]:
        given = context.kwargs if context is not None else {}
        chosen = {name: given[name] for name in self._env_from_context if given.get(name) is not None}
        for name, value in chosen.items():
            if not isinstance(value, str):
                # The value may be a secret: the message names it only.
                raise TypeError(f"function_invocation_kwargs['{name}'] must be str, got {type(value).__name__}")
        return chosen


def _arguments_fault(args: object) -> str | None:
    """What is wrong with the arguments of a model, with the mend. Schemas are not enforced on the way here."""
    wanted = 'takes its arguments as a list of strings, such as ["--value", "1"]'
    if args is None:
        return None
    if not isinstance(args, list):
        return f"{wanted}; got {type(args).__name__}."
    for index, one in enumerate(args):
        if not isinstance(one, str):
            return f"{wanted}; got {type(one).__name__} at position {index}."
    return None


def _unavailable_text(name: str, error: SkilljailError) -> str:
    """What a model may know of a fault that only the host can mend: what to do, and nothing of the host."""
    match error:
        case QueueFull():
            return "Error: The sandbox that runs scripts is busy right now. Try again later."
        case InterpreterUnavailable():
            return f"Error: The sandbox has nothing that can run script '{name}'. Do not retry; tell the user."
        case SecretNotGranted() | SecretUnavailable():
            return f"Error: Script '{name}' lacks a secret that it needs to run. Do not retry; tell the user."
        case StreamBroken():
            return (
                f"Error: The sandbox was lost while script '{name}' ran, and how far it came is not known. "
                "Do not retry; tell the user."
            )
        case _:
            return "Error: The sandbox that runs scripts is not available right now. Do not retry; tell the user."


def _text(name: str, result: RunResult) -> str:
    """What the framework's sample runner would say, with the cause in front where a limit or a fault ended the run."""
    cause = _cause(name, result)
    output = _output(result)
    if cause is None:
        return output or "(no output)"
    return f"{cause}\n{output}" if output else cause


def _output(result: RunResult) -> str:
    text = result.stdout_text
    if result.stderr:
        text += f"\nStderr:\n{result.stderr_text}"
    if result.usage.output_truncated and result.outcome is not Outcome.OUTPUT_LIMIT:
        text += "\n(The output was cut at the limit.)"
    if result.exit_code:
        text += f"\nScript exited with code {result.exit_code}"
    return text.strip()


def _cause(name: str, result: RunResult) -> str | None:
    """Why the script did not end by itself, or None when it did."""
    limits = result.started.policy.limits if result.started is not None else Limits()
    match result.outcome:
        case Outcome.EXITED:
            return None
        case Outcome.WALL_TIMEOUT if limits.wall_seconds is not None:
            return f"Error: Script '{name}' timed out after {limits.wall_seconds:g} seconds."
        case Outcome.SIGNALED if result.signal is not None:
            return f"Error: Script '{name}' was ended by signal {result.signal}."
        case _:
            return f"Error: Script '{name}' was stopped ({result.outcome}): {result.message or 'no reason was given'}"


def _without_host_path(text: str, skill: FileSkill) -> str:
    """Where the skill lies on the host is no business of the model's."""
    name = f"<{skill.frontmatter.name}>"
    for path in (os.path.realpath(skill.path), skill.path):
        text = text.replace(path, name)
    return text
