"""The daemon's command, which comes with the same distribution and needs packages of its own."""

import importlib.util
import sys

__all__ = ["INSTALL", "daemon_command", "missing_packages"]

INSTALL = "install them with `pip install 'skilljail[daemon]'` (in a checkout: `pip install '.[daemon]'`)"

# Import name of each package that the extra brings and the client does not need.
_PACKAGES = ("docker", "grpc_health", "grpc_reflection", "pydantic", "pydantic_settings", "structlog", "yaml")


def missing_packages() -> tuple[str, ...]:
    """What the daemon's command would not find; empty when it can be started."""
    return tuple(name for name in ("skilljaild", *_PACKAGES) if importlib.util.find_spec(name) is None)


def daemon_command(*arguments: str) -> list[str]:
    """The daemon's command in this same Python, whatever PATH says."""
    return [sys.executable, "-m", "skilljaild", *arguments]
