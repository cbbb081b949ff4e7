"""What an action that may be refused comes to."""

from collections.abc import Callable
from typing import TypeVar

from skilljaild.errors import Refusal

__all__ = ["attempt"]

T = TypeVar("T")


def attempt(action: Callable[[], T]) -> T | Refusal:
    """Its result, or why it was refused. Any other exception is a fault and passes."""
    try:
        return action()
    except Refusal as refusal:
        return refusal
