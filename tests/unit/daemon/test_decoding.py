"""Messages that are counted before they are decoded."""

from typing import Any

import pytest
from google.protobuf import descriptor
from hypothesis import given
from hypothesis import strategies as st
from skilljail.v1 import admin_pb2, bundle_store_pb2, script_runner_pb2
from skilljaild.errors import Reason, Refusal
from skilljaild.service.decoding import decoded, has_more_fields

LONG = b"\xff\xff\xff\xff\x07"
"""A length of 2 GiB - 1."""
BROKEN = {
    "a tag without an end": b"\xff" * 12,
    "a tag of six bytes": b"\x8a\x80\x80\x80\x80\x00" + b"\x00" * 8,
    "a number of eleven bytes": b"\x08" + b"\x80" * 10 + b"\x00" * 8,
    "a number that is cut off": b"\x08\x80",
    "a length without an end": b"\x0a" + b"\xff" * 12,
    "a length that is cut off": b"\x08\x01\x0a",
    "bytes beyond the end": b"\x0a" + LONG + b"x" * 12,
    "64 bits beyond the end": b"\x08\x01\x09\x00",
    "32 bits beyond the end": b"\x08\x01\x0d\x00",
    "a group": b"\x0b\x0c" * 6,
    "a kind of field that nobody knows": b"\x0e\x00" * 6,
}


def test_fields_of_each_kind_are_counted() -> None:
    raw = b"".join(
        (
            b"\x08\x01",  # a number
            b"\x10" + b"\xff" * 9 + b"\x01",  # the longest number
            b"\x19" + b"\xff" * 8,
            b"\x22\x03abc",
            b"\xa2\x80\x80\x80\x00\x00",  # a tag, longer than it need be, of no bytes
            b"\x2a\x80\x01" + b"\xff" * 128,
            b"\x35\xff\xff\xff\xff",
        )
    )
    assert has_more_fields(raw, 6)
    assert not has_more_fields(raw, 7)


texts = st.lists(st.text(max_size=200), max_size=8)


@given(texts, texts, st.dictionaries(st.text(), st.text(), max_size=8), st.binary(max_size=300), st.integers(0, 2**31))
def test_what_protobuf_writes_is_counted_to_the_last_field(
    argv: list[str], names: list[str], env: dict[str, str], stdin: bytes, pids: int
) -> None:
    request = script_runner_pb2.RunScriptRequest(argv=argv, env=env, stdin=stdin, secrets=names)
    request.files.extend(script_runner_pb2.InputFile(path=name) for name in names)
    request.limits.disk_bytes = pids
    fields = len(argv) + 2 * len(names) + len(env) + bool(stdin) + 1
    raw = request.SerializeToString()
    assert has_more_fields(raw, fields - 1)
    assert not has_more_fields(raw, fields)


def test_only_so_many_fields_are_looked_at() -> None:
    """What comes behind the last one that may be is not read: here it is no message at all."""
    assert has_more_fields(b"\x42\x00" * 10 + b"\xff" * 100, 10)


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
def test_what_is_no_message_is_told(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"^a "):
        has_more_fields(b"\x22\x01x" * 20 + raw, 25)


def undecoded(raw: bytes) -> Any:
    """In the place of protobuf's parser, which must not be reached."""
    raise AssertionError(f"{len(raw)} bytes were decoded")


def refused(raw: bytes, deserialize: Any, **bounds: int) -> str:
    """Why a message is refused."""
    with pytest.raises(Refusal) as caught:
        decoded(raw, deserialize, **{"fields_max": 10, "bytes_max": 1_000} | bounds)
    assert caught.value.reason is Reason.REQUEST_INVALID
    return caught.value.message


def test_a_message_beyond_its_bounds_is_not_decoded() -> None:
    assert refused(b"\x42\x00" * 11, undecoded) == (
        "the request has more than 10 fields, entries of lists counted one by one; send fewer"
    )
    assert refused(b"\x32\xe7\x07" + bytes(999), undecoded) == (
        "the request has 1,002 bytes, and this call takes at most 1,000; send a smaller one"
    )


@pytest.mark.parametrize("raw", [*BROKEN.values(), b"\x22\x02\xc3\x28"])
def test_what_cannot_be_decoded_is_refused(raw: bytes) -> None:
    message = refused(b"\x22\x01x" * 20 + raw, script_runner_pb2.RunScriptRequest.FromString, fields_max=25)
    assert message.startswith("the request is not the message that this call takes; use a client")


REQUESTS = [
    one.input_type
    for file in (script_runner_pb2, bundle_store_pb2, admin_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for one in service.methods
]


def repeated_below(message: Any, seen: set[str]) -> list[str]:
    """Fields of the messages below one that can be given more than once."""
    found = []
    for field in message.fields:
        if field.type == descriptor.FieldDescriptor.TYPE_MESSAGE and field.message_type.full_name not in seen:
            seen.add(field.message_type.full_name)
            found += [one.full_name for one in field.message_type.fields if one.is_repeated]
            found += repeated_below(field.message_type, seen)
    return found


@pytest.mark.parametrize("request_type", REQUESTS, ids=[one.name for one in REQUESTS])
def test_nothing_can_be_repeated_below_the_top_level_of_a_request(request_type: Any) -> None:
    """Which is why counting that is enough."""
    assert repeated_below(request_type, set()) == []
