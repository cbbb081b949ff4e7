"""Egress without a network: what a run's script may reach, decided and dialled by the daemon.

A sandbox has no route. init listens on its loopback as an HTTP/1.1 proxy and carries each connection here as an opaque
stream, a `Tunnel`; `EgressProxy` serves it. This package knows hosts, addresses and HTTP. It knows nothing of
sandboxes, frames, runs or gRPC.

What may be reached (`hosts`, `rules`). `example.com` is that host alone; `*.example.com` is every host below it, at any
depth, and not itself; `example.com:8443` is that port, and without a port it is 80 and 443. `*` is for an operator's
ceiling. An empty allowlist allows nothing. Names are compared lower case, in punycode, without a dot at the end. An IP
address, however it is written, and a name of one part are never hosts.

What is checked, and when. Each connection is decided once, and each decision told once, before a byte flows: pattern
and port (`rules`); then, only for names that are allowed, one resolution, of which every address must be public
(`addresses`); then exactly a checked address is dialled (`doorkeeper`).

- `CONNECT host:port`: after the answer, what the script sends first is read before the host gets any of it. A TLS
  ClientHello must name the same host (`hello`); then bytes are carried both ways (`relay`). One that hides its server's
  name (encrypted ClientHello) is refused. Plain HTTP/1 is treated as below. All else is refused.
- `GET http://host/path`: carried as a request written anew (`front`, `forward`), with the Host header of the URL; a
  Host header that says otherwise is refused. Requests to one host in a row share a connection and its decision; another
  host is a new decision and a new connection. Headers between the script and the proxy end here, `Upgrade` with them.

A refusal is a response that says what was refused, why, and what can be done, or, inside of TLS, the end of the
connection. Decisions hold host and port, never a path, a header or a body.

What cannot be seen. TLS is not opened. A script can send what it likes to a host that is allowed, and by the length and
time of what it sends to whoever watches; a server that serves several sites may let it ask, inside of TLS, for another
than the one that it named (domain fronting). An allowlist is as narrow as the hosts on it.

Hosts whose addresses come from a DNS64 translator, and hosts that only the daemon's own hosts file or search domains
know, cannot be reached. No setting changes which addresses are public.
"""

from skilljaild.egress.decision import EgressDecision, EgressRefusal
from skilljaild.egress.dialler import Dialler
from skilljaild.egress.hosts import HostInvalid, HostPattern, covered
from skilljaild.egress.proxy import EgressProxy
from skilljaild.egress.rules import EgressRules
from skilljaild.egress.tunnel import Tunnel, TunnelClosed

__all__ = [
    "Dialler",
    "EgressDecision",
    "EgressProxy",
    "EgressRefusal",
    "EgressRules",
    "HostInvalid",
    "HostPattern",
    "Tunnel",
    "TunnelClosed",
    "covered",
]
