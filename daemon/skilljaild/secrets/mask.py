"""Takes secrets out of a stream of output.

Every occurrence of a value becomes `***`; occurrences that overlap become one. Of a value of several lines each line
counts as well, where it is long enough. What may be the beginning of a value is held back until it is known to be none.
"""

from collections.abc import Iterable, Mapping

import pydantic

from skilljaild.errors import Reason, Refusal
from skilljaild.secrets.automaton import Automaton, add_place

__all__ = ["MASK", "PATTERN_BYTES_MIN", "PREFIX_BYTES_MIN", "StreamMask", "bounded_patterns", "patterns_of"]

MASK = b"***"
PATTERN_BYTES_MIN = 8
"""No value is shorter, and no line that counts."""
PREFIX_BYTES_MIN = 4
"""A beginning of a value at the very end of a stream is masked when it is at least so long."""
PATTERNS_MAX = 1_000
PATTERNS_BYTES_MAX = 256 * 1024
"""Of all secrets of a run. What finds them takes 20 times as much memory."""


def patterns_of(values: Iterable[pydantic.SecretStr]) -> frozenset[bytes]:
    """What is masked: the values, and the lines of those that have several."""
    patterns: set[bytes] = set()
    for value in values:
        whole = value.get_secret_value().encode()
        patterns |= {whole, *(line.strip() for line in whole.splitlines())}
    return frozenset(one for one in patterns if len(one) >= PATTERN_BYTES_MIN)


def bounded_patterns(secrets: Mapping[str, pydantic.SecretStr]) -> frozenset[bytes]:
    """What is masked of secrets by name. Raises Refusal SECRET_UNAVAILABLE for the one with which it is too much."""
    patterns: set[bytes] = set()
    for name, value in secrets.items():
        patterns |= patterns_of([value])
        if len(patterns) > PATTERNS_MAX or sum(map(len, patterns)) > PATTERNS_BYTES_MAX:
            # Of the secret itself no number is told.
            raise Refusal(
                Reason.SECRET_UNAVAILABLE,
                f"secrets: '{name}' is too much to be masked: at most {PATTERNS_MAX:,} lines and "
                f"{PATTERNS_BYTES_MAX // 1024} KiB of all secrets of a run are; ask for fewer secrets, or leave "
                "mask_secrets out",
                field="secrets",
                secret=name,
            )
    return frozenset(patterns)


class StreamMask:
    """One stream. `feed` gives what can be told already, `flush` the rest; how it was cut makes no difference.

    A byte costs the same whatever is held back and however many patterns there are.
    """

    def __init__(self, automaton: Automaton) -> None:
        """`automaton`: of the patterns."""
        self._automaton = automaton
        self._state = 0
        self._held = bytearray()
        self._places: list[tuple[int, int]] = []
        """Where in `_held` patterns are whose mask was not told yet; they rise and do not overlap."""
        self._told = 0
        """How many bytes of `_held` belong to an occurrence whose mask was told already."""

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes and returns what of all so far can be delivered."""
        held = len(self._held)
        self._state, places = self._automaton.scan(self._state, data)
        self._held += data
        for start, end in places:
            add_place(self._places, held + start, held + end)
        return self._deliver(len(self._held) - self._automaton.open[self._state])

    def flush(self) -> bytes:
        """The end of the stream: returns what is left."""
        # What is held back is the beginning of a value, and nothing else is.
        left = len(self._held)
        self._places = [(0, left)] if left >= PREFIX_BYTES_MIN else []
        return self._deliver(left)

    def _deliver(self, until: int) -> bytes:
        """What is held up to `until`, with a mask in place of what was found; the rest stays held back."""
        if until == 0:
            return b""
        pieces: list[bytes | bytearray] = []
        position, masked = self._told, 0
        for start, end in self._places:
            if start >= until:
                break
            if start >= position:
                pieces += [self._held[position:start], MASK]
            position = max(position, end)
            masked += 1
        pieces.append(self._held[position:until])
        # From the front of a bytearray, this moves nothing.
        del self._held[:until]
        self._places = [(start - until, end - until) for start, end in self._places[masked:]]
        self._told = max(0, position - until)
        return b"".join(pieces)
