"""init's side of the frame protocol, after READY: what `frames` describes as a run, over and over."""

from __future__ import annotations

import select
import time

from skilljail_init.artifacts import Collection
from skilljail_init.children import kill_everything
from skilljail_init.errors import InitError
from skilljail_init.frames import TUNNEL_FRAMES, Cause, FrameError, FrameType
from skilljail_init.orders import StageOrder, StartOrder
from skilljail_init.run import Run
from skilljail_init.script import StartError, start_script
from skilljail_init.stage import Stage
from skilljail_init.usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from skilljail_init.cgroup import ControlGroup
    from skilljail_init.channel import Channel
    from skilljail_init.children import Children
    from skilljail_init.frames import Frame
    from skilljail_init.tunnels import Tunnels

__all__ = ["Conversation"]

BURY_SECONDS_MAX = 10


class Conversation:
    """Obeys the daemon's frames, one after the other."""

    def __init__(self, channel: Channel, children: Children, control_group: ControlGroup, work: str) -> None:
        self._channel = channel
        self._children = children
        self._group = control_group
        self._work = work
        self._stage = Stage(f"{work}/skill")
        self._last_tunnel = 0

    def serve(self) -> None:
        """Goes on until the stream ends. Raises StreamClosed, FrameError, InitError."""
        while True:
            frame = self._channel.next_frame()
            if frame.type is FrameType.STAGE:
                self._put(frame)
            elif frame.type is FrameType.START:
                self._run(StartOrder(frame.json()))
            elif frame.type is not FrameType.CANCEL:
                raise FrameError(f"{frame.type.name} frame where STAGE or START was due")

    def _put(self, frame: Frame) -> None:
        self._stage.put(StageOrder(frame.json()), self._next_data)
        self._channel.send(FrameType.STAGED)

    def _next_data(self) -> bytes:
        """The payload of the next DATA frame. A CANCEL is too early: nothing runs yet."""
        while True:
            frame = self._channel.next_frame()
            if frame.type is FrameType.DATA:
                return frame.payload
            if frame.type is not FrameType.CANCEL:
                raise FrameError(f"{frame.type.name} frame where DATA was due")

    def _stdin(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            content += self._next_data()
        if len(content) > size:
            raise FrameError(f"{len(content) - size} bytes more of standard input than announced")
        return bytes(content)

    def _run(self, order: StartOrder) -> None:
        stdin = self._stdin(order.stdin_bytes)
        tunnels = self._listen() if order.egress else None
        usage = Usage(
            self._group, self._children, self._work, pids=order.pids, disk_inodes=order.disk_inodes, cpus=order.cpus
        )
        try:
            self._run_counted(order, stdin, usage, tunnels)
        finally:
            usage.close()

    def _run_counted(self, order: StartOrder, stdin: bytes, usage: Usage, tunnels: Tunnels | None) -> None:
        started = time.monotonic()
        try:
            script = start_script(order, self._stage.root_fd)
        except StartError as error:
            self._hang_up(tunnels)
            self._bury()
            self._channel.send_json(FrameType.FAILED, {"errno": error.errno, "message": str(error)})
            self._channel.send(FrameType.DONE)
            return
        self._channel.send_json(FrameType.STARTED, {})
        run = Run(self._channel, self._children, usage, script=script, order=order, started=started, tunnels=tunnels)
        cause = run.supervise(stdin)
        self._hang_up(tunnels)
        if cause is Cause.CANCELLED:
            self._channel.send(FrameType.DONE)
        else:
            self._collect(order)

    def _listen(self) -> Tunnels:
        """Waits for the script's connections, before there is a script."""
        from skilljail_init.tunnels import Tunnels  # noqa: PLC0415 - few runs have egress

        self._channel.drop(frozenset())
        return Tunnels(self._channel, self._last_tunnel)

    def _hang_up(self, tunnels: Tunnels | None) -> None:
        """After the run: what the daemon has sent into tunnels and is still on its way is nobody's any more."""
        if tunnels is not None:
            tunnels.close()
            self._last_tunnel = tunnels.last_number
            self._channel.drop(TUNNEL_FRAMES)

    def _bury(self) -> None:
        """Makes sure that nothing is left of a script that did not start."""
        deadline = time.monotonic() + BURY_SECONDS_MAX
        kill_everything()
        self._children.reap(0)
        while not self._children.gone:
            if time.monotonic() > deadline:
                raise InitError(f"processes that do not die within {BURY_SECONDS_MAX} s of SIGKILL")
            self._channel.wait({self._children.wake_fd: select.POLLIN}, 0.01)
            self._children.clear_wake()
            kill_everything()
            self._children.reap(0)

    def _collect(self, order: StartOrder) -> None:
        """Sends the artifacts as fast as the daemon takes them."""
        collection = Collection(self._stage.root_fd, order, self._stage.digests)
        while (frame := collection.next_frame()) is not None:
            self._channel.send_encoded(frame)
            self._look_around()
        omitted = collection.skipped_omitted
        if omitted:
            self._channel.send_json(FrameType.DONE, {"skipped_omitted": omitted})
        else:
            self._channel.send(FrameType.DONE)

    def _look_around(self) -> None:
        """Lets the daemon catch up, and notices when it is gone."""
        self._channel.wait({}, 0)
        while True:
            while (frame := self._channel.take()) is not None:
                if frame.type is not FrameType.CANCEL:
                    raise FrameError(f"{frame.type.name} frame while artifacts are collected")
            if not self._channel.is_full:
                return
            self._channel.wait({}, None)
