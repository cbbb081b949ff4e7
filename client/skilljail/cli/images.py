"""`skilljail images`: hands over to the daemon's command, which knows the engine."""

import argparse
import os
import sys
from typing import Any, NoReturn

from skilljail.cli.daemon_extra import INSTALL, daemon_command, missing_packages
from skilljail.cli.terminal import say

__all__ = ["add_command"]

_DESCRIPTION = """\
Build the interpreter images on this machine's engine, or list those that are there. This is `skilljaild images`,
which needs the packages of the daemon; everything after build or list goes to it, so

  skilljail images build --help

tells what it takes.
"""

_EPILOG = """\
examples:
  skilljail images build
  skilljail images build python node
  skilljail images list

exit status:
  that of `skilljaild images`, or 125 when the packages of the daemon are not installed
"""

_NOT_INSTALLED = 125


def add_command(commands: Any) -> None:
    """Adds the command to what `add_subparsers` returned."""
    parser = commands.add_parser(
        "images",
        help="build or list the interpreter images",
        usage="skilljail images build|list [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("action", metavar="build|list", choices=["build", "list"], help="what to do")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="given on to `skilljaild images`")
    parser.set_defaults(perform=_perform, parser=parser, takes_rest=True)


def _perform(options: argparse.Namespace) -> int:
    missing = missing_packages()
    if not missing:
        _hand_over(daemon_command("images", options.action, *options.arguments, *options.rest))
    say(f"images are built by the daemon's command, and it lacks {', '.join(missing)}; {INSTALL}")
    return _NOT_INSTALLED


def _hand_over(command: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)  # noqa: S606  # there is nothing that a shell should read
