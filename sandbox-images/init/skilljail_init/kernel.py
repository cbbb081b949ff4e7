"""What init asks of the kernel through prctl(2), which the standard library does not offer."""

import os

__all__ = ["gains_no_privileges", "hide_process", "is_dumpable", "show_process"]

PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_GET_NO_NEW_PRIVS = 39


def hide_process() -> None:
    """Makes this process undumpable: no process of the same user can trace it or read its memory,
    environment, descriptors and maps below /proc. Raises OSError when the kernel does not do it.
    """
    _set_dumpable(0)


def show_process() -> None:
    """Undoes `hide_process`: the process owns its files below /proc again."""
    _set_dumpable(1)


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
