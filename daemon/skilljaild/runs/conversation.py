"""The daemon's side of the frame protocol (`skilljail_init.frames`).

Everything that is read is hostile: each frame must be one that may come now, each number is checked, and what a
sandbox may send in all is bounded by the run's limits. Whatever breaks a rule raises ProtocolError and ends the run.
"""

import contextlib
import dataclasses
import hashlib
import mimetypes
from collections.abc import AsyncIterator, Iterable, Iterator

from skilljail_init import frames
from skilljail_init.frames import Cause, Frame, FrameType, SkipReason
from skilljail_init.jsontext import dumps

from skilljaild.engines.base import ByteStream
from skilljaild.limits import Limits
from skilljaild.paths import path_fault
from skilljaild.runs.events import Artifact, ArtifactChunk, Output, SkippedArtifact
from skilljaild.runs.frame_writer import FrameWriter
from skilljaild.runs.tunnels import Tunnels

__all__ = ["Conversation", "Exit", "ProtocolError", "StartFailed", "StreamEnded"]

SKIPPED_MAX = 1_000
"""Skipped files that are kept by name; `RunResult.skipped_artifacts` promises no more."""
SKIPPED_NAMES_BYTES = 64 * 1024
"""And no more than so many bytes of names: a finished run is remembered for long."""
SKIPPED_FRAMES_MAX = 200_000
WRITE_BYTES = 256 * 1024
STAGE_BYTES = 1024 * 1024 - 1_024
"""Names of directories and files in one STAGE frame: init holds them in memory, several times over, while it reads
them. What is left of the MiB is for the JSON around them."""
SEPARATOR_BYTES = 2
MESSAGE_LENGTH = 300
SKIPPED_PATH_LENGTH = 1_025
"""What init cuts a path to, with the sign of the cut."""


class ProtocolError(Exception):
    """The sandbox broke the frame protocol, or init gave up."""


class StreamEnded(Exception):
    """The sandbox's stream ended in the middle of the conversation."""


class StartFailed(Exception):
    """init could not execute the interpreter."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """What init and the sandbox's kernel recorded of a script's end."""

    cause: Cause
    exit_code: int | None
    signal: int | None
    wall_seconds: float
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    oom_kills: int | None
    pids_limit_hits: int | None
    disk_full: bool
    output_truncated: bool


class Conversation:
    """One conversation with one init. The methods are called in the order in which they stand here."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._writer = FrameWriter(stream)
        self._tunnels: Tunnels | None = None
        self._decoder = frames.FrameDecoder(frames.FROM_INIT_MAX, frames.FROM_INIT)
        self._frames: list[Frame] = []
        self.stdout_bytes = 0
        self.stderr_bytes = 0

    async def _next(self, *expected: FrameType) -> Frame:
        frame = await self._any()
        while self._tunnels is not None and frame.type in frames.TUNNEL_FRAMES:
            with _hostile():
                self._tunnels.take(frame)
            frame = await self._any()
        if frame.type is FrameType.FATAL:
            raise ProtocolError(f"init gave up: {_text(frame, 'message')}")
        if frame.type not in expected:
            raise ProtocolError(f"{frame.type.name} frame where {'/'.join(one.name for one in expected)} was due")
        return frame

    async def _any(self) -> Frame:
        while not self._frames:
            data = await self._stream.read()
            if not data:
                raise StreamEnded("the sandbox's stream ended")
            with _hostile():
                self._frames = self._decoder.feed(data)[::-1]
        return self._frames.pop()

    async def write(self, data: bytes) -> None:
        """Writes whole frames while the script runs, from whichever task. Raises EngineError when init is gone."""
        await self._writer.write(data)

    async def ready(self) -> dict[str, object]:
        """Waits for init. Returns what it read about its confinement, unchecked."""
        facts = _object(await self._next(FrameType.READY)).get("isolation")
        if not isinstance(facts, dict):
            raise ProtocolError("READY frame without isolation facts")
        return facts

    async def stage(
        self, directories: Iterable[str], entries: list[dict[str, object]], contents: AsyncIterator[bytes]
    ) -> None:
        """Puts files into the skill root, in as many turns as their names take.

        `entries`: as in a STAGE frame; `contents`: the whole content of each of them, in that order.
        """
        for some_directories, some_entries in _turns(directories, entries):
            order: dict[str, object] = {"directories": some_directories, "files": some_entries}
            await self._stream.write(frames.encode_json(FrameType.STAGE, order))
            for _ in some_entries:
                await self._send(await anext(contents))
            await self._next(FrameType.STAGED)
        async for content in contents:  # lets `contents` come to its end, too
            raise ValueError(f"{len(content):,} bytes of content that belong to no entry")

    async def _send(self, content: bytes) -> None:
        """Writes DATA frames, several at once: each write is a hop to a thread."""
        batch = bytearray()
        view = memoryview(content)
        for start in range(0, len(view), frames.DATA_MAX):
            piece = view[start : start + frames.DATA_MAX]
            batch += frames.header(FrameType.DATA, len(piece))
            batch += piece
            if len(batch) >= WRITE_BYTES:
                await self._stream.write(bytes(batch))
                batch.clear()
        if batch:
            await self._stream.write(bytes(batch))

    async def start(self, order: dict[str, object], stdin: bytes) -> None:
        """Starts the script. `order`: as in a START frame. Raises StartFailed."""
        await self._stream.write(frames.encode_json(FrameType.START, order | {"stdin_bytes": len(stdin)}))
        await self._send(stdin)
        frame = await self._next(FrameType.STARTED, FrameType.FAILED)
        if frame.type is FrameType.FAILED:
            raise StartFailed(_text(frame, "message"))

    async def output(self, output_bytes_max: int, tunnels: Tunnels | None = None) -> AsyncIterator[Output | Exit]:
        """The script's output as it comes, and last its Exit. `tunnels`: None where the script has no egress."""
        self._tunnels = tunnels
        while True:
            frame = await self._next(FrameType.STDOUT, FrameType.STDERR, FrameType.EXIT)
            if frame.type is FrameType.EXIT:
                self._tunnels = None
                yield _exit(frame)
                return
            data, whole = self._joined(frame)
            size = len(data)
            if not whole or self.stdout_bytes + self.stderr_bytes + size > output_bytes_max:
                raise ProtocolError("more output than init may pass on")
            if frame.type is FrameType.STDOUT:
                yield Output(1, self.stdout_bytes, data)
                self.stdout_bytes += size
            else:
                yield Output(2, self.stderr_bytes, data)
                self.stderr_bytes += size

    def _joined(self, frame: Frame) -> tuple[bytes, bool]:
        """A frame's payload with those of the same stream that came in the same read and follow at once.

        A script may write byte by byte: each piece costs the daemon the same, however little is in it. Also returns
        whether there is something in each frame.
        """
        payloads = [frame.payload]
        room = frames.DATA_MAX - len(frame.payload)
        while self._frames and self._frames[-1].type is frame.type and len(self._frames[-1].payload) <= room:
            payloads.append(self._frames.pop().payload)
            room -= len(payloads[-1])
        return b"".join(payloads), all(payloads)

    async def cancel(self) -> None:
        """Asks init to kill the script; `output` then ends with an Exit."""
        await self.write(frames.encode(FrameType.CANCEL))

    async def artifacts(self, limits: Limits) -> AsyncIterator[ArtifactChunk | Artifact | SkippedArtifact | int]:
        """What init collected: an artifact's chunks, then the Artifact. Numbers count skipped files without a name."""
        count = total = skipped = names = 0
        seen: set[str] = set()
        while True:
            frame = await self._next(FrameType.ARTIFACT, FrameType.SKIPPED, FrameType.DONE)
            if frame.type is FrameType.DONE:
                omitted = _object(frame).get("skipped_omitted", 0) if frame.payload else 0
                yield _count(omitted)
                return
            if frame.type is FrameType.SKIPPED:
                skipped += 1
                if skipped > SKIPPED_FRAMES_MAX:
                    raise ProtocolError("too many skipped artifacts")
                one = _skipped(frame)
                names += len(one.path.encode())
                yield one if skipped <= SKIPPED_MAX and names <= SKIPPED_NAMES_BYTES else 1
                continue
            path, size, executable = _artifact(frame)
            count, total = count + 1, total + size
            if path in seen or count > limits.artifact_count or total > limits.artifact_bytes:
                raise ProtocolError("more artifacts than init may pass on")
            seen.add(path)
            async for piece in self._artifact_content(path, size, executable):
                yield piece

    async def _artifact_content(
        self, path: str, size: int, executable: bool
    ) -> AsyncIterator[ArtifactChunk | Artifact]:
        digest = hashlib.sha256()
        offset = 0
        if size == 0:
            yield ArtifactChunk(path, 0, b"")
        while offset < size:
            data = (await self._next(FrameType.DATA)).payload
            if not data or offset + len(data) > size:
                raise ProtocolError("an artifact with another size than announced")
            digest.update(data)
            yield ArtifactChunk(path, offset, data)
            offset += len(data)
        # Marked as a path: of a URL such as `data:any/thing,` the script would choose the type itself.
        media_type = mimetypes.guess_type(f"./{path}")[0] or "application/octet-stream"
        yield Artifact(path, size, f"sha256:{digest.hexdigest()}", media_type, executable)


def _turns(
    directories: Iterable[str], entries: list[dict[str, object]]
) -> Iterator[tuple[list[str], list[dict[str, object]]]]:
    """Cuts what is to be staged into STAGE frames of about STAGE_BYTES; at least one. The order stays."""
    turn: tuple[list[str], list[dict[str, object]]] = ([], [])
    room = STAGE_BYTES
    items: list[str | dict[str, object]] = [*directories, *entries]
    for item in items:
        size = len(dumps(item))
        if size > room and any(turn):
            yield turn
            turn, room = ([], []), STAGE_BYTES
        if isinstance(item, str):
            turn[0].append(item)
        else:
            turn[1].append(item)
        room -= size + SEPARATOR_BYTES
    yield turn


@contextlib.contextmanager
def _hostile() -> Iterator[None]:
    """Where the codec finds fault, init has broken the protocol."""
    try:
        yield
    except frames.FrameError as error:
        raise ProtocolError(str(error)) from error


def _object(frame: Frame) -> dict[str, object]:
    with _hostile():
        return frame.json()


def _text(frame: Frame, name: str, length: int = MESSAGE_LENGTH) -> str:
    """A string of a frame, made printable and short: it may end up in a message to the caller."""
    value = _object(frame).get(name)
    text = value if isinstance(value, str) else ""
    return "".join(character if character.isprintable() else "?" for character in text[:length])


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise ProtocolError("a count that is none")
    return value


def _optional_count(value: object) -> int | None:
    return None if value is None else _count(value)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ProtocolError("a duration that is none")
    return float(value)


def _exit(frame: Frame) -> Exit:
    value = _object(frame)
    try:
        cause = Cause(str(value.get("cause")))
    except ValueError:
        raise ProtocolError("an EXIT frame with an unknown cause") from None
    exit_code, signal = _optional_count(value.get("exit_code")), _optional_count(value.get("signal"))
    if (exit_code is not None and exit_code > 255) or (signal is not None and not 1 <= signal <= 64):
        raise ProtocolError("an EXIT frame with an impossible status")
    # A process ends in one of two ways.
    if (exit_code is None) is (signal is None):
        raise ProtocolError("an EXIT frame without an exit code or a signal, or with both")
    if (cause is Cause.EXITED and exit_code is None) or (cause is Cause.SIGNALED and signal is None):
        raise ProtocolError("an EXIT frame whose cause and status disagree")
    cpu_seconds = value.get("cpu_seconds")
    return Exit(
        cause=cause,
        exit_code=exit_code,
        signal=signal,
        wall_seconds=_seconds(value.get("wall_seconds")),
        cpu_seconds=None if cpu_seconds is None else _seconds(cpu_seconds),
        peak_memory_bytes=_optional_count(value.get("peak_memory_bytes")),
        oom_kills=_optional_count(value.get("oom_kills")),
        pids_limit_hits=_optional_count(value.get("pids_limit_hits")),
        disk_full=value.get("disk_full") is True,
        output_truncated=value.get("output_truncated") is True,
    )


def _artifact(frame: Frame) -> tuple[str, int, bool]:
    value = _object(frame)
    path = value.get("path")
    if not isinstance(path, str) or path_fault(path) is not None:
        raise ProtocolError("an artifact with a path that init may not send")
    return path, _count(value.get("size")), value.get("executable") is True


def _skipped(frame: Frame) -> SkippedArtifact:
    value = _object(frame)
    try:
        reason = SkipReason(str(value.get("reason")))
    except ValueError:
        raise ProtocolError("a skipped artifact with an unknown reason") from None
    return SkippedArtifact(_text(frame, "path", SKIPPED_PATH_LENGTH), reason.value)
