"""JSON objects as bytes, as frames carry them.

The scanner is the one of the standard library's json package. The package around it imports `re`, which takes 4 ms,
and init's start is part of every cold run.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_scanner

__all__ = ["dumps", "loads"]

WHITE_SPACE = " \t\n\r"


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


class _Context:
    """What the scanner asks its decoder for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse)  # NaN and infinities
    memo: dict[str, str] = {}  # noqa: RUF012 - never written; the scanner has one of its own


_scan = make_scanner(_Context())  # type: ignore[arg-type] # typeshed: its own class


def loads(data: bytes) -> object:
    """The value of a JSON text in UTF-8. Raises ValueError, and RecursionError for a text that is nested too deep."""
    text = data.decode().strip(WHITE_SPACE)
    try:
        value, end = _scan(text, 0)
    except (StopIteration, SystemError):
        # The scanner takes the class of its own errors from the json package, and stumbles where that is not loaded.
        raise ValueError("no JSON value") from None
    if end != len(text):
        raise ValueError(f"something follows the JSON value at character {end}")
    return value


def dumps(value: object) -> str:
    """The JSON text of a value of dicts with string keys, lists, strings, finite numbers, booleans and None; ASCII.

    Raises TypeError for anything else, ValueError for NaN and infinities.
    """
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(dumps, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_key(key)}:{dumps(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"{type(value).__name__} is no JSON")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{type(key).__name__} is no key of a JSON object")
    return encode_basestring_ascii(key)


def _number(value: float) -> str:
    if value - value != 0:
        raise ValueError(f"{value} is no JSON")
    return float.__repr__(value)
