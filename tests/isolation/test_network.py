"""The network: there is none but a loopback of one's own."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from attack_table import Seen
from harness import on
from skilljail import Limits, Outcome

from isolation.attacks import Attacks

FEWER = "gVisor does not know all of these, and takes no notice of marks"
LONG = Limits(wall_seconds=200)
AT_ONCE_SECONDS = 30.0
"""Far below what one single timeout of a client takes."""

UNREACHABLE = {"ENETUNREACH", "EHOSTUNREACH", "ECONNREFUSED", "EADDRNOTAVAIL", "EACCES", "EPERM"}

EVERYWHERE = (
    # metadata services of clouds
    *("169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    # private networks, the usual gateways, Docker Desktop's API, the API of a cluster
    *(
        "10.0.0.1",
        "10.96.0.1",
        "172.16.0.1",
        "172.17.0.1",
        "192.168.0.1",
        "192.168.65.1",
        "192.168.65.7",
        "192.168.127.2",
    ),
    # the internet, broadcast, multicast
    *("1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "255.255.255.255", "224.0.0.251", "ff02::1"),
    # other spellings of loopback and of nowhere
    *("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "0.0.0.0", "::"),
)


@contextlib.contextmanager
def host_listener() -> Iterator[tuple[socket.socket, list[str]]]:
    """A TCP server on every address of this host, and those addresses."""
    with socket.create_server(("", 0)) as server:
        server.setblocking(False)
        addresses = {"127.0.0.1"}
        with contextlib.suppress(OSError):
            addresses.update(str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), 0, socket.AF_INET))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks for the address that would be used
            addresses.add(probe.getsockname()[0])
        yield server, sorted(addresses)


@pytest.mark.attack(53, "interfaces, routes, changing them", expected="lo alone, EPERM")
def test_there_is_no_interface_but_loopback(attacks: Attacks, seen: Seen) -> None:
    """By every list that the kernel keeps; and none can be made, changed or given an address or a route."""
    found = attacks.report("""
import fcntl, json, os, socket, struct
from attempt import attempt
def lines(name):
    try:
        with open(f"/proc/net/{name}") as file: return file.read().splitlines()
    except FileNotFoundError: return []
sockets = [line for name in ("tcp", "tcp6", "udp", "udp6", "raw", "unix") for line in lines(name)[1:]]
handle = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def change(request, name=b"lo", content=bytes(24)):
    return attempt(lambda: fcntl.ioctl(handle, request, struct.pack("16s24s", name, content)))
address = struct.pack("HH4s", socket.AF_INET, 0, bytes([10, 9, 8, 7]))
print(json.dumps({
    "interfaces": [line.partition(":")[0].strip() for line in lines("dev")[2:]],
    "in sysfs": os.listdir("/sys/class/net"),
    "routes": lines("route")[1:],
    "routes of IPv6": [line for line in lines("ipv6_route") if line.split()[-1] != "lo"],
    "neighbours": lines("arp")[1:],
    "sockets": sockets,
    "multicast": [line for line in lines("igmp")[1:] if line[0].isdigit() and line.split()[1] != "lo"],
    "SIOCSIFADDR": change(0x8916, content=address),
    "SIOCSIFFLAGS": change(0x8914, content=struct.pack("h", 0)),
    "SIOCSIFNAME": change(0x8923, content=b"eth0"),
    "SIOCADDRT": attempt(lambda: fcntl.ioctl(handle, 0x890B, bytes(120))),
    "SIOCBRADDBR": attempt(lambda: fcntl.ioctl(handle, 0x89A0, b"bridge0" + bytes(9))),
    "tun": attempt(lambda: fcntl.ioctl(os.open("/dev/net/tun", os.O_RDWR), 0x400454CA, b"x" + bytes(39))),
    "device": attempt(lambda: handle.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")),
    "mark": attempt(lambda: handle.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1)),
    "transparent": attempt(lambda: handle.setsockopt(socket.SOL_IP, 19, 1)),
}))
""")
    assert found["interfaces"] == ["lo"]
    assert set(found["in sysfs"]) <= {"lo", "bonding_masters"}
    for name in ("routes", "routes of IPv6", "neighbours", "sockets", "multicast"):
        assert found[name] == [], name
    for name in ("SIOCSIFADDR", "SIOCSIFFLAGS", "SIOCSIFNAME", "SIOCADDRT", "SIOCBRADDBR", "mark", "transparent"):
        assert found[name] in on(runc={"EPERM"}, gvisor={"EPERM", "ENOTTY", "ENOPROTOOPT", "done None"}, why=FEWER), (
            name
        )
    assert found["tun"] in on(runc={"ENOENT"}, gvisor={"ENOENT", "EPERM"}, why="there is one, which makes no interface")
    assert found["device"] in {"ENODEV", "EPERM"}
    seen(found["interfaces"], found["SIOCADDRT"])


@pytest.mark.attack(50, 53, 54, 57, "TCP and UDP to everywhere", expected="no route")
def test_nobody_can_be_reached_and_that_shows_at_once(attacks: Attacks, seen: Seen) -> None:
    """TCP and UDP to metadata services, the host, gateways, the internet, in many spellings."""
    script = """
import errno, json, socket, sys, time
from attempt import attempt
ports, hosts = [int(one) for one in sys.argv[1].split(",")], sys.argv[2:]
def connect(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(60)
        one.connect((host, port))
def send(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        one.connect((host, port))
        one.send(b"x")
        one.send(b"x")  # a refusal shows at the second one
        return "sent"
started = time.monotonic()
found = {}
for host in hosts:
    found[host] = sorted({attempt(lambda: connect(host, port)) for port in ports})
    found[f"UDP {host}"] = [attempt(lambda: send(host, 53))]
print(json.dumps({"found": found, "seconds": time.monotonic() - started}))
"""
    with host_listener() as (server, addresses):
        ports = f"22,80,443,2375,6443,{server.getsockname()[1]}"
        found = attacks.report(script, argv=[ports, *EVERYWHERE, *addresses], limits=LONG)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert len(found["found"]) >= 2 * len(EVERYWHERE)
    # A link-local multicast address is nothing without the interface that it means.
    nowhere = UNREACHABLE | {"EINVAL"}
    assert {name: answers for name, answers in found["found"].items() if not set(answers) <= nowhere} == {}
    assert found["seconds"] < AT_ONCE_SECONDS
    seen({answer for answers in found["found"].values() for answer in answers})


@pytest.mark.attack(53, 54, 55, "resolving names", expected="refused")
def test_no_name_is_resolved_and_that_shows_at_once(attacks: Attacks, seen: Seen) -> None:
    """By the C library, by /etc/hosts, and by a query of one's own."""
    found = attacks.report(
        """
import json, socket, time
from attempt import attempt
def lines(path):
    try: return open(path).readlines()
    except FileNotFoundError: return []
def resolve(name):
    try: return [one[4][0] for one in socket.getaddrinfo(name, 80)]
    except socket.gaierror: return "refused"
names = ("example.com", "metadata.google.internal", "host.docker.internal", "gateway.docker.internal",
    "kubernetes.default.svc", "host.containers.internal", "a" * 60 + ".example.com")
started = time.monotonic()
print(json.dumps({
    "names": {name: resolve(name) for name in names},
    "seconds": time.monotonic() - started,
    "resolvers": [line for line in lines("/etc/resolv.conf") if line.startswith("nameserver")],
    "hosts": [line.split()[0] for line in lines("/etc/hosts") if line.strip() and line[0] != "#"],
}))
""",
        limits=LONG,
    )
    assert {name: answer for name, answer in found["names"].items() if answer != "refused"} == {}
    assert found["seconds"] < AT_ONCE_SECONDS
    assert found["resolvers"] == []
    assert set(found["hosts"]) <= {"127.0.0.1", "::1", "fe00::0", "ff00::0", "ff02::1", "ff02::2"}
    seen(found["names"])


CLIENTS = {
    "node": (
        "x.js",
        "const net = require('net'), dns = require('dns').promises, dgram = require('dgram');\n"
        "const one = (make) => make().then(() => 'reached', (error) => 'refused');\n"
        "(async () => { for (const make of [\n"
        "  () => fetch('http://169.254.169.254/latest/meta-data'), () => fetch('https://example.com'),\n"
        "  () => dns.lookup('example.com'), () => dns.resolve('example.com'),\n"
        "  () => new Promise((yes, no) => net.connect(443, '1.1.1.1').on('connect', yes).on('error', no)),\n"
        "  () => new Promise((yes, no) => dgram.createSocket('udp4')\n"
        "    .send('x', 53, '8.8.8.8', (error) => error ? no(error) : yes())),\n"
        "]) console.log(await one(make)); process.exit(0); })();\n",
        6,
    ),
    "bash": (
        "x.sh",
        'try() { if "$@" 2>/dev/null; then echo reached; else echo refused; fi; }\n'
        "tcp() { (exec 3<>/dev/tcp/$1/$2); }; udp() { (exec 3<>/dev/udp/$1/$2 && echo x >&3); }\n"
        "try tcp 1.1.1.1 443; try tcp 169.254.169.254 80; try tcp example.com 80; try udp 8.8.8.8 53\n"
        "try tcp 0x7f.1 22; try tcp 2130706433 22\n",
        6,
    ),
    "pwsh": (
        "x.ps1",
        "function Try-One($action) { try { $null = & $action; 'reached' } catch { 'refused' } }\n"
        "Try-One { Invoke-WebRequest http://169.254.169.254/ -TimeoutSec 90 }\n"
        "Try-One { Invoke-RestMethod https://example.com -TimeoutSec 90 }\n"
        "Try-One { [Net.Dns]::GetHostAddresses('example.com') }\n"
        "Try-One { [Net.Sockets.TcpClient]::new('1.1.1.1', 443) }\n"
        "Try-One { $udp = [Net.Sockets.UdpClient]::new(); $udp.Connect('8.8.8.8', 53); $udp.Send([byte[]](1), 1) }\n"
        "Try-One { if (-not (Test-Connection 1.1.1.1 -Count 1 -TimeoutSeconds 90 -Quiet)) { throw 'no' } }\n",
        6,
    ),
}


@pytest.mark.attack(53, 54, 57, "the interpreters' own clients", expected="refused")
@pytest.mark.parametrize("interpreter", CLIENTS)
def test_the_clients_of_an_interpreter_reach_nobody_either(attacks: Attacks, interpreter: str, seen: Seen) -> None:
    """HTTP, DNS, TCP, UDP and ping in the interpreter's own way, without waiting for a timeout."""
    name, script, tries = CLIENTS[interpreter]
    result = attacks.run(script, name, limits=LONG)
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert result.stdout_text.split() == ["refused"] * tries
    assert result.usage.wall_seconds < AT_ONCE_SECONDS
    seen(result.stdout_text.split())


@pytest.mark.attack(60, "proxy variables set and unset", expected="no route")
def test_proxy_variables_open_no_way(attacks: Attacks, seen: Seen) -> None:
    """Set or not, there is no route."""
    script = """
import json, os, urllib.request
def fetch():
    try: return urllib.request.urlopen("http://example.com", timeout=3).status
    except OSError: return "refused"
found = [fetch()]
for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "no_proxy"): os.environ.pop(name, None)
print(json.dumps([*found, fetch()]))
"""
    with host_listener() as (server, addresses):
        proxy = f"http://{addresses[-1]}:{server.getsockname()[1]}"
        found = attacks.report(script, env={"HTTP_PROXY": proxy, "http_proxy": proxy})
        assert found == ["refused", "refused"]
        with pytest.raises(BlockingIOError):
            server.accept()
    seen(found)


@pytest.mark.attack(53, "a script that speaks to itself", expected="works")
def test_a_script_has_a_loopback_of_its_own(attacks: Attacks, seen: Seen) -> None:
    """Programs that speak to themselves work."""
    found = attacks.report("""
import json, socket
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
    far, _ = server.accept()
    near.sendall(b"hello")
    print(json.dumps(far.recv(5).decode()))
    far.close()
""")
    assert found == "hello"
    seen(found)


@pytest.mark.attack(51, "abstract sockets of the host", expected="ECONNREFUSED")
def test_the_abstract_sockets_of_the_host_are_not_there(attacks: Attacks, seen: Seen) -> None:
    """CVE-2020-15257; neither those of the host nor those of another sandbox."""
    script = """
import json, socket, sys
from attempt import attempt
print(json.dumps({
    "connect": [attempt(lambda: socket.socket(socket.AF_UNIX, kind).connect("\\0" + sys.argv[1]))
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)],
    "listed": open("/proc/net/unix").read().splitlines()[1:],
}))
"""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0skilljail-test-of-the-host")
        server.listen()
        found = attacks.report(script, argv=["skilljail-test-of-the-host"])
    assert found == {"connect": ["ECONNREFUSED"] * 3, "listed": []}
    seen(found["connect"])


@pytest.mark.attack(61, "another sandbox's ports and sockets", expected="unreachable")
def test_two_sandboxes_cannot_reach_each_other(attacks: Attacks, seen: Seen) -> None:
    """On no address that either has."""
    server = """
import socket, time
held = [socket.create_server(("", port)) for port in range(47000, 47010)]
other = socket.socket(socket.AF_UNIX)
other.bind("\\0of-another-sandbox")
other.listen()
print("listening")
time.sleep(30)
"""
    client = """
import json, socket
from attempt import attempt
hosts = [f"{net}.0.{last}" for net in ("172.17", "172.18", "10.88") for last in range(1, 12)] + ["127.0.0.1", "0.0.0.0"]
answers = {attempt(lambda: socket.create_connection((host, port), 1)) for host in hosts for port in range(47000, 47010)}
answers.add(attempt(lambda: socket.socket(socket.AF_UNIX).connect("\\0of-another-sandbox")))
print(json.dumps(sorted(answers)))
"""
    with attacks.under_way(server):
        found = attacks.report(client)
        assert set(found) <= UNREACHABLE
        seen(found)
