"""The connections of a script, as tunnels between init and whoever serves them; everything read is hostile.

`skilljail_init.frames` describes the protocol. What a sandbox can make the daemon hold is bounded: at most
`TUNNELS_MAX` tunnels are open, each with at most `TUNNEL_WINDOW` bytes that were not taken yet.
"""

import asyncio
import collections
from collections.abc import Awaitable, Callable

import structlog
from skilljail_init.frames import (
    TUNNEL_DATA_MAX,
    TUNNEL_WINDOW,
    TUNNELS_MAX,
    Frame,
    FrameError,
    FrameType,
    encode_tunnel,
    split_credit,
    split_tunnel,
)

from skilljaild.egress.tunnel import Tunnel, TunnelClosed
from skilljaild.engines.base import EngineError
from skilljaild.fault import traced

__all__ = ["Tunnels"]

CREDIT_STEP = TUNNEL_WINDOW // 2
"""Bytes that must have been taken before init is told."""
LATE_FRAMES = 4
"""What can have been on its way when a tunnel ended: a reset, and the credit for one window in two steps."""

log = structlog.get_logger()

Write = Callable[[bytes], Awaitable[None]]


class Tunnels:
    """All tunnels of a run. `take` gets what init says of them; `serve` is called with each, in a task of its own."""

    def __init__(self, write: Write, serve: Callable[[Tunnel], Awaitable[None]]) -> None:
        """`write`: writes whole frames; raises EngineError."""
        self._write = write
        self._serve = serve
        self._open: dict[int, _SandboxTunnel] = {}
        self._last = 0
        self._late = 0
        self._places = asyncio.Semaphore(TUNNELS_MAX)
        """Not the same as open tunnels: who serves one may still be busy when both ends have ended."""
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, frame: Frame) -> None:
        """Takes a frame of init's. Raises FrameError when init breaks the protocol."""
        number, content = split_tunnel(frame)
        if frame.type is FrameType.TUNNEL_OPEN:
            self._begin(number)
            return
        tunnel = self._open.get(number)
        if tunnel is None:
            self._take_late(frame.type, number)
            return
        tunnel.take(frame.type, content)
        self._settle(tunnel)

    async def close(self) -> None:
        """Ends all that is served. Nothing is sent any more: the script is over, or its sandbox is."""
        for tunnel in self._open.values():
            tunnel.abandon()
        self._open.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, number: int) -> None:
        if number != self._last + 1:
            raise FrameError(f"tunnel {number} where {self._last + 1} was due")
        if len(self._open) >= TUNNELS_MAX:
            raise FrameError(f"more than {TUNNELS_MAX} tunnels at one time")
        self._last = number
        tunnel = self._open[number] = _SandboxTunnel(number, self._write, self._settle)
        task = asyncio.create_task(self._attend(tunnel), name=f"tunnel {number}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_late(self, frame_type: FrameType, number: int) -> None:
        may_be_late = frame_type in {FrameType.TUNNEL_CREDIT, FrameType.TUNNEL_RESET} and 0 < number <= self._last
        if not may_be_late or self._late == 0:
            raise FrameError(f"{frame_type.name} frame of tunnel {number}, which is not open")
        self._late -= 1

    async def _attend(self, tunnel: "_SandboxTunnel") -> None:
        try:
            async with self._places:
                await self._serve(tunnel)
        except TunnelClosed:
            pass  # the script's end is gone, which nobody has to be told
        except Exception as error:  # noqa: BLE001  a fault of ours must not take the run along
            log.error("a tunnel failed", tunnel=tunnel.number, **traced(error))  # noqa: TRY400
        finally:
            await tunnel.reset()

    def _settle(self, tunnel: "_SandboxTunnel") -> None:
        """Gives the place of a tunnel that is over to the next one."""
        if tunnel.is_over and self._open.pop(tunnel.number, None) is not None:
            self._late += LATE_FRAMES


class _SandboxTunnel:
    """One tunnel: a `Tunnel` for whoever serves it. One reader and one writer at a time."""

    def __init__(self, number: int, write: Write, settle: Callable[["_SandboxTunnel"], None]) -> None:
        self.number = number
        self._frames_out = write
        self._settle = settle
        self._pieces: collections.deque[bytes] = collections.deque()
        self._room = TUNNEL_WINDOW
        """Bytes that init may still send."""
        self._taken = 0
        """Bytes that were read here and init was not told of."""
        self._credit = TUNNEL_WINDOW
        """Bytes that may still be sent to init."""
        self._is_done = False
        """Whether we have sent TUNNEL_END or TUNNEL_RESET."""
        self._was_left = False
        """Whether it was TUNNEL_RESET, or the run is over."""
        self._far_done = False
        """Whether init has."""
        self._far_cut = False
        """Whether init has sent TUNNEL_RESET without TUNNEL_END: what it sent before is not all there is."""
        self._far_left = False
        """Whether init takes nothing any more."""
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether both sides are done."""
        return self._is_done and self._far_done

    def take(self, frame_type: FrameType, content: bytes) -> None:
        """What init says of this tunnel. Raises FrameError."""
        if frame_type is FrameType.TUNNEL_CREDIT:
            self._credit += split_credit(content)
            if self._credit > TUNNEL_WINDOW:
                raise FrameError(f"more credit for tunnel {self.number} than its window has")
        elif self._far_left or (self._far_done and frame_type is not FrameType.TUNNEL_RESET):
            raise FrameError(f"{frame_type.name} frame of tunnel {self.number} after its end")
        elif frame_type is FrameType.TUNNEL_DATA:
            self._room -= len(content)
            if self._room < 0:
                raise FrameError(f"more data of tunnel {self.number} than its window has room for")
            if not self._was_left:
                self._pieces.append(content)
        elif frame_type is FrameType.TUNNEL_END:
            self._far_done = True
        else:
            self._far_cut = not self._far_done
            self._far_done = self._far_left = True
            if self._far_cut:
                self._pieces.clear()
        self._changed.set()

    def abandon(self) -> None:
        """The run is over: nothing is read or sent any more."""
        self._is_done = self._was_left = self._far_done = True
        self._pieces.clear()
        self._changed.set()

    async def read(self) -> bytes:
        while not self._pieces:
            if self._far_cut or self._was_left:
                raise TunnelClosed
            if self._far_done:
                return b""
            await self._change()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._taken += len(data)
        if self._taken >= CREDIT_STEP and not self._far_done:
            credit, self._taken = self._taken, 0
            self._room += credit
            await self._tell(encode_tunnel(FrameType.TUNNEL_CREDIT, self.number, credit))
        return data

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._far_left or self._is_done:
                raise TunnelClosed
            if self._credit == 0:
                await self._change()
                continue
            now, view = view[: self._credit], view[self._credit :]
            self._credit -= len(now)
            pieces = (now[start : start + TUNNEL_DATA_MAX] for start in range(0, len(now), TUNNEL_DATA_MAX))
            await self._tell(
                b"".join(encode_tunnel(FrameType.TUNNEL_DATA, self.number, bytes(piece)) for piece in pieces)
            )

    async def end(self) -> None:
        if self._far_left or self._was_left:
            raise TunnelClosed
        if not self._is_done:
            self._is_done = True
            self._settle(self)
            await self._tell(encode_tunnel(FrameType.TUNNEL_END, self.number))

    async def reset(self) -> None:
        if self._was_left or self.is_over:
            return
        self._is_done = self._was_left = True
        self._pieces.clear()
        self._changed.set()
        self._settle(self)
        try:
            await self._tell(encode_tunnel(FrameType.TUNNEL_RESET, self.number))
        except TunnelClosed:
            return  # the sandbox is gone, and every tunnel with it

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _tell(self, encoded: bytes) -> None:
        try:
            await self._frames_out(encoded)
        except EngineError as error:
            raise TunnelClosed from error
