"""Which addresses are public. Everything else belongs to somebody's own network and is never dialled.

The tables follow IANA's registries of special-purpose addresses. `ipaddress.is_global` is asked as well, and not
trusted alone: its answers differ among versions of Python, and it calls multicast global.
"""

import ipaddress
from collections.abc import Iterable

__all__ = ["IPV6_PUBLIC", "NOT_PUBLIC_IPV4", "NOT_PUBLIC_IPV6", "is_public"]

NOT_PUBLIC_IPV4 = {
    "0.0.0.0/8": "this network, RFC 791; Linux takes 0.0.0.0 for itself",
    "10.0.0.0/8": "private, RFC 1918",
    "100.64.0.0/10": "shared by carriers, RFC 6598; Alibaba's metadata service is 100.100.100.200",
    "127.0.0.0/8": "loopback, RFC 1122",
    "168.63.129.16/32": "Azure's host agent and metadata, in public address space",
    "169.254.0.0/16": "link-local, RFC 3927; the metadata service of most clouds is 169.254.169.254",
    "172.16.0.0/12": "private, RFC 1918",
    "192.0.0.0/24": "IETF protocol assignments, RFC 6890; Oracle's metadata service is 192.0.0.192",
    "192.0.2.0/24": "documentation, RFC 5737",
    "192.31.196.0/24": "AS112, RFC 7535",
    "192.52.193.0/24": "AMT relays, RFC 7450",
    "192.88.99.0/24": "6to4 relays, RFC 7526",
    "192.168.0.0/16": "private, RFC 1918",
    "192.175.48.0/24": "AS112, RFC 7534",
    "198.18.0.0/15": "benchmarks, RFC 2544",
    "198.51.100.0/24": "documentation, RFC 5737",
    "203.0.113.0/24": "documentation, RFC 5737",
    "224.0.0.0/4": "multicast, RFC 5771",
    "240.0.0.0/4": "reserved, RFC 1112, and broadcast, RFC 8190",
}
"""https://www.iana.org/assignments/iana-ipv4-special-registry, and what clouds put elsewhere."""

IPV6_PUBLIC = "2000::/3"
"""All that IANA has given out as global unicast, RFC 4291."""

NOT_PUBLIC_IPV6 = {
    "::/96": "IPv4-compatible, RFC 4291, with the unspecified address and loopback",
    "::ffff:0:0/96": "IPv4-mapped, RFC 4291",
    "64:ff9b::/96": "NAT64, RFC 6052: an IPv4 address, maybe a private one, in disguise",
    "64:ff9b:1::/48": "local NAT64, RFC 8215",
    "100::/64": "discarded, RFC 6666",
    "100:0:0:1::/64": "dummy prefix, RFC 9780",
    "2001::/23": "IETF protocol assignments, RFC 2928, with Teredo, benchmarks and ORCHID",
    "2001:db8::/32": "documentation, RFC 3849",
    "2002::/16": "6to4, RFC 3056: an IPv4 address in disguise",
    "2620:4f:8000::/48": "AS112, RFC 7534",
    "3fff::/20": "documentation, RFC 9637",
    "5f00::/16": "segment routing, RFC 9602",
    "fc00::/7": "unique local, RFC 4193; metadata services are fd00:ec2::254 and fd20:ce::254",
    "fe80::/10": "link-local, RFC 4291",
    "fec0::/10": "site-local, RFC 3879",
    "ff00::/8": "multicast, RFC 4291",
}
"""https://www.iana.org/assignments/iana-ipv6-special-registry. What lies outside of `IPV6_PUBLIC` stands here for the
reader: it is refused twice."""


def _networks(table: Iterable[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in table)


_REFUSED = (*_networks(NOT_PUBLIC_IPV4), *_networks(NOT_PUBLIC_IPV6))
_UNICAST = ipaddress.IPv6Network(IPV6_PUBLIC)


def is_public(address: str) -> bool:
    """Whether `address`, as a resolver gives it, is one that everybody on the Internet reaches."""
    if "%" in address:  # a zone: never global, and Python's versions judge it differently
        return False
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if any(ip in network for network in _REFUSED):
        return False
    return ip.is_global and (ip.version == 4 or ip in _UNICAST)
