"""`skilljail interpreters`: what the daemon can run."""

import argparse
import dataclasses
import json
from typing import Any

from skilljail import Interpreter
from skilljail.cli.parser import add_connection_options, client_of
from skilljail.cli.terminal import one_line

__all__ = ["add_command"]

_DESCRIPTION = """\
List the interpreters that the daemon knows: whether a script can use each one now, in which version, which suffixes
choose it, and which image it runs in. A script's shebang is looked at first, then its suffix.
"""

_EPILOG = """\
exit status:
  0    the daemon answered
  125  it did not
"""

_DIGEST_SHOWN = len("sha256:") + 12


def add_command(commands: Any) -> None:
    """Adds the command to what `add_subparsers` returned."""
    parser = commands.add_parser(
        "interpreters", help="list what the daemon can run", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    add_connection_options(parser)
    parser.set_defaults(perform=_perform, parser=parser, takes_rest=False)


def _perform(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        interpreters = client.capabilities().interpreters
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in interpreters], indent=2))
        return 0
    rows = [("NAME", "VERSION", "SUFFIXES", "IMAGE"), *map(_row, interpreters)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)]
        print("  ".join([*cells, row[3]]).rstrip())
    return 0


def _row(interpreter: Interpreter) -> tuple[str, str, str, str]:
    suffixes = " ".join(interpreter.suffixes)
    if interpreter.available:
        about = f"{interpreter.image} {interpreter.image_digest[:_DIGEST_SHOWN]}"
        return (one_line(interpreter.name), one_line(interpreter.version), one_line(suffixes), one_line(about))
    return (
        one_line(interpreter.name),
        "-",
        one_line(suffixes),
        one_line(f"not available: {interpreter.unavailable_reason}"),
    )
