"""Reads a secret's value from where the operator keeps it. Everything here blocks, within bounds.

No message holds a value or anything that a source said: what a command writes to standard error is dropped.
"""

import os
import pathlib
import select
import signal
import stat
import subprocess
import time

import pydantic

__all__ = ["SourceError", "check_file", "checked", "from_command", "from_file"]

VALUE_BYTES_MIN = 8
"""A shorter one could be guessed, and to mask it would mask ordinary words."""
VALUE_BYTES_MAX = 32_768
SOURCE_BYTES_MAX = 64 * 1024
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "XDG_RUNTIME_DIR")
"""What a command sees of the daemon's environment."""


class SourceError(Exception):
    """A source gave no usable value. The message is for the operator, and never holds a value."""


def checked(data: bytes) -> pydantic.SecretStr:
    """The bytes of a source as a value. Raises SourceError."""
    if not VALUE_BYTES_MIN <= len(data) <= VALUE_BYTES_MAX:
        raise SourceError(f"the value is not {VALUE_BYTES_MIN} to {VALUE_BYTES_MAX:,} bytes long")
    if b"\0" in data:
        raise SourceError("the value holds a NUL, which no environment variable can")
    try:
        return pydantic.SecretStr(data.decode())
    except UnicodeDecodeError:
        raise SourceError("the value is not UTF-8; encode it, for example as base64") from None


def check_file(path: pathlib.Path) -> None:
    """Raises SourceError when others could read or change the file, or FileNotFoundError when there is none."""
    os.close(_opened(path))


def from_file(path: pathlib.Path) -> pydantic.SecretStr:
    """A file's content without one line break at its end. Raises SourceError."""
    try:
        descriptor = _opened(path)
    except FileNotFoundError:
        raise SourceError(f"there is no file {path}") from None
    with os.fdopen(descriptor, "rb") as file:
        try:
            data = file.read(SOURCE_BYTES_MAX + 1)
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    return checked(_without_line_break(data))


def _opened(path: pathlib.Path) -> int:
    """A descriptor of the file. Links are followed, as mounted secrets are links; what they lead to is checked."""
    try:
        # O_NONBLOCK: a FIFO in its place must not make us wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror}") from None
    fault = _fault(os.fstat(descriptor))
    if fault is not None:
        os.close(descriptor)
        raise SourceError(f"{path} {fault}")
    return descriptor


def _fault(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    if status.st_uid not in {0, os.geteuid()}:
        return "belongs to another user, who could change it; chown it to the daemon's user"
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        return "can be read or changed by others; chmod 600 it"
    return None


def from_command(command: tuple[str, ...], deadline: float) -> pydantic.SecretStr:
    """What a command writes to standard output, without one line break at its end.

    `deadline`: of the monotonic clock, when the command and its children are killed. Raises SourceError.
    """
    try:
        process = subprocess.Popen(  # noqa: S603  the operator's own words, which no shell reads
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            start_new_session=True,
        )
    except OSError as error:
        raise SourceError(f"the command cannot be started: {error.strerror}") from None
    with process:
        try:
            data = _said(process, deadline)
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except (SourceError, subprocess.TimeoutExpired) as error:
            # Its process is not waited for yet, so the group's number is still its own.
            os.killpg(process.pid, signal.SIGKILL)
            raise error if isinstance(error, SourceError) else _late() from None
    if status != 0:
        raise SourceError(f"the command ended with status {status}; try it by hand, as the daemon's user")
    return checked(_without_line_break(data))


def _said(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Standard output up to its end. Raises SourceError when it is too much or does not end in time."""
    assert process.stdout is not None  # noqa: S101  it was asked for
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    data = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise _late()
        piece = os.read(process.stdout.fileno(), SOURCE_BYTES_MAX)
        if not piece:
            return bytes(data)
        data += piece
        if len(data) > SOURCE_BYTES_MAX:
            raise SourceError(f"the command wrote more than {SOURCE_BYTES_MAX:,} bytes")


def _late() -> SourceError:
    return SourceError("the command did not end in time and was killed")


def _without_line_break(data: bytes) -> bytes:
    return data.removesuffix(b"\n").removesuffix(b"\r") if data.endswith(b"\r\n") else data.removesuffix(b"\n")
