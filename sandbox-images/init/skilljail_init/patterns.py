"""Glob patterns for paths: `*`, `?` and `[…]` inside one name, `**` for any number of directories.

Patterns come from the caller and names from a hostile script, so matching must not take long for any pair of
them. A pattern is run as a set of states, one bit each, which all step together: one pass over the text, no
backtracking. The same machine serves twice, for the characters of a name and for the names of a path.

A leading dot is a character like any other. `[!…]` and `[^…]` match what is not listed; a `[` without its `]`
is itself. A `**` at the end stands for everything below, not for the directory.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NamePattern", "PathPattern", "PathPatterns"]

CHARACTERS_MAX = 2_000
"""Characters whose tokens a pattern remembers; a hostile name may hold any of a million."""


class CharacterSet:
    """What stands between `[` and `]`."""

    __slots__ = ("_negated", "_ranges")

    def __init__(self, text: str) -> None:
        """`text`: without the brackets, not empty."""
        self._negated = len(text) > 1 and text[0] in "!^"
        members = text[1:] if self._negated else text
        self._ranges: list[tuple[str, str]] = []
        position = 0
        while position < len(members):
            is_range = members[position + 1 : position + 2] == "-" and position + 2 < len(members)
            last = position + 2 if is_range else position
            self._ranges.append((members[position], members[last]))
            position = last + 1

    def __contains__(self, character: str) -> bool:
        return self._negated != any(first <= character <= last for first, last in self._ranges)


class NamePattern:
    """A pattern for one name of a path.

    Bit i of a state set is on when the first i tokens may have matched what was read so far; a token is a
    character, a `?` or a set. A `*` before token i lets state i stay where it is.
    """

    def __init__(self, text: str) -> None:
        self._stars = 0
        self._any = 0
        self._characters: dict[str, int] = {}
        self._sets: list[tuple[int, CharacterSet]] = []
        bit = 1
        for piece in _pieces(text):
            if piece == "*":
                self._stars |= bit
                continue
            if piece == "?":
                self._any |= bit
            elif len(piece) > 1:
                self._sets.append((bit, CharacterSet(piece[1:-1])))
            else:
                self._characters[piece] = self._characters.get(piece, 0) | bit
            bit <<= 1
        self._end = bit
        for character, accepting in self._characters.items():
            self._characters[character] = accepting | self._accepting(character)

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` matches."""
        states = 1
        for character in name:
            accepting = self._characters.get(character)
            if accepting is None:
                accepting = self._accepting(character)
            states = (states & accepting) << 1 | (states & self._stars)
            if not states:
                return False
        return bool(states & self._end)

    def _accepting(self, character: str) -> int:
        """The tokens that accept a character which was not asked for before."""
        accepting = self._any
        for bit, members in self._sets:
            if character in members:
                accepting |= bit
        if len(self._characters) < CHARACTERS_MAX:
            self._characters[character] = accepting
        return accepting


def _pieces(text: str) -> Iterable[str]:
    """Cuts a name's pattern into `*`, `?`, `[…]` and single characters."""
    position = 0
    # Looked for once: else a pattern of many `[` would take long.
    last_close = text.rfind("]")
    while position < len(text):
        end = position + 1
        if text[position] == "[":
            # A `]` that comes first, also after `!`, is a member.
            first = position + 2 if text[position + 1 : position + 2] in {"!", "^"} else position + 1
            if first + 1 <= last_close:
                end = text.index("]", first + 1) + 1
        yield text[position:end]
        position = end


class PathPattern:
    """A pattern for a path, to be followed one name at a time: a walk leaves out hopeless directories."""

    START = 1

    def __init__(self, text: str) -> None:
        segments = text.split("/")
        if segments[-1] == "**":
            segments.append("*")
        self._stars = 0
        self._names: list[NamePattern] = []
        for segment in segments:
            if segment == "**":
                self._stars |= 1 << len(self._names)
            else:
                self._names.append(NamePattern(segment))
        self._end = 1 << len(self._names)

    def step(self, states: int, name: str) -> int:
        """The states after one more name; 0 when nothing below can match."""
        following = states & self._stars
        for index, pattern in enumerate(self._names):
            if states >> index & 1 and pattern.matches(name):
                following |= 1 << index + 1
        return following

    def is_match(self, states: int) -> bool:
        """Whether the path read so far is a match."""
        return bool(states & self._end)

    def may_go_on(self, states: int) -> bool:
        """Whether a longer path could be a match."""
        return bool(states & (self._end - 1))


class PathPatterns:
    """Several patterns, of which one must match."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._patterns = [PathPattern(text) for text in texts]
        self.start = (PathPattern.START,) * len(self._patterns)

    def step(self, states: tuple[int, ...], name: str) -> tuple[int, ...]:
        """The states of all patterns after one more name."""
        return tuple(
            pattern.step(state, name) if state else 0 for pattern, state in zip(self._patterns, states, strict=True)
        )

    def is_match(self, states: tuple[int, ...]) -> bool:
        """Whether one of the patterns matches the path read so far."""
        return any(pattern.is_match(state) for pattern, state in zip(self._patterns, states, strict=True))

    def may_go_on(self, states: tuple[int, ...]) -> bool:
        """Whether one of the patterns could match a path below."""
        return any(pattern.may_go_on(state) for pattern, state in zip(self._patterns, states, strict=True))

    def match(self, path: str) -> bool:
        """Whether one of the patterns matches the whole path."""
        states = self.start
        for name in path.split("/"):
            states = self.step(states, name)
        return self.is_match(states)
