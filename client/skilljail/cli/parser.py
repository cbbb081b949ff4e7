"""The argument parser of every command, and the options that all of them share."""

import argparse
import sys
from typing import NoReturn

from skilljail import Client

__all__ = ["USAGE_STATUS", "Parser", "add_connection_options", "client_of"]

USAGE_STATUS = 2


class Parser(argparse.ArgumentParser):
    """An argument parser that keeps the layout of its texts and may end with another status than 2."""

    usage_status = USAGE_STATUS

    def __init__(self, **options: object) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)  # type: ignore[arg-type]  # argparse's own options, passed through

    def error(self, message: str) -> NoReturn:
        """Says what is wrong and where help is."""
        print(f"skilljail: {message}\nTry '{self.prog} --help'.", file=sys.stderr)
        sys.exit(self.usage_status)


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Where the daemon is."""
    group = parser.add_argument_group("daemon")
    group.add_argument(
        "--address",
        metavar="ADDRESS",
        help="unix:/path or host:port of the daemon (default: $SKILLJAIL_ADDRESS, else the local daemon's socket)",
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="speak to host:port without TLS; taken for loopback addresses only",
    )


def client_of(options: argparse.Namespace) -> Client:
    """A client for the daemon that the options name. Raises InvalidAddress."""
    return Client(options.address, insecure=options.insecure)
