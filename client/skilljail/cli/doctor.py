"""`skilljail doctor`: for each thing that a run needs, whether it is there and what to do where it is not."""

import argparse
import dataclasses
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal

from skilljail import Capabilities, Client, Network, SkilljailError, __version__
from skilljail.cli.daemon_extra import INSTALL, daemon_command, missing_packages
from skilljail.cli.parser import add_connection_options
from skilljail.cli.terminal import one_line

__all__ = ["add_command"]

_DESCRIPTION = """\
Look at everything that a run needs, from here to the sandbox, one line for each thing: whether it is there and, where
it is not, what to do. Where the packages of the daemon are installed and the daemon is local, `skilljaild doctor`
looks at the engine, too. Nothing is changed and no script is run.
"""

_EPILOG = """\
marks:
  ok    it is there
  warn  it is not as it should be, and scripts can run
  MISS  it is missing, and scripts cannot run

exit status:
  0  nothing is missing
  1  something is
"""

_ANSWER_SECONDS = 5.0
_HOSTS_SHOWN = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    mark: Literal["ok  ", "warn", "MISS"]
    thing: str
    detail: str


def add_command(commands: Any) -> None:
    """Adds the command to what `add_subparsers` returned."""
    parser = commands.add_parser(
        "doctor", help="see what is there and what is missing", description=_DESCRIPTION, epilog=_EPILOG
    )
    add_connection_options(parser)
    parser.set_defaults(perform=_perform, parser=parser, takes_rest=False)


def _perform(options: argparse.Namespace) -> int:
    missing = False
    for finding in _examine(options):
        print(f"{finding.mark}  {one_line(finding.thing)}: {one_line(finding.detail)}", flush=True)
        missing = missing or finding.mark == "MISS"
    if _is_local(options):
        missing = _ask_daemon_command() or missing
    return 1 if missing else 0


def _examine(options: argparse.Namespace) -> Iterator[Finding]:
    yield Finding("ok  ", "client", f"skilljail {__version__}, Python {sys.version.split()[0]}")
    try:
        with Client(options.address, insecure=options.insecure) as client:
            yield Finding("ok  ", "address", f"{client.address}, {_origin(options)}")
            socket = _socket(client.address)
            if socket is not None:
                yield socket
            # To wait for a socket that is closed to us is useless; the error of a plain call says what to do.
            closed = socket is None and client.address.startswith("unix:")
            capabilities = client.capabilities() if closed else client.wait_ready(_ANSWER_SECONDS)
    except SkilljailError as error:
        yield Finding("MISS", "daemon", str(error))
        return
    yield from _daemon(capabilities)


def _origin(options: argparse.Namespace) -> str:
    if options.address is not None:
        return "from --address"
    return "from SKILLJAIL_ADDRESS" if os.environ.get("SKILLJAIL_ADDRESS", "").strip() else "the default"


def _socket(address: str) -> Finding | None:
    """What can be told of a socket without connecting. None for no socket, and for one that is closed to this user."""
    if not address.startswith("unix:"):
        return None
    path = address.removeprefix("unix:")
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116  # one call, three outcomes
    except FileNotFoundError:
        return Finding("MISS", "socket", f"{path} does not exist; start the daemon with `skilljaild serve`")
    except PermissionError:
        return None
    except OSError as error:
        return Finding("MISS", "socket", f"{path} cannot be reached ({error.strerror}); correct the address")
    if not stat.S_ISSOCK(mode):
        return Finding("MISS", "socket", f"{path} is no socket; correct the address")
    if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return None
    return Finding("ok  ", "socket", path)


def _daemon(capabilities: Capabilities) -> Iterator[Finding]:
    same = capabilities.daemon_version == __version__
    yield Finding(
        "ok  " if same else "warn",
        "daemon",
        f"skilljaild {capabilities.daemon_version}" + ("" if same else f"; this client is {__version__}"),
    )
    engine = capabilities.engine
    yield Finding("ok  ", "engine", f"{engine.name} {engine.version}, runtime {engine.runtime}")
    for warning in engine.warnings:
        yield Finding("warn", "engine", warning)
    yield Finding("ok  ", "network", _network(capabilities))
    for one in capabilities.interpreters:
        if one.available:
            yield Finding("ok  ", f"interpreter {one.name}", f"{one.version} in {one.image}")
        else:
            yield Finding("warn", f"interpreter {one.name}", one.unavailable_reason)
    if not any(one.available for one in capabilities.interpreters):
        yield Finding("MISS", "interpreters", "there is none at all; build them with `skilljail images build`")


def _network(capabilities: Capabilities) -> str:
    match capabilities.network_ceiling:
        case Network.NONE:
            return "scripts have none, and the operator grants none"
        case Network.ALLOWLIST:
            hosts = ", ".join(capabilities.allowed_hosts_ceiling[:_HOSTS_SHOWN]) or "none"
            more = len(capabilities.allowed_hosts_ceiling) - _HOSTS_SHOWN
            return f"a run may ask for these hosts: {hosts}" + (f" and {more} more" if more > 0 else "")
        case ceiling:
            return f"a run may ask for {ceiling.lower()}"


def _is_local(options: argparse.Namespace) -> bool:
    try:
        with Client(options.address, insecure=options.insecure) as client:
            return client.address.startswith("unix:")
    except SkilljailError:
        return False


def _ask_daemon_command() -> bool:
    """Runs the daemon's own doctor and passes its lines on. True when it found something missing."""
    packages = missing_packages()
    if packages:
        print(f"--    engine: not looked at, the daemon's command lacks {', '.join(packages)}; {INSTALL}")
        return False
    print("\nskilljaild doctor:", flush=True)
    return subprocess.run(daemon_command("doctor"), check=False).returncode != 0  # noqa: S603  # our own command
