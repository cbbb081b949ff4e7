"""init carries the script's connections: in order, bounded, each by itself, and nothing without egress."""

# ruff: noqa: S101

import collections
import hashlib
import pathlib
import time
from collections.abc import Callable, Iterator

import pytest
from skilljail_init import frames
from skilljail_init.frames import Frame, FrameType

from .driver import InitProcess, python

OPEN, DATA, CREDIT = FrameType.TUNNEL_OPEN, FrameType.TUNNEL_DATA, FrameType.TUNNEL_CREDIT
END, RESET, EXIT = FrameType.TUNNEL_END, FrameType.TUNNEL_RESET, FrameType.EXIT
WINDOW = frames.TUNNEL_WINDOW

CONNECT = """
import socket, struct, sys, time
def connect():
    one = socket.create_connection(("127.0.0.1", 3128), 20)
    one.settimeout(20)
    return one
def read_all(one):
    pieces = []
    while piece := one.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)
def say(text):
    print(text, flush=True)
"""


class Daemon:
    """The daemon's end of a run with egress: the frames by kind, and what was written to each tunnel."""

    def __init__(self, init: InitProcess) -> None:
        self.init = init
        self.opened: list[int] = []
        self.data: collections.defaultdict[int, bytes] = collections.defaultdict(bytes)
        self.ended: set[int] = set()
        self.reset: set[int] = set()
        self.credit: collections.Counter[int] = collections.Counter()
        self.stdout = b""
        self.exit: dict[str, object] | None = None

    def start(self, source: str, **changes: object) -> None:
        """Starts a script."""
        self.init.start(python(CONNECT + source), **{"egress": True, **changes})
        assert self.init.expect(FrameType.STARTED).json() == {}

    def take(self) -> Frame:
        """The next frame, noted."""
        frame = self.init.expect(OPEN, DATA, CREDIT, END, RESET, FrameType.STDOUT, FrameType.STDERR, EXIT)
        if frame.type is FrameType.STDOUT:
            self.stdout += frame.payload
            return frame
        if frame.type is EXIT:
            self.exit = frame.json()
            return frame
        assert frame.type is not FrameType.STDERR, frame.payload
        number, content = frames.split_tunnel(frame)
        if frame.type is OPEN:
            assert number == len(self.opened) + 1
            self.opened.append(number)
        assert number in self.opened
        assert number not in self.reset
        if frame.type is DATA:
            assert number not in self.ended
            self.data[number] += content
        elif frame.type is CREDIT:
            self.credit[number] += frames.split_credit(content)
        elif frame.type is END:
            self.ended.add(number)
        elif frame.type is RESET:
            self.reset.add(number)
        return frame

    def until(self, condition: Callable[[], object]) -> None:
        """Takes frames until something holds."""
        while not condition():
            self.take()

    def send(self, frame_type: FrameType, number: int, content: bytes | int = b"") -> None:
        """Sends a frame of a tunnel."""
        self.init.write(frames.encode_tunnel(frame_type, number, content))

    def send_all(self, number: int, data: bytes) -> None:
        """Sends data as fast as there is credit for it, which all comes back but the last half of a window."""
        left, sent = WINDOW, 0
        while sent < len(data):
            self.until(lambda sent=sent: left + self.credit[number] > sent)
            piece = data[sent : sent + min(frames.TUNNEL_DATA_MAX, left + self.credit[number] - sent)]
            self.send(DATA, number, piece)
            sent += len(piece)

    def finish(self) -> dict[str, object]:
        """Reads to the end of the run."""
        self.until(lambda: self.exit is not None)
        self.init.expect(FrameType.DONE)
        assert self.exit is not None
        return self.exit


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A daemon that talks to an init with loopback."""
    with InitProcess(tmp_path, loopback=True) as init:
        yield Daemon(init)


def test_without_egress_nothing_listens(daemon: Daemon) -> None:
    source = CONNECT + "try: connect()\nexcept ConnectionRefusedError: print('refused')"
    assert daemon.init.run(python(source)).stdout == b"refused\n"


def test_a_connection_is_carried_both_ways_with_its_ends(daemon: Daemon) -> None:
    daemon.start("one = connect(); one.sendall(b'ask'); one.shutdown(1); say(read_all(one)); one.close()")
    daemon.until(lambda: 1 in daemon.ended)
    assert (daemon.opened, daemon.data[1]) == ([1], b"ask")
    daemon.send(DATA, 1, b"ans")
    daemon.send(DATA, 1, b"wer")
    daemon.send(END, 1)
    assert daemon.finish()["exit_code"] == 0
    assert daemon.stdout == b"b'answer'\n"
    assert (daemon.reset, daemon.ended) == (set(), {1})


def test_the_daemons_end_comes_first_and_the_script_goes_on_sending(daemon: Daemon) -> None:
    daemon.start("one = connect(); say(read_all(one)); one.sendall(b'later'); one.close(); say(connect().recv(9))")
    daemon.until(lambda: daemon.opened == [1])
    daemon.send(END, 1)
    daemon.until(lambda: 1 in daemon.ended)
    assert daemon.data[1] == b"later"
    daemon.until(lambda: daemon.opened == [1, 2])
    daemon.send(DATA, 2, b"x")
    assert daemon.finish()["exit_code"] == 0
    assert daemon.stdout == b"b''\nb'x'\n"


@pytest.mark.parametrize("size", [1, WINDOW, WINDOW + 1, 3_000_000])
def test_a_download_of_any_size_arrives_complete(daemon: Daemon, size: int) -> None:
    daemon.start("import hashlib; data = read_all(connect()); say(f'{len(data)} {hashlib.sha256(data).hexdigest()}')")
    content = bytes(index * 7 % 251 for index in range(size))
    daemon.until(lambda: daemon.opened)
    daemon.send_all(1, content)
    daemon.send(END, 1)
    daemon.finish()
    assert daemon.stdout == f"{size} {hashlib.sha256(content).hexdigest()}\n".encode()


def test_an_upload_stops_at_the_window_and_goes_on_with_credit(daemon: Daemon) -> None:
    daemon.start("one = connect(); one.sendall(bytes(1_000_000)); one.shutdown(1); read_all(one)")
    daemon.until(lambda: len(daemon.data[1]) == WINDOW)
    with pytest.raises(TimeoutError):
        daemon.init.frame(0.5)
    while len(daemon.data[1]) < 1_000_000:
        granted = len(daemon.data[1]) + 50_000
        daemon.send(CREDIT, 1, 50_000)
        daemon.until(lambda granted=granted: len(daemon.data[1]) == min(granted, 1_000_000))
    daemon.until(lambda: 1 in daemon.ended)
    daemon.send(END, 1)
    assert daemon.finish()["exit_code"] == 0


def test_a_tunnel_that_nobody_reads_holds_up_no_other_and_no_output(daemon: Daemon) -> None:
    daemon.start("deaf = connect(); one = connect(); say('there'); say(one.recv(9)); say('and output')")
    daemon.until(lambda: len(daemon.opened) == 2)
    for _ in range(WINDOW // frames.TUNNEL_DATA_MAX):
        daemon.send(DATA, 1, bytes(frames.TUNNEL_DATA_MAX))
    daemon.send(DATA, 2, b"quick")
    assert daemon.finish()["exit_code"] == 0
    assert daemon.stdout == b"there\nb'quick'\nand output\n"


def test_a_reset_of_the_script_is_told_once(daemon: Daemon) -> None:
    daemon.start(
        "one = connect(); one.sendall(b'x')\n"
        "one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); one.close()\n"
        "say(connect().recv(9))"
    )
    daemon.until(lambda: daemon.reset)
    daemon.send(DATA, 1, b"too late")
    daemon.send(CREDIT, 1, 1)
    daemon.send(END, 1)
    daemon.send(RESET, 1)
    daemon.send(CREDIT, 1, 1)
    daemon.until(lambda: daemon.opened == [1, 2])
    daemon.send(DATA, 2, b"x")
    assert daemon.finish()["exit_code"] == 0
    assert daemon.reset == {1, 2}


def test_a_script_that_closes_and_does_not_read_makes_the_tunnel_reset(daemon: Daemon) -> None:
    daemon.start("connect().close(); say(connect().recv(9))")
    daemon.until(lambda: 1 in daemon.ended and len(daemon.opened) == 2)
    daemon.send(DATA, 1, b"x")
    daemon.send(DATA, 1, b"x")
    daemon.until(lambda: 1 in daemon.reset)
    daemon.send(RESET, 1)
    daemon.send(DATA, 2, b"x")
    assert daemon.finish()["exit_code"] == 0


def test_a_reset_of_the_daemon_is_an_error_for_the_script_and_is_answered(daemon: Daemon) -> None:
    daemon.start("try: say(read_all(connect()))\nexcept ConnectionResetError: say('reset')")
    daemon.until(lambda: daemon.opened)
    daemon.send(DATA, 1, b"half of it")
    daemon.send(RESET, 1)
    daemon.finish()
    assert daemon.stdout == b"reset\n"
    assert daemon.reset == {1}


def test_what_came_before_the_end_arrives_although_a_reset_follows(daemon: Daemon) -> None:
    daemon.start("one = connect(); time.sleep(0.3); data = read_all(one); say(len(data)); say(data[-3:])")
    daemon.until(lambda: daemon.opened)
    for piece in (bytes(30_000), bytes(30_000), b"end"):
        daemon.send(DATA, 1, piece)
    daemon.send(END, 1)
    daemon.send(RESET, 1)
    daemon.finish()
    assert daemon.stdout == b"60003\nb'end'\n"
    assert daemon.reset == {1}


@pytest.mark.parametrize(("open_files", "most"), [(None, frames.TUNNELS_MAX), (32, 12), (21, 1)])
def test_connections_beyond_the_bound_wait_for_their_turn(
    tmp_path: pathlib.Path, open_files: int | None, most: int
) -> None:
    with InitProcess(tmp_path, loopback=True, open_files=open_files) as init:
        daemon = Daemon(init)
        files = {"open_files": open_files} if open_files else {}
        if open_files is None:
            daemon.start("all = [connect() for _ in range(70)]; say('all'); [one.recv(1) for one in all]", **files)
        else:
            # A process for each: the script has no more descriptors than init has.
            daemon.start(
                "import os\nfor _ in range(40):\n    if os.fork() == 0: connect().recv(1); os._exit(0)\n"
                "for _ in range(40): os.wait()",
                **files,
            )
        count = 70 if open_files is None else 40
        daemon.until(lambda: len(daemon.opened) == most)
        for number in range(1, count + 1):
            daemon.until(lambda number=number: number in daemon.opened)
            assert len(daemon.opened) - len(daemon.ended | daemon.reset) <= most
            daemon.send(DATA, number, b"x")
            daemon.send(END, number)
            if open_files is None and number <= count - most:
                # The script ends none of its connections before it has all of them: the daemon does.
                daemon.send(RESET, number)
        assert daemon.finish()["exit_code"] == 0


def cpu_ticks(init: InitProcess) -> int:
    """User and system time of init so far, in hundredths of a second."""
    (pid,) = pathlib.Path(f"/proc/{init.process.pid}/task/{init.process.pid}/children").read_text().split()
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_connections_that_can_get_nowhere_cost_no_processor_time(daemon: Daemon) -> None:
    daemon.start(
        "closed, full, deaf, done = [connect() for _ in range(4)]\n"
        "full.setblocking(False)\n"
        "try:\n    while True: full.send(bytes(65536))\nexcept BlockingIOError: full.shutdown(1)\n"
        "closed.sendall(bytes(65536)); closed.shutdown(1)\n"
        "kept = [connect() for _ in range(60)]; say('there'); time.sleep(60)"
    )
    daemon.until(lambda: daemon.stdout and len(daemon.opened) == frames.TUNNELS_MAX)
    daemon.until(lambda: len(daemon.data[1]) == len(daemon.data[2]) == WINDOW)
    for _ in range(2):
        daemon.send(DATA, 3, bytes(frames.TUNNEL_DATA_MAX))
    for number in (1, 2, 4):
        daemon.send(END, number)
    while True:
        try:
            daemon.init.frame(0.5)
        except TimeoutError:
            break
    before = cpu_ticks(daemon.init)
    time.sleep(2)
    assert cpu_ticks(daemon.init) - before < 60  # a loop without a rest takes all of a core


def test_a_flood_of_connections_does_not_keep_init_from_its_clock(daemon: Daemon) -> None:
    daemon.start(
        "import os\nfor _ in range(3): os.fork()\nwhile True:\n    try: connect().close()\n    except OSError: pass",
        wall_seconds=1,
        open_files=64,
    )
    while daemon.exit is None:
        frame = daemon.take()
        if frame.type is END:
            daemon.send(END, frames.split_tunnel(frame)[0])
    daemon.init.expect(FrameType.DONE)
    assert daemon.exit["cause"] == "wall_timeout"
    assert len(daemon.opened) > frames.TUNNELS_MAX


def test_output_that_nobody_takes_stops_uploads_too_and_all_arrives(daemon: Daemon) -> None:
    daemon.start(
        "import os\none = connect()\n"
        "if os.fork() == 0: os.write(1, bytes(900_000)); os._exit(0)\n"
        "one.sendall(bytes(900_000)); one.shutdown(1); read_all(one); os.wait()"
    )
    while not (daemon.exit or 1 in daemon.ended):
        frame = daemon.take()
        if frame.type is DATA:
            daemon.send(CREDIT, 1, len(frames.split_tunnel(frame)[1]))
    daemon.send(END, 1)
    daemon.finish()
    assert (len(daemon.stdout), len(daemon.data[1])) == (900_000, 900_000)


@pytest.mark.parametrize("how", ["exit", "cancel", "timeout", "left behind"])
def test_every_tunnel_is_over_before_the_run_is(daemon: Daemon, how: str) -> None:
    source = {
        "exit": "one = connect(); one.sendall(b'x'); time.sleep(0.2); sys.exit(0)",
        "left behind": "import os\none = connect()\nif os.fork() == 0: time.sleep(60)\nsys.exit(0)",
    }.get(how, "one = connect(); time.sleep(60)")
    daemon.start(source, wall_seconds=1 if how == "timeout" else 20)
    daemon.until(lambda: daemon.opened)
    if how == "cancel":
        daemon.init.send(FrameType.CANCEL)
    daemon.until(lambda: daemon.exit)
    assert daemon.ended | daemon.reset == {1}
    daemon.init.expect(FrameType.DONE)
    # What was still on its way is dropped; the next run has its own tunnels, whose numbers go on.
    daemon.send(DATA, 1, b"late")
    daemon.send(END, 1)
    daemon.exit, daemon.stdout = None, b""
    daemon.start("say(connect().recv(9))")
    daemon.send(RESET, 1)
    daemon.until(lambda: daemon.opened == [1, 2])
    daemon.send(DATA, 1, b"later")
    daemon.send(DATA, 2, b"new")
    daemon.finish()
    assert daemon.stdout == b"b'new'\n"
    assert daemon.init.run(python(CONNECT + "connect()")).exit["exit_code"] == 1


def test_a_script_that_cannot_start_leaves_nothing_listening(daemon: Daemon) -> None:
    assert daemon.init.run(["/no/such"], egress=True).failed is not None
    daemon.start("say(connect().recv(9))")
    daemon.until(lambda: daemon.opened)
    daemon.send(DATA, 1, b"x")
    assert daemon.finish()["exit_code"] == 0


HOSTILE = {
    "data of a tunnel that was never opened": ([(DATA, 7, b"x")], "TUNNEL_DATA frame of tunnel 7, which is not open"),
    "credit of a tunnel that was never opened": (
        [(CREDIT, 2, 1)],
        "TUNNEL_CREDIT frame of tunnel 2, which is not open",
    ),
    "reset of a tunnel that was never opened": ([(RESET, 2, b"")], "TUNNEL_RESET frame of tunnel 2, which is not open"),
    "number 0": ([(END, 0, b"")], "TUNNEL_END frame of tunnel 0, which is not open"),
    "data after the end": ([(END, 1, b""), (DATA, 1, b"x")], "TUNNEL_DATA frame of tunnel 1 after its end"),
    "a second end": ([(END, 1, b""), (END, 1, b"")], "TUNNEL_END frame of tunnel 1 after its end"),
    "data of a tunnel that is over": (
        [(RESET, 1, b""), (DATA, 1, b"x")],
        "TUNNEL_DATA frame of tunnel 1, which is not open",
    ),
    "more data than the window": (
        [(DATA, 1, bytes(frames.TUNNEL_DATA_MAX))] * 2 + [(DATA, 1, b"x")],
        None,
    ),
    "more credit than the window": ([(CREDIT, 1, 1)], "more credit for tunnel 1 than its window has"),
    "credit of nothing": ([(CREDIT, 1, 0)], "TUNNEL_CREDIT frame of 0"),
    "credit of far too much": ([(CREDIT, 1, WINDOW + 1)], f"TUNNEL_CREDIT frame of {WINDOW + 1}"),
    "empty data": ([(DATA, 1, b"")], "TUNNEL_DATA frame of 4 bytes"),
    "data in one piece that is too large": (
        [(DATA, 1, bytes(frames.TUNNEL_DATA_MAX + 1))],
        f"TUNNEL_DATA frame of {frames.TUNNEL_DATA_MAX + 5} bytes",
    ),
    "an end with something behind it": ([(END, 1, b"x")], "TUNNEL_END frame of 5 bytes"),
    "a tunnel that the daemon opens": ([(OPEN, 2, b"")], "TUNNEL_OPEN frame from the wrong end"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_daemon_that_breaks_the_rules_of_tunnels_ends_init(daemon: Daemon, name: str) -> None:
    sent, message = HOSTILE[name]
    # Stopped, the script takes nothing and its tunnel holds what is sent.
    daemon.start("one = connect(); one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1); time.sleep(60)")
    daemon.until(lambda: daemon.opened)
    if message is None:
        # The kernel holds some: far more than that and the window ends it for certain.
        message = "more data for tunnel 1 than its window has room for"
        sent = [(DATA, 1, bytes(frames.TUNNEL_DATA_MAX))] * 400
    try:
        for frame_type, number, content in sent:
            daemon.send(frame_type, number, content)
    except BrokenPipeError:
        pass  # it gave up before it had heard all
    assert daemon.init.end() == (message, 70)


def test_a_tunnel_frame_without_egress_ends_init(daemon: Daemon) -> None:
    daemon.init.start(python("import time; time.sleep(60)"))
    daemon.init.expect(FrameType.STARTED)
    daemon.send(CREDIT, 1, 1)
    assert daemon.init.end() == ("TUNNEL_CREDIT frame while a script runs", 70)
