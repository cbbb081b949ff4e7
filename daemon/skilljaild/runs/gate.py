"""What a run asks before it uses an image: whether this host holds what scripts need."""

from typing import Any, Protocol

from skilljaild.engines.base import Image
from skilljaild.runs.level import IsolationLevel

__all__ = ["Gate"]


class Gate(Protocol):
    """`skilljaild.posture.examiner` in the daemon."""

    @property
    def level(self) -> IsolationLevel | None:
        """The weakest level that was seen of any image; None while nothing was."""
        ...

    def fault(self, image: Image) -> str:
        """Why scripts may not run in an image, as far as that is known; empty when nothing speaks against it."""
        ...

    async def admit(self, interpreter: str, image: Image, place: int) -> None:
        """Lets a run go on, after a self-test where its image was not tested yet.

        `place`: the run's own, which the self-test uses. Raises Refusal ISOLATION_POSTURE, or EngineUnavailable.
        """
        ...

    def check(self, facts: dict[str, Any]) -> None:
        """Looks at what init read in the run's own sandbox. Raises IsolationError below the level that is demanded."""
        ...
