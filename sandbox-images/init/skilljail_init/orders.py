"""What the daemon orders: the JSON of STAGE and START frames, checked.

The daemon has checked all of it before; init checks again, so that a fault there shows as an error here and
not as a file somewhere else.
"""

from __future__ import annotations

from skilljail_init.errors import InitError
from skilljail_init.paths import PathError, split_path

__all__ = ["StageOrder", "StagedFile", "StartOrder"]

STDIN_MAX = 64 * 1024 * 1024
SECONDS_MAX = 10**9
INTEGER_MAX = 2**63 - 1
DIGEST_LENGTH = 64


class StagedFile:
    """A file to make. `digest`: its content's sha256, 64 lower-case hex digits."""

    __slots__ = ("digest", "executable", "names", "path", "size")

    def __init__(self, fields: dict[str, object]) -> None:
        self.path = _string(fields, "path")
        self.names = _names("path", self.path)
        self.size = _integer(fields, "size")
        self.executable = fields.get("executable") is True
        self.digest = _string(fields, "sha256")
        if len(self.digest) != DIGEST_LENGTH or self.digest.strip("0123456789abcdef"):
            raise InitError(f"STAGE: sha256 of {self.path!r} is not 64 lower-case hex digits")


class StageOrder:
    """Directories and files to make. `directories`: paths, cut into names."""

    __slots__ = ("directories", "files")

    def __init__(self, fields: dict[str, object]) -> None:
        """Raises InitError, naming the field."""
        self.directories = [_names("directories", path) for path in _strings(fields, "directories")]
        self.files = [StagedFile(_mapping("files", value)) for value in _list(fields, "files")]


class StartOrder:
    """A script to run; the fields are those of a START frame."""

    __slots__ = (
        "argv",
        "artifact_bytes",
        "artifact_count",
        "artifact_patterns",
        "cpu_seconds",
        "cpus",
        "cwd",
        "disk_bytes",
        "disk_inodes",
        "egress",
        "env",
        "open_files",
        "output_bytes",
        "pids",
        "stdin_bytes",
        "wall_seconds",
    )

    def __init__(self, fields: dict[str, object]) -> None:
        """Raises InitError, naming the field."""
        self.argv = _strings(fields, "argv")
        if not self.argv:
            raise InitError("START: argv is empty")
        self.env = _environment(fields)
        self.cwd = _string(fields, "cwd")
        if self.cwd:
            _names("cwd", self.cwd)
        self.stdin_bytes = _integer(fields, "stdin_bytes", STDIN_MAX)
        self.wall_seconds = _positive(fields, "wall_seconds")
        self.cpu_seconds = _positive(fields, "cpu_seconds")
        self.cpus = _positive(fields, "cpus", "processors")
        self.output_bytes = _integer(fields, "output_bytes")
        self.open_files = _integer(fields, "open_files")
        self.pids = _integer(fields, "pids")
        self.disk_bytes = _integer(fields, "disk_bytes")
        self.disk_inodes = _integer(fields, "disk_inodes")
        self.egress = _boolean(fields, "egress")
        self.artifact_patterns = _strings(fields, "artifact_patterns")
        self.artifact_count = _integer(fields, "artifact_count")
        self.artifact_bytes = _integer(fields, "artifact_bytes")


def _environment(fields: dict[str, object]) -> dict[str, str]:
    env = _mapping("env", fields.get("env"))
    for name in env:
        _check_text("env", name)
        if not name or "=" in name:
            raise InitError(f"env: {name!r} is no name of a variable")
    return {name: _check_text(f"env {name}", value) for name, value in env.items()}


def _names(field: str, path: str) -> list[str]:
    try:
        return split_path(path)
    except PathError as error:
        raise InitError(f"{field}: {error}") from error


def _check_text(field: str, value: object) -> str:
    """A string that can be handed to the kernel."""
    if not isinstance(value, str) or "\0" in value or not _is_utf8(value):
        raise InitError(f"{field}: not a string of UTF-8 without NUL")
    return value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _string(fields: dict[str, object], name: str) -> str:
    return _check_text(name, fields.get(name))


def _list(fields: dict[str, object], name: str) -> list[object]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise InitError(f"{name}: not a list")
    return value


def _strings(fields: dict[str, object], name: str) -> list[str]:
    return [_check_text(name, value) for value in _list(fields, name)]


def _mapping(field: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InitError(f"{field}: not an object")
    return value


def _boolean(fields: dict[str, object], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool):
        raise InitError(f"{name}: neither true nor false")
    return value


def _integer(fields: dict[str, object], name: str, largest: int = INTEGER_MAX) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise InitError(f"{name}: not an integer from 0 to {largest}")
    return value


def _positive(fields: dict[str, object], name: str, unit: str = "seconds") -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= SECONDS_MAX:
        raise InitError(f"{name}: not a number of {unit} above 0 and up to {SECONDS_MAX}")
    return float(value)
