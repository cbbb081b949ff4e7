"""A sandbox from its making to its destruction. Whoever opens one has it destroyed, whatever happens."""

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import structlog

from skilljaild.engines.base import Engine, EngineError, SandboxSpec
from skilljaild.runs.conversation import Conversation
from skilljaild.runs.isolation import check_from_inside
from skilljaild.runs.level import IsolationLevel, level_of

__all__ = ["Sandbox", "open_sandbox", "uninterrupted"]

READY_SECONDS = 30.0
"""How long init may take to come up on a loaded host."""

log = structlog.get_logger()
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox that is started, verified and waits for a skill."""

    sandbox_id: str
    conversation: Conversation
    verified: tuple[str, ...]
    facts: dict[str, Any]
    """What init read about its confinement, see `skilljail_init.isolation`."""


async def uninterrupted(work: Awaitable[T]) -> T:
    """Awaits `work` to its end even when the caller is cancelled meanwhile; the cancellation follows after."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        _ = task.cancelled() or task.exception()  # retrieved: the cancellation is what is told
        raise


@contextlib.asynccontextmanager
async def open_sandbox(engine: Engine, spec: SandboxSpec, lose: Callable[[int, str], None]) -> AsyncIterator[Sandbox]:
    """Makes, verifies and starts a sandbox, and destroys it at the end.

    `lose`: told the place and the run of a sandbox that could not be destroyed.

    Raises EngineError, IsolationError among them; then nothing was run and nothing is left.
    """
    destroy = functools.partial(_destroy, engine, spec, lose)
    sandbox_id = await _create(engine, spec, destroy)
    try:
        await engine.verify(sandbox_id, spec)
        # To its end, whatever happens: a stream that nobody waits for any more would never be closed.
        conversation = Conversation(await uninterrupted(engine.stream(sandbox_id)))
        async with _timeout(READY_SECONDS):
            facts = await conversation.ready()
        verified = check_from_inside(facts, spec.limits, spec.place)
        if level_of(facts) is IsolationLevel.GVISOR:
            await engine.confirm(sandbox_id, spec)
        yield Sandbox(sandbox_id, conversation, verified, facts)
    finally:
        await uninterrupted(destroy(sandbox_id))


async def _create(engine: Engine, spec: SandboxSpec, destroy: Callable[[str], Awaitable[None]]) -> str:
    """Creates; when cancelled meanwhile, the sandbox that is on its way is destroyed as soon as it is there."""
    creation = asyncio.ensure_future(engine.create(spec))
    try:
        return await asyncio.shield(creation)
    except asyncio.CancelledError:
        await asyncio.wait([creation])
        if not creation.cancelled() and creation.exception() is None:
            await destroy(creation.result())
        raise


async def _destroy(engine: Engine, spec: SandboxSpec, lose: Callable[[int, str], None], sandbox_id: str) -> None:
    started = time.monotonic()
    try:
        await engine.destroy(sandbox_id)
    except EngineError as error:
        # It carries our label, and the reaper comes back for it. Until then its place and its user are taken.
        lose(spec.place, spec.run_id)
        log.warning(
            "sandbox not destroyed, the reaper will try again",
            run=spec.run_id,
            sandbox=sandbox_id,
            error=str(error),
        )
    else:
        log.debug("sandbox destroyed", run=spec.run_id, seconds=round(time.monotonic() - started, 3))


@contextlib.asynccontextmanager
async def _timeout(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise EngineError(f"the sandbox did not come up within {seconds:g} s; is the host overloaded?") from None
