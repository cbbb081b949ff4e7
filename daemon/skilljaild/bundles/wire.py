"""The protobuf wire format, as much as it takes to count a message's fields without parsing them."""

import collections

__all__ = ["WireError", "count_fields"]

VARINT_BYTES_MAX = 10


class WireError(ValueError):
    """Bytes that are no message, or hold what proto3 does not write."""


def count_fields(data: bytes, counted_max: int) -> collections.Counter[int]:
    """How often each field number stands at the top of a message. Raises WireError.

    The count ends at `counted_max` fields: a field may be as short as two bytes, and this is Python that looks at each.
    """
    counts: collections.Counter[int] = collections.Counter()
    position = total = 0
    while position < len(data) and total < counted_max:
        tag, position = _varint(data, position)
        position = _behind(data, position, tag & 7)
        counts[tag >> 3] += 1
        total += 1
    return counts


def _behind(data: bytes, position: int, wire_type: int) -> int:
    """Where the value that starts at `position` ends."""
    match wire_type:
        case 0:  # a number
            _, end = _varint(data, position)
        case 1:  # 64 bits
            end = position + 8
        case 2:  # bytes, after their number
            length, start = _varint(data, position)
            end = start + length
        case 5:  # 32 bits
            end = position + 4
        case _:
            raise WireError("a group, or no field at all")
    if end > len(data):
        raise WireError("a field that is cut off")
    return end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, least significant first, and where it ends."""
    value = 0
    for index, byte in enumerate(data[position : position + VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise WireError("a number without an end")
