"""Walks a whole file system and tries to write everywhere."""

import os
import stat
from collections.abc import Iterator

__all__ = ["writable_files", "writable_folders"]

_KERNEL = ("/proc", "/sys")


def _folders(top: str) -> Iterator[tuple[str, list[str]]]:
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in _KERNEL]
        yield folder, files


def writable_folders(top: str) -> list[str]:
    """Each folder at or below `top`, /proc and /sys apart, in which a file, a folder or a link can be made."""
    found = []
    for folder, _ in _folders(top):
        path = os.path.join(folder, ".made-by-an-attack")
        for make in (_make_file, _make_folder, _make_link):
            try:
                make(path)
            except OSError:
                continue
            found.append(folder)
            break
    return found


def _make_file(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink(path)


def _make_folder(path: str) -> None:
    os.mkdir(path)
    os.rmdir(path)


def _make_link(path: str) -> None:
    os.symlink("/", path)
    os.unlink(path)


def writable_files(top: str) -> list[str]:
    """Each file below `top`, /proc and /sys apart, that can be opened for writing, or whose mode, owner or time can be
    changed. Devices and links are left out.
    """
    found = []
    for folder, files in _folders(top):
        for path in (os.path.join(folder, name) for name in files):
            if stat.S_ISREG(os.lstat(path).st_mode) and _can_change(path):
                found.append(path)
    return found


def _can_change(path: str) -> bool:
    for attempt in (
        lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)),
        lambda: os.chmod(path, 0o777),
        lambda: os.utime(path),
        lambda: os.rename(path, path + ".renamed"),
    ):
        try:
            attempt()
        except OSError:
            continue
        return True
    return False
