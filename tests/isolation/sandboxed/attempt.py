"""Tries something and says in one word what came of it."""

import errno
from collections.abc import Callable

__all__ = ["attempt", "name_of"]


def name_of(number: int | None) -> str:
    """An error number's name, such as EPERM."""
    return errno.errorcode.get(number or 0, str(number))


def attempt(action: Callable[[], object]) -> str:
    """The name of the error that `action` meets, or "done" with what it returned."""
    try:
        answer = action()
    except OSError as error:
        return name_of(error.errno)
    return f"done {answer!r}"
