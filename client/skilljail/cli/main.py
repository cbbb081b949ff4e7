"""The entry point: finds the command and runs it."""

import argparse
import os
import sys
from collections.abc import Sequence

from skilljail import SkilljailError, __version__
from skilljail.cli import digest, doctor, images, interpreters, run
from skilljail.cli.parser import Parser
from skilljail.cli.terminal import say

__all__ = ["main"]

_COULD_NOT_RUN = 125
_INTERRUPTED = 130
_BROKEN_PIPE = 141

_DESCRIPTION = """\
Run the scripts of Agent Skills in locked-down, single-use containers.

skilljail is the client of a daemon, skilljaild. It sends a skill folder there, has one of its scripts run in a fresh
sandbox without a network, and shows what came out.
"""

_EPILOG = """\
environment:
  SKILLJAIL_ADDRESS    where the daemon is: unix:/path or host:port
  SKILLJAIL_TLS_CA     PEM file with the authorities of the daemon's certificate (host:port only)
  SKILLJAIL_TLS_CERT   PEM file with the certificate that names you
  SKILLJAIL_TLS_KEY    PEM file with its key

examples:
  skilljail doctor
  skilljail run examples/skills/unit-converter scripts/convert.py -- --value 26.2 --factor 1.60934

'skilljail COMMAND --help' tells everything about a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line (None: that of this process) and returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Everything after the first -- is the script's, whatever it looks like; argparse would read some of it.
    split = given.index("--") if "--" in given else len(given)
    parser = Parser(prog="skilljail", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"skilljail {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in (run, digest, interpreters, images, doctor):
        command.add_command(commands)
    options, unknown = parser.parse_known_args(given[:split])
    options.rest = given[split + 1 :]
    if unknown or (options.rest and not options.takes_rest):
        hint = "; a script's arguments come after --" if options.takes_rest else ""
        options.parser.error(f"unknown arguments: {' '.join(unknown or options.rest)}{hint}")
    return _guarded(options)


def _guarded(options: argparse.Namespace) -> int:
    try:
        status: int = options.perform(options)
        sys.stdout.flush()
    except SkilljailError as error:
        say(str(error))
        return _COULD_NOT_RUN
    except KeyboardInterrupt:
        say("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # Nobody reads our output any more. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return status
