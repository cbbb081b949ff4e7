"""Names of hosts: one form in which they are compared, and patterns that allow them.

There is one parser for all: for what an operator and a request allow, for what a script asks for, and for what TLS and
HTTP name. Whatever could be read as an address in any spelling is no host name here: who may name an address needs no
allowlist of names.
"""

import dataclasses
import re
from collections.abc import Iterable
from typing import Self

import idna

__all__ = ["HostInvalid", "HostPattern", "covered", "normalised", "split_authority"]

PORTS_DEFAULT = frozenset({80, 443})
TEXT_LENGTH_MAX = 1_024
"""Mapping Unicode costs time: nothing longer is looked at."""
HOST_LENGTH_MAX = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_ASCII_HOST = re.compile(r"[A-Za-z0-9._-]", re.ASCII)


class HostInvalid(ValueError):
    """The text is no host name. The message says what is wrong with it, without repeating it."""


def normalised(text: str) -> str:
    """The form in which a host is compared: lower case, punycode, no dot at the end.

    Raises HostInvalid for all that is no name of at least two labels: addresses in whatever form, ports, user
    information, brackets, percent escapes, white space, control characters.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise HostInvalid(f"a host name has at most {HOST_LENGTH_MAX} characters")
    host = _mapped(text).removesuffix(".")
    if not host:
        raise HostInvalid("the host name is empty")
    labels = [_label(label) for label in host.split(".")]
    if len(labels) < 2:
        raise HostInvalid("a host name has at least two parts, such as example.com; this one is of a local network")
    if _NUMBER.fullmatch(labels[-1]):
        raise HostInvalid("an IP address is no host name; ask for the host by its name")
    host = ".".join(labels)
    if len(host) > HOST_LENGTH_MAX:
        raise HostInvalid(f"a host name has at most {HOST_LENGTH_MAX} characters")
    return host


def _mapped(text: str) -> str:
    """Lower case and, after UTS 46, without the many ways to write one character. No ASCII but a host's is left."""
    _check_ascii(text)
    if text.isascii():
        return text.lower()
    try:
        return idna.uts46_remap(text, std3_rules=True, transitional=False)
    except (ValueError, IndexError) as error:  # IDNAError is a ValueError
        raise HostInvalid("the host name holds a character that no host name may have") from error


def _check_ascii(text: str) -> None:
    for character in text:
        if not character.isascii() or _ASCII_HOST.fullmatch(character):
            continue
        if character == "@":
            raise HostInvalid("user information (user@) cannot stand before a host name; leave it out")
        if character in ":[]":
            raise HostInvalid("an IPv6 address is no host name; ask for the host by its name")
        raise HostInvalid(f"a host name cannot hold {character!a}")


def _label(label: str) -> str:
    if not label:
        raise HostInvalid("the host name has an empty part: two dots in a row, or one at its start")
    if not label.isascii() or label.startswith("xn--"):
        label = _a_label(label)
    if len(label) > 63:
        raise HostInvalid("no part of a host name is longer than 63 characters")
    if not _LABEL.fullmatch(label):
        raise HostInvalid("no part of a host name starts or ends with a hyphen")
    return label


def _a_label(label: str) -> str:
    try:
        return idna.alabel(label).decode("ascii")
    except (ValueError, IndexError) as error:
        raise HostInvalid("a part of the host name is not valid as an internationalised name") from error


def split_authority(text: str) -> tuple[str, int | None]:
    """`host` or `host:port`: the host normalised, and the port where one is given. Raises HostInvalid."""
    host, colon, port = text.partition(":")
    if "@" in text or ":" in port:
        return normalised(text), None  # which says what is wrong with it
    host = normalised(host)
    if colon and not (_PORT.fullmatch(port) and int(port) <= 65_535):
        raise HostInvalid("what stands behind the colon is no port; a port is a number from 1 to 65535")
    return host, int(port) if colon else None


@dataclasses.dataclass(frozen=True, slots=True)
class HostPattern:
    """What one entry of an allowlist allows. `str()` gives the form in which it is compared.

    `host`: normalised; "" for every host. `below`: not the host itself, but every one below it. `port`: None for 80
    and 443.
    """

    host: str
    below: bool = False
    port: int | None = None

    @classmethod
    def parse(cls, text: str, *, every: bool = False) -> Self:
        """Reads `example.com`, `*.example.com`, `example.com:8443` and, where `every` is true, `*`.

        Raises HostInvalid with a message that says what is wrong and what to write.
        """
        name, colon, port_text = text.rpartition(":")
        if not colon:
            name, port_text = text, ""
        if name == "*":
            if not every:
                raise HostInvalid("'*' would allow every host; name the hosts, such as example.com or *.example.com")
            split_authority(f"any.example{colon}{port_text}")
            return cls("", below=True, port=int(port_text) if colon else None)
        below = text.startswith("*.")
        try:
            host, port = split_authority(text[2:] if below else text)
        except HostInvalid as error:
            if "*" in text[2 if below else 0 :]:
                raise HostInvalid("'*' can only be the whole first part, as in *.example.com") from error
            raise
        return cls(host, below=below, port=port)

    def __str__(self) -> str:
        name = f"*.{self.host}" if self.host and self.below else self.host or "*"
        return name if self.port is None else f"{name}:{self.port}"

    @property
    def ports(self) -> frozenset[int]:
        """The ports that it allows."""
        return PORTS_DEFAULT if self.port is None else frozenset({self.port})

    def allows_host(self, host: str) -> bool:
        """Whether it allows `host`, which is normalised, on some port."""
        if not self.host:
            return True
        return host.endswith(f".{self.host}") if self.below else host == self.host

    def allows(self, host: str, port: int) -> bool:
        """Whether it allows `host`, which is normalised, on `port`."""
        return port in self.ports and self.allows_host(host)

    def covers(self, other: "HostPattern") -> bool:
        """Whether it allows all that `other` allows."""
        return self._covers_hosts(other) and other.ports <= self.ports

    def _covers_hosts(self, other: "HostPattern") -> bool:
        if not self.host or not other.below:
            return not self.host or self.allows_host(other.host)
        # Every host below one that is below ours is below ours, and so is every host below ours.
        return self.below and bool(other.host) and (other.host == self.host or self.allows_host(other.host))


def covered(pattern: HostPattern, ceiling: Iterable[HostPattern]) -> bool:
    """Whether the patterns of `ceiling` together allow all that `pattern` allows."""
    above = tuple(ceiling)
    return all(any(one.covers(dataclasses.replace(pattern, port=port)) for one in above) for port in pattern.ports)
