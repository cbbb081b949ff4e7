"""One build at a time on a machine."""

import contextlib
import fcntl
from collections.abc import Callable, Iterator

from skilljaild.images.download import cache_directory

__all__ = ["build_lock"]


@contextlib.contextmanager
def build_lock(write: Callable[[str], None]) -> Iterator[None]:
    """Waits for other builds of this user to end. The kernel frees the lock when its holder dies."""
    with (cache_directory() / "images.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            write("another build is running: waiting for its end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
