"""What a daemon can do and where its bounds are."""

import dataclasses

from skilljail._limits import Limits
from skilljail._outcome import Network
from skilljail._posture import IsolationLevel
from skilljail.v1 import run_pb2, script_runner_pb2

__all__ = ["Capabilities", "Engine", "Interpreter"]


@dataclasses.dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter that skilljail knows."""

    name: str
    """`python`, `node`, `bash` or `pwsh`."""
    available: bool
    """Whether a run can use it now."""
    version: str
    image: str
    image_digest: str
    unavailable_reason: str
    """When not available: why, and what the operator can do."""
    suffixes: tuple[str, ...]
    """File name suffixes that choose it, such as `.py`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """What makes the sandboxes."""

    name: str
    version: str
    runtime: str
    warnings: tuple[str, ...]
    """What an operator should know about its safety."""
    isolation_level: IsolationLevel
    """What stands between a sandbox and the host's kernel."""


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """What a daemon can do."""

    daemon_version: str
    interpreters: tuple[Interpreter, ...]
    default_limits: Limits
    limit_ceilings: Limits
    bundle_bytes_max: int
    bundle_entries_max: int
    engine: Engine
    concurrent_runs_max: int
    queued_runs_max: int
    network_ceiling: Network = Network.NONE
    """The widest network that a run may ask for."""
    allowed_hosts_ceiling: tuple[str, ...] = ()
    """The hosts that a run may name with `Network.ALLOWLIST`; `*` is every host."""

    def interpreter(self, name: str) -> Interpreter | None:
        """The interpreter of that name, if the daemon knows it."""
        return next((one for one in self.interpreters if one.name == name), None)

    @classmethod
    def from_wire(cls, message: script_runner_pb2.GetCapabilitiesResponse) -> "Capabilities":
        """Reads the message of the contract."""
        return cls(
            daemon_version=message.daemon_version,
            interpreters=tuple(
                Interpreter(
                    name=one.name,
                    available=one.available,
                    version=one.version,
                    image=one.image,
                    image_digest=one.image_digest,
                    unavailable_reason=one.unavailable_reason,
                    suffixes=tuple(one.suffixes),
                )
                for one in message.interpreters
            ),
            default_limits=Limits.from_wire(message.default_limits),
            limit_ceilings=Limits.from_wire(message.limit_ceilings),
            bundle_bytes_max=message.bundle_bytes_max,
            bundle_entries_max=message.bundle_entries_max,
            engine=Engine(
                message.engine.name,
                message.engine.version,
                message.engine.runtime,
                tuple(message.engine.warnings),
                IsolationLevel.of(message.engine.isolation_level),
            ),
            concurrent_runs_max=message.concurrent_runs_max,
            queued_runs_max=message.queued_runs_max,
            network_ceiling=Network.from_wire(
                run_pb2.Network, message.network_ceiling or run_pb2.NETWORK_NONE, "NETWORK_"
            ),
            allowed_hosts_ceiling=tuple(message.allowed_hosts_ceiling),
        )
