"""Plain HTTP through the proxy: every request is decided on, and written anew."""

import asyncio
import re
import socket
import struct
import sys
import tracemalloc
from collections.abc import Awaitable

import pytest
from skilljaild.egress import TunnelClosed, forward, front

from .world import PUBLIC_TWO, SECONDS, World, answer_requests, silence


def answers(response: bytes, *, close: bool = False) -> object:
    """A host that gives each request (without a body) the same response."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            writer.write(response)
            await writer.drain()
            if close:
                return

    return serve


async def seen(world: World, request: bytes) -> bytes:
    """What the host gets for a request."""
    answer = await world.ask(world.proxy("example.com"), request)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), answer
    return body


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("http://example.com/path?query=1&x=%2f", "GET /path?query=1&x=%2f"),
        ("http://example.com", "GET /"),
        ("http://example.com?q", "GET /?q"),
        ("HTTP://EXAMPLE.com.:80//double//", "GET //double//"),
        ("http://example.com/http://evil.example/@x", "GET /http://evil.example/@x"),
    ],
)
async def test_a_request_is_sent_on_in_origin_form(world: World, target: str, line: str) -> None:
    await world.serve(answer_requests)
    got = await seen(world, f"GET {target} HTTP/1.1\r\nHost: example.com\r\nAccept: */*\r\n\r\n".encode())
    assert got == f"{line} HTTP/1.1\r\nHost: example.com\r\nAccept: */*\r\n\r\n".encode()
    (decision,) = world.decisions
    assert (decision.allowed, decision.host, decision.port) == (True, "example.com", 80)
    assert "path" not in repr(decision)


async def test_options_without_a_path_asks_for_the_host_itself(world: World) -> None:
    await world.serve(answer_requests)
    got = await seen(world, b"OPTIONS http://example.com HTTP/1.1\r\nHost: example.com\r\n\r\n")
    assert got.startswith(b"OPTIONS * HTTP/1.1\r\n")


async def test_another_port_stands_in_the_host_header(world: World) -> None:
    await world.serve(answer_requests, port=8080)
    proxy = world.proxy("example.com:8080")
    answer = await world.ask(proxy, b"GET http://example.com:8080/ HTTP/1.1\r\nHost: EXAMPLE.com:8080\r\n\r\n")
    assert b"\r\nHost: example.com:8080\r\n" in answer


async def test_headers_between_script_and_proxy_end_there(world: World) -> None:
    await world.serve(answer_requests)
    got = await seen(
        world,
        b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nX-Kept: 1\r\n"
        b"Connection: X-Dropped, Content-Length, Host, upgrade\r\nX-Dropped: 1\r\nProxy-Connection: keep-alive\r\n"
        b"Proxy-Authorization: Basic c2VjcmV0\r\nUpgrade: websocket\r\nHTTP2-Settings: x\r\nTE: trailers\r\n"
        b"Trailer: x\r\nKeep-Alive: 5\r\nContent-Length: 4\r\nAuthorization: Bearer token\r\n\r\nbody",
    )
    assert got == (
        b"GET / HTTP/1.1\r\nHost: example.com\r\nX-Kept: 1\r\nContent-Length: 4\r\n"
        b"Authorization: Bearer token\r\n\r\nbody"
    )
    assert "token" not in repr(world.decisions)


async def test_headers_between_proxy_and_host_end_there(world: World) -> None:
    await world.serve(
        answers(
            b"HTTP/1.1 200 Fine\r\nContent-Length: 2\r\nConnection: keep-alive, X-Dropped\r\nX-Dropped: 1\r\n"
            b"Upgrade: h2c\r\nProxy-Authenticate: Basic\r\nKeep-Alive: 5\r\nX-Kept: 1\r\n\r\nok"
        )
    )
    answer = await world.ask(
        world.proxy("example.com"), b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"
    )
    assert answer == b"HTTP/1.1 200 Fine\r\nContent-Length: 2\r\nX-Kept: 1\r\n\r\nok"


@pytest.mark.parametrize(
    ("target", "headers", "reason"),
    [
        ("http://example.com/", "Host: evil.example", "host_mismatch"),
        ("http://evil.example/", "Host: example.com", "host_mismatch"),
        ("http://example.com/", "Host: example.com:8080", "host_mismatch"),
        ("http://example.com/", "Host: example.com@evil.example", "host_mismatch"),
        ("http://example.com:8080/", "Host: example.com:8080", "port_not_allowed"),
        ("http://example.com:22/", "Host: example.com:22", "port_not_allowed"),
        ("http://evil.example/", "Host: evil.example", "host_not_allowed"),
        ("http://evil-example.com/", "Host: evil-example.com", "host_not_allowed"),
        ("http://127.0.0.1/", "Host: 127.0.0.1", "host_invalid"),
        ("http://2130706433/", "Host: 2130706433", "host_invalid"),
        ("http://[::1]/", "Host: [::1]", "host_invalid"),
        ("http://user:password@example.com/", "Host: example.com", "host_invalid"),
        ("http://evil.example@example.com/", "Host: example.com", "host_invalid"),
        ("http://example.com\\@evil.example/", "Host: example.com", "host_invalid"),
        ("http://example.com#@evil.example/", "Host: example.com", "host_invalid"),
        ("http://example.com/#x", "Host: example.com", "host_invalid"),
        ("http://example.com%00/", "Host: example.com", "host_invalid"),
        ("http://example.com:/", "Host: example.com", "host_invalid"),
        ("http:///path", "Host: example.com", "host_invalid"),
        ("https://example.com/", "Host: example.com", "protocol_invalid"),
        ("ftp://example.com/", "Host: example.com", "protocol_invalid"),
        ("ws://example.com/", "Host: example.com", "protocol_invalid"),
        ("http:example.com", "Host: example.com", "protocol_invalid"),
        ("/path", "Host: example.com", "protocol_invalid"),
        ("//example.com/", "Host: example.com", "protocol_invalid"),
        ("*", "Host: example.com", "protocol_invalid"),
        ("example.com:80", "Host: example.com", "protocol_invalid"),
    ],
)
async def test_what_a_request_may_not_ask_for(world: World, target: str, headers: str, reason: str) -> None:
    await world.serve(answer_requests)
    proxy = world.proxy("example.com")
    answer = await world.ask(proxy, f"GET {target} HTTP/1.1\r\n{headers}\r\n\r\n".encode())
    assert f"\r\nX-Skilljail-Refusal: {reason}\r\n".encode() in answer
    assert world.verdicts() == [reason]
    assert "password" not in repr(world.decisions)
    assert b"password" not in answer
    assert world.resolved == []
    assert proxy.sent_bytes == 0


@pytest.mark.parametrize(
    "target",
    [
        "http://user:Pa55w0rd/rest@api.example.com/",
        "http://user:Pa55w0rd?rest@api.example.com/",
        "http://user:Pa55w0rd#rest@api.example.com/",
        "http://user:Pa55w0rd\\rest@api.example.com/",
        "http://user:Pa55w0rd/?#rest@api.example.com",
        "http://user:re@Pa55w0rd/rest@api.example.com/",
        "http://user:re@Pa55w0rd?rest@api.example.com/",
        "http://user:Pa55w0rd%40api.example.com/",
        "http://user:Pa55w0rd%2frest%40api.example.com/",
        "http://user:Pa55w0rd/rest%40api.example.com/",
        "https://user:Pa55w0rd/rest@api.example.com/",
        "https://user:re@Pa55w0rd/rest@api.example.com/",
        "http://user:rest@api.example.com/?Pa55w0rd",
        "http://user:rest@api.example.com?a@Pa55w0rd",
    ],
)
@pytest.mark.parametrize("method", ["GET", "CONNECT"])
async def test_nothing_of_a_password_is_told_wherever_it_seems_to_end(world: World, target: str, method: str) -> None:
    await world.serve(answer_requests)
    for written in (target, target.partition("//")[2]):
        answer = await world.ask(world.proxy("example.com"), f"{method} {written} HTTP/1.0\r\n\r\n".encode())
        assert b"X-Skilljail-Refusal: " in answer
        assert b"Pa55w0rd" not in answer
    assert "Pa55w0rd" not in repr(world.decisions)
    assert len(world.decisions) == 2


GET = b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n"
POST = b"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nbody!",
        POST + b"Content-Length: 4, 5\r\n\r\nbody!",
        POST + b"Content-Length: +4\r\n\r\nbody",
        POST + b"Content-Length: 0x4\r\n\r\nbody",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        GET + b"X-Folded: a\r\n b\r\n\r\n",
        GET + b"X-Folded: a\r\n\tb\r\n\r\n",
        GET + b" X-Leading: a\r\n\r\n",
        GET + b"X Space: a\r\n\r\n",
        GET + b"X-Space : a\r\n\r\n",
        GET + b"X-Nul: a\0b\r\n\r\n",
        GET + b"X-Bare: a\nX-Smuggled: b\r\n\r\n",
        GET + b"X-Bare: a\rX-Smuggled: b\r\n\r\n",
        GET.replace(b"\r\n", b"\n") + b"\n",
        GET + b"\n",
        GET + b": empty\r\n\r\n",
        GET + b"no colon\r\n\r\n",
        GET + b"Host: example.com\r\n\r\n",
        GET + b"Host: evil.example\r\n\r\n",
        b"GET http://example.com/ HTTP/1.1\r\nAccept: */*\r\n\r\n",
        b"GET http://example.com/ a HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"GET  http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"GET http://example.com/ HTTP/1.1 \r\nHost: example.com\r\n\r\n",
        b"GET http://example.com/ HTTP/2.0\r\nHost: example.com\r\n\r\n",
        b"GET http://example.com/\r\n\r\n",
        b"\r\nGET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        GET,
        GET + b"".join(b"X-%d: a\r\n" % number for number in range(101)) + b"\r\n",
        GET + b"X-Long: " + b"a" * 40_000 + b"\r\n\r\n",
        GET + b"X-Endless: " + b"a" * 400_000,
    ],
)
async def test_what_two_parsers_may_read_differently_is_refused(world: World, request_bytes: bytes) -> None:
    await world.serve(answer_requests)
    proxy = world.proxy("example.com")
    script = world.connection(proxy)

    async def send() -> None:
        await script.send(request_bytes)
        await script.finish()

    sending = asyncio.create_task(send())
    answer = await script.rest()
    await sending
    await script.served()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request by skilljail: protocol_invalid\r\n")
    assert world.verdicts() == ["protocol_invalid"]
    assert proxy.sent_bytes == 0
    assert b"Smuggled" not in answer


async def test_a_slow_header_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "HEAD_SECONDS", 0.2)
    proxy = world.proxy("example.com")
    script = world.connection(proxy)
    await script.send(b"G")
    assert (await script.refused()).startswith(b"HTTP/1.1 400 ")
    assert world.verdicts() == ["protocol_invalid"]


async def test_requests_in_a_row_to_one_host_share_a_connection(world: World) -> None:
    await world.serve(answer_requests)
    proxy = world.proxy("example.com")
    script = world.connection(proxy)
    # The second and third come at once: pipelined.
    for batch in (GET + b"\r\n", (GET + b"\r\n") * 2):
        await script.send(batch)
        for _ in range(len(batch) // len(GET + b"\r\n")):
            await script.until(b"\r\n\r\n")
            await script.until(b"\r\n\r\n")
    await script.finish()
    assert await script.rest() == b""
    await script.served()
    assert world.verdicts() == ["allowed"]
    assert world.accepted[80] == 1
    assert proxy.connections == 1


async def test_a_request_to_another_host_is_decided_anew(world: World) -> None:
    await world.serve(answer_requests)
    await world.serve(answer_requests, "www.example.com", address=PUBLIC_TWO)
    proxy = world.proxy("example.com", "www.example.com")
    script = world.connection(proxy)
    await script.send(GET + b"\r\n" + (GET + b"\r\n").replace(b"example.com", b"www.example.com"))
    await script.send(GET.replace(b"example.com", b"evil.example") + b"\r\n" + GET + b"\r\n")
    answer = await script.refused()
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b"HTTP/1.1 403 Forbidden") == 1
    assert answer.index(b"Host: example.com") < answer.index(b"Host: www.example.com") < answer.index(b" 403 ")
    assert world.verdicts() == ["allowed", "allowed", "host_not_allowed"]
    assert [address for address, _ in world.dialled] == ["93.184.215.14", PUBLIC_TWO]
    assert proxy.connections == 3
    assert "evil.example" not in world.resolved


async def test_a_host_that_closes_between_requests_is_dialled_anew(world: World) -> None:
    await world.serve(answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", close=True))
    proxy = world.proxy("example.com")
    script = world.connection(proxy)
    for _ in range(2):
        await script.send(GET + b"\r\n")
        assert (await script.until(b"ok")).startswith(b"HTTP/1.1 200 ")
    assert world.verdicts() == ["allowed", "allowed"]
    assert proxy.connections == 2


async def test_what_a_host_sends_behind_a_response_answers_no_other_request(world: World) -> None:
    await world.serve(answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" * 2))
    script = world.connection(world.proxy("example.com"))
    for _ in range(2):
        await script.send(GET + b"\r\n")
        assert (await script.until(b"ok")).startswith(b"HTTP/1.1 200 ")
    await script.finish()
    assert await script.rest() == b""
    assert world.accepted[80] == 2


async def test_a_chunked_upload_and_a_chunked_response_pass_as_streams(world: World) -> None:
    async def echo_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked\r\n" in head
        assert b"Content-Length" not in head
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n")
        while size := int(await reader.readline(), 16):
            piece = await reader.readexactly(size)
            await reader.readexactly(2)
            writer.write(b"%x\r\n%s\r\n" % (size, piece))
            await writer.drain()
        assert await reader.readline() == b"\r\n"
        writer.write(b"0\r\nX-T: 1\r\n\r\n")
        await writer.drain()
        await reader.read()

    await world.serve(echo_chunks)
    script = world.connection(world.proxy("example.com"))
    await script.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    head = await script.until(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    for piece in (b"first", b"second"):  # each comes back before the next is sent
        await script.send(b"%x;extension=1\r\n%s\r\n" % (len(piece), piece))
        assert await script.until(piece + b"\r\n") == b"%x\r\n%s\r\n" % (len(piece), piece)
    await script.send(b"0\r\nX-Trailer: 1\r\n\r\n")
    assert await script.until(b"0\r\n\r\n") == b"0\r\n\r\n"
    await script.finish()
    await script.served()


async def test_megabytes_pass_through_a_few_kilobytes_of_memory(world: World) -> None:
    size = 10 * 1024 * 1024

    async def echo_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        left = size
        while left:
            data = await reader.read(65_536)
            left -= len(data)
            writer.write(data)
            await writer.drain()

    await world.serve(echo_body)
    proxy = world.proxy("example.com")
    script = world.connection(proxy)
    await script.send(POST + b"Content-Length: %d\r\n\r\n" % size)
    await script.until(b"\r\n\r\n")
    tracemalloc.start()
    try:

        async def upload() -> None:
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
    assert received == size
    assert peak < 3 * 1024 * 1024
    await script.served()


@pytest.mark.parametrize(
    ("method", "response", "expected"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n", b"HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n"),
        (b"DELETE", b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (
            b"GET",
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 103 \r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ),
    ],
)
async def test_responses_without_a_body_have_none(
    world: World, method: bytes, response: bytes, expected: bytes
) -> None:
    await world.serve(answers(response))
    script = world.connection(world.proxy("example.com"))
    for _ in range(2):  # the connection is good for another
        await script.send(method + GET[3:] + b"\r\n")
        assert await script.exactly(len(expected)) == expected
    await script.finish()
    assert await script.rest() == b""
    assert world.accepted[80] == 1


async def test_a_body_that_ends_with_the_connection_passes(world: World) -> None:
    await world.serve(answers(b"HTTP/1.0 200 OK\r\n\r\nto the end", close=True))
    proxy = world.proxy("example.com")
    answer = await world.ask(proxy, GET + b"\r\n")
    assert answer.endswith(b"\r\n\r\na\r\nto the end\r\n0\r\n\r\n")
    answer = await world.ask(proxy, GET.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n")
    assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end"


async def test_a_script_that_waits_for_100_continue_gets_it_from_the_host(world: World) -> None:
    async def continues(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Expect: 100-continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(4)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n" + body)
        await reader.read()

    await world.serve(continues)
    script = world.connection(world.proxy("example.com"))
    await script.send(POST + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    assert (await script.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    await script.send(b"body")
    assert (await script.until(b"body")).startswith(b"HTTP/1.1 200 ")
    await script.finish()
    await script.served()


async def test_a_host_may_answer_before_it_has_the_whole_request(world: World) -> None:
    await world.serve(answers(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno"))
    script = world.connection(world.proxy("example.com"))
    await script.send(POST + b"Content-Length: 4000\r\nExpect: 100-continue\r\n\r\n")
    assert (await script.refused()).startswith(b"HTTP/1.1 417 ")
    assert world.verdicts() == ["allowed"]


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"garbage\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody!",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000,
    ],
)
async def test_a_host_that_gives_no_valid_response_is_told(world: World, response: bytes) -> None:
    await world.serve(answers(response, close=True))
    answer = await world.ask(world.proxy("example.com"), GET + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b"\r\n\r\nskilljail: the connection to example.com:80 was allowed, but failed: " in answer
    assert world.verdicts() == ["allowed"]


async def test_a_host_that_drops_the_connection_is_told(world: World) -> None:
    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        linger = struct.pack("ii", 1, 0)  # so that the close is a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    await world.serve(drop)
    answer = await world.ask(world.proxy("example.com"), GET + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert answer.endswith(b" was allowed, but failed: the host dropped the connection.\n")
    assert world.verdicts() == ["allowed"]


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_a_response_that_breaks_off_is_never_passed_off_as_whole(world: World, response: bytes) -> None:
    await world.serve(answers(response, close=True))
    script = world.connection(world.proxy("example.com"))
    await script.send(GET + b"\r\n")
    with pytest.raises(TunnelClosed):
        await script.rest()
    await script.served()
    assert script.was_reset


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 100\r\n\r\nshort",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort!\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\nshort\n0\n\n",
    ],
)
async def test_an_upload_that_breaks_off_never_looks_whole_to_the_host(world: World, body: bytes) -> None:
    got = asyncio.get_running_loop().create_future()

    async def collects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            got.set_result(await reader.read(-1))
        except ConnectionError:
            got.set_result(b"")

    await world.serve(collects)
    answer = await world.ask(world.proxy("example.com"), POST + body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert world.verdicts() == ["allowed", "protocol_invalid"]
    assert not (await asyncio.wait_for(got, SECONDS)).endswith(b"\r\n0\r\n\r\n")


async def test_a_request_behind_a_body_is_never_part_of_it(world: World) -> None:
    """What a smuggler hides behind a body is a request of its own, and decided on as one."""
    await world.serve(answer_requests)
    proxy = world.proxy("example.com")
    hidden = b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    answer = await world.ask(proxy, POST + b"Content-Length: 4\r\n\r\nbody" + hidden)
    assert b"evil" not in answer[: answer.index(b" 403 ")]
    assert world.verdicts() == ["allowed", "host_not_allowed"]


async def test_a_host_that_never_answers_is_waited_for_until_the_run_ends(world: World) -> None:
    await world.serve(silence)
    script = world.connection(world.proxy("example.com"))
    await script.send(GET + b"\r\n")
    async with asyncio.timeout(SECONDS):
        while not world.accepted[80]:
            await asyncio.sleep(0.01)
    assert script.task is not None
    script.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await script.task
    assert script.was_reset


async def test_a_refused_head_is_answered_without_a_body(world: World) -> None:
    answer = await world.ask(world.proxy(), b"HEAD" + GET[3:] + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.endswith(b"X-Skilljail-Refusal: host_not_allowed\r\n\r\n")


async def test_http_1_0_gets_no_informational_response(world: World) -> None:
    await world.serve(answers(b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
    answer = await world.ask(world.proxy("example.com"), GET.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("many", [False, True])
async def test_a_host_that_sends_informational_responses_on_and_on_is_cut(
    world: World, version: str, *, many: bool
) -> None:
    count = forward.INFORMATIONAL_MAX + many
    await world.serve(answers(b"HTTP/1.1 100 \r\n\r\n" * count + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    answer = await world.ask(
        world.proxy("example.com"),
        f"GET http://example.com/ HTTP/{version}\r\nHost: example.com\r\n\r\n".encode(),
    )
    final = answer.replace(b"HTTP/1.1 100 \r\n\r\n", b"")
    if many:
        assert final.startswith(b"HTTP/1.1 502 ")
        assert f"more than {forward.INFORMATIONAL_MAX} informational responses".encode() in final
    else:
        assert final.startswith(b"HTTP/1.1 200 ")
    assert world.verdicts() == ["allowed"]


async def turns_while(work: Awaitable[object]) -> int:
    """How often others get their turn while `work` is done."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await work
    task.cancel()
    return turns


async def test_a_response_in_small_pieces_leaves_others_their_turn(world: World) -> None:
    chunks = 5_000
    await world.serve(
        answers(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")
    )
    assert await turns_while(world.ask(world.proxy("example.com"), GET + b"\r\n")) >= chunks


async def test_an_upload_in_small_pieces_leaves_others_their_turn(world: World) -> None:
    chunks = 5_000
    await world.serve(answer_at_end)
    data = POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n"
    assert await turns_while(world.ask(world.proxy("example.com"), data)) >= chunks


async def test_a_name_with_many_addresses_leaves_others_their_turn(world: World) -> None:
    await world.serve(answer_requests)
    world.names["example.com"][0] += [f"93.184.{number // 256}.{number % 256}" for number in range(2_000)]
    assert await turns_while(world.ask(world.proxy("example.com"), GET + b"\r\n")) >= 2_000
    assert world.verdicts() == ["allowed"]


async def answer_at_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A host that answers when it has a whole chunked request."""
    await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


class Counting:
    """A pattern that counts the bytes that it may look at."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self.count = 0

    def search(self, data: bytes, start: int = 0, end: int = sys.maxsize) -> re.Match[bytes] | None:
        self.count += min(end, len(data)) - start
        return self._pattern.search(data, start, end)


async def test_a_header_is_looked_at_once_however_slowly_it_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns = {name: Counting(getattr(front, name)) for name in ("_HEAD_END", "_BARE", "_FOLDED")}
    for name, pattern in patterns.items():
        monkeypatch.setattr(front, name, pattern)
    await world.serve(answer_requests)
    script = world.connection(world.proxy("example.com"))
    request = GET + b"X: " + b"a" * 2_000 + b"\r\n\r\n"
    for byte in request:
        await script.send(bytes([byte]))
        while script.to_proxy.holds:
            await asyncio.sleep(0)
    assert (await script.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    for pattern in patterns.values():
        assert len(request) <= pattern.count < 10 * len(request)


@pytest.mark.parametrize(
    "header",
    [b"X: a\nY: b\r\n", b"X: a\rb\r\n", b"X: a\r\n b\r\n", b"X: a\r\n\tb\r\n", b"X: a\r\r\n", b"\n", b"X: a\r\n\n"],
)
@pytest.mark.parametrize("piece", [1, 2, 3])
async def test_what_is_refused_in_a_header_is_so_however_it_comes(world: World, header: bytes, piece: int) -> None:
    await world.serve(answer_requests)
    script = world.connection(world.proxy("example.com"))
    request = GET + header + b"\r\n"
    for start in range(0, len(request), piece):
        await script.send(request[start : start + piece])
        for _ in range(20):
            await asyncio.sleep(0)
    assert (await script.refused()).startswith(b"HTTP/1.1 400 ")
    assert world.verdicts() == ["protocol_invalid"]


@pytest.mark.parametrize("piece", [1, 2, 3])
async def test_a_good_header_is_good_however_it_comes(world: World, piece: int) -> None:
    await world.serve(answer_requests)
    script = world.connection(world.proxy("example.com"))
    request = (GET + b"X: a b\r\nY:\tc\r\n\r\n") * 2 + b"\n"
    for start in range(0, len(request), piece):
        await script.send(request[start : start + piece])
        for _ in range(20):
            await asyncio.sleep(0)
    answer = await script.refused()
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"HTTP/1.1 400 ") == 1
