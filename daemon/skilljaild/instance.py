"""This daemon's identity: a random name in its state directory, which one daemon at a time may use."""

import contextlib
import fcntl
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import TextIO

__all__ = ["StateError", "instance"]


class StateError(Exception):
    """The state directory cannot be used; the message says what to do."""


@contextlib.contextmanager
def instance(state_directory: pathlib.Path) -> Iterator[str]:
    """Locks the state directory and yields the owner's name for labels. It stays the same over restarts, so that a
    daemon finds what it left behind. Raises StateError."""
    try:
        state_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(state_directory / "instance", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StateError(
            f"{state_directory}: cannot be used as state directory ({error.strerror}); name another with --state-dir"
        ) from error
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateError(
                f"{state_directory}: another daemon uses it; stop that one, or name another with --state-dir"
            ) from None
        yield _name(file)


def _name(file: TextIO) -> str:
    """The name in the file, made when there is none."""
    name = file.read().strip()
    if not name.isalnum():
        name = secrets.token_hex(16)
        file.seek(0)
        file.truncate()
        file.write(name)
        file.flush()
        os.fsync(file.fileno())
    return name
