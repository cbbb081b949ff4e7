"""One background program that the set-up starts and stops: an engine."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

from devenv.progress import SetupError, tail

__all__ = ["Service", "processes_naming"]

START_SECONDS = 60.0
STOP_SECONDS = 30.0


class Service:
    """A program in the background, known by its pid and by a word of its command line that no other has."""

    def __init__(self, name: str, pid_file: pathlib.Path, word: str, log: pathlib.Path) -> None:
        self.name = name
        self.log = log
        self._pid_file = pid_file
        self._word = word

    def pid(self) -> int | None:
        """The running program's pid; None when it does not run, also when the pid is another program's."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            if self._word in _command_line(pid):
                return pid
        return None

    def start(self, command: Sequence[str | pathlib.Path], answers: Callable[[], bool]) -> None:
        """Starts the program and waits until it answers. Raises SetupError with its log's tail."""
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        self._pid_file.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            # A session of its own: a Ctrl-C on the terminal is for us, and we stop it in order.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        self._pid_file.write_text(str(process.pid))
        deadline = time.monotonic() + START_SECONDS
        while not answers():
            if process.poll() is not None:
                self._pid_file.unlink(missing_ok=True)
                raise SetupError(f"{self.name} ended with status {process.returncode} at once.\n{tail(self.log)}")
            if time.monotonic() > deadline:
                self.stop()
                raise SetupError(f"{self.name} did not answer within {START_SECONDS:.0f} s.\n{tail(self.log)}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends the program and waits for its end. Nothing happens when it does not run."""
        pid = self.pid()
        if pid is not None and not _end(pid, signal.SIGTERM, STOP_SECONDS):
            _end(pid, signal.SIGKILL, STOP_SECONDS)
        self._pid_file.unlink(missing_ok=True)


def processes_naming(path: pathlib.Path, *programs: str) -> Iterator[int]:
    """The processes of these programs with an argument below `path`: what a killed engine left behind."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdecimal():
            words = _command_line(int(entry.name))
            if words and pathlib.Path(words[0]).name in programs and any(f"{path}/" in word for word in words):
                yield int(entry.name)


def _command_line(pid: int) -> list[str]:
    """A process's command line; empty when it is gone or waits for its parent to notice that it is."""
    try:
        line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return line.decode(errors="replace").removesuffix("\0").split("\0") if line else []


def _end(pid: int, number: signal.Signals, seconds: float) -> bool:
    """Sends a signal and waits. Whether the process is gone."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # where it is a child of ours, it stays a zombie until then
        if not _command_line(pid):
            return True
        time.sleep(0.05)
    return False
