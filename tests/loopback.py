"""A small Internet on loopback: an HTTP and an HTTPS server that answer for every name of the test's."""

import contextlib
import dataclasses
import hashlib
import http.server
import json
import pathlib
import ssl
import threading
from collections.abc import Iterator

from unit.daemon.certificates import Authority

__all__ = ["ADDRESS", "Internet", "Seen", "content_of", "running_internet"]

ADDRESS = "93.184.215.14"
"""A public address, as which the servers are known. Nothing is ever sent there."""
PIECE = hashlib.sha256(b"skilljail").digest() * 2048
"""64 KiB of what downloads are made of."""


def content_of(size: int) -> bytes:
    """What `/bytes/SIZE` answers."""
    return (PIECE * (size // len(PIECE) + 1))[:size]


@dataclasses.dataclass(frozen=True)
class Seen:
    """A request that reached a server."""

    scheme: str
    method: str
    host: str
    path: str


@dataclasses.dataclass
class Internet:
    """Its servers, what they have seen, and what a daemon must know of it."""

    ports: dict[int, int]
    certificate_authority: pathlib.Path
    seen: list[Seen]
    files: dict[str, bytes]
    """By path, what the servers answer besides."""
    connections: set[object]
    """Those that are open now."""

    def environment(self, names: dict[str, list[list[str]]]) -> dict[str, str]:
        """For `loopback_daemon.py`."""
        return {"LOOPBACK_INTERNET": json.dumps({"names": names, "ports": self.ports, "address": ADDRESS})}


class _Handler(http.server.BaseHTTPRequestHandler):
    """`/`: a greeting. `/bytes/N`: N bytes. `/endless`: bytes until somebody goes. `/digest`: what was sent, hashed."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    internet: Internet
    scheme: str

    def setup(self) -> None:
        super().setup()
        self.internet.connections.add(self)

    def finish(self) -> None:
        self.internet.connections.discard(self)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def do_GET(self) -> None:  # noqa: N802
        self._note()
        if self.path.startswith("/bytes/"):
            self._answer(content_of(int(self.path.removeprefix("/bytes/"))))
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(PIECE)
        elif self.path in self.internet.files:
            self._answer(self.internet.files[self.path], "text/html" if self.path.endswith("/") else "application/zip")
        else:
            self._answer(f"{self.scheme} {self.headers['Host']} {self.path}\n".encode(), "text/plain")

    def do_POST(self) -> None:  # noqa: N802
        self._note()
        digest = hashlib.sha256()
        left = int(self.headers["Content-Length"])
        while left and (piece := self.rfile.read(min(left, 65536))):
            digest.update(piece)
            left -= len(piece)
        self._answer(digest.hexdigest().encode(), "text/plain")

    do_PUT = do_POST  # noqa: N815

    def _note(self) -> None:
        self.internet.seen.append(Seen(self.scheme, self.command, self.headers["Host"] or "", self.path))

    def _answer(self, content: bytes, kind: str = "application/octet-stream") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


class _Server(http.server.ThreadingHTTPServer):
    """One thread for each connection; a TLS handshake is made there, too."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: scripts leave whenever they like."""


@contextlib.contextmanager
def running_internet(directory: pathlib.Path, hosts: tuple[str, ...]) -> Iterator[Internet]:
    """Servers on ports of loopback. `hosts`: for the certificate of the HTTPS server."""
    authority = Authority(directory, "internet")
    identity = authority.issue("server", "/CN=server", hosts)
    internet = Internet({}, authority.certificate, [], {}, set())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    with contextlib.ExitStack() as stack:
        for port, scheme in ((80, "http"), (443, "https"), (8443, "https")):
            handler = type("Handler", (_Handler,), {"internet": internet, "scheme": scheme})
            server = stack.enter_context(_Server(("127.0.0.1", 0), handler))
            if scheme == "https":
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            internet.ports[port] = server.server_port
        yield internet
