"""Takes a finished script's artifacts from init and passes them on to the caller."""

import asyncio
import dataclasses

from skilljaild.engines.base import EngineError
from skilljaild.limits import Limits
from skilljaild.runs.conversation import Conversation, ProtocolError, StreamEnded
from skilljaild.runs.events import Artifact, ArtifactChunk, SkippedArtifact
from skilljaild.runs.pipe import EventPipe

__all__ = ["Collected", "collect", "collect_seconds"]

COLLECT_SECONDS = 30.0
COLLECT_BYTES_PER_SECOND = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Collected:
    """What came of the artifacts; `fault` says why not all could be delivered, and is empty when all could."""

    artifacts: tuple[Artifact, ...]
    skipped: tuple[SkippedArtifact, ...]
    skipped_omitted: int
    fault: str


def collect_seconds(limits: Limits) -> float:
    """How long it may take, the caller's reading included."""
    return COLLECT_SECONDS + limits.artifact_bytes / COLLECT_BYTES_PER_SECOND


async def collect(conversation: Conversation, events: EventPipe, limits: Limits) -> Collected:
    """Raises nothing but CancelledError: how the script ended is known and stays; that something is missing is told."""
    artifacts: list[Artifact] = []
    skipped: list[SkippedArtifact] = []
    omitted = 0
    fault = ""
    try:
        async with asyncio.timeout(collect_seconds(limits)):
            async for one in conversation.artifacts(limits):
                match one:
                    case ArtifactChunk():
                        await events.put(one)
                    case Artifact():
                        artifacts.append(one)
                    case SkippedArtifact():
                        skipped.append(one)
                    case int():
                        omitted += one
    except TimeoutError:
        fault = "the caller took too long to take them"
        skipped.append(SkippedArtifact(".", "time_limit"))
    except (StreamEnded, ProtocolError, EngineError) as error:
        fault = str(error)
        skipped.append(SkippedArtifact(".", "unreadable"))
    return Collected(tuple(artifacts), tuple(skipped), omitted, fault)
