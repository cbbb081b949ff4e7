"""Walks a whole file system, /proc and /sys apart, and tries to change it everywhere."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["changeable_files", "everything", "open_folders"]

_KERNEL = {Path("/proc"), Path("/sys")}


def _folders(top: str) -> Iterator[tuple[Path, list[str], list[str]]]:
    for name, folders, files in os.walk(top):
        folder = Path(name)
        folders[:] = [one for one in folders if folder / one not in _KERNEL]
        yield folder, folders, files


def everything(top: str) -> Iterator[Path]:
    """Every folder and file below `top`, links among them."""
    for folder, folders, files in _folders(top):
        for name in (*folders, *files):
            yield folder / name


def open_folders(top: str) -> list[str]:
    """Each folder at or below `top` in which a file, a folder or a link can be made."""
    return [str(folder) for folder, _, _ in _folders(top) if _is_open(folder)]


def _is_open(folder: Path) -> bool:
    path = folder / ".made-by-an-attack"
    if _does(lambda: path.touch(exist_ok=False)) or _does(lambda: path.symlink_to("/")):
        path.unlink()
        return True
    if _does(path.mkdir):
        path.rmdir()
        return True
    return False


def changeable_files(top: str) -> list[str]:
    """Each regular file below `top` that can be opened for writing, moved, or given another mode or time."""
    regular = (path for path in everything(top) if stat.S_ISREG(path.lstat().st_mode))
    return [str(path) for path in regular if _is_changeable(path)]


def _is_changeable(path: Path) -> bool:
    return (
        _does(lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)))
        or _does(lambda: path.chmod(0o777))
        or _does(lambda: os.utime(path))
        or _does(lambda: path.rename(f"{path}.moved").rename(path))
    )


def _does(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return False
    return True
