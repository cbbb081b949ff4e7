"""Finds many patterns in a stream in one pass: an Aho-Corasick automaton, whose work does not grow with the patterns.

A state stands for the longest end of the stream so far that a pattern begins with.
"""

import array
import re
from collections.abc import Iterable

__all__ = ["Automaton", "add_place"]

_NONE = -1
_ALIKE_MAX = 64
"""With more different beginnings than these a search for them is no faster than the automaton itself."""


class Automaton:
    """Shared by all streams in which the same is looked for; it does not change."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        """`patterns`: of two bytes or more. Takes about a microsecond and 20 bytes of memory for each byte of them."""
        self._chain = array.array("h", [_NONE])
        """The byte that leads from a state to the one with the next number, which is where most lead."""
        self._branches: dict[int, int] = {}
        """All other ways, from state * 256 + byte."""
        depth, parent, ends = array.array("l", [0]), array.array("l", [0]), bytearray(1)
        arrived = bytearray(1)  # by which byte
        inner = bytearray(1)
        distinct = sorted(set(patterns))
        for pattern in distinct:
            state = 0
            for byte in pattern:
                inner[state] = 1
                following = self._step(state, byte)
                if following is None:
                    following = len(depth)
                    self._chain.append(_NONE)
                    depth.append(depth[state] + 1)
                    parent.append(state)
                    arrived.append(byte)
                    ends.append(0)
                    inner.append(0)
                    if following == state + 1:
                        self._chain[state] = byte
                    else:
                        self._branches[state << 8 | byte] = following
                state = following
            ends[state] = 1
        self._fall = array.array("l", bytes(depth.itemsize * len(depth)))
        """Where it goes on when no way leads on: the state of the next shorter end of the stream."""
        self.found = array.array("l", self._fall)
        """By state: how long the longest pattern is that ends here, 0 when none does."""
        self.open = array.array("l", self._fall)
        """By state: how many of the last bytes may be the beginning of a pattern that goes on."""
        for state in sorted(range(1, len(depth)), key=depth.__getitem__):
            fall = self._fallen(parent[state], arrived[state])
            self._fall[state] = fall
            self.found[state] = depth[state] if ends[state] else self.found[fall]
            self.open[state] = depth[state] if inner[state] else self.open[fall]
        beginnings = {pattern[:2] for pattern in distinct}
        self._beginning = (
            re.compile(b"|".join(map(re.escape, sorted(beginnings)))) if len(beginnings) <= _ALIKE_MAX else None
        )

    def _step(self, state: int, byte: int) -> int | None:
        return state + 1 if self._chain[state] == byte else self._branches.get(state << 8 | byte)

    def _fallen(self, state: int, byte: int) -> int:
        while state:
            state = self._fall[state]
            if (following := self._step(state, byte)) is not None:
                return following
        return 0

    def scan(self, state: int, data: bytes) -> tuple[int, list[tuple[int, int]]]:
        """Goes on from `state`, which is 0 at first, with the next bytes of a stream.

        Returns the state then, and where patterns are, as begin and end in `data`; a begin may be negative. What
        overlaps is one. The ends rise.
        """
        chain, branches, fall, found = self._chain, self._branches, self._fall, self.found
        places: list[tuple[int, int]] = []
        position, size = 0, len(data)
        while position < size:
            if state == 0 and self._beginning is not None:
                match = self._beginning.search(data, position)
                # The last byte may be the first of a beginning.
                position = max(position, size - 1) if match is None else match.start()
            byte = data[position]
            position += 1
            while chain[state] != byte:
                following = branches.get(state << 8 | byte)
                if following is not None:
                    state = following
                    break
                if state == 0:
                    break
                state = fall[state]
            else:
                state += 1
            if found[state]:
                add_place(places, position - found[state], position)
        return state, places


def add_place(places: list[tuple[int, int]], start: int, end: int) -> None:
    """Adds a place that ends behind all others, together with those that it overlaps."""
    while places and places[-1][1] > start:
        start = min(start, places.pop()[0])
    places.append((start, end))
