"""Where the daemon is. The daemon asks the same functions where to listen, so both ends agree."""

import dataclasses
import ipaddress
import os
import pathlib
import re
import socket

from skilljail._errors import InvalidAddress

__all__ = ["Address", "default_address", "default_socket_path"]

_SOCKET_NAME = "skilljaild.sock"
# sockaddr_un.sun_path, with its final NUL: 108 bytes on Linux, 104 on macOS. The smaller one fits both.
_SOCKET_PATH_BYTES_MAX = 103
_HOST_PORT = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?):(?P<port>[0-9]{1,5})"
)


def default_socket_path() -> pathlib.Path:
    """The local daemon's socket.

    root: `/run/skilljail/skilljaild.sock`; others: `$XDG_RUNTIME_DIR/skilljail/skilljaild.sock`, and without that
    variable `~/.skilljail/skilljaild.sock`.
    """
    # Windows has no uid; there nobody is root.
    if getattr(os, "geteuid", lambda: -1)() == 0:
        return pathlib.Path("/run/skilljail") / _SOCKET_NAME
    runtime_directory = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime_directory:
        return pathlib.Path(runtime_directory) / "skilljail" / _SOCKET_NAME
    return pathlib.Path.home() / ".skilljail" / _SOCKET_NAME


def default_address() -> str:
    """`SKILLJAIL_ADDRESS`, else `unix:` and the local daemon's socket."""
    return os.environ.get("SKILLJAIL_ADDRESS", "").strip() or f"unix:{default_socket_path()}"


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """An address of a daemon, read once."""

    target: str
    """What gRPC connects to: `unix:/absolute/path` or `host:port`."""
    socket_path: pathlib.Path | None
    """The socket, for a unix address."""
    is_loopback: bool
    """True for a unix socket, `localhost`, 127.0.0.0/8 and ::1."""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Reads `unix:/path`, `unix:///path`, `/path` or `host:port`. Raises InvalidAddress."""
        if not isinstance(text, str):
            kind = type(text).__name__
            raise InvalidAddress(f"an address is a str such as 'unix:/path' or 'host:port', not {kind}; use str(…)")
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            return cls._of_socket(text, path[2:] if path.startswith("///") else path)
        if text.startswith("/"):
            return cls._of_socket(text, text)
        match = _HOST_PORT.fullmatch(text)
        if match is None or not 0 < int(match["port"]) < 65_536:  # TCP ports
            raise InvalidAddress(
                f"{text!a} is no address of a daemon; write unix:/path/to/skilljaild.sock or host:port"
            )
        return cls(text, None, _is_loopback(match["host"]))

    def denial(self) -> str | None:
        """Why this user may not connect to the socket, with the mend; None when that is not what is wrong.

        Connects for a moment, without waiting: modes and groups tell less than the attempt.
        """
        if self.socket_path is None or not hasattr(socket, "AF_UNIX"):  # absent on Windows
            return None
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self.socket_path))
            except PermissionError:
                return self._denial_text(self.socket_path)
            except OSError:
                return None
        return None

    @staticmethod
    def _denial_text(path: pathlib.Path) -> str:
        own = "run a daemon of your own and set SKILLJAIL_ADDRESS to where it listens"
        try:
            path.stat()
        except PermissionError:
            return (
                f"this user may not enter the directory of the socket {path}; have the daemon's operator open it or "
                f"listen elsewhere, or {own}"
            )
        except OSError:
            pass  # it went away meanwhile; it was there when we were turned away
        return (
            f"the socket {path} is there, but this user may not connect to it; have its operator set `socket_mode` "
            f"(for example 660) and put you into the socket's group, or {own}"
        )

    @classmethod
    def _of_socket(cls, text: str, path: str) -> "Address":
        if not path or path.startswith("//") or "\0" in path:
            raise InvalidAddress(f"{text!a} names no socket; write unix:/path/to/skilljaild.sock")
        absolute = os.path.abspath(path)  # noqa: PTH100  # gRPC takes text, and nothing may be resolved here
        if len(os.fsencode(absolute)) > _SOCKET_PATH_BYTES_MAX:
            raise InvalidAddress(
                f"the socket path '{absolute}' is longer than {_SOCKET_PATH_BYTES_MAX} bytes, which the system "
                "cannot connect to; use a shorter one"
            )
        return cls(f"unix:{absolute}", pathlib.Path(absolute), is_loopback=True)


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
