"""What the records of a run's end mean. Every outcome is decided here and nowhere else."""

import signal

from skilljail_init.frames import Cause

from skilljaild.limits import Limits
from skilljaild.runs.conversation import Exit
from skilljaild.runs.events import Outcome

__all__ = ["WITH_EXIT_CODE", "decide"]

WITH_EXIT_CODE = frozenset({Outcome.EXITED, Outcome.OOM_KILLED, Outcome.PIDS_LIMIT, Outcome.DISK_LIMIT})
"""The outcomes of scripts that ended by themselves; of all others an exit code says nothing."""

_BY_CAUSE = {
    Cause.WALL_TIMEOUT: Outcome.WALL_TIMEOUT,
    Cause.CPU_TIMEOUT: Outcome.CPU_TIMEOUT,
    Cause.OUTPUT_LIMIT: Outcome.OUTPUT_LIMIT,
    Cause.PIDS_STORM: Outcome.PIDS_LIMIT,
    Cause.PIDS_LIMIT: Outcome.PIDS_LIMIT,
    Cause.DISK_LIMIT: Outcome.DISK_LIMIT,
    Cause.CANCELLED: Outcome.CANCELLED,
}


def decide(end: Exit, limits: Limits, *, engine_oom: bool) -> tuple[Outcome, str]:
    """The outcome of a script that ended, and a sentence about it.

    `engine_oom`: the engine recorded an out-of-memory kill in the sandbox. What init did itself comes first; then,
    for a script that did not end well, what the kernel recorded; then the script's own status.
    """
    outcome = _BY_CAUSE.get(end.cause)
    if outcome is None:
        failed = end.exit_code != 0
        outcome = (failed and _recorded(end, engine_oom=engine_oom)) or (
            Outcome.EXITED if end.cause is Cause.EXITED else Outcome.SIGNALED
        )
    return outcome, _sentence(outcome, end, limits)


def _recorded(end: Exit, *, engine_oom: bool) -> Outcome | None:
    if end.oom_kills or engine_oom:
        return Outcome.OOM_KILLED
    if end.pids_limit_hits:
        return Outcome.PIDS_LIMIT
    if end.disk_full:
        return Outcome.DISK_LIMIT
    return None


def _sentence(outcome: Outcome, end: Exit, limits: Limits) -> str:
    match outcome:
        case Outcome.EXITED:
            return f"The script exited with code {end.exit_code}."
        case Outcome.SIGNALED:
            # The kernel keeps no record of who sent SIGXFSZ, and a script can send it to itself.
            hint = " A file may have grown to the limit of disk_bytes." if end.signal == signal.SIGXFSZ else ""
            return f"The script was ended by {_signal_name(end.signal)}.{hint}"
        case Outcome.WALL_TIMEOUT:
            return f"The script ran longer than {limits.wall_seconds:g} s (wall_time) and was killed."
        case Outcome.CPU_TIMEOUT:
            return f"The script used more than {limits.cpu_seconds:g} s of CPU (cpu_time) and was killed."
        case Outcome.OOM_KILLED:
            return f"The script needed more memory than {limits.memory_bytes:,} bytes (memory_bytes)."
        case Outcome.PIDS_LIMIT:
            return f"The script needed more than {limits.pids} processes and threads (pids)."
        case Outcome.DISK_LIMIT:
            return (
                f"The script filled the work directory: {limits.disk_bytes:,} bytes (disk_bytes), "
                f"{limits.disk_inodes:,} files (disk_inodes)."
            )
        case Outcome.OUTPUT_LIMIT:
            return f"The script wrote more than {limits.output_bytes:,} bytes (output_bytes) and was killed."
        case _:
            return "The run was cancelled."


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"
