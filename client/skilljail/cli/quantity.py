"""Sizes and durations as people write them."""

import argparse
import math
import re

__all__ = ["duration", "number", "size"]

_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)")
_BYTES = {
    "": 1,
    "b": 1,
    "k": 1024,
    "kb": 1000,
    "kib": 1024,
    "m": 1024**2,
    "mb": 1000**2,
    "mib": 1024**2,
    "g": 1024**3,
    "gb": 1000**3,
    "gib": 1024**3,
}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def size(text: str) -> int:
    """`256MiB`, `64k` or `1000`, in bytes. k, M and G alone are powers of 1024."""
    return math.floor(_read(text, _BYTES, "a size such as 256MiB"))


def duration(text: str) -> float:
    """`30s`, `2m`, `500ms` or `1.5`, in seconds."""
    return _read(text, _SECONDS, "a duration such as 30s or 2m")


def number(text: str) -> int:
    """A whole number above zero."""
    return math.floor(_read(text, {"": 1}, "a whole number"))


def _read(text: str, units: dict[str, int] | dict[str, float], wanted: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    factor = units.get(match["unit"].lower()) if match else None
    if match is None or factor is None or (float(match["number"]) * factor) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return float(match["number"]) * factor
