"""The flags that commands share, and how they become nested values of the configuration."""

import argparse
import pathlib
from typing import Any

from skilljaild.config import Config, ConfigError, load

__all__ = ["add_config_flags", "config_of"]

_SHORTHANDS = {
    "listen": ("--listen", "ADDRESS", "where to listen: unix:/path, or host:port with [tls]"),
    "state_directory": (
        "--state-dir",
        "DIR",
        "uploaded skills and the daemon's identity; one daemon for each",
    ),
    "engine.url": ("--engine-url", "URL", "Docker or Podman API, as unix:///path or tcp://host:port"),
    "engine.runtime": ("--runtime", "NAME", "the engine's runtime, such as runsc"),
    "log.level": ("--log-level", "LEVEL", "debug, info, warning or error"),
    "log.format": ("--log-format", "FORMAT", "console or json"),
}


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """Adds `--config`, `--set` and the shorthands for the settings that are changed most."""
    group = parser.add_argument_group("configuration")
    group.add_argument("--config", metavar="FILE", type=pathlib.Path, help="TOML file; see docs/configuration.md")
    group.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any setting by its dotted name, such as limits.ceiling.memory_bytes=4GiB; may be repeated",
    )
    for name, (flag, value, explanation) in _SHORTHANDS.items():
        group.add_argument(flag, metavar=value, dest=f"set:{name}", help=explanation)
    group.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        dest="set:insecure",
        help="allow loopback TCP without TLS",
    )


def config_of(options: argparse.Namespace) -> Config:
    """Reads the configuration that the flags ask for. Raises ConfigError."""
    flags: dict[str, Any] = {}
    for pair in options.set:
        name, separator, value = pair.partition("=")
        if not separator:
            raise argparse.ArgumentTypeError(f"--set {pair}: write it as NAME=VALUE")
        _put(flags, name, value, f"--set {pair}")
    for name, value in vars(options).items():
        if name.startswith("set:") and value is not None:
            setting = name.removeprefix("set:")
            _put(flags, setting, value, _SHORTHANDS[setting][0] if setting in _SHORTHANDS else f"--{setting}")
    return load(options.config, flags)


def _put(flags: dict[str, Any], name: str, value: object, flag: str) -> None:
    """Sets a dotted name in nested tables. `flag`: what the user wrote. Raises ConfigError."""
    *tables, last = names = name.split(".")
    for depth, table in enumerate(tables, 1):
        flags = flags.setdefault(table, {})
        if not isinstance(flags, dict):
            raise ConfigError(_TABLE.format(flag=flag, table=".".join(names[:depth])))
    if isinstance(flags.get(last), dict):
        raise ConfigError(_TABLE.format(flag=flag, table=name))
    flags[last] = value


_TABLE = "{flag}: {table} is a table of settings and no value; set only names in it"
