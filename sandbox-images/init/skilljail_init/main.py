"""Makes init safe from what it will run, tells the daemon how it is confined, goes over to the conversation.

What is imported here is on the way to every run's start, so it is little; the rest comes after READY.
"""

# pathlib is slow to import.
# ruff: noqa: PTH102, PTH110, PTH123, PTH208
from __future__ import annotations

import os
import time

from skilljail_init.cgroup import ControlGroup
from skilljail_init.channel import Channel
from skilljail_init.children import Children, kill_everything
from skilljail_init.errors import InitError, StreamClosed
from skilljail_init.frames import FrameError, FrameType
from skilljail_init.isolation import report
from skilljail_init.kernel import hide_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from typing import NoReturn
else:
    import _signal as signal  # `signal` wraps the same functions into enums, and importing enum takes 4 ms

__all__ = ["main"]

WORK = "/work"
STDERR = 2
EXIT_FATAL = 70
"""sysexits.h: an internal software error."""
LAST_WORDS_SECONDS = 1.0
MESSAGE_MAX = 1_000


def main(arguments: Sequence[str]) -> NoReturn:
    """Never returns: exits with 0 at the end of the stream and with 70 after FATAL.

    `arguments`: the work directory, where it is not /work.
    """
    start_time = time.time()
    channel = _take_stream()
    status = EXIT_FATAL
    try:
        _serve(channel, arguments[0] if arguments else WORK, start_time)
    except StreamClosed:
        status = 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, nothing may go on running
        _say_fatal(channel, error)
    finally:
        # The kernel kills every process of the namespace when its PID 1 ends.
        os._exit(status)


def _serve(channel: Channel, work: str, start_time: float) -> None:
    hide_process()
    # Python's own handler for SIGINT is one that a script could trigger.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    children = Children()
    _make_directories(work)
    group = ControlGroup()
    channel.send_json(FrameType.READY, {"isolation": report(work, group, start_time)})
    channel.flush()

    from skilljail_init.conversation import Conversation  # noqa: PLC0415 - READY is out first

    Conversation(channel, children, group, work).serve()


def _take_stream() -> Channel:
    """Moves the daemon's stream away from descriptors 0 and 1, so that nothing else can write into it."""
    read_fd, write_fd = os.dup(0), os.dup(1)  # not inherited by what is executed
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)
    # Whatever an engine left open is nobody's business in here (CVE-2024-21626 was such a descriptor).
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > STDERR and fd not in {read_fd, write_fd}:
            _close(fd)
    return Channel(read_fd, write_fd)


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return  # the descriptor of the listing itself


def _make_directories(work: str) -> None:
    """The skill root, HOME and TMPDIR. Raises InitError."""
    # What is mounted there would cover a folder of the image's choice.
    if os.path.islink(work):  # noqa: PTH114
        raise InitError(f"{work} is a link in this image; build it again with a folder there")
    for name, mode in (("skill", 0o755), ("home", 0o700), ("tmp", 0o700)):
        path = f"{work}/{name}"
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            continue
        except OSError as error:
            raise InitError(f"cannot make {path}: {error.strerror}; mount a writable tmpfs on {work}") from error


def _say_fatal(channel: Channel, error: BaseException) -> None:
    """Kills everything, then sends the last frame. An unexpected error is told by its type and place alone:
    its text might hold something of the script's.
    """
    if os.getpid() == 1:
        kill_everything()
    told = isinstance(error, InitError | FrameError)
    message = str(error) if told else f"{type(error).__name__} in {_place(error)}"
    try:
        channel.send_json(FrameType.FATAL, {"message": message[:MESSAGE_MAX]})
        channel.drain(LAST_WORDS_SECONDS)
    except StreamClosed:
        return


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "nowhere" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
