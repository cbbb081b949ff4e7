"""How to speak TLS to a daemon."""

import dataclasses
import os
import pathlib

import grpc

from skilljail._errors import InvalidAddress

__all__ = ["TLS"]


@dataclasses.dataclass(frozen=True, slots=True)
class TLS:
    """PEM files for a connection to `host:port`. All are optional; a certificate and its key go together."""

    ca_file: str | os.PathLike[str] | None = None
    """The authorities that the daemon's certificate may come from; None takes the system's."""
    cert_file: str | os.PathLike[str] | None = None
    """The certificate that names this caller."""
    key_file: str | os.PathLike[str] | None = None
    """Its private key."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidAddress("TLS needs cert_file and key_file together, or neither of them")

    @classmethod
    def from_environment(cls) -> "TLS":
        """`SKILLJAIL_TLS_CA`, `SKILLJAIL_TLS_CERT` and `SKILLJAIL_TLS_KEY`, each unset or a path."""
        return cls(*(os.environ.get(f"SKILLJAIL_TLS_{name}") or None for name in ("CA", "CERT", "KEY")))

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises InvalidAddress for one that cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca_file),
            private_key=_read(self.key_file),
            certificate_chain=_read(self.cert_file),
        )


def _read(path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise InvalidAddress(
            f"the TLS file '{os.fspath(path)}' cannot be read ({error.strerror}); correct its path or its permissions"
        ) from error
