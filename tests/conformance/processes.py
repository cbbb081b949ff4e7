"""Processes of sandboxes, seen from the host that the engine shares with the tests."""

import pathlib
import secrets

from harness import ON_GVISOR, gvisor_processes

__all__ = ["Sleeper"]


class Sleeper:
    """A `sleep` with an argument of its own, by which the host can tell it from every other process.

    On gVisor the host sees none of a sandbox's processes, but gVisor's own, which they all are inside of.
    """

    def __init__(self) -> None:
        self.seconds = f"7{secrets.randbelow(10**8):08}"
        """The argument: more than two years."""
        self._before = gvisor_processes()

    @property
    def sleeps(self) -> bool:
        """Whether it is there; on gVisor, whether any sandbox is that was not there before."""
        if ON_GVISOR:
            return bool(gvisor_processes() - self._before)
        return any(self._is_it(path) for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"))

    def _is_it(self, path: pathlib.Path) -> bool:
        try:
            program, *arguments = path.read_bytes().split(b"\0")
        except OSError:
            return False  # it has ended meanwhile
        return program.endswith(b"sleep") and arguments[:1] == [self.seconds.encode()]
