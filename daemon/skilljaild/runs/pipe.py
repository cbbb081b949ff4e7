"""Carries a run's events to whoever listens, with a bound: a caller that reads slowly slows the run down."""

import asyncio
import collections

from skilljaild.runs.events import Event

__all__ = ["EventPipe"]

EVENTS_MAX = 16
"""Output events hold up to 64 KiB each."""


class EventPipe:
    """A bounded queue with an end. One writer, one reader."""

    def __init__(self) -> None:
        self._events: collections.deque[Event] = collections.deque()
        self._closed = False
        self._changed = asyncio.Condition()

    async def put(self, event: Event, *, waiting: bool = True) -> None:
        """Waits until there is room, unless `waiting` is False. After the end events are dropped: nobody listens."""
        async with self._changed:
            if waiting:
                await self._changed.wait_for(lambda: len(self._events) < EVENTS_MAX or self._closed)
            if not self._closed:
                self._events.append(event)
                self._changed.notify_all()

    async def get(self) -> Event | None:
        """The next event; None when there will be no more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._events or self._closed)
            if not self._events:
                return None
            event = self._events.popleft()
            self._changed.notify_all()
            return event

    async def abandon(self) -> None:
        """The reader leaves: the pipe is closed, and nothing is kept for anybody."""
        async with self._changed:
            self._events.clear()
            self._closed = True
            self._changed.notify_all()

    async def close(self, last: Event | None = None) -> None:
        """Ends the pipe. `last` is delivered after what is in it already, whatever the bound."""
        async with self._changed:
            if last is not None and not self._closed:
                self._events.append(last)
            self._closed = True
            self._changed.notify_all()
