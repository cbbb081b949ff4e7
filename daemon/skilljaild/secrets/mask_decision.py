"""Takes secrets out of what is told of a script's connections: it chooses the hosts that it asks for."""

import dataclasses
from collections.abc import Iterable

from skilljaild.egress.decision import EgressDecision
from skilljaild.secrets.automaton import Automaton, add_place
from skilljaild.secrets.mask import MASK, PREFIX_BYTES_MIN

__all__ = ["DecisionMask"]


class DecisionMask:
    """Case makes no difference: hosts are told in lower case."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        """`patterns`: as of `skilljaild.secrets.mask.patterns_of`."""
        self._automaton = Automaton(pattern.lower() for pattern in patterns)

    def masked(self, decision: EgressDecision) -> EgressDecision:
        """The decision with `***` in place of each value in its host and its message.

        A beginning of a value at the end of the host counts as well: no host is longer than 253 characters, and at a
        slash it ends.
        """
        host = self._text(decision.host, cut=True)
        message = decision.message
        if host != decision.host:
            message = message.replace(decision.host, host)
        return dataclasses.replace(decision, host=host, message=self._text(message, cut=False))

    def _text(self, text: str, *, cut: bool) -> str:
        data = text.encode()
        state, places = self._automaton.scan(0, data.lower())
        if cut and (left := self._automaton.open[state]) >= PREFIX_BYTES_MIN:
            add_place(places, len(data) - left, len(data))
        pieces, position = [], 0
        for start, end in places:
            pieces += [data[position:start], MASK]
            position = end
        return b"".join([*pieces, data[position:]]).decode()
