"""What the proxy decided on a connection, as plain data. The contract is `EgressDecision` in `run.proto`."""

import dataclasses
import datetime
import enum
import re

__all__ = ["EgressDecision", "EgressRefusal", "Refused", "printable_host"]

HOST_LENGTH_MAX = 253


class EgressRefusal(enum.StrEnum):
    """Why a connection was refused or cut. The names are those of `EgressRefusal` in `run.proto`."""

    HOST_INVALID = "host_invalid"
    HOST_NOT_ALLOWED = "host_not_allowed"
    PORT_NOT_ALLOWED = "port_not_allowed"
    NAME_NOT_RESOLVED = "name_not_resolved"
    ADDRESS_NOT_PUBLIC = "address_not_public"
    CONNECT_FAILED = "connect_failed"
    HOST_MISMATCH = "host_mismatch"
    PROTOCOL_INVALID = "protocol_invalid"
    CONNECTION_LIMIT = "connection_limit"
    BYTE_LIMIT = "byte_limit"


@dataclasses.dataclass(frozen=True, slots=True)
class EgressDecision:
    """One decision. It holds nothing of a request but host and port: a path or a header may be a secret.

    `host` is normalised, or, where it is no host, printable and at most 253 characters long; "" where none was told.
    `port`: 0 where none was told. `address`: what was dialled, when allowed. `refusal`: None when allowed.
    `message`: one or more sentences for a person, the same that the script is told.
    """

    time: datetime.datetime
    host: str
    port: int
    allowed: bool
    address: str
    refusal: EgressRefusal | None
    message: str


def printable_host(text: str) -> str:
    """What was asked for as a host, fit for a decision: ASCII, printable, at most 253 characters.

    `text`: with all that follows, up to the end of the target. Neither a path nor user information is left: both may
    be secret.
    """
    host, *behind = re.split(r"[/?#\\]", text, maxsplit=1)
    if "%40" in text or any("@" in one for one in behind):
        return ""  # a password may hold a slash, so this may be half of one
    host = host.rpartition("@")[2][:HOST_LENGTH_MAX]
    return host.encode("ascii", "backslashreplace").decode().translate(_PRINTABLE)[:HOST_LENGTH_MAX]


_PRINTABLE = {code: f"\\x{code:02x}" for code in (*range(0x21), 0x7F)}


class Refused(Exception):
    """A connection that is refused, or cut when it had been allowed."""

    def __init__(self, refusal: EgressRefusal, host: str, port: int, why: str, *, cut: bool = False) -> None:
        """`host`: "" where none was told. `why`: the end of a sentence, and maybe more; nothing from a request."""
        name = f" to {host}" if host else ""
        name += f":{port}" if host and port else ""
        self.host = host
        self.port = port
        self.refusal = refusal
        self.message = f"the connection{name} was {'cut' if cut else 'refused'}: {why}"
        super().__init__(self.message)

    def decision(self) -> EgressDecision:
        """This, as it is told to the run."""
        return EgressDecision(
            time=datetime.datetime.now(datetime.UTC),
            host=self.host,
            port=self.port,
            allowed=False,
            address="",
            refusal=self.refusal,
            message=self.message,
        )
