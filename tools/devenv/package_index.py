"""Where uv gets packages from: what the user told pip, in uv's words.

uv reads neither pip's configuration nor, by itself, the system's certificates. In a company's network both matter.
"""

import ast
import os
import pathlib
import subprocess

__all__ = ["MEND", "uv_environment"]

INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE")
UV_FILES = ("/etc/uv/uv.toml", "~/.config/uv/uv.toml")
SECTIONS = ("global", "install", ":env:")
"""Of pip's configuration, later ones before earlier ones."""

MEND = (
    "Mend, where the packages could not be fetched in a company's network: name\n"
    "  - its certificates: SSL_CERT_FILE=/path/to/ca.pem (pip: PIP_CERT);\n"
    "  - its mirror of PyPI: UV_DEFAULT_INDEX=https://…/simple (pip: PIP_INDEX_URL);\n"
    "  - its proxy: https_proxy=http://…"
)


def uv_environment(python: pathlib.Path) -> dict[str, str]:
    """The variables that make uv fetch from where pip would. What the user told uv itself stands.

    `python` has pip. Indexes that are folders are left out: every package of the lock is on PyPI and its mirrors.
    """
    settings = _pip_settings(python)
    found = {"UV_SYSTEM_CERTS": "true"}
    if certificates := settings.get("cert"):
        found["SSL_CERT_FILE"] = certificates
    if not any(os.environ.get(name) for name in INDEX_VARIABLES) and not _has_uv_file():
        if _is_remote(index := settings.get("index-url", "")):
            found["UV_DEFAULT_INDEX"] = index
        if extra := " ".join(filter(_is_remote, settings.get("extra-index-url", "").split())):
            # pip takes a version from whichever index has it. The lock's hashes say that it is the right one.
            found |= {"UV_INDEX": extra, "UV_INDEX_STRATEGY": "unsafe-best-match"}
    return {name: value for name, value in found.items() if not os.environ.get(name)}


def _pip_settings(python: pathlib.Path) -> dict[str, str]:
    """pip's settings by their names, from its files and from PIP_ variables."""
    command = (python, "-m", "pip", "config", "list")
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    settings: dict[str, str] = {}
    for section in SECTIONS:
        for line in lines:
            name, _, value = line.partition("=")
            if name.startswith(f"{section}."):
                settings[name.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    return settings


def _is_remote(url: str) -> bool:
    return url.startswith(("https://", "http://"))


def _has_uv_file() -> bool:
    return any(pathlib.Path(name).expanduser().is_file() for name in UV_FILES)
