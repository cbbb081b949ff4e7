"""What init asks of the kernel, through prctl(2) among others, which the standard library does not offer."""

# pathlib is slow to import.
# ruff: noqa: PTH110, PTH123

import os

__all__ = [
    "GVISOR_SIGNS",
    "gains_no_privileges",
    "gvisor_signs",
    "hide_process",
    "is_dumpable",
    "is_exposed",
    "is_gvisor",
    "show_process",
]

PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_GET_NO_NEW_PRIVS = 39
GVISOR_SIGNS = ("/proc/sentry-meminfo", "/proc/cmdline", "uname")
GVISOR_BUILD = "#1 SMP Sun Jan 10 15:06:54 PST 2016"
"""What every gVisor gives as the version of its kernel."""


def hide_process() -> None:
    """Makes this process undumpable: no process of the same user can trace it or read its memory,
    environment, descriptors and maps below /proc. Raises OSError when the kernel does not do it.
    """
    _set_dumpable(0)


def show_process() -> None:
    """Undoes `hide_process`: the process owns its files below /proc again."""
    _set_dumpable(1)


def is_exposed() -> bool:
    """Whether another process of this user can open a descriptor of this one. A child tries."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.open(f"/proc/{os.getppid()}/fd/{read_fd}", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            os._exit(0)
        finally:
            os._exit(1)
    for fd in (read_fd, write_fd):
        os.close(fd)
    return os.waitpid(pid, 0)[1] != 0


def is_dumpable() -> bool:
    """Whether processes of the same user may look into this one."""
    return _prctl(PR_GET_DUMPABLE, 0) != 0


def gains_no_privileges() -> bool | None:
    """Whether execve(2) grants nothing that this process has not got; None when the kernel does not say."""
    answer = _prctl(PR_GET_NO_NEW_PRIVS, 0)
    return answer == 1 if answer in {0, 1} else None


def _set_dumpable(value: int) -> None:
    if _prctl(PR_SET_DUMPABLE, value) != 0 or is_dumpable() is not bool(value):
        raise OSError(f"prctl(PR_SET_DUMPABLE, {value}) has no effect: the kernel or its seccomp profile refuses it")


def _prctl(option: int, value: int) -> int:
    # Not `ctypes`: importing it takes 3 ms of a start that takes 8, and what it would add is type conversion.
    from _ctypes import call_function, dlopen, dlsym  # noqa: PLC0415

    result: int = call_function(dlsym(dlopen("", os.RTLD_NOW), "prctl"), (option, value, 0, 0, 0))
    return result


def gvisor_signs(proc: str = "/proc") -> list[str]:
    """Where the kernel says that it is gVisor's, of `GVISOR_SIGNS`. `proc`: a folder as /proc.

    On Linux nobody but the kernel and the engine can put a file into /proc.
    """
    names = os.uname()
    signs = {
        "/proc/sentry-meminfo": os.path.exists(f"{proc}/sentry-meminfo"),
        "/proc/cmdline": "-gvisor " in _read(f"{proc}/cmdline"),
        "uname": names.version == GVISOR_BUILD or names.release.endswith("-gvisor"),
    }
    return [sign for sign in GVISOR_SIGNS if signs[sign]]


def is_gvisor() -> bool:
    """Whether the kernel is gVisor's: it says so in more than one place."""
    return len(gvisor_signs()) > 1


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
