"""Reads what the probe printed. It ran in a sandbox, so every byte of it is hostile."""

import dataclasses
import json

from skilljaild.posture.probe import CONTROLS, ON_LINUX, SEEN_LENGTH

__all__ = ["OUTPUT_BYTES_MAX", "Control", "SightError", "read_sight"]

OUTPUT_BYTES_MAX = 65_536


class SightError(Exception):
    """The probe did not print what it must. What was printed stays out of the message."""


@dataclasses.dataclass(frozen=True, slots=True)
class Control:
    """Something that must hold in a sandbox, and whether it does."""

    name: str
    """What must hold, a short sentence."""
    holds: bool
    seen: str
    """What was seen, such as `EAFNOSUPPORT`; printable, at most 120 characters."""


def read_sight(output: bytes, *, gvisor: bool = False) -> tuple[Control, ...]:
    """The probe's controls in the order of CONTROLS. Raises SightError unless each is there once, and nothing else.

    `gvisor`: the probe ran with --gvisor.
    """
    tried = [name for name in CONTROLS if not (gvisor and name in ON_LINUX)]
    if len(output) > OUTPUT_BYTES_MAX:
        raise SightError("the probe printed too much")
    try:
        found = json.loads(output, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise SightError("the probe printed something else than JSON") from error
    if not isinstance(found, dict) or set(found) != set(tried):
        raise SightError("the probe did not try exactly what it is there to try")
    return tuple(_control(name, found[name]) for name in tried)


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object whose names are different: of two answers the worse must not be lost."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name that is there twice")
    return value


def _control(name: str, value: object) -> Control:
    match value:
        case [bool() as holds, str() as seen] if len(seen) <= SEEN_LENGTH:
            return Control(name, holds, "".join(one if one.isprintable() else "?" for one in seen))
        case _:
            raise SightError("the probe told something of another shape")
