"""Where a script's output leaves for the caller, with secrets masked when that was asked for."""

import collections

from skilljail_init.frames import DATA_MAX

from skilljaild.runs.events import Output
from skilljaild.secrets.automaton import Automaton
from skilljaild.secrets.mask import StreamMask

__all__ = ["Outlet"]


class Outlet:
    """Takes output as the script wrote it and has it `pending` as the caller gets it. Streams are apart."""

    def __init__(self, automaton: Automaton | None = None) -> None:
        """`automaton`: of what is masked."""
        self._masks = {stream: StreamMask(automaton) for stream in (1, 2)} if automaton is not None else {}
        self._offsets = {1: 0, 2: 0}
        self.pending: collections.deque[Output] = collections.deque()
        """What was not handed over yet; whoever hands a piece over takes it out."""

    def take(self, event: Output) -> None:
        """Takes the next piece of output."""
        if not self._masks:
            self.pending.append(event)
        else:
            self._add(event.stream, self._masks[event.stream].feed(event.data))

    def end(self) -> None:
        """There will be no more: what was held back becomes pending."""
        for stream, mask in self._masks.items():
            self._add(stream, mask.flush())

    def _add(self, stream: int, data: bytes) -> None:
        for start in range(0, len(data), DATA_MAX):
            piece = data[start : start + DATA_MAX]
            self.pending.append(Output(stream, self._offsets[stream], piece))
            self._offsets[stream] += len(piece)
