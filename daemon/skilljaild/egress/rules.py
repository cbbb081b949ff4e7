"""What a run's egress may reach, as a policy gives it."""

import dataclasses
from typing import Literal

from skilljaild.egress.decision import EgressRefusal
from skilljaild.egress.hosts import HostPattern

__all__ = ["EgressRules"]

EVERY_HOST = HostPattern("", below=True)
SHOWN_MAX = 10


@dataclasses.dataclass(frozen=True, slots=True)
class EgressRules:
    """`allowlist`: the hosts, and nothing when there are none. `open`: every host on ports 80 and 443, and the hosts.

    An address must be public in either case.
    """

    network: Literal["allowlist", "open"]
    hosts: tuple[HostPattern, ...] = ()

    def refusal(self, host: str, port: int) -> tuple[EgressRefusal, str] | None:
        """Why a connection to `host`, which is normalised, is refused: the reason, and sentences for a person."""
        patterns = (*self.hosts, EVERY_HOST) if self.network == "open" else self.hosts
        if any(pattern.allows(host, port) for pattern in patterns):
            return None
        known = [pattern for pattern in patterns if pattern.allows_host(host)]
        if known:
            ports = ", ".join(str(one) for one in sorted(frozenset[int]().union(*(one.ports for one in known))))
            return (
                EgressRefusal.PORT_NOT_ALLOWED,
                f"this run may reach the host on port {ports} only. Ask for {host}:{port} in allowed_hosts; "
                "the operator has to grant it, too.",
            )
        return (
            EgressRefusal.HOST_NOT_ALLOWED,
            f"the host is not on this run's allowlist ({self._shown()}). Ask for it in allowed_hosts; the "
            "operator has to grant it, too.",
        )

    def _shown(self) -> str:
        if not self.hosts:
            return "which is empty"
        shown = ", ".join(str(pattern) for pattern in self.hosts[:SHOWN_MAX])
        more = len(self.hosts) - SHOWN_MAX
        return f"{shown} and {more} more" if more > 0 else shown
