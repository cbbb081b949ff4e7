"""What the records of a run's end mean."""

import dataclasses
import itertools
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljail_init.frames import Cause
from skilljaild.runs.conversation import Exit
from skilljaild.runs.events import Outcome
from skilljaild.runs.outcome import WITH_EXIT_CODE, decide

from .facts import LIMITS


def end(cause: Cause, exit_code: int | None = None, number: int | None = None, **records: Any) -> Exit:
    """The end of a script with the kernel's records."""
    plain = Exit(cause, exit_code, number, 0.5, 0.25, 1_000, 0, 0, disk_full=False, output_truncated=False)
    return dataclasses.replace(plain, **records)


def exited(code: int, **records: Any) -> Exit:
    """A script that ended by itself."""
    return end(Cause.EXITED, code, **records)


def signaled(number: int, **records: Any) -> Exit:
    """A script that a signal ended."""
    return end(Cause.SIGNALED, None, number, **records)


EVERY_RECORD: dict[str, Any] = {"oom_kills": 3, "pids_limit_hits": 3, "disk_full": True}
OOM = "The script needed more memory than 268,435,456 bytes (memory_bytes)."
PIDS = "The script needed more than 64 processes and threads (pids)."
DISK = "The script filled the work directory: 67,108,864 bytes (disk_bytes), 1,000 files (disk_inodes)."
CPU = "The script used more than 5 s of CPU (cpu_time) and was killed."
WALL = "The script ran longer than 10 s (wall_time) and was killed."
OUTPUT = "The script wrote more than 1,000 bytes (output_bytes) and was killed."

TABLE = [
    # What the script itself said, when no limit explains it.
    (exited(0), False, Outcome.EXITED, "The script exited with code 0."),
    (exited(3), False, Outcome.EXITED, "The script exited with code 3."),
    (exited(137), False, Outcome.EXITED, "The script exited with code 137."),
    (exited(255), False, Outcome.EXITED, "The script exited with code 255."),
    (signaled(signal.SIGSEGV), False, Outcome.SIGNALED, "The script was ended by SIGSEGV."),
    (signaled(signal.SIGKILL), False, Outcome.SIGNALED, "The script was ended by SIGKILL."),
    (signaled(40), False, Outcome.SIGNALED, "The script was ended by signal 40."),
    # A script that copes with its limits and ends well has ended well.
    (exited(0, **EVERY_RECORD), True, Outcome.EXITED, "The script exited with code 0."),
    # The kernel's records, each alone, whether the script gave up or was killed.
    (exited(1, oom_kills=1), False, Outcome.OOM_KILLED, OOM),
    (signaled(9, oom_kills=1), False, Outcome.OOM_KILLED, OOM),
    (signaled(9), True, Outcome.OOM_KILLED, OOM),
    (signaled(9, oom_kills=None), True, Outcome.OOM_KILLED, OOM),
    (exited(1, pids_limit_hits=1), False, Outcome.PIDS_LIMIT, PIDS),
    (signaled(6, pids_limit_hits=1), False, Outcome.PIDS_LIMIT, PIDS),
    (exited(1, disk_full=True), False, Outcome.DISK_LIMIT, DISK),
    # A signal is no record: the script may have sent it to itself.
    (
        signaled(signal.SIGXFSZ),
        False,
        Outcome.SIGNALED,
        "The script was ended by SIGXFSZ. A file may have grown to the limit of disk_bytes.",
    ),
    (signaled(signal.SIGXCPU), False, Outcome.SIGNALED, "The script was ended by SIGXCPU."),
    (signaled(signal.SIGXFSZ, disk_full=True), False, Outcome.DISK_LIMIT, DISK),
    # Where several records are there: memory, then processes, then disk.
    (exited(1, **EVERY_RECORD), False, Outcome.OOM_KILLED, OOM),
    (exited(1, pids_limit_hits=1, disk_full=True), False, Outcome.PIDS_LIMIT, PIDS),
    # A kernel that does not tell is not taken for one that recorded something.
    (signaled(9, oom_kills=None, pids_limit_hits=None), False, Outcome.SIGNALED, "The script was ended by SIGKILL."),
    (exited(1, oom_kills=None, pids_limit_hits=None), False, Outcome.EXITED, "The script exited with code 1."),
    # What init did itself comes first, whatever else was recorded and however the script ended meanwhile.
    *(
        (end(cause, code, number, **records), engine_oom, outcome, sentence)
        for (cause, outcome, sentence), (code, number), records, engine_oom in itertools.product(
            [
                (Cause.WALL_TIMEOUT, Outcome.WALL_TIMEOUT, WALL),
                (Cause.CPU_TIMEOUT, Outcome.CPU_TIMEOUT, CPU),
                (Cause.OUTPUT_LIMIT, Outcome.OUTPUT_LIMIT, OUTPUT),
                (Cause.PIDS_STORM, Outcome.PIDS_LIMIT, PIDS),
                (Cause.PIDS_LIMIT, Outcome.PIDS_LIMIT, PIDS),
                (Cause.DISK_LIMIT, Outcome.DISK_LIMIT, DISK),
                (Cause.CANCELLED, Outcome.CANCELLED, "The run was cancelled."),
            ],
            [(None, 9), (0, None)],
            [{}, EVERY_RECORD],
            [False, True],
        )
    ),
]


@pytest.mark.parametrize(("recorded", "engine_oom", "outcome", "sentence"), TABLE)
def test_the_outcome_is_read_from_the_records(
    recorded: Exit, engine_oom: bool, outcome: Outcome, sentence: str
) -> None:
    assert decide(recorded, LIMITS, engine_oom=engine_oom) == (outcome, sentence)


EXITS = st.one_of(
    st.builds(exited, st.integers(0, 255)),
    st.builds(signaled, st.integers(1, 64)),
    st.builds(end, st.sampled_from(list(Cause)[2:]), st.none(), st.just(9)),
)
RECORDS = st.fixed_dictionaries(
    {
        "oom_kills": st.one_of(st.none(), st.integers(0, 2)),
        "pids_limit_hits": st.one_of(st.none(), st.integers(0, 2)),
        "disk_full": st.booleans(),
    }
)


@given(EXITS, RECORDS, st.booleans())
def test_every_end_has_an_outcome_of_its_own_run(recorded: Exit, records: dict[str, Any], engine_oom: bool) -> None:
    """What ends a daemon, a sandbox or a call is never read from a script's end; nobody is accused without a record."""
    recorded = dataclasses.replace(recorded, **records)
    outcome, sentence = decide(recorded, LIMITS, engine_oom=engine_oom)
    assert outcome not in {
        Outcome.CLIENT_DISCONNECTED,
        Outcome.SHUTDOWN,
        Outcome.START_FAILED,
        Outcome.SANDBOX_ERROR,
    }
    assert sentence.endswith(".")
    if recorded.cause is Cause.EXITED and recorded.exit_code == 0:
        assert outcome is Outcome.EXITED
    if outcome is Outcome.OOM_KILLED:
        assert recorded.oom_kills or engine_oom
    if outcome is Outcome.PIDS_LIMIT:
        assert recorded.pids_limit_hits or recorded.cause in {Cause.PIDS_STORM, Cause.PIDS_LIMIT}
    if outcome is Outcome.DISK_LIMIT:
        assert recorded.disk_full or recorded.cause is Cause.DISK_LIMIT
    if recorded.exit_code is not None:
        assert outcome in WITH_EXIT_CODE


def test_outcomes_with_an_exit_code_are_those_of_the_contract() -> None:
    assert {Outcome.EXITED, Outcome.OOM_KILLED, Outcome.PIDS_LIMIT, Outcome.DISK_LIMIT} == WITH_EXIT_CODE
