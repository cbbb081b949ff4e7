"""The command `skilljaild`: `serve`, `doctor`, `images`. One module for each; each knows the part that it starts."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. Says what to install where the daemon's packages are missing."""
    try:
        from skilljaild.cli.main import main as run  # noqa: PLC0415  # a thin install must get this far
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"skilljaild", "skilljail"}:
            raise
        print(
            f"skilljaild: the daemon's package {error.name} is not installed; install them with "
            "`pip install 'skilljail[daemon]'` (in a checkout: `pip install '.[daemon]'`)",
            file=sys.stderr,
        )
        return 3
    return run(arguments)
