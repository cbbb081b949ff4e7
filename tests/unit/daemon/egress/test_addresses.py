"""Only public addresses are dialled."""

import asyncio
import contextlib
import errno
import ipaddress
import pathlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljaild.egress import addresses, dialler
from skilljaild.egress.addresses import is_public
from skilljaild.egress.dialler import SystemDialler


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.169.254",
        "169.254.170.2",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.9",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::ffff:0:8.8.8.8",
        "64:ff9b::808:808",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:808:808::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "1fff::1",
        "fc00::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "2606:4700::1111%eth0",
        "",
        "example.com",
        "8.8.8",
        "08.8.8.8",
        "8.8.8.8 ",
        "134744072",
    ],
)
def test_what_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "1.1.1.1",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.255.255",
        "172.32.0.1",
        "168.63.129.15",
        "192.0.1.1",
        "198.17.255.255",
        "198.20.0.1",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",
        "2a00:1450:4001::1",
        "2620:fe::fe",
    ],
)
def test_what_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("network", [*addresses.NOT_PUBLIC_IPV4, *addresses.NOT_PUBLIC_IPV6])
def test_both_ends_of_every_network_of_the_tables_are_refused(network: str) -> None:
    found = ipaddress.ip_network(network)
    assert not is_public(str(found[0]))
    assert not is_public(str(found[-1]))


@given(st.ip_addresses())
def test_what_python_calls_local_is_never_public(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    local = (
        ip.is_private or ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_reserved or ip.is_unspecified
    )
    assert not (local and is_public(str(ip)))


@given(st.ip_addresses(v=4))
def test_no_ipv4_address_is_reached_in_the_disguise_of_an_ipv6_one(ip: ipaddress.IPv4Address) -> None:
    packed = int(ip)
    for prefix in ("::", "::ffff:0:0", "64:ff9b::"):
        assert not is_public(str(ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | packed)))
    assert not is_public(str(ipaddress.IPv6Address((0x2002 << 112) | (packed << 80) | 1)))


def test_the_hosts_own_addresses_are_not_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """What listens on the daemon's host may trust the host's own address, however public that is."""
    monkeypatch.setattr(addresses, "is_public", lambda _: True)
    assert not SystemDialler().is_public("127.0.0.1")
    assert SystemDialler().is_public("192.0.2.1")


def test_a_host_has_more_addresses_than_those_that_it_sends_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """To 127.0.0.2 a host sends from 127.0.0.1, as it does to every address that is not its first one."""
    monkeypatch.setattr(addresses, "is_public", lambda _: True)
    assert not SystemDialler().is_public("127.0.0.2")


def test_where_every_address_can_be_bound_not_all_are_the_hosts_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(addresses, "is_public", lambda _: True)
    setting = tmp_path / "ip_nonlocal_bind"
    monkeypatch.setattr(dialler, "NONLOCAL_BIND", str(setting))
    for text, public in (("0\n", False), ("1\n", True)):
        setting.write_text(text)
        assert SystemDialler().is_public("127.0.0.2") is public
        assert not SystemDialler().is_public("127.0.0.1")
        assert SystemDialler().is_public("192.0.2.1")


def test_an_address_that_cannot_be_looked_into_is_not_public(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(addresses, "is_public", lambda _: True)
    monkeypatch.setattr(socket, "socket", none_left)
    assert not SystemDialler().is_public("192.0.2.1")


async def test_a_connection_of_the_host_to_itself_is_dropped() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with pytest.raises(ConnectionRefusedError):
        await SystemDialler().connect("127.0.0.1", server.sockets[0].getsockname()[1])
    async with asyncio.timeout(20):
        await closed.wait()
    server.close()


async def test_the_dialler_dials_addresses_and_never_names() -> None:
    with pytest.raises(socket.gaierror):
        await SystemDialler().connect("localhost", 9)
