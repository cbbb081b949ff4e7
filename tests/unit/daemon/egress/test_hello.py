"""The ClientHello parser, on real ones and on anything."""

import contextlib
import itertools
import ssl
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from skilljaild.egress import hello as module
from skilljaild.egress.hello import HELLO_BYTES_MAX, RECORDS_MAX, ClientHello, HelloInvalid, HelloParser


def parse_hello(data: bytes) -> ClientHello | None:
    """What comes out when all comes at once."""
    return HelloParser().feed(data)


def real_hello(name: str | None, **options: object) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for option, value in options.items():
        if callable(method := getattr(context, option)):
            method(value)
        else:
            setattr(context, option, value)
    sent = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


def vector(size: int, data: bytes) -> bytes:
    """A vector of TLS, its length in `size` bytes."""
    return len(data).to_bytes(size) + data


def name_extension(name: bytes, kind: int = 0) -> bytes:
    """The server_name extension for one name."""
    return struct.pack(">H", 0) + vector(2, vector(2, bytes([kind]) + vector(2, name)))


def made_hello(
    extensions: bytes | None,
    *,
    version: bytes = b"\x03\x03",
    session: bytes = b"s" * 32,
    suites: bytes = b"\x13\x01",
    compression: bytes = b"\0",
    behind: bytes = b"",
) -> bytes:
    """The body of a ClientHello."""
    body = version + b"r" * 32 + vector(1, session) + vector(2, suites) + vector(1, compression)
    return body + (b"" if extensions is None else vector(2, extensions)) + behind


def records(message: bytes, size: int = 16_384) -> bytes:
    """A handshake message in records of `size` bytes."""
    pieces = [message[start : start + size] for start in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + vector(2, piece) for piece in pieces)


def handshake(body: bytes, kind: int = 1) -> bytes:
    """A handshake message."""
    return bytes([kind]) + vector(3, body)


GOOD = records(handshake(made_hello(name_extension(b"example.com"))))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maximum_version": ssl.TLSVersion.TLSv1_2},
        {"minimum_version": ssl.TLSVersion.TLSv1_3},
        {"set_alpn_protocols": ["h2", "http/1.1"]},
    ],
)
def test_real_hellos_name_their_server(options: dict[str, object]) -> None:
    data = real_hello("example.com", **options)
    assert parse_hello(data) == ClientHello("example.com", encrypted=False)
    for end in range(len(data)):
        assert parse_hello(data[:end]) is None
    # What comes behind it, in records of its own, is not looked at.
    assert parse_hello(data + b"\x17\x03\x03\x00\x01x") == ClientHello("example.com", encrypted=False)


def test_a_real_hello_without_a_name_has_none() -> None:
    assert parse_hello(real_hello(None)) == ClientHello(None, encrypted=False)


@pytest.mark.parametrize("size", [250, 1_000, 16_384])
def test_a_hello_may_span_records_and_be_long(size: int) -> None:
    data = handshake(made_hello(struct.pack(">H", 51) + vector(2, b"k" * 1_800) + name_extension(b"example.com")))
    assert parse_hello(records(data, size)) == ClientHello("example.com", encrypted=False)


def test_a_hello_longer_than_a_record_is_read() -> None:
    padding = struct.pack(">H", 21) + vector(2, bytes(20_000))
    data = records(handshake(made_hello(padding + name_extension(b"example.com"))))
    assert len(data) > 16_384 + 5
    assert parse_hello(data) == ClientHello("example.com", encrypted=False)
    assert parse_hello(data[:-1]) is None


def test_an_encrypted_hello_is_told() -> None:
    data = made_hello(name_extension(b"example.com") + struct.pack(">H", 0xFE0D) + vector(2, b"e"))
    assert parse_hello(records(handshake(data))) == ClientHello("example.com", encrypted=True)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x80\x2e\x01\x00\x02",  # SSL 2
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x16\x02",
        b"\x16\x03\x05",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01",
        records(handshake(made_hello(None), kind=2)),
        records(handshake(made_hello(None)) + b"x"),
        records(handshake(made_hello(None)) * 2),
        records(b"\x01" + (HELLO_BYTES_MAX + 1).to_bytes(3)),
        records(handshake(made_hello(None)), 1)[: 6 * RECORDS_MAX],
        records(handshake(made_hello(b"", version=b"\x02\x00"))),
        records(handshake(made_hello(b"", session=b"s" * 33))),
        records(handshake(made_hello(b"", suites=b""))),
        records(handshake(made_hello(b"", suites=b"odd"))),
        records(handshake(made_hello(b"", compression=b""))),
        records(handshake(made_hello(b"", behind=b"x"))),
        records(handshake(made_hello(b"\0\0\0"))),
        records(handshake(made_hello(name_extension(b"example.com") * 2))),
        records(handshake(made_hello(name_extension(b"example.com", kind=1)))),
        records(handshake(made_hello(name_extension(b"")))),
        records(handshake(made_hello(name_extension("bücher.example".encode())))),
        records(handshake(made_hello(struct.pack(">H", 0) + vector(2, b"")))),
        records(handshake(made_hello(struct.pack(">H", 0) + vector(2, vector(2, b"\0" + vector(2, b"a.b")) + b"x")))),
        records(handshake(made_hello(struct.pack(">H", 0) + vector(2, vector(2, (b"\0" + vector(2, b"a.b")) * 2))))),
        records(handshake(b"")),
    ],
)
def test_what_is_no_hello(data: bytes) -> None:
    with pytest.raises(HelloInvalid):
        parse_hello(data)


@given(st.binary(max_size=300))
@example(b"")
def test_nothing_that_comes_breaks_the_parser(data: bytes) -> None:
    for prefix in (b"", b"\x16\x03\x01", records(handshake(b"\x03\x03" + data))[:9]):
        with contextlib.suppress(HelloInvalid):
            parse_hello(prefix + data)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_wrong_byte_never_gives_another_name_of_another_length(position: int, value: int) -> None:
    data = bytearray(GOOD)
    data[position] = value
    try:
        hello = parse_hello(bytes(data))
    except HelloInvalid:
        return
    assert hello is None or hello.server_name is None or len(hello.server_name) == len("example.com")


@given(st.lists(st.integers(1, len(GOOD)), max_size=8))
def test_however_it_is_cut_into_records_the_same_comes_out(cuts: list[int]) -> None:
    message = GOOD[5:]
    bounds = [0, *sorted({cut for cut in cuts if cut < len(message)}), len(message)]
    data = b"".join(records(message[start:end]) for start, end in itertools.pairwise(bounds))
    assert parse_hello(data) == ClientHello("example.com", encrypted=False)


@given(st.lists(st.integers(1, len(GOOD) - 1), max_size=8))
def test_however_it_comes_the_same_comes_out(cuts: list[int]) -> None:
    bounds = [0, *sorted(set(cuts)), len(GOOD)]
    parser = HelloParser()
    *early, last = (parser.feed(GOOD[start:end]) for start, end in itertools.pairwise(bounds))
    assert early == [None] * len(early)
    assert last == ClientHello("example.com", encrypted=False)


def test_a_record_is_not_taken_for_whole_before_it_is() -> None:
    """It announces one byte more than the ClientHello."""
    data = records(GOOD[5:] + b"x")
    parser = HelloParser()
    assert parser.feed(data[:-1]) is None
    with pytest.raises(HelloInvalid):
        parser.feed(data[-1:])


def test_each_record_is_looked_into_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly it comes."""
    looked = 0
    real = module._expected

    def expected(message: bytearray) -> int:
        nonlocal looked
        looked += 1
        return real(message)

    monkeypatch.setattr(module, "_expected", expected)
    padding = struct.pack(">H", 21) + vector(2, bytes(2_000))
    data = records(handshake(made_hello(padding + name_extension(b"example.com"))), 50)
    parser = HelloParser()
    found = [parser.feed(data[position : position + 1]) for position in range(len(data))]
    assert found[-1] == ClientHello("example.com", encrypted=False)
    assert found.count(None) == len(found) - 1
    assert looked <= RECORDS_MAX
