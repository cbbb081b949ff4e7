"""What decides on egress: names of hosts, patterns of an allowlist, and the beginning of a TLS connection."""

import ipaddress
import re
import ssl

import pytest
from hypothesis import strategies as st
from skilljaild.egress.hello import HelloInvalid, HelloParser
from skilljaild.egress.hosts import HostInvalid, HostPattern, covered, normalised, split_authority

from .hunt import target
from .mutation import mutated

LABELS = st.sampled_from(
    [
        *(
            "a",
            "example",
            "com",
            "xn--nxasmq6b",
            "bücher",
            "1",
            "127",
            "0x7f",
            "-",
            "a-",
            "_x",
            "a" * 63,
            "a" * 64,
            "*",
        ),
        # What looks like a dot, a letter or a digit, and what is not seen at all.
        *("\u3002", "\uff0e", "\u2488", "\u200d", "\xad", "\uff11\uff12\uff17", "\u2100", "ß", "\u0130", "\u212a"),
        *("", "xn--", "xn--a", "%2e", "[::1]"),
    ]
)
HOSTS = st.one_of(
    st.lists(LABELS, max_size=6).map(".".join),
    st.text(max_size=8),
    mutated([b"api.example.com", b"127.0.0.1", b"xn--bcher-kva.example", b"user@host.example"]).map(
        lambda data: data.decode(errors="replace")
    ),
)
AUTHORITIES = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "", "*.", "*"]),
    HOSTS,
    st.sampled_from(["", "", ":443", ":0", ":65536", ":1:2", ":", ":٣", ":080"]),
)


@target(HOSTS, examples=500)
def test_a_host_is_a_plain_name_or_refused(text: str) -> None:
    try:
        host = normalised(text)
    except HostInvalid as error:
        assert str(error).isprintable()
        return
    assert normalised(host) == host
    assert re.fullmatch(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})+", host)
    assert len(host) <= 253
    assert split_authority(f"{host}:8443") == (host, 8443)
    with pytest.raises(ValueError, match="not appear to be"):
        ipaddress.ip_address(host)


@target(AUTHORITIES, AUTHORITIES, HOSTS, st.sampled_from([80, 443, 8443]), examples=500)
def test_a_pattern_that_covers_another_allows_all_that_it_allows(one: str, other: str, text: str, port: int) -> None:
    try:
        ours, theirs, host = HostPattern.parse(one, every=True), HostPattern.parse(other, every=True), normalised(text)
    except HostInvalid:
        return
    for pattern in (ours, theirs):
        assert HostPattern.parse(str(pattern), every=True) == pattern
        assert pattern.covers(pattern)
        assert covered(pattern, [pattern])
    if ours.covers(theirs) or covered(theirs, [ours]):
        for asked in (host, theirs.host, f"below.{theirs.host}"):
            assert ours.allows(asked, port) or not theirs.allows(asked, port)


def _hello(name: str | None) -> bytes:
    """What Python's TLS says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    said = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), said, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return said.read()


def _in_records(hello: bytes, size: int) -> bytes:
    """The same in records of `size` bytes."""
    message = hello[5:]
    pieces = [message[start : start + size] for start in range(0, len(message), size)]
    return b"".join(hello[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces)


NAMED = _hello("api.example.com")
HELLOS = [NAMED, _hello(None), _in_records(NAMED, 100), _in_records(NAMED, len(NAMED) // 3)]


@target(mutated(HELLOS), st.lists(st.integers(0, 700), max_size=5), examples=400)
def test_a_hello_is_read_the_same_however_it_comes(data: bytes, cuts: list[int]) -> None:
    def read(data: bytes) -> object:
        try:
            hello = HelloParser().feed(data)
        except HelloInvalid as error:
            assert str(error).isprintable()
            return HelloInvalid
        assert hello is None or hello.server_name is None or hello.server_name.isascii()
        return hello

    whole = read(data)
    for cut in cuts:
        # What was decided on the first bytes does not change with those that follow.
        assert read(data[:cut]) in (None, whole)


def test_the_hellos_start_from_good_ones() -> None:
    """The seeds are what they should be."""
    names = [hello.server_name for hello in (HelloParser().feed(data) for data in HELLOS) if hello is not None]
    assert names == ["api.example.com", None, "api.example.com", "api.example.com"]
