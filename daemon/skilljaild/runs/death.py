"""What the engine recorded of memory and a sandbox's death: the second opinion. init's own record, from the kernel, is
what counts where there is one."""

import asyncio

from skilljaild.engines.base import Engine, EngineError

__all__ = ["died_of_memory", "ran_out_of_memory"]

DEATH_SECONDS = 2.0
"""How long an engine may take to notice that a sandbox is dead,"""
DEATH_RECORD_SECONDS = 0.3
"""and to write down why."""


async def ran_out_of_memory(engine: Engine, sandbox_id: str) -> bool:
    """Whether the engine recorded an out-of-memory kill in a sandbox that is still there. False when it does not
    answer."""
    try:
        async with asyncio.timeout(DEATH_SECONDS):
            return (await engine.stats(sandbox_id)).oom_killed
    except (EngineError, TimeoutError):
        return False


async def died_of_memory(engine: Engine, sandbox_id: str) -> bool:
    """The same of a sandbox whose stream has ended: the engine may write its record a moment after that."""
    clock = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(DEATH_SECONDS) as timeout:
            while not (stats := await engine.stats(sandbox_id)).oom_killed:
                if not stats.running:
                    timeout.reschedule(min(timeout.when() or 0.0, clock() + DEATH_RECORD_SECONDS))
                await asyncio.sleep(0.05)
    except (EngineError, TimeoutError):
        return False
    return True
