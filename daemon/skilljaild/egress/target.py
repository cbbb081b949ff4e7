"""What a request to the proxy asks for: the host, the port, and what the host itself is to be sent.

Targets are read strictly, by one parser, and never passed on as they came: a target that two parsers read differently
would be checked as one host and served as another.
"""

import dataclasses
import re

import h11

from skilljaild.egress.decision import EgressRefusal, Refused, printable_host
from skilljaild.egress.hosts import HostInvalid, split_authority

__all__ = ["Target", "absolute_target", "connect_target", "origin_target"]

HTTP_PORT = 80
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.ASCII | re.IGNORECASE)
_ABSOLUTE = re.compile(r"http://([^/?#\\]*)(/[^#]*|\?[^#]*|)", re.ASCII | re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """`host` is normalised. `path`: the target in origin form; "" for CONNECT."""

    host: str
    port: int
    path: str = ""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        return self.host if self.port == HTTP_PORT else f"{self.host}:{self.port}"


def connect_target(request: h11.Request) -> Target:
    """What a CONNECT asks for. Raises Refused."""
    text = request.target.decode("ascii")
    host, port = _authority(text, text)
    if port is None:
        raise Refused(
            EgressRefusal.PROTOCOL_INVALID, host, 0, "CONNECT names no port; write it behind the host, as host:443."
        )
    target = Target(host, port)
    # Not all clients repeat the port here.
    _check_host(request, target, without=target.port)
    return target


def absolute_target(request: h11.Request) -> Target:
    """What a request in absolute form, `http://host/path`, asks for. Raises Refused."""
    text = request.target.decode("ascii")
    scheme = _SCHEME.match(text)
    if scheme is None:
        raise Refused(
            EgressRefusal.PROTOCOL_INVALID,
            "",
            0,
            "this is a proxy for HTTP and HTTPS; send it CONNECT host:port, or the whole URL, http://host/path.",
        )
    if scheme[1].lower() != "http":
        raise Refused(
            EgressRefusal.PROTOCOL_INVALID,
            printable_host(text[scheme.end() :]),
            0,
            "only http:// URLs can be asked for in full; reach HTTPS with CONNECT host:443, so that it is encrypted "
            "from end to end.",
        )
    found = _ABSOLUTE.fullmatch(text)
    if found is None:
        shown = printable_host(text[scheme.end() :])
        raise Refused(
            EgressRefusal.HOST_INVALID, shown, 0, "the URL holds a backslash or a fragment (#); leave it out."
        )
    host, port = _authority(found[1], text[scheme.end() :])
    path = found[2]
    if not path.startswith("/"):
        path = "*" if request.method == b"OPTIONS" and not path else f"/{path}"
    target = Target(host, HTTP_PORT if port is None else port, path)
    _check_host(request, target, without=HTTP_PORT)
    return target


def origin_target(request: h11.Request, host: str, port: int) -> Target:
    """What a request inside of a CONNECT to `host` and `port` asks for. Raises Refused."""
    text = request.target.decode("ascii")
    if request.method == b"CONNECT" or not (text.startswith("/") or (text, request.method) == ("*", b"OPTIONS")):
        raise Refused(
            EgressRefusal.PROTOCOL_INVALID,
            host,
            port,
            "a request inside of a CONNECT names a path alone, as /path.",
            cut=True,
        )
    target = Target(host, port, text)
    if not any(name == b"host" for name, _ in request.headers):
        raise _mismatch(target, cut=True)
    _check_host(request, target, without=HTTP_PORT, cut=True)
    return target


def _authority(text: str, whole: str) -> tuple[str, int | None]:
    """`whole`: the authority with all that follows it."""
    try:
        return split_authority(text)
    except HostInvalid as error:
        raise Refused(EgressRefusal.HOST_INVALID, printable_host(whole), 0, f"{error}.") from error


def _check_host(request: h11.Request, target: Target, *, without: int, cut: bool = False) -> None:
    """`without`: the port that a Host header without one stands for."""
    for name, value in request.headers:
        if name != b"host":
            continue
        try:
            host, port = split_authority(value.decode("ascii"))
        except ValueError as error:
            raise _mismatch(target, cut=cut) from error
        if (host, without if port is None else port) != (target.host, target.port):
            raise _mismatch(target, cut=cut)


def _mismatch(target: Target, *, cut: bool) -> Refused:
    return Refused(
        EgressRefusal.HOST_MISMATCH,
        target.host,
        target.port,
        "the Host header names another host or port than the one that was asked for.",
        cut=cut,
    )
