"""Looks names up with the host's resolver, in threads that hold up nobody.

A lookup cannot be interrupted. Each has a thread of its own that ends with it: no run leaves idle threads, and, as they
are daemon threads, a name server that never answers does not keep the daemon from its end.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

__all__ = ["Resolver"]

LOOKUPS_MAX = 4
"""Of one run at one time; further ones wait. One that nobody waits for any more counts until it ends."""
THREADS_MAX = 256
"""Of all runs together. Further lookups fail."""

_threads = threading.BoundedSemaphore(THREADS_MAX)


class Resolver:
    """One run's. A run whose names are never answered holds up itself alone."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(LOOKUPS_MAX)

    async def addresses(self, name: str, port: int) -> list[str]:
        """The addresses of `name`, best first. Raises OSError when it has none, or cannot be looked up now."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def told(found: list[str]) -> None:
            self._places.release()
            if answer.done():
                return  # nobody waits any more
            if found:
                answer.set_result(found)
            else:
                answer.set_exception(OSError("the name has no address"))

        def look_up() -> None:
            found: list[str] = []
            try:
                with contextlib.suppress(OSError, ValueError):  # ValueError: no name for the resolver
                    found = _addresses(name, port)
            finally:
                _threads.release()
                with contextlib.suppress(RuntimeError):  # the daemon has ended meanwhile
                    loop.call_soon_threadsafe(told, found)

        try:
            _start(look_up)
        except OSError:
            self._places.release()
            raise
        return await answer


def _start(look_up: Callable[[], None]) -> None:
    if not _threads.acquire(blocking=False):
        raise OSError(f"{THREADS_MAX} lookups are under way")
    try:
        threading.Thread(target=look_up, name="egress-resolver", daemon=True).start()
    except RuntimeError as error:
        _threads.release()
        raise OSError("no thread can be started") from error


def _addresses(name: str, port: int) -> list[str]:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
