"""The command line's frame: which command, and what it exits with."""

import argparse
import sys
from collections.abc import Sequence

from skilljaild import __version__
from skilljaild.cli import doctor, serve
from skilljaild.images import cli as images

__all__ = ["main"]

DESCRIPTION = """\
The skilljail daemon: runs the scripts of Agent Skills in locked-down, single-use containers.

  skilljaild images build     build the sandbox images, once
  skilljaild doctor           see what this host has and what it lacks
  skilljaild serve            run the daemon
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. A command is a function from the parsed arguments to it."""
    parser = argparse.ArgumentParser(
        prog="skilljaild", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"skilljaild {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve.add_parser(commands)
    doctor.add_parser(commands)
    images.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output is gone; the interpreter must not complain about it at exit
        return 141
