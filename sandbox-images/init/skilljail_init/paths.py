"""Paths below the skill root, as both ends of the stream write them."""

__all__ = [
    "DEPTH_MAX",
    "NAME_BYTES_MAX",
    "PATH_BYTES_MAX",
    "PathError",
    "escaped",
    "is_safe_name",
    "split_path",
]

DEPTH_MAX = 32
"""Names in a path."""
NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 1_024


class PathError(ValueError):
    """A path that is none below the skill root."""


def split_path(path: str) -> list[str]:
    """The names of a path: relative, joined by `/`, each of them safe. Raises PathError."""
    names = path.split("/")
    if not all(is_safe_name(name) for name in names):
        raise PathError(f"{escaped(path.encode(errors='surrogatepass'))!r} is not a safe path below the skill root")
    if len(names) > DEPTH_MAX or len(path.encode()) > PATH_BYTES_MAX:
        raise PathError(f"{escaped(path.encode())!r} is too long or too deep for a path below the skill root")
    return names


def is_safe_name(name: str) -> bool:
    """Whether a name may cross the stream: UTF-8, not `.` or `..`, no control character, no backslash."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return name not in {"", ".", ".."} and size <= NAME_BYTES_MAX and not any(map(_is_unsafe, name))


def _is_unsafe(character: str) -> bool:
    # C0 and C1 controls and DEL, which steer terminals; the separators of both worlds.
    return character < " " or "\x7f" <= character <= "\x9f" or character in "/\\"


def escaped(path: bytes) -> str:
    """A path for a reader: `\\xNN` for each byte that is not printable UTF-8, and for backslashes; at most
    1,024 characters, then `…`.
    """
    text = path.decode(errors="surrogateescape")
    shown = "".join(character if _is_plain(character) else _escape(character) for character in text)
    return shown if len(shown) <= PATH_BYTES_MAX else shown[:PATH_BYTES_MAX] + "…"


def _is_plain(character: str) -> bool:
    return character.isprintable() and character != "\\"


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
