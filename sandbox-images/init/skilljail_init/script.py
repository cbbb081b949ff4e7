"""Starts a script: one process with a session, limits and three descriptors of its own, and nothing of init."""

from __future__ import annotations

import errno
import os
import resource
import select

from skilljail_init.kernel import is_gvisor, show_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn

    from skilljail_init.orders import StartOrder
else:
    import _signal as signal  # `signal` wraps the same functions into enums, and importing enum takes 4 ms

__all__ = ["Script", "StartError", "start_script"]

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
EXEC_SECONDS_MAX = 10
"""Time for the new process to become the script's interpreter."""
MESSAGE_BYTES_MAX = 1_000
NOT_EXECUTED = 127
PIDS_ABOVE = 16
"""Processes and threads above the limit that gVisor itself refuses; `usage` sees those that are above it."""


class StartError(Exception):
    """The script could not be executed."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.errno = number


class Script:
    """A started script: its main process and init's ends of its streams; no `stdin_fd` without input."""

    __slots__ = ("pid", "stderr_fd", "stdin_fd", "stdout_fd")

    def __init__(self, pid: int, stdin_fd: int | None, stdout_fd: int, stderr_fd: int) -> None:
        self.pid = pid
        self.stdin_fd = stdin_fd
        self.stdout_fd = stdout_fd
        self.stderr_fd = stderr_fd


def start_script(order: StartOrder, root_fd: int) -> Script:
    """Forks and executes `order.argv` below the skill root `root_fd`.

    Raises StartError; then nothing of it is left but a zombie at most.
    """
    opened: list[int] = []
    try:
        # What the script gets comes second.
        stdin_write, stdin_read = _stdin(opened, has_content=order.stdin_bytes > 0)
        stdout_read, stdout_write = _pipe(opened)
        stderr_read, stderr_write = _pipe(opened)
        report_read, report_write = _pipe(opened)
        pid = os.fork()
        if pid == 0:
            _become(order, root_fd, (stdin_read, stdout_write, stderr_write), report_write)
        for fd in (stdin_read, stdout_write, stderr_write, report_write):
            _close(opened, fd)
        _check_report(pid, report_read)
        _close(opened, report_read)
    except OSError as error:
        for fd in opened:
            os.close(fd)
        raise StartError(error.errno or errno.EIO, f"cannot start the script: {error.strerror}") from error
    except StartError:
        for fd in opened:
            os.close(fd)
        raise
    for fd in opened:
        os.set_blocking(fd, False)
    return Script(pid, stdin_write, stdout_read, stderr_read)


def _pipe(opened: list[int]) -> tuple[int, int]:
    read_fd, write_fd = os.pipe()
    opened += (read_fd, write_fd)
    return read_fd, write_fd


def _stdin(opened: list[int], *, has_content: bool) -> tuple[int | None, int]:
    """init's end and the script's end of standard input."""
    if has_content:
        read_fd, write_fd = _pipe(opened)
        return write_fd, read_fd
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    opened.append(null)
    return None, null


def _close(opened: list[int], fd: int) -> None:
    opened.remove(fd)
    os.close(fd)


def _check_report(pid: int, report_fd: int) -> None:
    """Waits until the new process was executed, which closes its end unwritten. Raises StartError."""
    poller = select.poll()
    poller.register(report_fd, select.POLLIN)
    if not poller.poll(EXEC_SECONDS_MAX * 1000):
        os.kill(pid, signal.SIGKILL)
        raise StartError(errno.ETIMEDOUT, f"the script was not executed within {EXEC_SECONDS_MAX} s")
    report = os.read(report_fd, 2 * MESSAGE_BYTES_MAX)
    if report:
        number, _, message = report.decode(errors="replace").partition(" ")
        raise StartError(int(number), message)


def _become(order: StartOrder, root_fd: int, streams: tuple[int, int, int], report_fd: int) -> NoReturn:
    """Turns the forked process into the script. Tells `report_fd` why, when it cannot."""
    doing = "start the script"
    try:
        os.setsid()
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
        _reset_signals()
        _offer_to_oom_killer()
        doing = f"enter the directory {order.cwd or '.'!r}"
        os.fchdir(root_fd)
        os.chdir(order.cwd or ".")
        doing = "set the limits"
        _limit(order)
        doing = f"execute {order.argv[0]!r}"
        _execute(order.argv, order.env)
    except BaseException as error:  # noqa: BLE001 - a copy of init must never go on as init
        number = error.errno if isinstance(error, OSError) and error.errno else errno.EINVAL
        reason = os.strerror(number) if isinstance(error, OSError) else str(error)
        os.write(report_fd, f"{number} cannot {doing}: {reason}".encode(errors="replace")[:MESSAGE_BYTES_MAX])
    finally:
        os._exit(NOT_EXECUTED)


def _reset_signals() -> None:
    """Default dispositions, empty mask: Python ignores SIGPIPE and SIGXFSZ, an engine may ignore others."""
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # SIGKILL, SIGSTOP and those that the C library keeps for itself
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _limit(order: StartOrder) -> None:
    """The process's own limits. Never RLIMIT_AS: V8 and .NET reserve far more address space than they use."""
    limits = [
        (resource.RLIMIT_NOFILE, order.open_files),
        (resource.RLIMIT_FSIZE, order.disk_bytes),
        (resource.RLIMIT_CORE, 0),
    ]
    if is_gvisor():
        # No control group refuses processes here, and none keeps a record of it. A bomb must be seen to be above what
        # is allowed, which ends it, and must not get far above while nobody looks. Each sandbox has a kernel, so the
        # user's number is the sandbox's.
        limits.append((resource.RLIMIT_NPROC, order.pids + PIDS_ABOVE))
    for which, limit in limits:
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY and limit > hard:
            raise ValueError(f"the sandbox's own limit of {hard} is below {limit}: raise it where the sandbox is made")
        resource.setrlimit(which, (limit, limit))


def _offer_to_oom_killer() -> None:
    """Makes the kernel prefer the script to init when memory runs out, so that init lives to tell."""
    # An undumpable process does not own its files below /proc. Nothing else lives that could look into this
    # copy of init before execve replaces it, and execve would make it dumpable anyway.
    show_process()
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # only a preference: the engine, too, tells when memory ran out
    try:
        os.write(fd, b"1000")
    except OSError:
        return
    finally:
        os.close(fd)


def _execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """execve(2), with argv[0] looked up in the PATH of `env`. Raises OSError."""
    words = [word.encode() for word in argv]
    variables = {name.encode(): value.encode() for name, value in env.items()}
    if "/" in argv[0]:
        os.execve(words[0], words, variables)  # noqa: S606
    refusal: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    # An empty entry would mean the current directory, which belongs to the script.
    for folder in filter(None, env.get("PATH", DEFAULT_PATH).split(":")):
        try:
            os.execve(folder.encode() + b"/" + words[0], words, variables)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            refusal = error  # as execvp(3) does: a later folder may have a file that can be executed
    raise refusal
