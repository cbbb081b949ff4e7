"""The command `skilljail`: `run`, `interpreters`, `images`, `doctor`.

One module for each command. A command knows the public names of `skilljail` and the terminal; it must not know how
the client speaks to the daemon. What a script wrote is hostile: it reaches a terminal through `terminal` only.
"""

from skilljail.cli.main import main

__all__ = ["main"]
