"""The one rule for paths that come from outside: of scripts, bundle files, inputs, directories and artifacts."""

from skilljaild.errors import Reason, Refusal

__all__ = ["DEPTH_MAX", "NAME_BYTES_MAX", "PATH_BYTES_MAX", "check_path", "path_fault"]

PATH_BYTES_MAX = 1_024
NAME_BYTES_MAX = 255
DEPTH_MAX = 32


def path_fault(path: str) -> str | None:
    """What is wrong with `path` as a path below the skill root, or None.

    Good is: relative, names joined by `/`, no `.` or `..`, no empty name, no backslash, no control character, valid
    UTF-8, at most 1,024 bytes with names of at most 255 bytes, at most 32 names deep.
    """
    if not path:
        return "is empty"
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    if "\0" in path:
        return "holds a NUL"
    if any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in path):  # C0, DEL, C1
        return "holds a control character"
    if "\\" in path:
        return "holds a backslash; names are joined by /"
    if path.startswith("/"):
        return "is absolute; give it relative to the skill's folder"
    if len(raw) > PATH_BYTES_MAX:
        return f"is longer than {PATH_BYTES_MAX:,} bytes"
    return _names_fault(path.split("/"))


def _names_fault(names: list[str]) -> str | None:
    if ".." in names:
        return "leaves the skill's folder with '..'"
    if "." in names or "" in names:
        return "holds an empty name or '.'; write it in its shortest form"
    if len(names) > DEPTH_MAX:
        return f"is more than {DEPTH_MAX} directories deep"
    if any(len(name.encode()) > NAME_BYTES_MAX for name in names):
        return f"holds a name longer than {NAME_BYTES_MAX} bytes"
    return None


def check_path(path: str, field: str) -> None:
    """Raises Refusal PATH_INVALID, naming `field` and `path`, when `path` is not good."""
    fault = path_fault(path)
    if fault is not None:
        raise Refusal(Reason.PATH_INVALID, f"{field}: the path {shown(path)} {fault}", field=field)


def shown(text: str, length: int = 200) -> str:
    """`text` in quotes for an error message: nothing unprintable, not too long."""
    cut = text if len(text) <= length else text[:length] + "…"
    return ascii(cut) if not cut.isprintable() else f"'{cut}'"
