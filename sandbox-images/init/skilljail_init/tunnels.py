"""Carries the script's connections to the daemon, as tunnels: what `frames` describes as egress.

Imported only for a run that has egress. It looks into nothing that it carries: the daemon decides, and dials.
"""

from __future__ import annotations

import _socket  # the package around it imports `selectors` and `enum`, which takes longer than all else here
import resource
import select
import struct
import time

from skilljail_init.errors import InitError
from skilljail_init.frames import (
    EGRESS_PORT,
    TUNNEL_DATA_MAX,
    TUNNEL_WINDOW,
    TUNNELS_MAX,
    FrameError,
    FrameType,
    encode_tunnel,
    split_credit,
    split_tunnel,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from skilljail_init.channel import Channel
    from skilljail_init.frames import Frame

__all__ = ["Tunnels"]

ADDRESS = "127.0.0.1"
QUEUE = 128
"""Connections that wait in the kernel until there is a place for them."""
OWN_DESCRIPTORS = 20
"""Kept free for init itself: init lives under the sandbox's limit of open files, too."""
CREDIT_STEP = TUNNEL_WINDOW // 2
"""Bytes that the script must have taken before the daemon is told."""
PAUSE_SECONDS = 0.05
"""How long nobody is taken in after the kernel had no room for one more connection."""
NO_LINGER = struct.pack("ii", 1, 0)
"""struct linger: on, 0 s. Closed so, a connection ends with an error for the script, not as if it were complete."""


class _Tunnel:
    """One connection of the script's."""

    __slots__ = ("credit", "far_done", "far_room", "is_done", "is_left", "number", "pending", "socket", "taken")

    def __init__(self, number: int, socket: _socket.socket) -> None:
        self.number = number
        self.socket: _socket.socket | None = socket
        """None when the connection is closed and only the daemon has still something to say."""
        self.credit = TUNNEL_WINDOW
        """Bytes that may still be sent to the daemon."""
        self.is_done = False
        """Whether init has sent TUNNEL_END or TUNNEL_RESET."""
        self.far_done = False
        """Whether the daemon has."""
        self.is_left = False
        """Whether the daemon reads no more; what it sent before is still delivered."""
        self.far_room = TUNNEL_WINDOW
        """Bytes that the daemon may still send."""
        self.pending = bytearray()
        """What came from the daemon and the script has not taken."""
        self.taken = 0
        """Bytes that the script has taken and the daemon was not told of."""


class Tunnels:
    """Listens for the script, and carries what it connects. Made before the script starts, closed when it ends."""

    def __init__(self, channel: Channel, last_number: int) -> None:
        """`last_number`: of the tunnels of earlier runs. Raises InitError when nobody can listen."""
        self._channel = channel
        self._before = last_number
        self.last_number = last_number
        self._open: dict[int, _Tunnel] = {}
        self._paused_until = 0.0
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = TUNNELS_MAX if soft < 0 else max(1, min(TUNNELS_MAX, soft - OWN_DESCRIPTORS))
        self._listener: _socket.socket | None = _listen()

    def interest(self) -> dict[int, int]:
        """What to wait for. A full outbox stops the script's sending, a script that does not read only itself."""
        interest: dict[int, int] = {}
        is_full = self._channel.is_full
        takes_in = not is_full and len(self._open) < self._most and time.monotonic() >= self._paused_until
        if takes_in and self._listener is not None:
            interest[self._listener.fileno()] = select.POLLIN
        for tunnel in self._open.values():
            if tunnel.socket is None:
                continue
            reads = not is_full and not tunnel.is_done and tunnel.credit > 0
            events = (select.POLLIN if reads else 0) | (select.POLLOUT if tunnel.pending else 0)
            if events:  # without any, poll(2) would go on telling of the script's own end
                interest[tunnel.socket.fileno()] = events
        return interest

    def serve(self, ready: Mapping[int, int]) -> None:
        """Carries what can be carried. `ready`: from `Channel.wait`."""
        for tunnel in list(self._open.values()):
            events = ready.get(tunnel.socket.fileno(), 0) if tunnel.socket is not None else 0
            if events and tunnel.pending:
                self._deliver(tunnel)
            if events & ~select.POLLOUT:
                self._send(tunnel)
        if self._listener is not None and self._listener.fileno() in ready:
            self._accept(self._listener)

    def obey(self, frame: Frame) -> None:
        """Takes a frame of the daemon's. Raises FrameError."""
        number, content = split_tunnel(frame)
        tunnel = self._open.get(number)
        if tunnel is None:
            late = frame.type in {FrameType.TUNNEL_CREDIT, FrameType.TUNNEL_RESET} or self._listener is None
            if 0 < number <= (self.last_number if late else self._before):
                return
            raise FrameError(f"{frame.type.name} frame of tunnel {number}, which is not open")
        if frame.type is FrameType.TUNNEL_CREDIT:
            tunnel.credit += split_credit(content)
            if tunnel.credit > TUNNEL_WINDOW:
                raise FrameError(f"more credit for tunnel {number} than its window has")
        elif frame.type is FrameType.TUNNEL_RESET:
            self._leave(tunnel)
        elif tunnel.far_done:
            raise FrameError(f"{frame.type.name} frame of tunnel {number} after its end")
        elif frame.type is FrameType.TUNNEL_END:
            tunnel.far_done = True
            self._deliver(tunnel)
        else:
            tunnel.far_room -= len(content)
            if tunnel.far_room < 0:
                raise FrameError(f"more data for tunnel {number} than its window has room for")
            if tunnel.socket is not None:
                tunnel.pending += content
                self._deliver(tunnel)

    def close(self) -> None:
        """Ends every tunnel, and listens no more. What still comes of them is dropped."""
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        for tunnel in list(self._open.values()):
            self._drop(tunnel)
        self._open.clear()

    def _accept(self, listener: _socket.socket) -> None:
        while len(self._open) < self._most and not self._channel.is_full:
            try:
                fd, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
            except BlockingIOError:
                return
            except OSError:
                # No descriptor or no memory for one more, and whoever waits goes on waiting.
                self._paused_until = time.monotonic() + PAUSE_SECONDS
                return
            connection = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, 0, fd)
            connection.setblocking(False)
            connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            self.last_number += 1
            self._open[self.last_number] = _Tunnel(self.last_number, connection)
            self._tell(FrameType.TUNNEL_OPEN, self.last_number)

    def _send(self, tunnel: _Tunnel) -> None:
        """Passes on what the script has written, one piece at a time: the other tunnels get their turn."""
        if tunnel.socket is None or tunnel.is_done or tunnel.credit == 0 or self._channel.is_full:
            return
        try:
            data = tunnel.socket.recv(min(TUNNEL_DATA_MAX, tunnel.credit))
        except BlockingIOError:
            return
        except OSError:
            self._drop(tunnel)
            return
        if data:
            tunnel.credit -= len(data)
            self._tell(FrameType.TUNNEL_DATA, tunnel.number, data)
        else:
            tunnel.is_done = True
            self._tell(FrameType.TUNNEL_END, tunnel.number)
            self._deliver(tunnel)

    def _deliver(self, tunnel: _Tunnel) -> None:
        """Gives the script what it takes; at the daemon's end, that end."""
        if tunnel.socket is None:
            self._forget(tunnel)
            return
        try:
            while tunnel.pending:
                with memoryview(tunnel.pending) as view:
                    written = tunnel.socket.send(view, _socket.MSG_NOSIGNAL)
                del tunnel.pending[:written]
                tunnel.taken += written
        except BlockingIOError:
            pass
        except OSError:
            self._drop(tunnel)
            return
        if tunnel.taken >= CREDIT_STEP and not tunnel.far_done:
            self._tell(FrameType.TUNNEL_CREDIT, tunnel.number, tunnel.taken)
            tunnel.far_room += tunnel.taken
            tunnel.taken = 0
        if tunnel.pending or not tunnel.far_done:
            return
        if tunnel.is_done or tunnel.is_left:
            tunnel.socket.close()
            tunnel.socket = None
            self._forget(tunnel)
            return
        try:
            tunnel.socket.shutdown(_socket.SHUT_WR)
        except OSError:
            self._drop(tunnel)

    def _leave(self, tunnel: _Tunnel) -> None:
        """The daemon is gone from a tunnel. What it sent before its end still reaches the script."""
        if tunnel.socket is not None and not tunnel.far_done:
            tunnel.pending.clear()
            tunnel.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, NO_LINGER)
            tunnel.socket.close()
            tunnel.socket = None
        tunnel.far_done = tunnel.is_left = True
        if not tunnel.is_done:
            tunnel.is_done = True
            self._tell(FrameType.TUNNEL_RESET, tunnel.number)
        self._deliver(tunnel)

    def _drop(self, tunnel: _Tunnel) -> None:
        """The script is gone from a tunnel."""
        if tunnel.socket is not None:
            tunnel.socket.close()
            tunnel.socket = None
            tunnel.pending.clear()
            if not (tunnel.is_done and tunnel.far_done):
                tunnel.is_done = True
                self._tell(FrameType.TUNNEL_RESET, tunnel.number)
        self._forget(tunnel)

    def _forget(self, tunnel: _Tunnel) -> None:
        """Gives the place of a tunnel that is over to the next one."""
        if tunnel.socket is None and tunnel.is_done and tunnel.far_done:
            self._open.pop(tunnel.number, None)

    def _tell(self, frame_type: FrameType, number: int, content: bytes | int = b"") -> None:
        self._channel.send_encoded(encode_tunnel(frame_type, number, content))


def _listen() -> _socket.socket:
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, EGRESS_PORT))
        listener.listen(QUEUE)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise InitError(
            f"cannot listen on {ADDRESS}:{EGRESS_PORT} for the script's egress: {error.strerror}"
        ) from error
    return listener
