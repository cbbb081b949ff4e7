"""Reads the seccomp profile as the kernel would: which rule answers a call."""

import importlib.util
import json
from typing import Any

from skilljaild.assets import sandbox_images_directory

__all__ = ["PROFILE", "answers", "generator", "load_generator"]

DIRECTORY = sandbox_images_directory() / "seccomp"
PROFILE: dict[str, Any] = json.loads((DIRECTORY / "profile.json").read_text())


def load_generator() -> Any:
    """The program `generate.py`, as a module."""
    spec = importlib.util.spec_from_file_location("seccomp_generate", DIRECTORY / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = load_generator()


def answers(call: str, *arguments: int) -> set[str | int]:
    """What the rules say that match: `allow` or an errno. Empty means the default, ENOSYS."""
    return {
        "allow" if rule["action"] == "SCMP_ACT_ALLOW" else rule["errnoRet"]
        for rule in PROFILE["syscalls"]
        if call in rule["names"] and all(_holds(condition, arguments) for condition in rule["args"])
    }


def _holds(condition: dict[str, Any], arguments: tuple[int, ...]) -> bool:
    argument = arguments[condition["index"]]
    if condition["op"] == "SCMP_CMP_EQ":
        return bool(argument == condition["value"])
    if condition["op"] == "SCMP_CMP_GT":
        return bool(argument > condition["value"])
    assert condition["op"] == "SCMP_CMP_MASKED_EQ"
    return bool(argument & condition["value"] == condition["valueTwo"])
