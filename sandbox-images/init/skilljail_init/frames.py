"""The frame protocol between the daemon and init. This is its one description; both ends import it.

One duplex byte stream: init reads frames on standard input and writes frames on standard output. A frame is

    type      1 byte, a value of `FrameType`
    length    4 bytes, unsigned, big-endian
    payload   `length` bytes

Payloads are raw bytes (DATA, STDOUT, STDERR), empty (STAGED, CANCEL), the number of a tunnel and what follows it (all
that are called TUNNEL), or one JSON object in UTF-8 (the rest; DONE is empty when it has nothing to tell). A payload
from the daemon is at most `TO_INIT_MAX` bytes, one from init at most `FROM_INIT_MAX`; a longer one, an unknown type or
broken JSON ends the conversation on the side that sees it.

A run, in order:

    init    READY      {"isolation": {…}}   what init reads about its own confinement, see `isolation.py`
    daemon  STAGE      {"directories": [path, …],
                        "files": [{"path", "size", "executable", "sha256"}, …]}
                       sha256: of the content, 64 lower-case hex digits
    daemon  DATA …     the content of the files, one after the other, without separators
    init    STAGED
                       STAGE, DATA and STAGED come as often as it takes to name all directories and files
    daemon  START      {"argv": [str, …],        the command; argv[0] is looked up in PATH
                        "env": {name: value},    the whole environment
                        "cwd": path,             below the skill root, "" is the root
                        "stdin_bytes": int,      DATA frames with so many bytes follow
                        "wall_seconds": float, "cpu_seconds": float, "output_bytes": int, "open_files": int,
                        "disk_bytes": int,       the largest file (RLIMIT_FSIZE)
                        "pids": int, "disk_inodes": int, "cpus": float,
                                                 for what init counts where the kernel does not (gVisor)
                        "egress": bool,          whether init listens on EGRESS_PORT of loopback, see below
                        "artifact_patterns": [glob, …], "artifact_count": int, "artifact_bytes": int}
    daemon  DATA …     standard input
    init    STARTED    {}  or  FAILED {"errno": int, "message": str}  and then DONE
    init    STDOUT, STDERR …
    init    EXIT       {"cause": Cause, "exit_code": int|null, "signal": int|null, "wall_seconds": float,
                        "cpu_seconds": float|null, "peak_memory_bytes": int|null, "oom_kills": int|null,
                        "pids_limit_hits": int|null, "disk_full": bool, "output_truncated": bool}
                       every process but init is dead when it is sent; pids_limit_hits: processes that the
                       kernel refused, or, where it keeps no record (gVisor), looks at which there were too many
    init    ARTIFACT   {"path": str, "size": int, "executable": bool}, then DATA … with `size` bytes
            SKIPPED    {"path": str, "reason": SkipReason}
                       path: `\\xNN` for each byte that is not printable UTF-8; it is "." for
                       `time_limit`, for `count_limit` of directory entries and for a skill root that is `unreadable`:
                       then the search ended early
    init    DONE       empty, or {"skipped_omitted": int}: how many more were skipped than were sent as SKIPPED

At any time the daemon may send CANCEL: init kills the script and goes on with EXIT, cause `cancelled`, and no
artifacts. While no script runs CANCEL is ignored. When the daemon's end of the stream closes, init kills everything
and exits, so that no sandbox outlives its daemon. When something makes it impossible to go on, init sends
FATAL {"message": str} and exits with status 70. After DONE init waits for the next STAGE or START, which serves a
session.

Egress. A sandbox has no network. With `egress`, init listens on 127.0.0.1, port EGRESS_PORT, while the script runs, and
carries each connection as a tunnel; nothing else opens one, and what goes through it is the daemon's affair. The
payload starts with the tunnel's number, 4 bytes, unsigned, big-endian. Both directions of a tunnel are alike:

    TUNNEL_OPEN    number              init only: somebody connected. The numbers of a conversation count up from 1
    TUNNEL_DATA    number, 1 to TUNNEL_DATA_MAX bytes
    TUNNEL_CREDIT  number, 4 bytes unsigned: so many bytes of TUNNEL_DATA more may be sent, 1 to TUNNEL_WINDOW. Each
                   side starts with TUNNEL_WINDOW and never sends more than it has, so nobody who reads slowly holds
                   up another tunnel or any other frame
    TUNNEL_END     number              no more TUNNEL_DATA from this side; the other direction goes on
    TUNNEL_RESET   number              this side neither sends nor reads any more. Also after TUNNEL_END

A side is done with TUNNEL_END or TUNNEL_RESET, and answers TUNNEL_RESET with one of them unless it is done already. A
tunnel is over when both sides are done. At most TUNNELS_MAX are open at one time; further connections wait in the
kernel's queue. TUNNEL_CREDIT and TUNNEL_RESET may cross the end of a tunnel; who gets them drops them. Before EXIT init
resets every tunnel, and nothing listens any more; what of tunnels is then still on the way to init is dropped.

Paths are relative, with `/` between names. Everything that init sends is hostile in the daemon's eyes.
"""

import struct

from skilljail_init.closed import IntEnum, StrEnum
from skilljail_init.jsontext import dumps, loads

__all__ = [
    "DATA_MAX",
    "EGRESS_PORT",
    "FROM_INIT_MAX",
    "TO_INIT_MAX",
    "TUNNELS_MAX",
    "TUNNEL_DATA_MAX",
    "TUNNEL_FRAMES",
    "TUNNEL_WINDOW",
    "Cause",
    "Frame",
    "FrameDecoder",
    "FrameError",
    "FrameType",
    "SkipReason",
    "encode",
    "encode_json",
    "encode_tunnel",
    "header",
    "split_credit",
    "split_tunnel",
]

HEADER = struct.Struct(">BI")
NUMBER = struct.Struct(">I")
DATA_MAX = 65_536
"""Bytes in one DATA, STDOUT or STDERR frame."""
FROM_INIT_MAX = DATA_MAX
"""Largest payload that init may send."""
TO_INIT_MAX = 8 * 1024 * 1024
"""Largest payload that the daemon may send."""
EGRESS_PORT = 3128
"""Where init listens for the script's connections; scripts find it in HTTP_PROXY."""
TUNNELS_MAX = 32
"""Tunnels that are open at one time."""
TUNNEL_WINDOW = 65_536
"""Bytes that one side of a tunnel may send before the other has taken any."""
TUNNEL_DATA_MAX = 32_768
"""Bytes in one TUNNEL_DATA frame."""


class FrameType(IntEnum):
    """What a frame says. The values are the wire."""

    # from the daemon
    STAGE = 0x01
    START = 0x02
    CANCEL = 0x03
    # in both directions
    DATA = 0x10
    TUNNEL_DATA = 0x11
    TUNNEL_CREDIT = 0x12
    TUNNEL_END = 0x13
    TUNNEL_RESET = 0x14
    # from init
    READY = 0x20
    STAGED = 0x21
    STARTED = 0x22
    FAILED = 0x23
    STDOUT = 0x24
    STDERR = 0x25
    EXIT = 0x26
    ARTIFACT = 0x27
    SKIPPED = 0x28
    DONE = 0x29
    FATAL = 0x2A
    TUNNEL_OPEN = 0x2B


class Cause(StrEnum):
    """What ended the script, as init saw it."""

    EXITED = "exited"
    SIGNALED = "signaled"
    WALL_TIMEOUT = "wall_timeout"
    CPU_TIMEOUT = "cpu_timeout"
    OUTPUT_LIMIT = "output_limit"
    PIDS_STORM = "pids_storm"
    """The script went on asking for processes that the kernel refused, and was killed."""
    PIDS_LIMIT = "pids_limit"
    """There were more processes and threads than allowed, on a kernel that does not refuse them (gVisor)."""
    DISK_LIMIT = "disk_limit"
    """There were more files than allowed, likewise."""
    CANCELLED = "cancelled"


class SkipReason(StrEnum):
    """Why init did not send a file that matched an artifact pattern."""

    NOT_A_REGULAR_FILE = "not_a_regular_file"
    COUNT_LIMIT = "count_limit"
    SIZE_LIMIT = "size_limit"
    DEPTH_LIMIT = "depth_limit"
    TIME_LIMIT = "time_limit"
    UNSAFE_NAME = "unsafe_name"
    UNREADABLE = "unreadable"


class FrameError(ValueError):
    """The other end broke the protocol."""


class Frame:
    """One decoded frame."""

    __slots__ = ("payload", "type")

    def __init__(self, frame_type: FrameType, payload: bytes) -> None:
        self.type = frame_type
        self.payload = payload

    def json(self) -> dict[str, object]:
        """The payload as a JSON object. Raises FrameError when it is none."""
        try:
            value = loads(self.payload)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"{self.type.name} frame is not JSON") from error
        if not isinstance(value, dict):
            raise FrameError(f"{self.type.name} frame is not a JSON object")
        return value

    def __repr__(self) -> str:
        return f"Frame({self.type.name}, {len(self.payload)} bytes)"


def header(frame_type: FrameType, length: int) -> bytes:
    """The five bytes before a payload of `length` bytes."""
    return HEADER.pack(frame_type, length)


def encode(frame_type: FrameType, payload: bytes = b"") -> bytes:
    """A whole frame as bytes."""
    return HEADER.pack(frame_type, len(payload)) + payload


def encode_json(frame_type: FrameType, value: dict[str, object]) -> bytes:
    """A whole frame whose payload is a JSON object."""
    return encode(frame_type, dumps(value).encode())


def encode_tunnel(frame_type: FrameType, number: int, content: bytes | int = b"") -> bytes:
    """A whole frame of a tunnel. `content`: the bytes of TUNNEL_DATA, the credit of TUNNEL_CREDIT."""
    return encode(frame_type, NUMBER.pack(number) + (NUMBER.pack(content) if isinstance(content, int) else content))


def split_tunnel(frame: Frame) -> tuple[int, bytes]:
    """A tunnel's number, and what follows it. Raises FrameError where something else follows than may."""
    size = len(frame.payload) - NUMBER.size
    least, most = _TUNNEL_SIZES[frame.type]
    if not least <= size <= most:
        raise FrameError(f"{frame.type.name} frame of {len(frame.payload)} bytes")
    number: int = NUMBER.unpack_from(frame.payload)[0]
    return number, frame.payload[NUMBER.size :]


def split_credit(content: bytes) -> int:
    """The bytes that a TUNNEL_CREDIT frame grants. Raises FrameError for a grant that is none."""
    credit: int = NUMBER.unpack(content)[0]
    if not 1 <= credit <= TUNNEL_WINDOW:
        raise FrameError(f"TUNNEL_CREDIT frame of {credit}")
    return credit


class FrameDecoder:
    """Cuts a byte stream into frames. Holds at most one incomplete frame plus what was fed last."""

    def __init__(self, payload_max: int, allowed: frozenset[FrameType]) -> None:
        """`payload_max`: bytes; `allowed`: the types that the other end may send."""
        self._payload_max = payload_max
        self._allowed = allowed
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Takes bytes, returns the frames that they complete. Raises FrameError; the decoder is then spent."""
        self._buffer += data
        frames: list[Frame] = []
        position = 0
        while len(self._buffer) - position >= HEADER.size:
            kind, length = HEADER.unpack_from(self._buffer, position)
            frame_type = self._check(kind, length)
            end = position + HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append(Frame(frame_type, bytes(self._buffer[position + HEADER.size : end])))
            position = end
        del self._buffer[:position]
        return frames

    def _check(self, kind: int, length: int) -> FrameType:
        if length > self._payload_max:
            raise FrameError(f"frame of {length} bytes, the limit is {self._payload_max}")
        try:
            frame_type = FrameType(kind)
        except ValueError:
            raise FrameError(f"unknown frame type {kind:#04x}") from None
        if frame_type not in self._allowed:
            raise FrameError(f"{frame_type.name} frame from the wrong end")
        return frame_type

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame: not 0 at end-of-file means a truncated stream."""
        return len(self._buffer)


_TUNNEL_SIZES = {
    FrameType.TUNNEL_OPEN: (0, 0),
    FrameType.TUNNEL_DATA: (1, TUNNEL_DATA_MAX),
    FrameType.TUNNEL_CREDIT: (NUMBER.size, NUMBER.size),
    FrameType.TUNNEL_END: (0, 0),
    FrameType.TUNNEL_RESET: (0, 0),
}
"""What follows a tunnel's number, in bytes: least and most."""
TUNNEL_FRAMES = frozenset(_TUNNEL_SIZES)
"""The frames that belong to a tunnel."""
FROM_DAEMON = frozenset({FrameType.STAGE, FrameType.START, FrameType.CANCEL, FrameType.DATA}) | TUNNEL_FRAMES - {
    FrameType.TUNNEL_OPEN
}
FROM_INIT = frozenset(FrameType) - {FrameType.STAGE, FrameType.START, FrameType.CANCEL}
