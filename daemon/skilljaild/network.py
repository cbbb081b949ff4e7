"""What a run may reach of what it asks for. The operator grants a network and hosts; a request asks within them."""

import dataclasses
import enum

from skilljaild.egress.hosts import HostInvalid, HostPattern, covered
from skilljaild.errors import Reason, Refusal
from skilljaild.paths import shown

__all__ = ["ALLOWED_HOSTS_MAX", "Network", "NetworkCeiling", "effective_network"]

ALLOWED_HOSTS_MAX = 256
EVERY_HOST = HostPattern.parse("*", every=True)


class Network(enum.IntEnum):
    """What a sandbox may reach. The values are those of `Network` in `run.proto`; each grants more than the last."""

    NONE = 1
    ALLOWLIST = 2
    OPEN = 3


@dataclasses.dataclass(frozen=True, slots=True)
class NetworkCeiling:
    """The most that a run may ask for."""

    network: Network = Network.NONE
    hosts: tuple[HostPattern, ...] = ()

    @property
    def nameable(self) -> tuple[HostPattern, ...]:
        """The hosts that an allowlist may name."""
        return (*self.hosts, EVERY_HOST) if self.network is Network.OPEN else self.hosts


def effective_network(
    asked: int, hosts: tuple[str, ...], ceiling: NetworkCeiling
) -> tuple[Network, tuple[HostPattern, ...]]:
    """The network of a run, and the hosts that it may talk to. `asked`: as in the contract, 0 for unset.

    Raises Refusal NETWORK_INVALID or NETWORK_NOT_ALLOWED.
    """
    network = _network(asked)
    if hosts and network is Network.NONE:
        raise _invalid(
            "allowed_hosts",
            "hosts were named and no network asked for; ask for NETWORK_ALLOWLIST, or leave the hosts out",
        )
    if hosts and network is Network.OPEN:
        raise _invalid(
            "allowed_hosts", "NETWORK_OPEN reaches every host; leave the hosts out, or ask for NETWORK_ALLOWLIST"
        )
    if len(hosts) > ALLOWED_HOSTS_MAX:
        raise _invalid(
            "allowed_hosts", f"{len(hosts)} hosts, at most {ALLOWED_HOSTS_MAX} can be named; join some as *.example.com"
        )
    patterns = tuple(dict.fromkeys(map(_pattern, hosts)))
    if network > ceiling.network:
        raise Refusal(
            Reason.NETWORK_NOT_ALLOWED,
            f"network: NETWORK_{network.name} is above this daemon's ceiling of NETWORK_{ceiling.network.name}; ask "
            f"for less, or have its operator set network.ceiling to {network.name.lower()}",
            field="network",
            network=network.name,
            ceiling=ceiling.network.name,
        )
    for pattern in patterns:
        if not covered(pattern, ceiling.nameable):
            raise Refusal(
                Reason.NETWORK_NOT_ALLOWED,
                f"allowed_hosts: the operator of this daemon does not grant {shown(str(pattern))}; leave it out, or "
                "have it added to network.allowed_hosts",
                field="allowed_hosts",
                host=str(pattern),
            )
    return network, patterns


def _network(asked: int) -> Network:
    if not asked:
        return Network.NONE
    try:
        return Network(asked)
    except ValueError:
        known = ", ".join(f"NETWORK_{one.name}" for one in Network)
        raise _invalid("network", f"{asked} is no network that this daemon knows; it knows {known}") from None


def _pattern(text: str) -> HostPattern:
    if text == "*":
        raise _invalid("allowed_hosts", "'*' is no list of hosts; ask for NETWORK_OPEN to reach every host")
    try:
        return HostPattern.parse(text)
    except HostInvalid as error:
        raise _invalid("allowed_hosts", f"{shown(text)}: {error}") from error


def _invalid(field: str, message: str) -> Refusal:
    return Refusal(Reason.NETWORK_INVALID, f"{field}: {message}", field=field)
