"""Shows which step of the set-up is under way and how long it took, and keeps the details in logs."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["SetupError", "Step", "tail"]

TAIL_LINES = 25


class SetupError(Exception):
    """A step cannot be done. The message names the thing and the mend."""


class Step:
    """One step: `[2/3] engine`. Its commands write to a log of its own."""

    def __init__(self, name: str, position: str, log: pathlib.Path) -> None:
        self.name = name
        self.log = log
        self._title = f"[{position}] {name}"
        self._titled = False
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Closes the step with a line that tells how long it took."""
        start = time.monotonic()
        yield
        print(f"{self._title}: ready after {time.monotonic() - start:.1f} s", flush=True)

    @contextlib.contextmanager
    def action(self, what: str) -> Iterator[None]:
        """Shows one slow thing that the step does."""
        self._show_title()
        start = time.monotonic()
        print(f"      {what} …", end="", flush=True)
        try:
            yield
        except BaseException:
            print(" failed", flush=True)
            raise
        print(f" {time.monotonic() - start:.1f} s", flush=True)

    def note(self, text: str) -> None:
        """Shows a line below the step's title."""
        self._show_title()
        for line in text.splitlines():
            print(f"      {line}", flush=True)

    def run(self, command: Sequence[str | pathlib.Path], **environment: str) -> None:
        """Runs a command with its output in the log. Raises SetupError with the log's tail when it fails."""
        with self.log.open("ab") as log:
            log.write(f"$ {_shown(command)}\n".encode())
            log.flush()
            status = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_merged(environment),
                check=False,
            ).returncode
        if status != 0:
            raise SetupError(f"`{_shown(command)}` ended with status {status}.\n{tail(self.log)}")

    def show(self, command: Sequence[str | pathlib.Path], **environment: str) -> int:
        """Runs a command whose lines are its own progress: they go to the terminal and into the log.

        Gives its exit status.
        """
        self._show_title()
        with (
            self.log.open("ab") as log,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_merged(environment),
            ) as process,
        ):
            log.write(f"$ {_shown(command)}\n".encode())
            try:
                for line in process.stdout or ():
                    log.write(line)
                    sys.stdout.write(f"      {line.decode(errors='replace')}")
                    sys.stdout.flush()
            except BaseException:
                process.terminate()  # it cleans up; leaving the block waits for its end
                raise
        return process.returncode

    def _show_title(self) -> None:
        if not self._titled:
            print(self._title, flush=True)
            self._titled = True


def tail(log: pathlib.Path) -> str:
    """The end of a log and where all of it is."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    last = "\n".join(f"  | {line}" for line in lines[-TAIL_LINES:])
    return f"{last}\nThe whole log: {log}"


def _merged(environment: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **environment}


def _shown(command: Sequence[str | pathlib.Path]) -> str:
    return " ".join(str(word) for word in command)
