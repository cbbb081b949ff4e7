"""CONNECT: what is decided, what is read before a byte reaches the host, and how the bytes flow then."""

import asyncio
import socket
import struct
import tracemalloc

import pytest
from skilljaild.egress import EgressDecision, TunnelClosed, connection, doorkeeper

from .test_hello import GOOD, handshake, made_hello, name_extension, real_hello, records
from .world import PUBLIC, PUBLIC_TWO, SECONDS, World, answer_requests, echo, silence


async def refusal(world: World, request: str, *hosts: str, network: str = "allowlist") -> tuple[bytes, EgressDecision]:
    """The answer to one request, and the one decision that was told."""
    answer = await world.ask(world.proxy(*hosts, network=network), request.encode("latin-1"))
    assert len(world.decisions) == 1
    return answer, world.decisions[0]


async def test_bytes_flow_both_ways_after_a_hello_for_the_host(world: World) -> None:
    await world.serve(echo, port=443)
    proxy = world.proxy("example.com")
    script = await world.connected(proxy)
    await script.send(GOOD)
    assert await script.exactly(len(GOOD)) == GOOD
    await script.send(b"\0\xffmore")
    assert await script.exactly(6) == b"\0\xffmore"
    await script.finish()
    assert await script.rest() == b""
    await script.served()
    (decision,) = world.decisions
    assert decision.allowed
    assert decision.refusal is None
    assert (decision.host, decision.port, decision.address) == ("example.com", 443, PUBLIC)
    assert proxy.connections == 1
    assert proxy.sent_bytes == proxy.received_bytes == len(GOOD) + 6
    assert not script.was_reset


@pytest.mark.parametrize("name", ["example.com", "EXAMPLE.com", "example.com."])
async def test_the_same_name_in_another_form_is_the_same(world: World, name: str) -> None:
    await world.serve(echo, port=443)
    script = await world.connected(world.proxy("example.com"), host="Example.COM.")
    hello = records(handshake(made_hello(name_extension(name.encode()))))
    await script.send(hello)
    assert await script.exactly(len(hello)) == hello
    assert world.decisions[0].host == "example.com"


async def test_a_host_in_unicode_and_in_punycode_is_the_same(world: World) -> None:
    await world.serve(echo, "xn--bcher-kva.example", port=443)
    script = await world.connected(world.proxy("bücher.example"), host="XN--bcher-kva.example")
    hello = real_hello("bücher.example")
    await script.send(hello)
    assert await script.exactly(len(hello)) == hello


async def test_a_hello_that_comes_byte_by_byte_is_held_until_it_is_whole(world: World) -> None:
    await world.serve(echo, port=443)
    proxy = world.proxy("example.com")
    script = await world.connected(proxy)
    hello = real_hello("example.com")
    for byte in hello[:-1]:
        await script.send(bytes([byte]))
    await asyncio.sleep(0.05)
    assert proxy.sent_bytes == 0
    await script.send(hello[-1:])
    assert await script.exactly(len(hello)) == hello


async def test_bytes_that_come_with_the_connect_are_checked_too(world: World) -> None:
    await world.serve(echo, port=443)
    proxy = world.proxy("example.com")
    other = real_hello("evil.example")
    found = await world.ask(proxy, b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n" + other)
    assert found.startswith(b"HTTP/1.1 200 ")
    assert found.endswith(connection.TLS_UNRECOGNIZED_NAME)
    assert world.verdicts() == ["allowed", "host_mismatch"]
    assert proxy.sent_bytes == 0


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (real_hello("evil.example"), "names another server"),
        (real_hello("www.example.com"), "names another server"),
        (real_hello(None), "names no server"),
        (records(handshake(made_hello(name_extension(b"127.0.0.1")))), "names another server"),
        (records(handshake(made_hello(name_extension(b"example.com\0.evil.example")))), "names another server"),
        (records(handshake(made_hello(name_extension(b"example.com") + b"\xfe\x0d\0\1e"))), "hides which server"),
    ],
)
async def test_a_hello_for_another_server_is_cut_before_the_host_gets_a_byte(
    world: World, hello: bytes, why: str
) -> None:
    await world.serve(echo, port=443)
    proxy = world.proxy("*.example.com", "example.com")
    script = await world.connected(proxy)
    await script.send(hello)
    assert await script.refused() == connection.TLS_UNRECOGNIZED_NAME
    assert world.verdicts() == ["allowed", "host_mismatch"]
    cut = world.decisions[1]
    assert not cut.allowed
    assert (cut.host, cut.port, cut.address) == ("example.com", 443, "")
    assert cut.message.startswith("the connection to example.com:443 was cut: ")
    assert why in cut.message
    assert proxy.sent_bytes == 0


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\0\0\0\1",
        b"\x80\x2e\x01\x00\x02",
        b"\x16\x03\x01\x00\x02\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"EHLO example.com\r\n",
        b"* OK\r\n",
        b"\r\n\r\n",
    ],
)
async def test_what_is_neither_tls_nor_http_is_cut(world: World, data: bytes) -> None:
    await world.serve(echo, port=443)
    proxy = world.proxy("example.com")
    script = await world.connected(proxy)
    await script.send(data)
    await script.finish()
    await script.served()
    assert world.verdicts() == ["allowed", "protocol_invalid"]
    assert proxy.sent_bytes == 0


async def test_a_hello_without_end_is_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_BYTES_SECONDS", 0.2)
    await world.serve(echo, port=443)
    proxy = world.proxy("example.com")
    slow, silent, ended = [await world.connected(proxy) for _ in range(3)]
    await slow.send(GOOD[:-1])
    await ended.send(GOOD[:-1])
    await ended.finish()
    for script in (slow, silent, ended):
        await script.served()
        assert script.was_reset
    assert world.verdicts() == ["allowed"] * 3 + ["protocol_invalid"] * 3
    assert proxy.sent_bytes == 0


async def test_a_script_that_ends_without_a_word_is_no_refusal(world: World) -> None:
    await world.serve(echo, port=443)
    proxy = world.proxy("example.com")
    script = await world.connected(proxy)
    await script.finish()
    assert await script.rest() == b""
    await script.served()
    assert await world.ask(proxy, b"") == b""
    assert world.verdicts() == ["allowed"]


@pytest.mark.parametrize(
    ("authority", "reason", "shown"),
    [
        ("evil.example:443", "host_not_allowed", "evil.example"),
        ("evil-example.com:443", "host_not_allowed", "evil-example.com"),
        ("evilexample.com:443", "host_not_allowed", "evilexample.com"),
        ("example.com.evil.example:443", "host_not_allowed", "example.com.evil.example"),
        ("sub.example.com:443", "host_not_allowed", "sub.example.com"),
        ("example.com:22", "port_not_allowed", "example.com"),
        ("example.com:8443", "port_not_allowed", "example.com"),
        ("127.0.0.1:443", "host_invalid", "127.0.0.1:443"),
        ("2130706433:443", "host_invalid", "2130706433:443"),
        ("0177.0.0.1:443", "host_invalid", "0177.0.0.1:443"),
        ("0x7f.1:443", "host_invalid", "0x7f.1:443"),
        ("127.1:443", "host_invalid", "127.1:443"),
        ("[::1]:443", "host_invalid", "[::1]:443"),
        ("[::ffff:127.0.0.1]:443", "host_invalid", "[::ffff:127.0.0.1]:443"),
        ("[fe80::1%25eth0]:443", "host_invalid", "[fe80::1%25eth0]:443"),
        ("169.254.169.254:80", "host_invalid", "169.254.169.254:80"),
        ("localhost:443", "host_invalid", "localhost:443"),
        ("metadata:80", "host_invalid", "metadata:80"),
        ("user@example.com:443", "host_invalid", "example.com:443"),
        ("user:password@example.com:443", "host_invalid", "example.com:443"),
        ("example.com%00.evil.example:443", "host_invalid", "example.com%00.evil.example:443"),
        ("example%2ecom:443", "host_invalid", "example%2ecom:443"),
        ("example..com:443", "host_invalid", "example..com:443"),
        ("example.com:99999", "host_invalid", "example.com:99999"),
        ("example.com", "protocol_invalid", "example.com"),
        ("http://example.com/token", "host_invalid", "http:"),
    ],
)
async def test_what_a_connect_may_not_ask_for(world: World, authority: str, reason: str, shown: str) -> None:
    await world.serve(echo, port=443)
    answer, decision = await refusal(world, f"CONNECT {authority} HTTP/1.0\r\n\r\n", "example.com")
    assert decision.refusal == reason
    assert decision.host == shown
    assert not decision.allowed
    status = b"400 Bad Request" if reason == "protocol_invalid" else b"403 Forbidden"
    assert answer.startswith(b"HTTP/1.1 " + status + b" by skilljail: " + reason.encode())
    assert f"\r\nX-Skilljail-Refusal: {reason}\r\n".encode() in answer
    assert b"\r\nContent-Type: text/plain" in answer
    assert answer.endswith(f"\r\n\r\nskilljail: {decision.message}\n".encode())
    assert "password" not in decision.message
    # DNS is egress: what is not allowed is not even resolved.
    assert world.resolved == []
    assert world.dialled == []


@pytest.mark.parametrize("end", ["\0", "\0.evil.example", "\x7f", "\t", "é"])
async def test_a_target_with_bytes_that_no_target_has_is_no_request(world: World, end: str) -> None:
    _, decision = await refusal(world, f"CONNECT example.com{end}:443 HTTP/1.0\r\n\r\n", "example.com")
    assert decision.refusal == "protocol_invalid"
    assert decision.host == ""


async def test_a_refusal_says_what_was_refused_why_and_the_mend(world: World) -> None:
    answer, _ = await refusal(world, "CONNECT evil.example:443 HTTP/1.0\r\n\r\n", "api.example.com")
    assert answer.endswith(
        b"\r\n\r\nskilljail: the connection to evil.example:443 was refused: the host is not on this run's allowlist "
        b"(api.example.com). Ask for it in allowed_hosts; the operator has to grant it, too.\n"
    )


async def test_an_empty_allowlist_allows_nothing(world: World) -> None:
    await world.serve(echo, port=443)
    _, decision = await refusal(world, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n")
    assert decision.refusal == "host_not_allowed"
    assert world.resolved == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["169.254.169.254"],
        ["10.0.0.1"],
        ["::1"],
        ["fd00:ec2::254"],
        ["::ffff:93.184.215.14"],
        ["64:ff9b::a9fe:a9fe"],
        ["100.100.100.200"],
        [PUBLIC, "127.0.0.1"],
        [PUBLIC, PUBLIC_TWO, PUBLIC, PUBLIC, PUBLIC, "192.168.0.1"],
        ["2606:4700::1111", "fe80::1%eth0"],
    ],
)
@pytest.mark.parametrize("network", ["allowlist", "open"])
async def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused_whole(
    world: World, network: str, addresses: list[str]
) -> None:
    await world.serve(echo, port=443)
    world.names["example.com"] = [addresses]
    request = "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n"
    answer, decision = await refusal(world, request, "example.com", network=network)
    assert decision.refusal == "address_not_public"
    assert decision.address == ""
    assert world.dialled == []
    for address in addresses:
        assert address.encode() not in answer
        assert address not in decision.message


@pytest.mark.parametrize("host", ["127.0.0.1", "93.184.215.14", "[2606:4700::1111]", "0x7f.1", "localhost"])
async def test_open_allows_no_address_and_no_local_name(world: World, host: str) -> None:
    _, decision = await refusal(world, f"CONNECT {host}:443 HTTP/1.0\r\n\r\n", network="open")
    assert decision.refusal == "host_invalid"
    assert world.resolved == []


async def test_a_name_server_that_changes_its_answer_gains_nothing(world: World) -> None:
    """DNS rebinding: public when it is checked, loopback when it is dialled. There is no second time."""
    await world.serve(echo, port=443)
    world.names["example.com"] = [[PUBLIC], ["127.0.0.1"]]
    proxy = world.proxy("example.com")
    script = await world.connected(proxy)
    assert world.resolved == ["example.com"]
    assert world.dialled == [(PUBLIC, 443)]
    await script.finish()
    await script.served()
    answer = await world.ask(proxy, b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert world.verdicts() == ["allowed", "address_not_public"]
    assert world.dialled == [(PUBLIC, 443)]


async def test_addresses_are_tried_in_order_and_not_without_end(world: World) -> None:
    await world.serve(echo, port=443)
    dead = [f"93.184.216.{number}" for number in range(1, 9)]
    world.names["example.com"] = [[*dead[:3], PUBLIC], dead]
    await world.connected(world.proxy("example.com"))
    assert [address for address, _ in world.dialled] == [*dead[:3], PUBLIC]
    assert world.decisions[0].address == PUBLIC
    world.dialled.clear()
    answer = await world.ask(world.proxy("example.com"), b"CONNECT example.com:443 HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway by skilljail: connect_failed")
    assert [address for address, _ in world.dialled] == dead[:4]
    assert world.verdicts() == ["allowed", "connect_failed"]


@pytest.mark.parametrize("answers", [None, []])
async def test_a_name_without_addresses_is_told(world: World, answers: list[str] | None) -> None:
    if answers is not None:
        world.names["example.com"] = [answers]
    answer, decision = await refusal(world, "CONNECT example.com:443 HTTP/1.0\r\n\r\n", "example.com")
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert decision.refusal == "name_not_resolved"


async def test_a_resolver_and_a_host_that_never_answer_are_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorkeeper, "RESOLVE_SECONDS", 0.1)
    monkeypatch.setattr(doorkeeper, "DIAL_SECONDS", 0.2)
    await world.serve(echo, port=443)
    cancelled = []

    async def never(*_: object) -> object:
        try:
            return await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    monkeypatch.setattr(World, "connect", never)
    await refusal(world, "CONNECT example.com:443 HTTP/1.0\r\n\r\n", "example.com")
    monkeypatch.setattr(World, "resolve", never)
    await world.ask(world.proxy("example.com"), b"CONNECT example.com:443 HTTP/1.0\r\n\r\n")
    assert world.verdicts() == ["connect_failed", "name_not_resolved"]
    assert len(cancelled) == 2


@pytest.mark.parametrize(
    "headers",
    ["Host: evil.example:443", "Host: example.com:80", "Host: user@example.com:443", "Host: ", "Host: 127.0.0.1"],
)
async def test_a_connect_whose_host_header_says_otherwise_is_refused(world: World, headers: str) -> None:
    await world.serve(echo, port=443)
    _, decision = await refusal(world, f"CONNECT example.com:443 HTTP/1.1\r\n{headers}\r\n\r\n", "example.com")
    assert decision.refusal == "host_mismatch"
    assert world.dialled == []


async def test_a_connect_with_a_body_is_refused(world: World) -> None:
    await world.serve(echo, port=443)
    request = "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\nContent-Length: 4\r\n\r\nbody"
    _, decision = await refusal(world, request, "example.com")
    assert decision.refusal == "protocol_invalid"
    assert world.dialled == []


async def test_each_direction_ends_by_itself(world: World) -> None:
    """The host sends after the script's end, and the script after the host's."""
    heard = asyncio.get_running_loop().create_future()

    async def ends_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(GOOD))
        writer.write(b"farewell")
        writer.write_eof()
        heard.set_result(await reader.read())

    async def answers_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        writer.write(b"%d bytes" % len(data))

    await world.serve(ends_first, port=443)
    await world.serve(answers_the_end, "www.example.com", port=443, address=PUBLIC_TWO)
    proxy = world.proxy("example.com", "www.example.com")
    script = await world.connected(proxy)
    await script.send(GOOD)
    assert await script.rest() == b"farewell"
    await script.send(b"still here")
    await script.finish()
    assert await asyncio.wait_for(heard, SECONDS) == b"still here"
    await script.served()
    script = await world.connected(proxy, "www.example.com")
    hello = real_hello("www.example.com")
    await script.send(hello)
    await script.finish()
    assert await script.rest() == b"%d bytes" % len(hello)
    await script.served()
    assert not script.was_reset


async def test_a_host_that_breaks_the_connection_breaks_it_for_the_script(world: World) -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(GOOD))
        # A close without lingering is a reset.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    await world.serve(breaks, port=443)
    script = await world.connected(world.proxy("example.com"))
    await script.send(GOOD)
    with pytest.raises(TunnelClosed):
        await script.rest()
    await script.served()
    assert script.was_reset
    assert world.verdicts() == ["allowed"]


async def test_a_script_that_vanishes_breaks_the_connection_to_the_host(world: World) -> None:
    ended = asyncio.Event()

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(bytes(65_536))
                await writer.drain()
        finally:
            ended.set()

    await world.serve(floods, port=443)
    script = await world.connected(world.proxy("example.com"))
    await script.send(GOOD)
    await script.exactly(1_000)
    await script.vanish()
    await script.served()
    async with asyncio.timeout(SECONDS):
        await ended.wait()


async def test_a_run_that_ends_closes_what_is_open(world: World) -> None:
    await world.serve(silence, port=443)
    proxy = world.proxy("example.com")
    idle, waiting, half = [await world.connected(proxy) for _ in range(3)]
    await waiting.send(GOOD)
    await half.send(GOOD[:100])
    for script in (idle, waiting, half):
        assert script.task is not None
        script.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await script.task
        assert script.was_reset


async def test_megabytes_flow_through_a_few_kilobytes_of_memory(world: World) -> None:
    size = 10 * 1024 * 1024
    await world.serve(echo, port=443)
    proxy = world.proxy("example.com")
    script = await world.connected(proxy)
    tracemalloc.start()
    try:

        async def upload() -> None:
            await script.send(GOOD)
            for _ in range(size // 32_768):
                await script.send(bytes(32_768))
            await script.finish()

        sending = asyncio.create_task(upload())
        received = 0
        async with asyncio.timeout(60):
            while data := await script.from_proxy.read():
                received += len(data)
        await sending
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert received == size + len(GOOD)
    assert proxy.sent_bytes == proxy.received_bytes == received
    assert peak < 3 * 1024 * 1024
    await script.served()


async def test_a_script_that_does_not_read_slows_the_host_down(world: World) -> None:
    sent = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(bytes(65_536))
            await writer.drain()
            sent += 65_536

    await world.serve(floods, port=443)
    script = await world.connected(world.proxy("example.com"))
    await script.send(GOOD)
    before = -1
    async with asyncio.timeout(SECONDS):
        while sent != before:  # until it stands still
            before = sent
            await asyncio.sleep(0.3)
    assert sent < 30_000_000  # the kernel's buffers on loopback are large
    await script.exactly(sent)  # and it goes on when it is read


async def test_plain_http_inside_of_a_connect_is_for_the_same_host_alone(world: World) -> None:
    """Node's clients reach port 80 so."""
    await world.serve(answer_requests, port=80)
    proxy = world.proxy("example.com")
    script = await world.connected(proxy, port=80)
    for path in ("/one", "/two"):
        await script.send(f"GET {path} HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\n\r\n".encode())
        await script.until(b"\r\n\r\n")
        assert await script.until(b"\r\n\r\n") == f"GET {path} HTTP/1.1\r\nHost: example.com\r\n\r\n".encode()
    assert world.accepted[80] == 1
    sent = proxy.sent_bytes
    await script.send(b"GET /three HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    answer = await script.refused()
    assert answer.startswith(b"HTTP/1.1 403 Forbidden by skilljail: host_mismatch")
    assert world.verdicts() == ["allowed", "host_mismatch"]
    assert proxy.sent_bytes == sent


async def test_plain_http_inside_of_a_connect_ends_in_peace_with_its_last_request(world: World) -> None:
    await world.serve(answer_requests, port=80)
    script = await world.connected(world.proxy("example.com"), port=80)
    await script.send(b"GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
    assert (await script.refused()).startswith(b"HTTP/1.1 200 OK\r\n")
    assert world.verdicts() == ["allowed"]
    assert not script.was_reset


@pytest.mark.parametrize(
    ("request_line", "headers", "reason"),
    [
        ("GET / HTTP/1.1", "Host: evil.example", "host_mismatch"),
        ("GET / HTTP/1.1", "Host: example.com:81", "host_mismatch"),
        ("GET / HTTP/1.0", "Accept: */*", "host_mismatch"),
        ("GET http://example.com/ HTTP/1.1", "Host: example.com", "protocol_invalid"),
        ("GET http://evil.example/ HTTP/1.1", "Host: example.com", "protocol_invalid"),
        ("CONNECT evil.example:443 HTTP/1.1", "Host: example.com", "protocol_invalid"),
        ("OPTIONS example.com HTTP/1.1", "Host: example.com", "protocol_invalid"),
        ("GET / HTTP/1.1", "Host: example.com\r\nHost: evil.example", "protocol_invalid"),
        ("GET / HTTP/2.0", "Host: example.com", "protocol_invalid"),
    ],
)
async def test_what_plain_http_inside_of_a_connect_may_not_ask_for(
    world: World, request_line: str, headers: str, reason: str
) -> None:
    await world.serve(answer_requests, port=80)
    proxy = world.proxy("example.com")
    script = await world.connected(proxy, port=80)
    await script.send(f"{request_line}\r\n{headers}\r\n\r\n".encode())
    answer = await script.refused()
    assert f"X-Skilljail-Refusal: {reason}\r\n".encode() in answer
    assert world.verdicts() == ["allowed", reason]
    assert world.decisions[1].host == "example.com"
    assert proxy.sent_bytes == 0
