"""How to reach the daemon: the address, the credentials, and the options of a gRPC channel."""

import dataclasses

import grpc
import grpc.aio

from skilljail._address import Address, default_address
from skilljail._errors import InvalidAddress
from skilljail._tls import TLS
from skilljail._version import __version__

__all__ = ["Connection"]

_RECEIVE_BYTES_MAX = 4 * 1024 * 1024  # chunks are at most 64 KiB; a page of 500 runs is the largest answer
_SEND_BYTES_MAX = 10 * 1024 * 1024  # 4 MiB of stdin, 4 MiB of inline inputs, 1 MiB of arguments and environment

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", _RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", _SEND_BYTES_MAX),
    ("grpc.primary_user_agent", f"skilljail-python/{__version__}"),
    # Two clients must not share a connection behind our back: closing one would concern the other.
    ("grpc.use_local_subchannel_pool", 1),
    # A daemon that was just started is found again soon; gRPC's own steps reach two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
# A peer that vanished without a word is noticed. Heartbeats of the daemon keep these pings within what servers allow.
_REMOTE_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
# A proxy has no business between a client and its own machine.
_LOOPBACK_OPTIONS: tuple[tuple[str, int | str], ...] = (("grpc.enable_http_proxy", 0),)


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """Everything that a channel is made from."""

    address: Address
    tls: TLS | None
    """None for a unix socket and for an insecure connection."""

    @classmethod
    def of(cls, address: str | None, *, tls: TLS | None, insecure: bool) -> "Connection":
        """Checks what a client was given. Raises InvalidAddress."""
        parsed = Address.parse(default_address() if address is None else address)
        if parsed.socket_path is not None:
            return cls(parsed, None)  # the socket's own permissions guard it
        if not insecure:
            return cls(parsed, tls if tls is not None else TLS.from_environment())
        if tls is not None:
            raise InvalidAddress("insecure=True and tls exclude each other; leave one out")
        if not parsed.is_loopback:
            raise InvalidAddress(
                f"insecure=True is taken for loopback addresses only, and '{parsed.target}' is none; use TLS"
            )
        return cls(parsed, None)

    def channel(self) -> grpc.Channel:
        """A channel for blocking calls. It connects with its first call."""
        if self.tls is None:
            return grpc.insecure_channel(self.address.target, options=self._options())
        return grpc.secure_channel(self.address.target, self.tls.credentials(), options=self._options())

    def aio_channel(self) -> grpc.aio.Channel:
        """A channel for the running event loop."""
        if self.tls is None:
            return grpc.aio.insecure_channel(self.address.target, options=self._options())
        return grpc.aio.secure_channel(self.address.target, self.tls.credentials(), options=self._options())

    def _options(self) -> list[tuple[str, int | str]]:
        return [*_OPTIONS, *(_LOOPBACK_OPTIONS if self.address.is_loopback else _REMOTE_OPTIONS)]
