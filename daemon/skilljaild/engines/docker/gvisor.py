"""What a container on gVisor needs of Docker, and what its runtime must be started with.

Whether a sandbox is on gVisor is seen from inside of it (`runs.level`). Here the engine's own words are only a hint: a
runtime that is taken for gVisor and is none fails the checks from inside, whose process limit is then too wide.
"""

import dataclasses
import errno
import functools
import json
import pathlib
import stat
from typing import Any

from skilljaild.engines.base import SandboxSpec
from skilljaild.engines.floor import Floor
from skilljaild.numbers import at_most

__all__ = ["TMP", "argument_faults", "held_limits", "host_pids", "in_gvisors_terms", "is_gvisor"]

TMP = "/tmp"  # noqa: S108 - gVisor's choice
"""Where gVisor mounts a tmpfs without any cap, over our link into the work directory, unless it is told of another."""
PIDS_BASE = 256
"""Processes and threads of the sentry and its gofer by themselves: about 40 when idle."""
PIDS_FACTOR = 32
"""And for each process or thread of the sandbox: up to 19 were seen. A sentry that cannot have one ends, and with it
the sandbox."""


def is_gvisor(info: dict[str, Any], runtime: str) -> bool:
    """Whether the engine calls a runtime gVisor's. `info`: of `GET /info`; `runtime`: empty means the default."""
    name = runtime or str(info.get("DefaultRuntime") or "")
    known = _known(info, name)
    program = pathlib.PurePath(str(known.get("path") or "")).name
    return any(word.startswith(_NAMES) for word in (name, program, str(known.get("runtimeType") or "")))


@functools.cache
def in_gvisors_terms(floor: Floor) -> Floor:
    """The floor with its system-call filter in words that gVisor reads as they are meant.

    Whatever a profile says, gVisor answers a refused call with EPERM; but a C library goes over to an older call only
    on ENOSYS, and without that no thread can be started (clone3). SCMP_ACT_TRACE gives ENOSYS where nobody traces, and
    nobody can: the same filter refuses ptrace.

    Older releases let everybody make device nodes, which lead to nothing but the sentry's own; they are refused, too.

    Linux drops what its own processes send to a pid namespace's first one, gVisor delivers it. So the calls that would
    send something to init are refused, with rules that come first because gVisor follows the first that fits.

    A call that the floor answers with success and does not do (fsync) is let through: EPERM would break programs, and
    it reaches the sentry first. No other call is allowed that was not.
    """
    profile = json.loads(floor.seccomp)
    profile["syscalls"] = [*_init_shield(), *_no_devices(), *(_in_its_answers(rule) for rule in profile["syscalls"])]
    if profile.get("defaultErrnoRet") == errno.ENOSYS and profile["defaultAction"] == "SCMP_ACT_ERRNO":
        del profile["defaultErrnoRet"]
        profile["defaultAction"] = "SCMP_ACT_TRACE"
    return dataclasses.replace(floor, seccomp=json.dumps(profile, separators=(",", ":")))


_INT = 0xFFFF_FFFF
"""A pid is an int: the upper half of its register does not count."""
_F_SETOWN, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 15, 0x8901, 0x8902


def _init_shield() -> list[dict[str, Any]]:
    """Rules that refuse each way to send init a signal, or to have the kernel send it one."""
    first, its_group = 1, _INT  # -1
    refused: list[tuple[str, dict[int, int]]] = [
        *((name, {0: first}) for name in ("kill", "tkill", "rt_sigqueueinfo", "pidfd_open")),
        *((name, {position: first}) for name in ("tgkill", "rt_tgsigqueueinfo") for position in (0, 1)),
        *(("fcntl", {1: _F_SETOWN, 2: owner}) for owner in (first, its_group)),
        # Who is meant is behind a pointer, where no filter can look.
        ("fcntl", {1: _F_SETOWN_EX}),
        *(("ioctl", {1: request}) for request in (_FIOSETOWN, _SIOCSPGRP)),
    ]
    return [_refusal(name, dict.fromkeys(arguments, _INT), arguments) for name, arguments in refused]


def _no_devices() -> list[dict[str, Any]]:
    return [
        _refusal(name, {position: stat.S_IFMT(_INT)}, {position: kind})
        for name, position in (("mknod", 1), ("mknodat", 2))
        for kind in (stat.S_IFCHR, stat.S_IFBLK)
    ]


def _refusal(name: str, masks: dict[int, int], values: dict[int, int]) -> dict[str, Any]:
    """A rule for calls whose arguments, as far as the masks go, have these values."""
    arguments = [
        {"index": index, "value": masks[index], "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
        for index, value in values.items()
    ]
    return {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM, "args": arguments}


def _in_its_answers(rule: dict[str, Any]) -> dict[str, Any]:
    if rule["action"] == "SCMP_ACT_ERRNO" and rule.get("errnoRet") == 0:
        return {name: value for name, value in rule.items() if name != "errnoRet"} | {"action": "SCMP_ACT_ALLOW"}
    if rule["action"] != "SCMP_ACT_ERRNO" or rule.get("errnoRet") != errno.ENOSYS:
        return rule
    return {name: value for name, value in rule.items() if name != "errnoRet"} | {"action": "SCMP_ACT_TRACE"}


def host_pids(pids: int) -> int:
    """The limit of the host's control group, which holds the sentry's own threads as well as the script's.

    It is there for the host's sake; the sandbox's own limit is counted inside, long before this one is reached.
    """
    return PIDS_BASE + PIDS_FACTOR * pids


def held_limits(accounts: dict[str, Any], spec: SandboxSpec, pids: int) -> dict[str, bool]:
    """Each limit that the host's control group of a running sandbox has, and whether it is the one asked for.

    `accounts`: of `GET /containers/…/stats`; `pids`: what was asked for. Without a group of its own a sandbox has the
    limits of the whole host, or none.
    """
    memory, processes = accounts.get("memory_stats") or {}, accounts.get("pids_stats") or {}
    return {
        "memory limit": at_most(memory.get("limit"), spec.limits.memory_bytes),
        "pids limit": at_most(processes.get("limit"), pids, slack=0),
    }


def argument_faults(info: dict[str, Any], runtime: str) -> list[str]:
    """What is wrong with the arguments that the engine starts gVisor with, each with its mend.

    An engine that keeps them in a file of the runtime's own tells nothing here; then the checks from inside do.
    """
    known = _known(info, runtime or str(info.get("DefaultRuntime") or ""))
    if not known.get("path"):
        return []
    flags = dict(_flag(str(one)) for one in known.get("runtimeArgs") or [])
    faults = [mend for name, mend in _HARMFUL.items() if flags.get(name, "false") not in _OFF]
    if flags.get("network") == "host":
        faults.append("gVisor's network: with --network=host the host's kernel serves sockets; use --network=none")
    if flags.get("oci-seccomp", "false") in _OFF:
        faults.append("system-call filter on gVisor: give the runtime the argument --oci-seccomp")
    return faults


_NAMES = ("runsc", "containerd-shim-runsc", "io.containerd.runsc")
_OFF = {"false", "0", "f", "F", "False", "FALSE", "none"}
_HARMFUL = {
    "ignore-cgroups": "limits on gVisor: take --ignore-cgroups from the runtime's arguments, nothing would hold them",
    "host-uds": "gVisor without the host's sockets: take --host-uds from the runtime's arguments",
    "fsgofer-host-uds": "gVisor without the host's sockets: take --fsgofer-host-uds from the runtime's arguments",
    "strace": "gVisor without logs: take --strace from the runtime's arguments, it writes down what scripts do",
    "log-packets": "gVisor without logs: take --log-packets from the runtime's arguments",
}


def _flag(argument: str) -> tuple[str, str]:
    name, _, value = argument.lstrip("-").partition("=")
    return name, value or "true"


def _known(info: dict[str, Any], name: str) -> dict[str, Any]:
    known = (info.get("Runtimes") or {}).get(name)
    return known if isinstance(known, dict) else {}
