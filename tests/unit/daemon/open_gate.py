"""A gate that lets every image pass, for what is not about self-tests."""

from typing import TYPE_CHECKING, Any

from skilljaild.engines.base import Image, IsolationError
from skilljaild.runs.level import IsolationLevel

if TYPE_CHECKING:
    from skilljaild.errors import Refusal

__all__ = ["OpenGate"]


class OpenGate:
    """A `Gate` that records what it was asked, and refuses where a test says so."""

    def __init__(self) -> None:
        self.level: IsolationLevel | None = IsolationLevel.CONTAINER
        self.refusal: Refusal | None = None
        self.faults: dict[str, str] = {}
        """By digest."""
        self.below = ""
        """Why a sandbox is refused after it was made."""
        self.asked: list[tuple[str, str, int]] = []

    def fault(self, image: Image) -> str:
        return self.faults.get(image.digest, "")

    async def admit(self, interpreter: str, image: Image, place: int) -> None:
        self.asked.append((interpreter, image.digest, place))
        if self.refusal is not None:
            raise self.refusal

    def check(self, facts: dict[str, Any]) -> None:
        assert facts
        if self.below:
            raise IsolationError(self.below)
