"""Egress from end to end: real clients in real sandboxes, against servers on loopback that stand for the Internet."""

import contextlib
import hashlib
import importlib.util
import io
import json
import pathlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import skilljail
from attack_table import Seen
from harness import Daemon, MakeSkill, running_daemon, wait_until
from loopback import ADDRESS, Internet, content_of, running_internet

DAEMON = pathlib.Path(__file__).parent / "loopback_daemon.py"
HOSTS = ("api.example.com", "files.example.com", "other.example.com", "xn--bcher-kva.example.com", "late.example.com")
NAMES: dict[str, list[list[str]]] = {
    **{host: [[ADDRESS]] for host in HOSTS},
    "inside.example.com": [["10.0.0.5"]],
    "mixed.example.com": [[ADDRESS, "127.0.0.1"]],
    "metadata.example.com": [["169.254.169.254"]],
    "rebind.example.com": [[ADDRESS], ["10.0.0.5"]],
}


@pytest.fixture(scope="module")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    """The servers."""
    with running_internet(tmp_path_factory.mktemp("internet"), HOSTS) as one:
        yield one


@pytest.fixture(scope="module")
def daemon(internet: Internet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose operator grants the hosts below example.com."""
    config = tmp_path_factory.mktemp("config") / "skilljaild.toml"
    config.write_text(
        '[network]\nceiling = "allowlist"\n'
        'allowed_hosts = ["*.example.com", "*.example.com:8443", "*.example.com:22"]\n'
    )
    program = (str(DAEMON),)
    with running_daemon("--config", str(config), environment=internet.environment(NAMES), program=program) as one:
        yield one


CA = "/work/skill/ca.pem"
TRUST = dict.fromkeys(("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT"), CA)
"""Each client's own word for the authorities that it trusts."""


@pytest.fixture
def run_script(
    client: skilljail.Client, make_skill: MakeSkill, internet: Internet
) -> Callable[..., skilljail.RunResult]:
    """Runs one script that may talk to the hosts below example.com, but for what a test says."""

    def run(
        script: str, source: str, *, files: Mapping[str, str | bytes | None] | None = None, **options: Any
    ) -> skilljail.RunResult:
        options = {"network": "allowlist", "allowed_hosts": ["*.example.com"], **options}
        options["env"] = {**TRUST, **(options.get("env") or {})}
        trusted = internet.certificate_authority.read_bytes()
        return client.run(make_skill({script: source, "ca.pem": trusted, **(files or {})}), script, **options)

    return run


RunScript = Callable[..., skilljail.RunResult]


def vendored(*packages: str) -> dict[str, str | bytes | None]:
    """The files of packages of the development environment, below lib/. Compiled parts stay away: all have others."""
    files: dict[str, str | bytes | None] = {}
    for package in packages:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = pathlib.Path(spec.origin).parent
        for path in root.rglob("*"):
            if path.is_file() and path.suffix not in {".pyc", ".so"}:
                files[f"lib/{package}/{path.relative_to(root)}"] = path.read_bytes()
    return files


def wheel() -> bytes:
    """A package named tiny that says hello when it is imported."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("tiny.py", "print('hello from tiny')\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\n")
    return content.getvalue()


CLIENTS = {
    "curl": (
        "run.sh",
        "curl -sS http://api.example.com/a && curl -sS https://api.example.com/b\n"
        "curl -sS http://secret.example.net/\n"
        "curl -sSv https://secret.example.net/ 2>&1 | grep 403",
    ),
    "urllib": (
        "run.py",
        "from urllib.error import HTTPError, URLError\nfrom urllib.request import urlopen\n"
        "for url in ('http://api.example.com/a', 'https://api.example.com/b'): print(urlopen(url).read().decode())\n"
        "try: urlopen('http://secret.example.net/')\nexcept HTTPError as error: print(error.read().decode())\n"
        "try: urlopen('https://secret.example.net/')\nexcept URLError as error: print(error)",
    ),
    "requests": (
        "run.py",
        "import sys; sys.path.insert(0, '/work/skill/lib')\nimport requests\n"
        "with requests.Session() as session:\n"
        "    for url in ('http://api.example.com/a', 'https://api.example.com/b'): print(session.get(url).text)\n"
        "    print(session.get('http://secret.example.net/').text)\n"
        "    try: session.get('https://secret.example.net/')\n"
        "    except requests.exceptions.ProxyError as error: print(error)",
    ),
    "node": (
        "run.mjs",
        "for (const url of ['http://api.example.com/a', 'https://api.example.com/b', 'http://secret.example.net/',\n"
        "  'https://secret.example.net/'])\n"
        "  try { console.log(await (await fetch(url)).text()) } catch (error) { console.log(error, error.cause) }",
    ),
    "pwsh": (
        "run.ps1",
        "foreach ($url in 'http://api.example.com/a', 'https://api.example.com/b', 'http://secret.example.net/',\n"
        "  'https://secret.example.net/') {\n"
        "  try { (Invoke-WebRequest $url).Content }\n"
        "  catch { $_.Exception.Message; $_.ErrorDetails.Message }\n}",
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_reaches_allowed_hosts_and_can_read_why_another_is_refused(
    client: skilljail.Client, make_skill: MakeSkill, internet: Internet, name: str
) -> None:
    script, source = CLIENTS[name]
    packages = vendored("requests", "urllib3", "certifi", "idna", "charset_normalizer") if name == "requests" else {}
    skill = make_skill({script: source, "ca.pem": internet.certificate_authority.read_bytes(), **packages})
    with client.stream(skill, script, env=TRUST, network="allowlist", allowed_hosts=["api.example.com"]) as stream:
        told = [event for event in stream if isinstance(event, skilljail.EgressDecision)]
    result = stream.result
    assert result.stderr_text == ""
    assert "http api.example.com /a\n" in result.stdout_text
    assert "https api.example.com /b\n" in result.stdout_text
    if name != "node":  # it asks for a tunnel for plain HTTP, too, and shows only the status of a refused one
        assert "secret.example.net:80 was refused: the host is not on this run's allowlist" in result.stdout_text
    assert "403" in result.stdout_text.partition("https api.example.com /b")[2].rpartition("was refused")[2]
    allowed = [(one.host, one.port, one.address) for one in result.egress_decisions if one.allowed]
    refused = [(one.host, one.port, one.refusal) for one in result.egress_decisions if not one.allowed]
    assert allowed == [("api.example.com", 80, ADDRESS), ("api.example.com", 443, ADDRESS)]
    assert sorted(set(refused)) == [("secret.example.net", port, "HOST_NOT_ALLOWED") for port in (80, 443)]
    assert [(one.host, one.port, one.message) for one in told] == [
        (one.host, one.port, one.message) for one in result.egress_decisions
    ]
    remembered = client.get_run(result.run_id)
    assert remembered.result is not None
    assert remembered.result.egress_decisions == result.egress_decisions
    assert remembered.result.usage == result.usage
    assert remembered.policy is not None
    assert (remembered.policy.network, remembered.policy.allowed_hosts) == ("ALLOWLIST", ("api.example.com",))
    assert result.usage.egress_connections == len(result.egress_decisions)
    assert result.usage.egress_sent_bytes > 0
    assert result.usage.egress_received_bytes > 0


def test_pip_installs_a_package_from_an_allowed_index(run_script: RunScript, internet: Internet) -> None:
    internet.files["/simple/tiny/"] = b'<a href="/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>'
    internet.files["/tiny-1.0-py3-none-any.whl"] = wheel()
    source = (
        "export PYTHONPATH=lib\n"
        "pip() { python3 -m pip install --no-cache-dir --disable-pip-version-check --retries 1 --target got $@; }\n"
        "pip --index-url https://files.example.com/simple tiny && PYTHONPATH=got python3 -c 'import tiny'\n"
        "pip --index-url https://secret.example.net/simple other 2>&1\n"
    )
    result = run_script("run.sh", source, files=vendored("pip"), interpreter="bash")
    assert "hello from tiny" in result.stdout_text, result
    assert "403 Forbidden by skilljail: host_not_allowed secret.example.net" in result.stdout_text


ASK = """
import json, socket, sys
for request in json.load(sys.stdin):
    with socket.create_connection(("127.0.0.1", 3128), 20) as one:
        one.sendall(request.encode("latin-1"))
        answer = b""
        try:
            while b"\\r\\n\\r\\n" not in answer and (piece := one.recv(4096)):
                answer += piece
        except ConnectionError:
            pass
        print(json.dumps(answer.split(b"\\r\\n")[0].decode("latin-1")))
"""


def answers(run_script: RunScript, requests: list[str], **options: Any) -> tuple[list[str], skilljail.RunResult]:
    """The status lines that the proxy gives raw requests, and the result."""
    result = run_script("ask.py", ASK, stdin=json.dumps(requests).encode(), **options)
    assert (result.exit_code, result.stderr_text) == (0, "")
    return [json.loads(line) for line in result.stdout_text.splitlines()], result


INVALID, NOT_ALLOWED, NOT_PUBLIC = "HOST_INVALID", "HOST_NOT_ALLOWED", "ADDRESS_NOT_PUBLIC"
HOSTILE_TARGETS = {
    "127.0.0.1:80": INVALID,
    "2130706433:80": INVALID,
    "0x7f000001:80": INVALID,
    "0177.0.0.1:80": INVALID,
    "127.1:80": INVALID,
    "169.254.169.254:80": INVALID,
    "[::1]:80": INVALID,
    "[::ffff:169.254.169.254]:80": INVALID,
    "localhost:80": INVALID,
    "user@api.example.com:443": INVALID,
    "api.example.com@evil.net:443": INVALID,
    "api.example.com%2eevil.net:443": INVALID,
    "evil-example.com:443": NOT_ALLOWED,
    "api.example.com.evil.net:443": NOT_ALLOWED,
    "example.com:443": NOT_ALLOWED,
    "api.example.com:22": "PORT_NOT_ALLOWED",
    "api.example.com:8443": "PORT_NOT_ALLOWED",
    "inside.example.com:80": NOT_PUBLIC,
    "mixed.example.com:443": NOT_PUBLIC,
    "metadata.example.com:80": NOT_PUBLIC,
    "unknown.example.com:443": "NAME_NOT_RESOLVED",
}


@pytest.mark.attack(54, 57, "addresses, names and ports in every spelling", expected="403")
def test_a_hostile_target_is_refused_in_every_spelling(run_script: RunScript, internet: Internet, seen: Seen) -> None:
    before = len(internet.seen)
    connects = [f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n" for target in HOSTILE_TARGETS]
    said, result = answers(run_script, connects)
    told = {target: line for target, line in zip(HOSTILE_TARGETS, said, strict=True) if " 200 " in line or not line}
    assert told == {}
    assert [one.refusal for one in result.egress_decisions] == list(HOSTILE_TARGETS.values())
    absolute = [f"GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n" for target in HOSTILE_TARGETS]
    said, result = answers(run_script, absolute)
    assert [line for line in said if line.startswith("HTTP/1.1 200")] == []
    assert [one.allowed for one in result.egress_decisions] == [False] * len(HOSTILE_TARGETS)
    assert len(internet.seen) == before
    seen(f"{len(HOSTILE_TARGETS)} refused", {one.refusal for one in result.egress_decisions})


MALFORMED = [
    "GET http://api.example.com/ HTTP/1.1\r\nHost: other.example.com\r\n\r\n",
    "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.net\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "GET http://api.example.com\0.evil.net/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "CONNECT api.example.com\0:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "CONNECT api.example.com HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "GET ftp://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "POST http://api.example.com/digest HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 1\r\n"
    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\x16\x03\x01\x02\x00\x01\x00" + "\0" * 512,
    "\x05\x01\x00",
    "\0" * 1_000,
    "GET " + "a" * 200_000,
]


@pytest.mark.attack(57, "what is no request to a proxy, or two in one", expected="nothing goes out")
def test_what_is_no_request_to_a_proxy_is_refused(run_script: RunScript, internet: Internet, seen: Seen) -> None:
    before = len(internet.seen)
    # What waits for more ends with the script.
    said, result = answers(run_script, [text + "\r\n\r\n" for text in MALFORMED])
    assert [line for line in said if " 200 " in line] == []
    assert [one for one in result.egress_decisions if one.allowed] == []
    assert len(internet.seen) == before
    seen({line[9:12] for line in said if line} or "silence")


@pytest.mark.attack(57, "upper case, trailing dot, punycode", expected="the same host")
def test_other_spellings_of_an_allowed_host_are_the_same_host(run_script: RunScript, seen: Seen) -> None:
    names = ["API.Example.COM", "api.example.com.", "xn--bcher-kva.example.com"]
    requests = [f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n" for name in names]
    said, result = answers(run_script, requests)
    assert [line.split()[1] for line in said] == ["200"] * 3
    hosts = ["api.example.com", "api.example.com", "xn--bcher-kva.example.com"]
    assert [(one.host, one.allowed) for one in result.egress_decisions] == [(host, True) for host in hosts]
    seen({one.host for one in result.egress_decisions})


@pytest.mark.attack(58, "an empty allowlist", expected="403")
def test_an_empty_allowlist_allows_nothing(run_script: RunScript, seen: Seen) -> None:
    said, result = answers(
        run_script, ["GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n"], allowed_hosts=[]
    )
    assert said[0].startswith("HTTP/1.1 403 ")
    assert result.started is not None
    assert (result.started.policy.network, result.started.policy.allowed_hosts) == ("ALLOWLIST", ())
    seen(said[0].strip())


def test_another_port_is_allowed_by_its_number(run_script: RunScript) -> None:
    result = run_script("run.sh", "curl -sS https://api.example.com:8443/c", allowed_hosts=["api.example.com:8443"])
    assert result.stdout_text == "https api.example.com:8443 /c\n"


@pytest.mark.attack(56, "a name that leads inside the second time", expected="ADDRESS_NOT_PUBLIC")
def test_a_name_that_changes_its_address_is_never_dialled_unchecked(run_script: RunScript, seen: Seen) -> None:
    request = "GET http://rebind.example.com/ HTTP/1.1\r\nHost: rebind.example.com\r\nConnection: close\r\n\r\n"
    said, result = answers(run_script, [request, request])
    assert [line.split()[1] for line in said] == ["200", "403"]
    assert [one.refusal for one in result.egress_decisions] == [None, "ADDRESS_NOT_PUBLIC"]
    seen(result.egress_decisions[1].refusal)


SERVER_NAME = """
import socket, ssl
context = ssl.create_default_context(cafile="/work/skill/ca.pem")
context.check_hostname = False
for name in ("other.example.com", None):
    with socket.create_connection(("127.0.0.1", 3128), 20) as one:
        one.sendall(b"CONNECT api.example.com:443 HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n")
        print(one.recv(4096).split(b" ")[1].decode())
        try:
            context.wrap_socket(one, server_hostname=name)
            print("connected")
        except OSError:
            print("cut")
"""


@pytest.mark.attack(57, "CONNECT to one host, TLS to another", expected="HOST_MISMATCH")
def test_tls_that_names_another_server_is_cut(run_script: RunScript, seen: Seen) -> None:
    result = run_script("run.py", SERVER_NAME)
    assert result.stdout_text == "200\ncut\n" * 2
    assert [one.refusal for one in result.egress_decisions] == [None, "HOST_MISMATCH"] * 2
    seen(result.egress_decisions[1].refusal)


NO_OTHER_WAY = """
import socket
def tried(what, act):
    try:
        act()
        print(what, "WORKED")
    except OSError:
        print(what, "failed")
def tcp(host, port):
    socket.create_connection((host, port), 5).close()
def udp(host):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.settimeout(1)
    one.sendto(b"x", (host, 53))
    one.recv(1)
def resolve():
    socket.getaddrinfo("api.example.com", 80)
for host in ("93.184.215.14", "169.254.169.254", "172.17.0.1", "10.0.0.1", "1.1.1.1"):
    tried(host, lambda: tcp(host, 80))
    tried(host + " udp", lambda: udp(host))
tried("name", resolve)
"""


@pytest.mark.attack(55, 60, "sockets, UDP, DNS, no proxy variables", expected="no route")
def test_there_is_no_way_around_the_proxy(run_script: RunScript, seen: Seen) -> None:
    result = run_script("run.py", NO_OTHER_WAY)
    assert len(result.stdout_text.splitlines()) == 11
    assert "WORKED" not in result.stdout_text
    unset = {"http_proxy": "", "HTTP_PROXY": "", "https_proxy": "", "HTTPS_PROXY": ""}
    result = run_script("run.sh", "curl -sS -m 10 http://api.example.com/ https://api.example.com/", env=unset)
    assert (result.stdout_text, result.egress_decisions) == ("", ())
    assert "Could not resolve host" in result.stderr_text
    seen("no route, no name")


def test_without_a_network_nothing_listens_and_nothing_is_said_of_a_proxy(run_script: RunScript) -> None:
    source = "env | grep -ci proxy; curl -sS -m 10 http://127.0.0.1:3128/"
    result = run_script("run.sh", source, network=None, allowed_hosts=[])
    assert result.stdout_text == "0\n"
    assert "Failed to connect to 127.0.0.1" in result.stderr_text or "Could not connect" in result.stderr_text
    assert (result.egress_decisions, result.usage.egress_connections) == ((), 0)
    assert result.started is not None
    assert (result.started.policy.network, result.started.policy.allowed_hosts) == ("NONE", ())


def test_a_server_of_the_scripts_own_is_not_asked_for_over_the_proxy(run_script: RunScript) -> None:
    source = (
        "import http.server, threading, urllib.request\n"
        "server = http.server.HTTPServer(('127.0.0.1', 8000), http.server.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "print(urllib.request.urlopen('http://127.0.0.1:8000/SKILL.md').status)"
    )
    result = run_script("run.py", source)
    assert (result.stdout_text, result.egress_decisions) == ("200\n", ())


def test_connections_beyond_the_limit_are_refused_and_told(run_script: RunScript) -> None:
    requests = ["GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n"] * 8
    said, result = answers(run_script, requests, limits=skilljail.Limits(egress_connections=5))
    assert [line.split()[1] == "200" for line in said] == [True] * 5 + [False] * 3
    assert [one.refusal for one in result.egress_decisions] == [None] * 5 + ["CONNECTION_LIMIT"] * 3
    assert result.usage.egress_connections == 8


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_bytes_beyond_the_limit_are_not_carried(run_script: RunScript, scheme: str) -> None:
    source = (
        f"curl -sS {scheme}://files.example.com/bytes/3000000 -o got; wc -c <got; curl -s {scheme}://api.example.com"
    )
    result = run_script("run.sh", source, limits=skilljail.Limits(egress_bytes=1_000_000))
    assert 0 < int(result.stdout_text.split()[0]) <= 1_000_000
    assert 0 < result.usage.egress_received_bytes + result.usage.egress_sent_bytes <= 1_000_000
    assert [one.refusal for one in result.egress_decisions] == [None, "BYTE_LIMIT", "BYTE_LIMIT"]


DOWNLOAD = """
import hashlib, urllib.request
digest, size = hashlib.sha256(), 0
with urllib.request.urlopen("https://files.example.com/bytes/67108864") as answer:
    while piece := answer.read(1 << 18):
        digest.update(piece)
        size += len(piece)
print(size, digest.hexdigest())
"""
UPLOAD = """
import hashlib, http.client
piece = hashlib.sha256(b"upload").digest() * 2048
digest = hashlib.sha256()
def pieces():
    for _ in range(1024):
        digest.update(piece)
        yield piece
proxy = http.client.HTTPConnection("127.0.0.1", 3128)
proxy.request("POST", "http://files.example.com/digest", pieces(), {"Content-Length": str(1024 * len(piece))})
print(proxy.getresponse().read().decode() == digest.hexdigest())
"""
LARGE = skilljail.Limits(egress_bytes=80 << 20, wall_seconds=300, cpu_seconds=300)


@pytest.mark.timeout(400)
def test_64_mib_come_down_complete(run_script: RunScript) -> None:
    result = run_script("run.py", DOWNLOAD, limits=LARGE)
    assert result.stdout_text == f"{64 << 20} {hashlib.sha256(content_of(64 << 20)).hexdigest()}\n", result
    assert 64 << 20 < result.usage.egress_received_bytes < 66 << 20


@pytest.mark.timeout(400)
def test_64_mib_go_up_complete(run_script: RunScript) -> None:
    result = run_script("run.py", UPLOAD, limits=LARGE)
    assert result.stdout_text == "True\n", result
    assert 64 << 20 < result.usage.egress_sent_bytes < 66 << 20


def test_output_and_downloads_do_not_hold_each_other_up(run_script: RunScript) -> None:
    source = (
        "import hashlib, sys, threading, urllib.request\n"
        "def flood():\n    for _ in range(64): sys.stdout.buffer.write(bytes(65536))\n"
        "one = threading.Thread(target=flood); one.start()\n"
        "data = urllib.request.urlopen('http://files.example.com/bytes/8000000').read()\n"
        "one.join(); print(len(data), hashlib.sha256(data).hexdigest(), file=sys.stderr)"
    )
    result = run_script("run.py", source, limits=skilljail.Limits(output_bytes=5_000_000, wall_seconds=100))
    assert len(result.stdout) == 64 * 65_536
    assert result.stderr_text == f"8000000 {hashlib.sha256(content_of(8_000_000)).hexdigest()}\n"


FLOOD = """
import socket, threading
REQUEST = b"GET http://api.example.com/ HTTP/1.1\\r\\nHost: api.example.com\\r\\nConnection: close\\r\\n\\r\\n"
answered = []
def ask():
    with socket.create_connection(("127.0.0.1", 3128), 60) as one:
        one.sendall(REQUEST)
        answer = b""
        while piece := one.recv(4096):
            answer += piece
        answered.append(answer.startswith(b"HTTP/1.1 200"))
threads = [threading.Thread(target=ask) for _ in range(100)]
[one.start() for one in threads]
[one.join() for one in threads]
print(sum(answered))
"""


def test_a_hundred_connections_at_once_are_all_served(run_script: RunScript) -> None:
    result = run_script("run.py", FLOOD, limits=skilljail.Limits(pids=200, wall_seconds=100))
    assert result.stdout_text == "100\n", result.stderr_text


def connections_of(daemon: Daemon) -> int:
    """TCP sockets that the daemon has open. It speaks to its engine and its callers over unix sockets."""
    own = set()
    for path in pathlib.Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(path.readlink()))
    lines = pathlib.Path(f"/proc/{daemon.process.pid}/net/tcp").read_text().splitlines()[1:]
    return sum(f"socket:[{line.split()[9]}]" in own for line in lines)


LEFT_OPEN = """
import socket, sys, time
HALF = b"GET http://api.example.com/ HTTP/1.1\\r\\nHost: api.exam"
CONNECT = b"CONNECT api.example.com:443 HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n"
ENDLESS = b"GET http://api.example.com/endless HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n"
kept = []
for first in [HALF] * 10 + [b""] * 5 + [CONNECT] * 5 + [ENDLESS] * 5 + [b""] * 20:
    one = socket.create_connection(("127.0.0.1", 3128), 20)
    one.sendall(first)
    if first in (CONNECT, ENDLESS):
        one.recv(1)
    kept.append(one)
print("open", flush=True)
if sys.argv[1:]:
    time.sleep(100)
"""


@pytest.mark.parametrize("how", ["exit", "cancel", "leave", "timeout", "out of memory"])
def test_nothing_is_left_of_connections_when_a_run_ends(
    client: skilljail.Client, daemon: Daemon, make_skill: MakeSkill, internet: Internet, how: str
) -> None:
    wait_until(lambda: not internet.connections)
    assert connections_of(daemon) == 0
    source = LEFT_OPEN + ("bytearray(1 << 30)" if how == "out of memory" else "")
    skill = make_skill({"run.py": source})
    options: skilljail.RunOptions = {"network": "allowlist", "allowed_hosts": ["api.example.com"]}
    if how == "timeout":
        options["limits"] = skilljail.Limits(wall_seconds=3)
    stays = [] if how in {"exit", "out of memory"} else ["stay"]
    with client.stream(skill, "run.py", stays, **options) as stream:
        for event in stream:
            if isinstance(event, skilljail.Output) and how == "cancel":
                assert connections_of(daemon) == 10
                stream.cancel()
            if isinstance(event, skilljail.Output) and how == "leave":
                break
    if how != "leave":
        assert (
            stream.result.outcome
            == {
                "exit": "EXITED",
                "cancel": "CANCELLED",
                "timeout": "WALL_TIMEOUT",
                "out of memory": "OOM_KILLED",
            }[how]
        )
        assert sum(one.allowed for one in stream.result.egress_decisions) == 10
        assert stream.result.usage.egress_received_bytes > 0
    wait_until(lambda: not internet.connections)
    wait_until(lambda: connections_of(daemon) == 0)
    assert "Traceback" not in daemon.log.read_text()


def test_a_daemon_that_stops_hangs_up(internet: Internet, make_skill: MakeSkill, tmp_path: pathlib.Path) -> None:
    config = tmp_path / "skilljaild.toml"
    config.write_text('shutdown_grace_seconds = 0\n[network]\nceiling = "allowlist"\nallowed_hosts = ["*"]\n')
    program = (str(DAEMON),)
    skill = make_skill({"run.py": LEFT_OPEN})
    environment = internet.environment(NAMES)
    with (
        running_daemon("--config", str(config), environment=environment, program=program) as daemon,
        skilljail.Client(daemon.address) as client,
        client.stream(skill, "run.py", ["stay"], network="allowlist", allowed_hosts=["api.example.com"]) as stream,
    ):
        for event in stream:
            if isinstance(event, skilljail.Output):
                assert daemon.stop() == 0
        assert stream.result.outcome is skilljail.Outcome.SHUTDOWN
        assert "Traceback" not in daemon.log.read_text()
    wait_until(lambda: not internet.connections)


@pytest.mark.attack(54, "private addresses with an open network", expected="403")
def test_an_open_network_reaches_every_public_host_and_no_other(
    internet: Internet, make_skill: MakeSkill, seen: Seen
) -> None:
    requests = [
        f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        for host in ("api.example.com", "late.example.com", "inside.example.com", "127.0.0.1")
    ]
    program = (str(DAEMON),)
    with (
        running_daemon(
            "--set", "network.ceiling=open", environment=internet.environment(NAMES), program=program
        ) as one,
        skilljail.Client(one.address) as client,
    ):
        capabilities = client.capabilities()
        assert (capabilities.network_ceiling, capabilities.allowed_hosts_ceiling) == ("OPEN", ("*",))
        skill = make_skill({"ask.py": ASK})
        result = client.run(skill, "ask.py", stdin=json.dumps(requests).encode(), network=skilljail.Network.OPEN)
    assert [json.loads(line).split()[1] for line in result.stdout_text.splitlines()] == ["200", "200", "403", "403"]
    assert result.started is not None
    assert (result.started.policy.network, result.started.policy.allowed_hosts) == ("OPEN", ())
    seen([json.loads(line).split()[1] for line in result.stdout_text.splitlines()])


def test_what_the_operator_does_not_grant_is_refused_before_anything_runs(
    client: skilljail.Client, make_skill: MakeSkill
) -> None:
    skill = make_skill({"run.sh": "echo ran"})
    with pytest.raises(skilljail.NetworkNotAllowed, match=r"grant 'evil\.net'.*network\.allowed_hosts") as caught:
        client.run(skill, "run.sh", network="allowlist", allowed_hosts=["api.example.com", "evil.net"])
    assert caught.value.metadata["host"] == "evil.net"
    with pytest.raises(skilljail.NetworkNotAllowed, match=r"'example\.com'"):
        client.run(skill, "run.sh", network="allowlist", allowed_hosts=["example.com"])
    with pytest.raises(skilljail.NetworkNotAllowed, match=r"set network\.ceiling to open") as caught:
        client.run(skill, "run.sh", network="open")
    assert dict(caught.value.metadata)["ceiling"] == "ALLOWLIST"
    capabilities = client.capabilities()
    assert (capabilities.network_ceiling, capabilities.allowed_hosts_ceiling) == (
        "ALLOWLIST",
        ("*.example.com", "*.example.com:8443", "*.example.com:22"),
    )


async def test_the_asynchronous_client_asks_for_a_network_the_same_way(daemon: Daemon, make_skill: MakeSkill) -> None:
    skill = make_skill({"run.sh": "curl -sS http://api.example.com/"})
    async with skilljail.AsyncClient(daemon.address) as client:
        result = await client.run(skill, "run.sh", network="allowlist", allowed_hosts=["API.example.com."])
    assert result.stdout_text == "http api.example.com /\n"
    assert result.started is not None
    assert result.started.policy.allowed_hosts == ("api.example.com",)
