"""`skilljail doctor`: for each thing that a run needs, whether it is there and what to do where it is not."""

import argparse
import dataclasses
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal

from skilljail import (
    Capabilities,
    Client,
    ImageSelfTest,
    IsolationLevel,
    Network,
    Posture,
    Severity,
    SkilljailError,
    __version__,
)
from skilljail.cli.daemon_extra import INSTALL, daemon_command, missing_packages
from skilljail.cli.parser import add_connection_options
from skilljail.cli.terminal import one_line

__all__ = ["add_command"]

_DESCRIPTION = """\
Look at everything that a run needs, from here to the sandbox, one line for each thing: whether it is there and, where
it is not, what to do. An operator's doctor has the daemon try the walls of a sandbox of each image, which takes
seconds. Where no daemon answers, its packages are installed and it would be local, `skilljaild doctor` looks instead.
Nothing else is changed, and no script of anybody is run.
"""

_EPILOG = """\
marks:
  ok    it is there
  warn  it is not as it should be, and scripts can run
  MISS  it is missing or does not hold, and scripts cannot run
  --    it was not looked at

exit status:
  0  nothing is missing
  1  something is missing, or does not hold
"""

_ANSWER_SECONDS = 5.0
_HOSTS_SHOWN = 10
_MEND = "`skilljaild doctor` on the daemon's host says what mends it"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of the report."""

    mark: Literal["ok  ", "warn", "MISS", "--  "]
    thing: str
    detail: str


@dataclasses.dataclass(slots=True)
class Seen:
    """What was found on the way."""

    daemon: bool = False
    """Whether one answered."""
    posture: Posture | None = None


def add_command(commands: Any) -> None:
    """Adds the command to what `add_subparsers` returned."""
    parser = commands.add_parser(
        "doctor", help="see what is there and what is missing", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object: lines, and posture as the daemon tells it, or null"
    )
    add_connection_options(parser)
    parser.set_defaults(perform=_perform, parser=parser, takes_rest=False)


def _perform(options: argparse.Namespace) -> int:
    seen = Seen()
    lines = []
    for line in _examine(options, seen):
        lines.append(line)
        if not options.json:
            print(f"{line.mark}  {one_line(line.thing)}: {one_line(line.detail)}", flush=True)
    missing = any(one.mark == "MISS" for one in lines)
    if options.json:
        print(_json(lines, seen.posture))
    elif not seen.daemon and _is_local(options):
        # One that answers has told all that its command would find out.
        missing = _ask_daemon_command() or missing
    return 1 if missing else 0


def _json(lines: list[Line], posture: Posture | None) -> str:
    told = [{"mark": one.mark.strip(), "thing": one.thing, "detail": one.detail} for one in lines]
    whole = None if posture is None else dataclasses.asdict(posture)
    return json.dumps({"lines": told, "posture": whole}, indent=2, default=str)


def _examine(options: argparse.Namespace, seen: Seen) -> Iterator[Line]:
    yield Line("ok  ", "client", f"skilljail {__version__}, Python {sys.version.split()[0]}")
    try:
        with Client(options.address, insecure=options.insecure) as client:
            yield Line("ok  ", "address", f"{client.address}, {_origin(options)}")
            socket = _socket(client.address)
            if socket is not None:
                yield socket
            # To wait for a socket that is closed to us is useless; the error of a plain call says what to do.
            closed = socket is None and client.address.startswith("unix:")
            capabilities = client.capabilities() if closed else client.wait_ready(_ANSWER_SECONDS)
            seen.daemon = True
            yield from _daemon(capabilities)
            yield from _self_test(client, capabilities, seen)
    except SkilljailError as error:
        yield Line("MISS", "daemon", str(error))


def _origin(options: argparse.Namespace) -> str:
    if options.address is not None:
        return "from --address"
    return "from SKILLJAIL_ADDRESS" if os.environ.get("SKILLJAIL_ADDRESS", "").strip() else "the default"


def _socket(address: str) -> Line | None:
    """What can be told of a socket without connecting. None for no socket, and for one that is closed to this user."""
    if not address.startswith("unix:"):
        return None
    path = address.removeprefix("unix:")
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116  # one call, three outcomes
    except FileNotFoundError:
        return Line("MISS", "socket", f"{path} does not exist; start the daemon with `skilljaild serve`")
    except PermissionError:
        return None
    except OSError as error:
        return Line("MISS", "socket", f"{path} cannot be reached ({error.strerror}); correct the address")
    if not stat.S_ISSOCK(mode):
        return Line("MISS", "socket", f"{path} is no socket; correct the address")
    if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return None
    return Line("ok  ", "socket", path)


def _daemon(capabilities: Capabilities) -> Iterator[Line]:
    same = capabilities.daemon_version == __version__
    yield Line(
        "ok  " if same else "warn",
        "daemon",
        f"skilljaild {capabilities.daemon_version}" + ("" if same else f"; this client is {__version__}"),
    )
    engine = capabilities.engine
    yield Line("ok  ", "engine", f"{engine.name} {engine.version}, runtime {engine.runtime}")
    yield Line("ok  ", "network", _network(capabilities))
    for one in capabilities.interpreters:
        if one.available:
            yield Line("ok  ", f"interpreter {one.name}", f"{one.version} in {one.image}")
        else:
            yield Line("warn", f"interpreter {one.name}", one.unavailable_reason)
    if not any(one.available for one in capabilities.interpreters):
        yield Line("MISS", "interpreters", "there is none at all; build them with `skilljail images build`")


def _self_test(client: Client, capabilities: Capabilities, seen: Seen) -> Iterator[Line]:
    """What the daemon's self-test shows; to whom it shows nothing, what everybody may know."""
    try:
        posture = seen.posture = client.self_test()
    except SkilljailError as error:
        yield Line("--  ", "self-test", str(error))
        for warning in capabilities.engine.warnings:
            yield Line("warn", "posture", warning)
        return
    yield from (_image(test, posture) for test in posture.images)
    for one in posture.findings:
        text = f"{one.subject}: {one.message}" + (f" ({one.source})" if one.source else "")
        yield Line("ok  " if one.severity is Severity.INFO else "warn", "posture", text)


def _image(test: ImageSelfTest, posture: Posture) -> Line:
    """One line for an image: what holds, or everything that does not."""
    thing = f"self-test {test.interpreter}"
    if test.fault:
        return Line("MISS", thing, f"it could not be done: {test.fault}; {_MEND}")
    if not test.passed:
        failing = "; ".join(f"{one.name} (seen: {one.seen})" for one in test.failing)
        return Line("MISS", thing, f"this does not hold: {failing}; {_MEND}")
    level = test.isolation_level.lower()
    if _RANKS.get(test.isolation_level, 0) < _RANKS.get(posture.isolation_minimum, 0):
        minimum = posture.isolation_minimum.lower()
        return Line("MISS", thing, f"isolation {level}, and isolation.minimum is {minimum}; {_MEND}")
    return Line("ok  ", thing, f"{len(test.controls)} controls hold, isolation {level}")


_RANKS = {level: rank for rank, level in enumerate(IsolationLevel)}


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
