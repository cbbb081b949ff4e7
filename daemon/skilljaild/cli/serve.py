"""`skilljaild serve`."""

import argparse
import asyncio
import sys
from typing import Any

from skilljaild.cli.flags import add_config_flags, config_of
from skilljaild.config import ConfigError
from skilljaild.daemon import PostureError, serve
from skilljaild.engines.base import EngineError
from skilljaild.engines.floor import FloorError
from skilljaild.instance import StateError
from skilljaild.log import set_up_log
from skilljaild.secrets.keeper import SecretsError
from skilljaild.service.server import ListenError

__all__ = ["add_parser"]

DESCRIPTION = """\
Runs the daemon in the foreground until SIGTERM or SIGINT. It listens on a unix socket, which only the same
user can connect to, unless the configuration says otherwise. A TCP address needs TLS with client certificates,
whose common name is the tenant; --insecure allows plain TCP on loopback, where every local user can run scripts.

There is no fallback to the host: without an engine, or on one that cannot hold the limits and the isolation that
every run needs, the daemon does not start and says what is missing. So that it knows, it makes a sandbox of each image
and tries its walls from inside; `skilljaild doctor` does the same and tells all of it.
"""

EPILOG = """\
Settings come from flags, then SKILLJAILD_* variables, then the TOML file, then the defaults. Nested names have dots
in flags and two underscores in variables: SKILLJAILD_LIMITS__CEILING__MEMORY_BYTES=4GiB.

exit status:
  0  stopped by SIGTERM or SIGINT
  2  the configuration is wrong
  3  it cannot start here: the installation, the engine, its posture, the state directory, a secret, the address
     or its TLS files; the message says what to do

examples:
  skilljaild serve
  skilljaild serve --config /etc/skilljail/skilljaild.toml
  skilljaild serve --listen unix:/run/skilljail/skilljaild.sock --engine-url unix:///run/podman/podman.sock
  skilljaild serve --set limits.default.wall_seconds=60 --set admission.concurrent_runs=8
"""

EXIT_CONFIG = 2
EXIT_CANNOT_START = 3


def add_parser(commands: Any) -> None:
    """Adds the command to what `add_subparsers` returned."""
    parser = commands.add_parser(
        "serve",
        help="run the daemon",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_flags(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        config = config_of(options)
    except (ConfigError, argparse.ArgumentTypeError) as error:
        print(f"skilljaild: {error}", file=sys.stderr)
        return EXIT_CONFIG
    set_up_log(config.log)
    try:
        asyncio.run(serve(config))
    except (EngineError, FloorError, PostureError, SecretsError, StateError, ListenError) as error:
        print(f"skilljaild: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    return 0
