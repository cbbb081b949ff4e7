"""An engine in memory: its sandboxes are coroutines that speak frames."""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from skilljail_init import frames
from skilljail_init.frames import Frame, FrameDecoder, FrameType
from skilljaild.engines.base import (
    ByteStream,
    EngineError,
    EngineReport,
    Image,
    ImageMissing,
    OwnedSandbox,
    SandboxSpec,
    SandboxStats,
)
from skilljaild.engines.finding import Finding, Severity

from .facts import good_facts

__all__ = ["EXITED", "FINDING", "REPORT", "Box", "FakeEngine", "FakeStream", "Init", "ready", "serve_script", "staged"]

FINDING = Finding(Severity.WARNING, "no LSM", "load one")
REPORT = EngineReport("docker", "Docker", "29.7.0", "runc", "1.3.4", "6.18", 2, (), (FINDING,))

EXITED: dict[str, object] = {
    "cause": "exited",
    "exit_code": 0,
    "signal": None,
    "wall_seconds": 0.5,
    "cpu_seconds": 0.25,
    "peak_memory_bytes": 1_000,
    "oom_kills": 0,
    "pids_limit_hits": 0,
    "disk_full": False,
    "output_truncated": False,
}
"""The EXIT frame of a script that ended with status 0."""


class FakeStream:
    """A `ByteStream` whose other end is in the hands of a test."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self._pieces: collections.deque[bytes] = collections.deque()
        self._ended = False
        self._changed = asyncio.Event()
        self._decoder = FrameDecoder(frames.TO_INIT_MAX, frames.FROM_DAEMON)
        self.received: asyncio.Queue[Frame] = asyncio.Queue()

    def put(self, data: bytes) -> None:
        """Lets the daemon read `data`."""
        self._pieces.append(data)
        self._changed.set()

    def end(self) -> None:
        """Ends the stream after what was put."""
        self._ended = True
        self._changed.set()

    async def read(self) -> bytes:
        while not self._pieces and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        return self._pieces.popleft() if self._pieces else b""

    async def write(self, data: bytes) -> None:
        if self._ended:
            raise EngineError("the sandbox's stream is closed")
        self.written.append(data)
        for frame in self._decoder.feed(data):
            self.received.put_nowait(frame)

    async def close(self) -> None:
        self.end()


class Box:
    """init's end of a stream."""

    def __init__(self, stream: FakeStream, spec: SandboxSpec) -> None:
        self.stream = stream
        self.spec = spec
        self.orders: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.stdin = b""

    def say(self, frame_type: FrameType, value: dict[str, object] | bytes = b"") -> None:
        """Sends a frame to the daemon."""
        if isinstance(value, bytes):
            self.stream.put(frames.encode(frame_type, value))
        else:
            self.stream.put(frames.encode_json(frame_type, value))

    async def hear(self, frame_type: FrameType) -> Frame:
        """The daemon's next frame, which must be of this type."""
        frame = await self.stream.received.get()
        assert frame.type is frame_type
        return frame

    async def bytes(self, size: int) -> bytes:
        """The content of the DATA frames that come next."""
        data = b""
        while len(data) < size:
            data += (await self.hear(FrameType.DATA)).payload
        assert len(data) == size
        return data


Init = Callable[[Box], Awaitable[None]]


async def ready(box: Box) -> None:
    """Comes up."""
    box.say(FrameType.READY, {"isolation": good_facts(box.spec.limits, box.spec.place)})


async def staged(box: Box) -> None:
    """Comes up and takes the skill."""
    await ready(box)
    box.orders["stage"] = (await box.hear(FrameType.STAGE)).json()
    for file in box.orders["stage"]["files"]:
        box.files[file["path"]] = await box.bytes(file["size"])
    box.say(FrameType.STAGED)


async def started(box: Box) -> None:
    """Comes up, takes the skill and starts the script."""
    await staged(box)
    box.orders["start"] = (await box.hear(FrameType.START)).json()
    box.stdin = await box.bytes(box.orders["start"]["stdin_bytes"])
    box.say(FrameType.STARTED, {})


def serve_script(
    *after: tuple[FrameType, dict[str, object] | bytes], end: bool = False, hook: Init | None = None
) -> Init:
    """An init that starts the script, calls `hook`, says `after`, and at the end ends the stream or waits."""

    async def init(box: Box) -> None:
        await started(box)
        if hook is not None:
            await hook(box)
        for frame_type, value in after:
            box.say(frame_type, value)
        if end:
            box.stream.end()

    return init


class FakeEngine:
    """An `Engine` that records what it was asked and fails where a test says so."""

    def __init__(self, init: Init | None = None) -> None:
        self.init = init or serve_script((FrameType.EXIT, EXITED), (FrameType.DONE, b""))
        self.calls: list[str] = []
        self.faults: dict[str, Exception] = {}
        """By method: what it raises."""
        self.gates: dict[str, asyncio.Event] = {}
        """By method: what it waits for, when it has done its work."""
        self.reached: dict[str, asyncio.Event] = collections.defaultdict(asyncio.Event)
        """By method: set when it was called."""
        self.specs: list[SandboxSpec] = []
        """Of every sandbox that was asked for."""
        self.live: dict[str, SandboxSpec] = {}
        self.destroyed: list[str] = []
        self.boxes: list[Box] = []
        self.oom_killed = False
        self.owned: list[OwnedSandbox] = []
        self.images: dict[str, Image] | None = None
        """By reference; None: there is every image."""
        self._streams: dict[str, FakeStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        self.reached[name].set()
        if name in self.gates:
            await self.gates[name].wait()
        if name in self.faults:
            raise self.faults[name]

    async def probe(self) -> EngineReport:
        await self._called("probe")
        return REPORT

    async def image(self, reference: str) -> Image:
        await self._called("image")
        if self.images is None:
            return Image(reference, "sha256:" + "a" * 64, {"io.skilljail.interpreter-version": "3.13.5"})
        if reference not in self.images:
            raise ImageMissing(f"no image {reference}")
        return self.images[reference]

    async def create(self, spec: SandboxSpec) -> str:
        self.specs.append(spec)
        await self._called("create")
        sandbox_id = f"skilljail-{spec.run_id}"
        self.live[sandbox_id] = spec
        return sandbox_id

    async def verify(self, sandbox_id: str, spec: SandboxSpec) -> None:
        assert self.live[sandbox_id] is spec
        await self._called("verify")

    async def stream(self, sandbox_id: str) -> ByteStream:
        await self._called("stream")
        stream = FakeStream()
        box = Box(stream, self.live[sandbox_id])
        self.boxes.append(box)
        self._streams[sandbox_id] = stream
        self._tasks.add(asyncio.ensure_future(self.init(box)))
        return stream

    async def confirm(self, sandbox_id: str, spec: SandboxSpec) -> None:
        assert self.live[sandbox_id] is spec
        await self._called("confirm")

    async def stats(self, sandbox_id: str) -> SandboxStats:
        await self._called("stats")
        return SandboxStats(running=sandbox_id in self.live, oom_killed=self.oom_killed)

    async def kill(self, sandbox_id: str) -> None:
        del sandbox_id
        await self._called("kill")

    async def destroy(self, sandbox_id: str) -> None:
        self.destroyed.append(sandbox_id)
        await self._called("destroy")
        self.live.pop(sandbox_id, None)
        if sandbox_id in self._streams:
            self._streams.pop(sandbox_id).end()

    async def list_owned(self, owner: str) -> tuple[OwnedSandbox, ...]:
        await self._called(f"list_owned {owner}")
        return tuple(self.owned)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()


async def contents(*pieces: bytes) -> AsyncIterator[bytes]:
    """Content of files, as `Conversation.stage` takes it."""
    for piece in pieces:
        yield piece
