"""From the bytes of a message to the message, within bounds.

A few bytes can become hundreds: an empty entry of `files` takes two on the wire and about sixty as an object. So the
fields of a message are counted first, and one that holds too many is never decoded.

Counting the top level is enough. What can be repeated in a message that a client sends (`argv`, `env`, `files`,
`artifact_patterns`, `labels`, `allowed_hosts`, `secrets`, `digests`) is a field of the request itself, and so is each
entry of a map. The messages below it (`InputFile`, `Limits` with its durations, `BlobHeader`, entries of maps) hold
single values: however often one is given, the last one counts, and they take a small multiple of their bytes at most.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf import message as protobuf_message

from skilljaild.errors import Reason, Refusal

__all__ = ["decoded", "has_more_fields"]

_TAG_BYTES_MAX = 5
"""Also of a length: both are numbers of 32 bits."""
_VARINT_BYTES_MAX = 10


def decoded(raw: bytes, deserialize: Callable[[bytes], Any], fields_max: int, bytes_max: int) -> Any:
    """The message. Raises Refusal REQUEST_INVALID for one beyond its bounds, undecoded, and for what is none."""
    if len(raw) > bytes_max:
        raise Refusal(
            Reason.REQUEST_INVALID,
            f"the request has {len(raw):,} bytes, and this call takes at most {bytes_max:,}; send a smaller one",
        )
    try:
        if has_more_fields(raw, fields_max):
            raise Refusal(
                Reason.REQUEST_INVALID,
                f"the request has more than {fields_max:,} fields, entries of lists counted one by one; send fewer",
            )
        return deserialize(raw)
    except (ValueError, protobuf_message.DecodeError):
        raise Refusal(
            Reason.REQUEST_INVALID,
            "the request is not the message that this call takes; use a client that is made from the .proto files of "
            "the daemon's version",
        ) from None


def has_more_fields(raw: bytes, most: int) -> bool:
    """Whether a message has more than `most` fields, entries of lists and maps counted one by one.

    It steps over `most` fields at most and copies none. Raises ValueError for what is no message.
    """
    end = len(raw)
    if end <= 2 * most:  # no field takes less than two bytes
        return False
    position = count = 0
    while position < end:
        if count == most:
            return True
        count += 1
        tag, position = _number(raw, position, _TAG_BYTES_MAX)
        kind = tag & 7
        if kind == 0:  # a number
            _, position = _number(raw, position, _VARINT_BYTES_MAX)
        elif kind == 1:  # 64 bits
            position += 8
        elif kind == 2:  # a length and as many bytes
            length, position = _number(raw, position, _TAG_BYTES_MAX)
            position += length
        elif kind == 5:  # 32 bits
            position += 4
        else:
            raise ValueError("a group, which proto3 does not have, or a kind of field that nobody knows")
    if position > end:
        raise ValueError("a field that goes beyond the end")
    return False


def _number(raw: bytes, position: int, bytes_max: int) -> tuple[int, int]:
    """A varint and the position behind it. Raises ValueError."""
    if position < len(raw) and raw[position] < 0x80:
        return raw[position], position + 1
    value = 0
    for index, byte in enumerate(raw[position : position + bytes_max]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a number without an end")
