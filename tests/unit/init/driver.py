"""The daemon's end of a conversation with a real init, which runs as PID 1 of a pid namespace of its own."""

# ruff: noqa: S101, S603

import collections
import dataclasses
import hashlib
import os
import pathlib
import select
import shlex
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Self

from skilljail_init import frames
from skilljail_init.frames import Frame, FrameDecoder, FrameType

__all__ = ["ENV", "INIT", "PYTHON", "UID", "InitProcess", "Result", "python"]

INIT = pathlib.Path(frames.__file__).parent.parent
ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
UID = 65_532
"""Who runs in a sandbox."""
FRAME_SECONDS_MAX = 60.0
"""Longer than anything here takes, on a machine that is busy with other things."""
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def _python_for_everybody() -> str:
    """A Python that the sandbox's user may execute, too: ours, unless it lies in somebody's home."""
    own = pathlib.Path(sys.executable).resolve()
    if all(folder.stat().st_mode & 0o001 for folder in own.parents):
        return str(own)
    return "/usr/bin/python3"


PYTHON = _python_for_everybody()


def python(source: str, *arguments: str) -> list[str]:
    """The command that runs Python source."""
    return [PYTHON, "-I", "-S", "-c", source, *arguments]


@dataclasses.dataclass
class Result:
    """All that init said about one run."""

    stdout: bytes = b""
    stderr: bytes = b""
    failed: dict[str, Any] | None = None
    exit: dict[str, Any] = dataclasses.field(default_factory=dict)
    artifacts: dict[str, bytes] = dataclasses.field(default_factory=dict)
    executable: set[str] = dataclasses.field(default_factory=set)
    skipped: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    skipped_omitted: int = 0
    seconds: float = 0.0

    @property
    def ended(self) -> tuple[str, int | None, int | None]:
        """Cause, exit code and signal."""
        return self.exit["cause"], self.exit["exit_code"], self.exit["signal"]


class InitProcess:
    """An init that serves one work directory. Entering it waits for READY; leaving it kills the namespace."""

    def __init__(
        self,
        work: pathlib.Path,
        *,
        uid: int | None = None,
        tmpfs: str | None = None,
        init: pathlib.Path = INIT,
        pass_fds: tuple[int, ...] = (),
        loopback: bool = False,
        open_files: int | None = None,
    ) -> None:
        """`uid`: run as this user, with no capability; `tmpfs`: options of a tmpfs to mount on `work` first;
        `init`: what to run; `pass_fds`: descriptors to leave open in it; `loopback`: bring the network's own interface
        up, as every sandbox has it; `open_files`: init's own limit of them.
        """
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net"]
        is_root = os.geteuid() == 0
        if not is_root:  # a user namespace stands in for root; there, a user keeps no capability either
            command += ["--user", "--map-root-user" if uid is None else "--map-current-user"]
        if tmpfs is not None:
            mount = f"mount -t tmpfs -o {shlex.quote(tmpfs)} tmpfs {shlex.quote(str(work))}"
            command += ["sh", "-c", f'{mount} && exec "$@"', "sh"]
        if loopback:
            command += [PYTHON, "-I", "-S", "-c", LOOPBACK_UP]
        if open_files is not None:
            command += ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh"]
        if uid is not None and is_root:
            command += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"]
            command += ["--inh-caps=-all", "--bounding-set=-all"]
        self.command = [*command, PYTHON, "-I", "-S", str(init), str(work)]
        self._pass_fds = pass_fds
        self.skill = work / "skill"
        self.ready: dict[str, Any] = {}
        self._decoder = FrameDecoder(frames.FROM_INIT_MAX, frames.FROM_INIT)
        self._frames: collections.deque[Frame] = collections.deque()

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=self._pass_fds
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._write_fd = self.process.stdin.fileno()
        self._read_fd = self.process.stdout.fileno()
        self.ready = self.expect(FrameType.READY).json()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()

    def write(self, data: bytes) -> None:
        """Writes raw bytes to init."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._write_fd, view) :]

    def send(self, frame_type: FrameType, payload: bytes = b"") -> None:
        """Sends a frame."""
        self.write(frames.encode(frame_type, payload))

    def send_data(self, data: bytes) -> None:
        """Sends bytes as DATA frames."""
        for position in range(0, len(data), frames.DATA_MAX):
            self.send(FrameType.DATA, data[position : position + frames.DATA_MAX])

    def read(self, seconds: float = FRAME_SECONDS_MAX) -> bytes:
        """The next bytes of init; b"" at the end. Raises TimeoutError."""
        if not select.select([self._read_fd], [], [], seconds)[0]:
            raise TimeoutError("init says nothing")
        return os.read(self._read_fd, 1 << 20)

    def frame(self, seconds: float = FRAME_SECONDS_MAX) -> Frame | None:
        """The next frame of init; None at the end of the stream. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not self._frames:
            data = self.read(max(0.0, deadline - time.monotonic()))
            if not data:
                assert self._decoder.pending_bytes == 0
                return None
            self._frames.extend(self._decoder.feed(data))
        return self._frames.popleft()

    def expect(self, *types: FrameType) -> Frame:
        """The next frame, which must be of one of these types."""
        frame = self.frame()
        assert frame is not None, "init's stream ended"
        assert frame.type in types, f"{frame!r} {frame.payload[:500]!r}"
        return frame

    def close(self) -> None:
        """Closes the daemon's end of init's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> tuple[str | None, int]:
        """Reads until the end of the stream: the message of FATAL, if there is one, and init's exit status."""
        message = None
        while (frame := self.frame()) is not None:
            if frame.type is FrameType.FATAL:
                message = str(frame.json()["message"])
        return message, self.process.wait(30)

    def stage(
        self, files: dict[str, bytes], executable: tuple[str, ...] = (), directories: tuple[str, ...] = ()
    ) -> None:
        """Stages files and waits until they are there."""
        entries = [
            {
                "path": path,
                "size": len(content),
                "executable": path in executable,
                "sha256": hashlib.sha256(content).hexdigest(),
            }
            for path, content in files.items()
        ]
        self.write(frames.encode_json(FrameType.STAGE, {"directories": list(directories), "files": entries}))
        self.send_data(b"".join(files.values()))
        assert self.expect(FrameType.STAGED).payload == b""

    def start(self, argv: list[str], stdin: bytes = b"", **changes: Any) -> None:
        """Sends START with generous limits, but for `changes`, and standard input."""
        order: dict[str, object] = {
            "argv": argv,
            "env": ENV,
            "cwd": "",
            "stdin_bytes": len(stdin),
            "wall_seconds": 100,
            "cpu_seconds": 100,
            "output_bytes": 1 << 20,
            "open_files": 256,
            "pids": 1_000,
            "cpus": 1.0,
            "disk_bytes": 1 << 30,
            "disk_inodes": 100_000,
            "egress": False,
            "artifact_patterns": [],
            "artifact_count": 100,
            "artifact_bytes": 1 << 20,
        }
        self.write(frames.encode_json(FrameType.START, order | changes))
        self.send_data(stdin)

    def run(self, argv: list[str], stdin: bytes = b"", **changes: Any) -> Result:
        """Starts a script and takes all that comes until DONE."""
        began = time.monotonic()
        self.start(argv, stdin, **changes)
        result = self.finish()
        result.seconds = time.monotonic() - began
        return result

    def finish(self) -> Result:
        """Takes all that comes of a run that was sent START."""
        result = Result()
        frame = self.expect(FrameType.STARTED, FrameType.FAILED)
        if frame.type is FrameType.FAILED:
            result.failed = frame.json()
            assert self.expect(FrameType.DONE).payload == b""
            return result
        assert frame.json() == {}
        self._take_output(result)
        self.take_artifacts(result)
        return result

    def _take_output(self, result: Result) -> None:
        streams: dict[FrameType, list[bytes]] = {FrameType.STDOUT: [], FrameType.STDERR: []}
        while (frame := self.expect(FrameType.EXIT, *streams)).type in streams:
            assert 1 <= len(frame.payload) <= frames.DATA_MAX
            streams[frame.type].append(frame.payload)
        result.exit = frame.json()
        result.stdout = b"".join(streams[FrameType.STDOUT])
        result.stderr = b"".join(streams[FrameType.STDERR])

    def take_artifacts(self, result: Result) -> None:
        """Takes what comes after EXIT."""
        while True:
            frame = self.expect(FrameType.ARTIFACT, FrameType.SKIPPED, FrameType.DONE)
            if frame.type is FrameType.DONE:
                omitted = frame.json()["skipped_omitted"] if frame.payload else 0
                assert isinstance(omitted, int)
                result.skipped_omitted = omitted
                return
            fields: dict[str, Any] = frame.json()
            if frame.type is FrameType.SKIPPED:
                result.skipped.append((fields["path"], fields["reason"]))
                continue
            content = bytearray()
            while len(content) < fields["size"]:
                content += self.expect(FrameType.DATA).payload
            assert len(content) == fields["size"]
            assert fields["path"] not in result.artifacts
            result.artifacts[fields["path"]] = bytes(content)
            if fields["executable"]:
                result.executable.add(fields["path"])
