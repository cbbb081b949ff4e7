"""Takes secrets out of a stream of output.

Every occurrence of a value becomes `***`; occurrences that overlap become one. Of a value of several lines each line
counts as well, where it is long enough. What may be the beginning of a value is held back until it is known to be none.
"""

import collections
from collections.abc import Iterable

import pydantic

__all__ = ["MASK", "StreamMask", "patterns_of"]

MASK = b"***"
HEAD_BYTES = 8
"""Each pattern is found by its first bytes. No value, and no line that counts, is shorter."""
PREFIX_BYTES_MIN = 4
"""A beginning of a value at the very end of a stream is masked when it is at least so long."""


def patterns_of(values: Iterable[pydantic.SecretStr]) -> frozenset[bytes]:
    """What is masked: the values, and the lines of those that have several."""
    patterns: set[bytes] = set()
    for value in values:
        whole = value.get_secret_value().encode()
        patterns |= {whole, *(line.strip() for line in whole.splitlines())}
    return frozenset(one for one in patterns if len(one) >= HEAD_BYTES)


class StreamMask:
    """One stream. `feed` gives what can be told already, `flush` the rest; how it was cut makes no difference."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        """`patterns`: each at least HEAD_BYTES long."""
        self._by_head: dict[bytes, list[bytes]] = collections.defaultdict(list)
        for pattern in sorted(patterns, key=len, reverse=True):
            self._by_head[pattern[:HEAD_BYTES]].append(pattern)  # the longest first
        self._short = {head[:length] for head in self._by_head for length in range(1, HEAD_BYTES)}
        self._held = b""
        self._told = 0
        """How many bytes of `_held` belong to an occurrence whose mask was told already."""

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes and returns what of all so far can be delivered."""
        buffer = self._held + data
        found, beginning = self._look(buffer)
        return self._deliver(buffer, found, beginning)

    def flush(self) -> bytes:
        """The end of the stream: returns what is left."""
        buffer = self._held
        # What is held back is the beginning of a value, and nothing else is.
        found = [(0, len(buffer))] if len(buffer) >= PREFIX_BYTES_MIN else []
        return self._deliver(buffer, found, len(buffer))

    def _look(self, buffer: bytes) -> tuple[list[tuple[int, int]], int]:
        """Where values are, the longest at each place, and where the first begins that may go on behind the end."""
        found: list[tuple[int, int]] = []
        beginning = len(buffer)
        for length in range(1, min(HEAD_BYTES - 1, len(buffer)) + 1):
            if buffer[-length:] in self._short:
                beginning = len(buffer) - length
        for head, patterns in self._by_head.items():
            start = buffer.find(head)
            while start >= 0:
                end = next((start + len(one) for one in patterns if buffer.startswith(one, start)), None)
                if end is not None:
                    found.append((start, end))
                left = len(buffer) - start
                if start < beginning and left < len(patterns[0]):
                    rest = buffer[start:]
                    if any(left < len(one) and one.startswith(rest) for one in patterns):
                        beginning = start
                start = buffer.find(head, start + 1)
        return sorted(found), beginning

    def _deliver(self, buffer: bytes, found: list[tuple[int, int]], until: int) -> bytes:
        """The buffer up to `until` with a mask in place of what was found; the rest is held back."""
        pieces: list[bytes] = []
        position = self._told
        for start, end in found:
            if start >= until:
                break
            if start >= position:
                pieces += [buffer[position:start], MASK]
            position = max(position, end)
        pieces.append(buffer[position:until])
        self._held = buffer[until:]
        self._told = max(0, position - until)
        return b"".join(pieces)
