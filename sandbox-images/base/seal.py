#!/usr/bin/python3 -IS
"""The last step of every sandbox image, run as root: takes privileges out and precompiles bytecode.

An image that extends one of ours ends its last RUN with `/opt/skilljail/seal`. It

- strips setuid, setgid and file capabilities from every file: no-new-privileges makes them useless in a
  sandbox, and a file that is not there needs no proof;
- compiles every Python module on the import path to bytecode that is never checked against its source
  (PEP 552, unchecked hash): the root is read-only, so a missing or stale file could never be written;
- removes apt's lists, caches and logs.
"""

import importlib.util
import os
import pathlib
import py_compile
import shutil
import stat
import sys
from collections.abc import Iterator

ROOT = pathlib.Path("/")
OTHER_FILE_SYSTEMS = ("/proc", "/sys", "/dev")
BYTECODE_ROOTS = (
    pathlib.Path("/opt/skilljail"),
    pathlib.Path(os.__file__).parent,
    pathlib.Path("/usr/lib/python3/dist-packages"),
    *pathlib.Path("/usr/local/lib").glob("python3*/dist-packages"),
)
LEFTOVERS = ("/var/lib/apt/lists", "/var/cache/apt", "/var/log", "/work/tmp", "/root/.cache", "/work/home/.cache")
UNCHECKED_HASH = 0b01
"""The flags field of a .pyc header: hash-based, and not to be checked."""
PRIVILEGE_BITS = stat.S_ISUID | stat.S_ISGID


def entries() -> Iterator[os.DirEntry[str]]:
    """Every file and directory of the image."""
    pending = [str(ROOT)]
    while pending:
        with os.scandir(pending.pop()) as children:
            for child in children:
                if child.path in OTHER_FILE_SYSTEMS:
                    continue
                yield child
                if child.is_dir(follow_symlinks=False):
                    pending.append(child.path)


def strip_privileges() -> int:
    """Takes setuid, setgid and file capabilities away; returns from how many files."""
    stripped = 0
    for entry in entries():
        if entry.is_symlink():
            continue
        mode = entry.stat(follow_symlinks=False).st_mode
        capable = entry.is_file(follow_symlinks=False) and "security.capability" in os.listxattr(entry.path)
        if capable:
            os.removexattr(entry.path, "security.capability")
        if mode & PRIVILEGE_BITS:
            pathlib.Path(entry.path).chmod(stat.S_IMODE(mode) & ~PRIVILEGE_BITS)
        stripped += bool(capable or mode & PRIVILEGE_BITS)
    return stripped


def is_compiled(source: pathlib.Path) -> bool:
    """Whether the bytecode beside this source is there and is never checked."""
    compiled = pathlib.Path(importlib.util.cache_from_source(str(source)))
    try:
        header = compiled.read_bytes()[:8]
    except FileNotFoundError:
        return False
    return header[:4] == importlib.util.MAGIC_NUMBER and header[4] == UNCHECKED_HASH


def compile_bytecode() -> int:
    """Compiles what is not compiled yet; returns how many files."""
    compiled = 0
    for root in BYTECODE_ROOTS:
        for source in root.rglob("*.py"):
            if is_compiled(source):
                continue
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            # Some packages ship files that are not meant for this Python; they fail on import, as they should.
            written = py_compile.compile(str(source), invalidation_mode=mode, quiet=2)
            compiled += written is not None
    return compiled


def remove_leftovers() -> None:
    """Empties the directories that building fills and running never reads."""
    for directory in map(pathlib.Path, LEFTOVERS):
        for child in directory.iterdir() if directory.is_dir() else ():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink()


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("seal: must run as root; write `USER 0` before and `USER 65532:65532` after it in the Dockerfile")
    compiled = compile_bytecode()
    remove_leftovers()
    stripped = strip_privileges()
    print(f"sealed: {stripped} files lost privileges, {compiled} modules compiled")


if __name__ == "__main__":
    main()
