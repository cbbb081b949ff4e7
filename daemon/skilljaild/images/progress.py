"""What a build says while it goes on: one line for each step, with the time since the image was begun."""

import time
from collections.abc import Callable

__all__ = ["Progress"]

LINE_MAX = 110


class Progress:
    """The progress of one image. `write` gets each line, without its end."""

    def __init__(self, name: str, write: Callable[[str], None]) -> None:
        self._name = name
        self._write = write
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the image was begun."""
        return time.monotonic() - self._begun

    def step(self, text: str) -> None:
        """Says what begins now; cut to one line of a terminal."""
        line = f"{self._name:<6} {self.seconds:6.1f} s  {' '.join(text.split())}"
        self._write(line if len(line) <= LINE_MAX else line[: LINE_MAX - 1] + "…")

    def notice(self, text: str) -> None:
        """Says something that must be read in full."""
        self._write(f"{self._name:<6} {self.seconds:6.1f} s  {text}")
