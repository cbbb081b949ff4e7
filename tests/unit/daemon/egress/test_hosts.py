"""Names of hosts and patterns: one form, and nothing that is an address in disguise."""

# ruff: noqa: RUF001  characters that are mistaken for others are what this is about

import socket
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from skilljaild.egress import HostInvalid, HostPattern, covered
from skilljaild.egress.decision import printable_host
from skilljaild.egress.hosts import normalised, split_authority


@pytest.mark.parametrize(
    ("written", "compared"),
    [
        ("example.com", "example.com"),
        ("EXAMPLE.Com", "example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("ｅｘａｍｐｌｅ．ｃｏｍ", "example.com"),
        ("example。com", "example.com"),
        ("exa\u00admple.com", "example.com"),
        ("straße.example", "xn--strae-oqa.example"),
        ("_dmarc.under_score.example", "_dmarc.under_score.example"),
        ("r3---sn-4g5e6nez.example.com", "r3---sn-4g5e6nez.example.com"),
        ("1.2.3.example", "1.2.3.example"),
        ("0x7f.example.com", "0x7f.example.com"),
        ("a" * 63 + ".example", "a" * 63 + ".example"),
        (".".join(["a" * 49] * 5) + ".ab", ".".join(["a" * 49] * 5) + ".ab"),  # 252 characters
    ],
)
def test_a_host_has_one_form(written: str, compared: str) -> None:
    assert normalised(written) == compared


@pytest.mark.parametrize(
    "text",
    [
        # An address in every spelling that a resolver or a library reads as one.
        "127.0.0.1",
        "127.0.0.1.",
        "2130706433",
        "0177.0.0.1",
        "0x7f.1",
        "0x7f000001",
        "0X7F.0.0.0X1",
        "127.1",
        "127.0x1",
        "1.0x",
        "example.1",
        "999.999.999.999",
        "::1",
        "[::1]",
        "fe80::1%eth0",
        "[fe80::1%25eth0]",
        "::ffff:127.0.0.1",
        "[::ffff:7f00:1]",
        "１２７.０.０.１",
        "127。0。0。1",
        "①②⑦.0.0.1",
        "０x7f.1",
        "169.254.169.254",
        # Names of a local network.
        "localhost",
        "metadata",
        "com.",
        # Names that hold what a host cannot.
        "",
        ".",
        "..",
        ".example.com",
        "example..com",
        "example.com..",
        "exa mple.com",
        " example.com",
        "example.com\n",
        "example.com\0.evil.example",
        "example.com\r\nHost: evil.example",
        "example\x7f.com",
        "user@example.com",
        "user:pass@example.com",
        "example%2ecom",
        "example.com%00",
        "example．com％2fx",
        "example.com/path",
        "example.com\\path",
        "example.com?x",
        "example.com#x",
        "example.com:443",
        "*.example.com",
        "-example.com",
        "example-.com",
        "example.-com",
        "example.com-",
        "a" * 64 + ".example",
        ".".join(["a" * 49] * 5) + ".abcd",  # 254 characters
        "xn--.example",
        "xn--a.example",
        "xn--example-.com",
        "xn--zzzzzz99999.example",
        "\u200d.example.com",
        "\ud800.example.com",
        "exam\u2028ple.com",
        "𝟏𝟐𝟕.𝟎.𝟎.𝟏",
        "ü" * 2_000 + ".example",
    ],
)
def test_all_else_is_no_host(text: str) -> None:
    with pytest.raises(HostInvalid):
        normalised(text)


def reads_as_address(host: str) -> bool:
    """Whether the C library takes it for an address, in whatever form."""
    try:
        socket.inet_aton(host)
    except OSError:
        return False
    return True


CHARACTERS = st.sampled_from(
    [*string.ascii_letters, *string.digits, *"..--__:%@[]/ \0\n", *"．。０１ｘ①ß۱é\u200c\u00ad"]
)


@given(st.one_of(st.text(), st.text(CHARACTERS, max_size=40)))
@example("0x7f.1")
@example("ß.ß")
def test_whatever_is_a_host_is_plain_and_stays_as_it_is(text: str) -> None:
    try:
        host = normalised(text)
    except HostInvalid:
        return
    assert normalised(host) == host
    assert set(host) <= set(string.ascii_lowercase + string.digits + ".-_")
    assert not reads_as_address(host)
    assert len(host) <= 253


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.lists(st.sampled_from(["d", "o", "x", "X"]), min_size=4))
def test_no_spelling_of_an_ipv4_address_is_a_host(number: int, parts: int, bases: list[str]) -> None:
    octets = list(number.to_bytes(4))
    values = [*octets[: parts - 1], int.from_bytes(bytes(octets[parts - 1 :]))]
    form = {"d": "{}", "o": "0{:o}", "x": "0x{:x}", "X": "0X{:X}"}
    text = ".".join(form[base].format(value) for base, value in zip(bases, values, strict=False))
    assert reads_as_address(text)
    wide = text.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)})
    for spelling in (text, text + ".", wide):
        with pytest.raises(HostInvalid):
            normalised(spelling)


@given(st.ip_addresses(v=6).map(str))
def test_no_ipv6_address_is_a_host(address: str) -> None:
    for spelling in (address, f"[{address}]", f"[{address}]:443", f"{address}%eth0"):
        with pytest.raises(HostInvalid):
            split_authority(spelling)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Example.com", ("example.com", None)),
        ("example.com.:443", ("example.com", 443)),
        ("example.com:1", ("example.com", 1)),
        ("example.com:65535", ("example.com", 65535)),
    ],
)
def test_an_authority_is_a_host_and_maybe_a_port(text: str, found: tuple[str, int | None]) -> None:
    assert split_authority(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "example.com:",
        "example.com:0",
        "example.com:065",
        "example.com:65536",
        "example.com:-1",
        "example.com:+80",
        "example.com: 80",
        "example.com:8_0",
        "example.com:８０",
        "example.com:80:80",
        "user:80@example.com",
        "user:x@example.com:80",
        "example.com:80@evil.example",
        "example.com:80/",
    ],
)
def test_all_else_is_no_authority(text: str) -> None:
    with pytest.raises(HostInvalid):
        split_authority(text)


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        (
            "example.com",
            ["example.com:80", "example.com:443"],
            [
                "example.com:22",
                "evil-example.com:443",
                "evilexample.com:443",
                "a.example.com:443",
                "example.com.evil:443",
            ],
        ),
        (
            "*.Example.com.",
            ["a.example.com:443", "b.a.example.com:80"],
            ["example.com:443", "evil-example.com:443", "xexample.com:443", "a.example.com:8443"],
        ),
        ("example.com:8443", ["example.com:8443"], ["example.com:443", "example.com:80", "a.example.com:8443"]),
        ("*.bücher.example", ["a.xn--bcher-kva.example:443"], ["a.bucher.example:443"]),
        ("*", ["example.com:443", "a.b:80"], ["example.com:22"]),
        ("*:22", ["example.com:22"], ["example.com:443"]),
    ],
)
def test_what_a_pattern_allows(pattern: str, allowed: list[str], refused: list[str]) -> None:
    one = HostPattern.parse(pattern, every=True)
    for text, expected in [(text, True) for text in allowed] + [(text, False) for text in refused]:
        host, port = text.rsplit(":", 1)
        assert one.allows(host, int(port)) is expected, text


@pytest.mark.parametrize("text", ["example.com", "*.example.com", "example.com:8443", "*.example.com:80", "*", "*:22"])
def test_a_pattern_is_shown_as_it_is_compared(text: str) -> None:
    assert str(HostPattern.parse(text.upper(), every=True)) == text


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "*:443",
        "*.*.example.com",
        "a.*.example.com",
        "a*.example.com",
        "*example.com",
        "**.example.com",
        "*.",
        "*.com",
        "*.127.0.0.1",
        "127.0.0.1",
        "[::1]",
        "https://example.com",
        "example.com/path",
        "example.com:443-444",
        "",
        "localhost",
    ],
)
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(HostInvalid):
        HostPattern.parse(text)


@pytest.mark.parametrize("text", ["*:0", "*:", "*:x", "**", "*.*"])
def test_what_is_no_pattern_for_an_operator_either(text: str) -> None:
    with pytest.raises(HostInvalid):
        HostPattern.parse(text, every=True)


@pytest.mark.parametrize(
    ("ceiling", "inside", "outside"),
    [
        (
            ["*.a.com"],
            ["b.a.com", "*.b.a.com", "*.a.com", "b.a.com:443"],
            ["a.com", "*.com.com", "b.a.com:22", "xa.com"],
        ),
        (["a.com"], ["a.com", "a.com:80", "a.com:443"], ["*.a.com", "a.com:22", "b.a.com"]),
        (["a.com:443"], ["a.com:443"], ["a.com", "a.com:80"]),
        (["a.com:443", "a.com:80"], ["a.com"], ["a.com:22"]),
        (["*"], ["a.com", "*.b.com", "a.com:80"], ["a.com:22"]),
        (["*", "*:22"], ["a.com", "*.b.com:22"], ["a.com:23"]),
        ([], [], ["a.com", "*.a.com", "a.com:443"]),
    ],
)
def test_what_an_operators_list_covers(ceiling: list[str], inside: list[str], outside: list[str]) -> None:
    above = [HostPattern.parse(text, every=True) for text in ceiling]
    for text, expected in [(text, True) for text in inside] + [(text, False) for text in outside]:
        assert covered(HostPattern.parse(text), above) is expected, text


def test_every_host_is_covered_by_every_host_alone() -> None:
    every = HostPattern.parse("*", every=True)
    assert every.covers(every)
    assert not HostPattern.parse("*.a.com").covers(every)


NAMES = st.sampled_from(["a.com", "b.a.com", "c.b.a.com", "xa.com", "com.a", "a.co"])
PATTERNS = st.builds(HostPattern, NAMES, st.booleans(), st.sampled_from([None, 80, 443, 22]))


@given(PATTERNS, PATTERNS, NAMES, st.sampled_from([80, 443, 22]))
def test_what_is_covered_allows_no_more(above: HostPattern, below: HostPattern, host: str, port: int) -> None:
    if above.covers(below) and below.allows(host, port):
        assert above.allows(host, port)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]:443", "[::1]:443"),
        ("user:password@127.0.0.1", "127.0.0.1"),
        ("user:pass/word@127.0.0.1", ""),
        ("user:p@ss/word@127.0.0.1", ""),
        ("user:p@ss?word@127.0.0.1", ""),
        ("user:password@127.0.0.1/@x", ""),
        ("user:p@ssword@127.0.0.1", "127.0.0.1"),
        ("user:password%40127.0.0.1", ""),
        ("127.0.0.1/token?key=1#x", "127.0.0.1"),
        ("127.0.0.1\\token", "127.0.0.1"),
        ("a\r\nb\0\x1b[31m é", "a\\x0d\\x0ab\\x00\\x1b[31m\\x20\\xe9"),
        ("a" * 300, "a" * 253),
    ],
)
def test_what_is_shown_of_no_host_is_printable_and_holds_no_secret(text: str, shown: str) -> None:
    assert printable_host(text) == shown
