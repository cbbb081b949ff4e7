"""init's end of the stream: frames in, frames out, and never a call that blocks."""

from __future__ import annotations

import os
import select

from skilljail_init.errors import StreamClosed
from skilljail_init.frames import (
    FROM_DAEMON,
    TO_INIT_MAX,
    Frame,
    FrameDecoder,
    FrameType,
    encode,
    encode_json,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OUTBOX_MAX", "Channel"]

READ_BYTES = 256 * 1024
WRITE_BYTES = 256 * 1024
OUTBOX_MAX = 256 * 1024
"""Bytes that may wait for the daemon before init stops taking more from the script."""


class Channel:
    """The daemon's stream. `wait` is the one place where init sleeps."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._decoder = FrameDecoder(TO_INIT_MAX, FROM_DAEMON)
        self._inbox: list[Frame] = []
        self._outbox = bytearray()
        self._dropped: frozenset[FrameType] = frozenset()

    @property
    def is_full(self) -> bool:
        """Whether the daemon is so far behind that init must not take more from the script."""
        return len(self._outbox) >= OUTBOX_MAX

    def send(self, frame_type: FrameType, payload: bytes = b"") -> None:
        """Puts a frame into the outbox; `wait` and `flush` write it."""
        self.send_encoded(encode(frame_type, payload))

    def send_json(self, frame_type: FrameType, value: dict[str, object]) -> None:
        """Puts a frame with a JSON object into the outbox."""
        self.send_encoded(encode_json(frame_type, value))

    def send_encoded(self, frame: bytes) -> None:
        """Puts a whole frame into the outbox."""
        self._outbox += frame

    def drop(self, frame_types: frozenset[FrameType]) -> None:
        """Frames of these types, and no others, are dropped from now on: what they are about is over."""
        self._dropped = frame_types
        self._inbox = [frame for frame in self._inbox if frame.type not in frame_types]

    def take(self) -> Frame | None:
        """The next frame that has arrived, if there is one."""
        return self._inbox.pop(0) if self._inbox else None

    def next_frame(self) -> Frame:
        """Waits for a frame of the daemon. Raises StreamClosed, FrameError."""
        while not self._inbox:
            self.wait({}, None)
        return self._inbox.pop(0)

    def wait(self, watched: Mapping[int, int], timeout_seconds: float | None) -> dict[int, int]:
        """Sleeps until a descriptor is ready, a frame is there or time is over; writes what the daemon takes.

        `watched` maps descriptors to poll(2) events, as does the result. Raises StreamClosed, FrameError.
        """
        self.flush()
        poller = select.poll()
        # One batch of frames at a time: a daemon that floods init waits, and init's memory stays bounded.
        poller.register(self._read_fd, 0 if self._inbox else select.POLLIN)
        if self._outbox:
            poller.register(self._write_fd, select.POLLOUT)
        for fd, events in watched.items():
            poller.register(fd, events)
        milliseconds = None if timeout_seconds is None else max(0.0, timeout_seconds) * 1000
        ready = dict(poller.poll(milliseconds))
        if ready.pop(self._read_fd, 0):
            self._receive()
        if ready.pop(self._write_fd, 0):
            self.flush()
        return ready

    def flush(self) -> None:
        """Writes as much of the outbox as the daemon takes now. Raises StreamClosed."""
        while self._outbox:
            try:
                with memoryview(self._outbox) as view:
                    written = os.write(self._write_fd, view[:WRITE_BYTES])
            except BlockingIOError:
                return
            except OSError as error:
                raise StreamClosed from error
            del self._outbox[:written]

    def drain(self, timeout_seconds: float) -> None:
        """Writes the outbox; gives up when the daemon takes nothing for `timeout_seconds`. For last words."""
        poller = select.poll()
        poller.register(self._write_fd, select.POLLOUT)
        self.flush()
        while self._outbox and poller.poll(timeout_seconds * 1000):
            self.flush()

    def _receive(self) -> None:
        try:
            data = os.read(self._read_fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise StreamClosed from error
        if not data:
            raise StreamClosed
        self._inbox += [frame for frame in self._decoder.feed(data) if frame.type not in self._dropped]
