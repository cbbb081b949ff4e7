"""Reads the one thing of TLS that the proxy wants to know: which server the client names (SNI, RFC 6066).

The parser takes a ClientHello (RFC 8446, 4.1.2) and nothing else; every length must fit exactly. What a server might
read in another way than this parser must not get to it.
"""

import dataclasses

__all__ = ["ClientHello", "HelloInvalid", "HelloParser"]

RECORD_HANDSHAKE = 22
RECORD_BYTES_MAX = 16_384
RECORDS_MAX = 64
"""Clients use one or two."""
HANDSHAKE_CLIENT_HELLO = 1
HELLO_BYTES_MAX = 64 * 1024
"""Those with post-quantum keys have about 1.8 KiB, those with session tickets may have several more."""
EXTENSION_SERVER_NAME = 0
EXTENSION_ENCRYPTED_HELLO = 0xFE0D


class HelloInvalid(ValueError):
    """The bytes are no beginning of a ClientHello. The message says why, without repeating any of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClientHello:
    """`server_name`: as the client wrote it, None when it names none. `encrypted`: another name may be hidden in it."""

    server_name: str | None
    encrypted: bool


class HelloParser:
    """Takes the beginning of a connection as it comes. Each record is looked into once, when it is whole."""

    def __init__(self) -> None:
        self._data = bytearray()
        """What came and was not looked into yet."""
        self._message = bytearray()
        self._records = 0

    def feed(self, data: bytes) -> ClientHello | None:
        """The ClientHello; None while more bytes are needed. Raises HelloInvalid.

        Not to be fed again after the ClientHello.
        """
        self._data += data
        while self._data:
            length = _record_length(self._data[:5])
            if length is None or len(self._data) < 5 + length:
                return None
            self._message += self._data[5 : 5 + length]
            del self._data[: 5 + length]
            self._records += 1
            expected = _expected(self._message)
            if len(self._message) > expected:
                raise HelloInvalid("a TLS record with more in it than the ClientHello")
            if len(self._message) == expected:
                return _parse_message(bytes(self._message[4:]))
            if self._records == RECORDS_MAX:
                raise HelloInvalid(f"a ClientHello in more than {RECORDS_MAX} TLS records")
        return None


def _record_length(header: bytearray) -> int | None:
    """Length of what a record holds; None while its header is not whole. It is checked as far as it is there."""
    if header[0] != RECORD_HANDSHAKE or (len(header) > 1 and header[1] != 3):
        raise HelloInvalid("not a TLS handshake")
    if len(header) > 2 and header[2] > 4:
        raise HelloInvalid("an unknown version of TLS")
    if len(header) < 5:
        return None
    length = int.from_bytes(header[3:5])
    if not 1 <= length <= RECORD_BYTES_MAX:
        raise HelloInvalid(f"a TLS record of {length:,} bytes")
    return length


def _expected(message: bytearray) -> int:
    """Length of the whole handshake message, its header included."""
    if message and message[0] != HANDSHAKE_CLIENT_HELLO:
        raise HelloInvalid("a TLS handshake that begins with no ClientHello")
    if len(message) < 4:
        return 5  # more than there are: its header is not whole yet
    length = int.from_bytes(message[1:4])
    if length > HELLO_BYTES_MAX:
        raise HelloInvalid(f"a ClientHello of {length:,} bytes; at most {HELLO_BYTES_MAX:,} are read")
    return 4 + length


class _Reader:
    """Takes bytes from the front of some."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def __bool__(self) -> bool:
        return self._position < len(self._data)

    def take(self, count: int) -> bytes:
        piece = self._data[self._position : self._position + count]
        if len(piece) < count:
            raise HelloInvalid("a ClientHello in which a length does not fit")
        self._position += count
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int, least: int, step: int = 1) -> bytes:
        """A vector whose length is written in `size` bytes: at least `least` long, and a multiple of `step`."""
        length = self.number(size)
        if length < least or length % step:
            raise HelloInvalid("a ClientHello in which a length is wrong")
        return self.take(length)


def _parse_message(body: bytes) -> ClientHello:
    reader = _Reader(body)
    if reader.take(2)[0] != 3:
        raise HelloInvalid("a ClientHello of an unknown version")
    reader.take(32)  # random
    if len(reader.vector(1, 0)) > 32:
        raise HelloInvalid("a ClientHello with a session id that is too long")
    reader.vector(2, 2, step=2)  # cipher suites
    reader.vector(1, 1)  # compression methods
    if not reader:
        return ClientHello(None, encrypted=False)
    extensions = _Reader(reader.vector(2, 0))
    if reader:
        raise HelloInvalid("a ClientHello with bytes behind its end")
    found: dict[int, bytes] = {}
    while extensions:
        kind = extensions.number(2)
        if kind in found:
            raise HelloInvalid("a ClientHello with the same extension twice")
        found[kind] = extensions.vector(2, 0)
    name = _server_name(found[EXTENSION_SERVER_NAME]) if EXTENSION_SERVER_NAME in found else None
    return ClientHello(name, encrypted=EXTENSION_ENCRYPTED_HELLO in found)


def _server_name(extension: bytes) -> str:
    outer = _Reader(extension)
    names = _Reader(outer.vector(2, 1))
    kind = names.number(1)
    name = names.vector(2, 1)
    if outer or names or kind != 0:
        raise HelloInvalid("a ClientHello with other than one server name")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise HelloInvalid("a ClientHello with a server name that is not ASCII") from None
