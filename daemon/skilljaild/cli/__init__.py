"""The command `skilljaild`: `serve`, `doctor`, `images`. One module for each; each knows the part that it starts."""

from skilljaild.cli.main import main

__all__ = ["main"]
