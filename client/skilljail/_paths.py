"""The one rule for paths of the contract: below the skill root, names joined by `/`."""

__all__ = ["NAME_BYTES_MAX", "PATH_BYTES_MAX", "path_fault", "shown"]

PATH_BYTES_MAX = 1_024
NAME_BYTES_MAX = 255
DEPTH_MAX = 32
_SHOWN_MAX = 200


def path_fault(path: str) -> str | None:
    """What is wrong with `path` as a path below the skill root, with the mend; None when it is good."""
    names = path.split("/")
    faults = (
        (not path, "is empty"),
        (path.startswith("/"), "is absolute; give it relative to the skill folder"),
        (".." in names, "has '..' in it; a path stays below the skill folder"),
        ("" in names or "." in names, "has an empty name or '.' in it; write it in its shortest form"),
        (len(names) > DEPTH_MAX, f"is more than {DEPTH_MAX} names deep"),
    )
    fault = next((text for applies, text in faults if applies), None)
    fault = fault or next(filter(None, map(name_fault, names)), None)
    if fault is None and len(path.encode()) > PATH_BYTES_MAX:
        return f"is longer than {PATH_BYTES_MAX:,} bytes"
    return fault


def name_fault(name: str) -> str | None:
    """What is wrong with one name of a path; None when it is good."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid UTF-8; rename it"
    if "\\" in name:
        return "has a backslash in it; names are joined by '/'"
    if any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in name):  # C0, DEL, C1
        return "has a control character in it; rename it"
    return f"has a name longer than {NAME_BYTES_MAX} bytes" if size > NAME_BYTES_MAX else None


def shown(text: str) -> str:
    """`text` in quotes for a message: nothing unprintable, and not too long."""
    cut = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
    return f"'{cut}'" if cut.isprintable() else ascii(cut)
