"""One script: what it gets and what comes back."""

# ruff: noqa: S101, S108

import json
import os
import pathlib
import resource
import signal
import sys
from typing import Any

import pytest

from .driver import ENV, InitProcess, Result, python

FACTS = """
import json, os, resource, signal
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "fds": sorted(os.listdir("/proc/self/fd"), key=int),
    "is_session_leader": os.getsid(0) == os.getpid() == os.getpgrp(),
    "ignored": int(status["SigIgn"], 16), "blocked": int(status["SigBlk"], 16),
    "caught": int(status["SigCgt"], 16),
    "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "file_bytes": resource.getrlimit(resource.RLIMIT_FSIZE),
    "core_bytes": resource.getrlimit(resource.RLIMIT_CORE),
    "address_space": resource.getrlimit(resource.RLIMIT_AS),
    "oom_score_adj": int(open("/proc/self/oom_score_adj").read()),
    "umask": os.umask(0),
}))
"""


def plain(result: Result) -> tuple[bytes, bytes, tuple[str, int | None, int | None]]:
    """Output and end."""
    return result.stdout, result.stderr, result.ended


def test_output_and_exit_code_come_back(init: InitProcess) -> None:
    source = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    result = init.run(python(source))
    assert plain(result) == (b"out\n", b"err\n", ("exited", 3, None))
    assert result.exit["output_truncated"] is False
    assert result.exit["disk_full"] is False
    assert 0 < result.exit["wall_seconds"] <= result.seconds
    assert 0 < result.exit["cpu_seconds"] < 5
    assert set(result.exit) == {
        "cause", "exit_code", "signal", "wall_seconds", "cpu_seconds", "peak_memory_bytes", "oom_kills",
        "pids_limit_hits", "disk_full", "output_truncated",
    }  # fmt: skip
    assert (result.artifacts, result.skipped, result.skipped_omitted) == ({}, [], 0)


def test_a_script_that_says_nothing_succeeds(init: InitProcess) -> None:
    assert plain(init.run(["/bin/true"])) == (b"", b"", ("exited", 0, None))


def test_arguments_arrive_literally(init: InitProcess) -> None:
    arguments = ["", " ", "two words", "'\"`$(id);&|<>*?~", "line\nbreak", "größe 漢字 🙂", "-x", "--", "\\", "\x01"]
    result = init.run(python("import sys, json; print(json.dumps(sys.argv[1:]))", *arguments))
    assert json.loads(result.stdout) == arguments


def test_the_environment_is_exactly_what_was_given(init: InitProcess) -> None:
    env = {"PATH": ENV["PATH"], "A": "", "ü": "ä\n=b", "PYTHONPATH": "/nowhere"}
    result = init.run(["/usr/bin/env", "-0"], env=env)
    assert dict(item.split("=", 1) for item in result.stdout.decode().split("\0")[:-1]) == env


def test_an_empty_environment_is_possible(init: InitProcess) -> None:
    assert init.run(["env"], env={}).stdout == b""


@pytest.mark.parametrize("size", [1, 65_536, 3_000_000])
def test_standard_input_arrives_whole(init: InitProcess, size: int) -> None:
    content = os.urandom(size)
    result = init.run(["cat"], stdin=content, output_bytes=size)
    assert plain(result) == (content, b"", ("exited", 0, None))


def test_without_input_standard_input_is_at_its_end(init: InitProcess) -> None:
    assert plain(init.run(["cat"])) == (b"", b"", ("exited", 0, None))


def test_input_that_nobody_reads_is_no_error(init: InitProcess) -> None:
    source = "import os, time; os.close(0); time.sleep(0.1); print('done')"
    assert plain(init.run(python(source), stdin=b"x" * 1_000_000)) == (b"done\n", b"", ("exited", 0, None))
    assert plain(init.run(["true"], stdin=b"x" * 1_000_000)) == (b"", b"", ("exited", 0, None))


def test_the_working_directory_is_below_the_skill_root(init: InitProcess) -> None:
    init.stage({"a/b/x": b""})
    assert init.run(["pwd"], cwd="").stdout.decode().strip() == str(init.skill)
    assert init.run(["pwd"], cwd="a/b").stdout.decode().strip() == str(init.skill / "a" / "b")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ])
def test_a_signal_that_ends_the_script_is_reported(init: InitProcess, number: signal.Signals) -> None:
    result = init.run(["sh", "-c", f"echo before; kill -{int(number)} $$; echo after"])
    assert plain(result) == (b"before\n", b"", ("signaled", None, number))


@pytest.mark.parametrize("code", [0, 1, 70, 126, 127, 137, 255])
def test_every_exit_code_is_the_scripts_own(init: InitProcess, code: int) -> None:
    assert init.run(["sh", "-c", f"exit {code}"]).ended == ("exited", code, None)


LIBC_SIGNALS = 0b11 << 31
"""32 and 33 are the C library's own. Some programs that start the tests, make among them, leave them ignored, and no
program may change that."""


def test_the_script_has_three_descriptors_default_signals_and_its_limits(init: InitProcess) -> None:
    result = init.run(["sh", "-c", "exec ls -l /proc/self/fd"])
    names = [line.split()[-3] for line in result.stdout.decode().splitlines() if "->" in line]
    assert names == ["0", "1", "2", "3"]  # the last is the listing's own
    facts = json.loads(init.run(python(FACTS), open_files=77, disk_bytes=12_345).stdout)
    python_ignores = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert facts["ignored"] & ~LIBC_SIGNALS == python_ignores
    assert facts["caught"] == 1 << signal.SIGINT - 1
    assert facts["blocked"] == 0
    assert facts["is_session_leader"] is True
    assert facts["fds"] == ["0", "1", "2", "3"]
    assert facts["open_files"] == [77, 77]
    assert facts["file_bytes"] == [12_345, 12_345]
    assert facts["core_bytes"] == [0, 0]
    assert facts["address_space"] == list(resource.getrlimit(resource.RLIMIT_AS))
    assert facts["oom_score_adj"] == 1000
    assert facts["umask"] == 0o022


def test_no_signal_is_ignored_from_the_start(init: InitProcess) -> None:
    result = init.run(["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"])
    masks = [int(line.split()[1], 16) for line in result.stdout.splitlines()]
    assert [mask & ~LIBC_SIGNALS for mask in masks] == [0, 0]


def test_a_file_that_reaches_the_size_limit_ends_the_script(init: InitProcess) -> None:
    result = init.run(["sh", "-c", "exec head -c 100000 /dev/zero >file"], disk_bytes=1_000)
    assert result.ended == ("signaled", None, signal.SIGXFSZ)
    assert (init.skill / "file").stat().st_size == 1_000


def test_several_runs_share_one_init_and_nothing_else(init: InitProcess) -> None:
    for number in range(5):
        result = init.run(["sh", "-c", f"cat; echo {number} >&2; exit {number}"], stdin=b"%d" % number)
        assert plain(result) == (b"%d" % number, b"%d\n" % number, ("exited", number, None))
    init.close()
    assert init.end() == (None, 0)


def test_init_keeps_no_descriptor_of_a_run(init: InitProcess) -> None:
    # The smallest of many: init closes the script's ends of the pipes when the script may run already.
    count = python(
        "import os, time\nseen = []\n"
        "for _ in range(20): seen.append(len(os.listdir('/proc/1/fd'))); time.sleep(0.05)\nprint(min(seen))"
    )
    first = init.run(count, stdin=b"x").stdout
    for _ in range(3):
        init.run(["no such program"], stdin=b"x")
        init.run(["sh", "-c", "echo x >file"], stdin=b"x", artifact_patterns=["**"])
    assert init.run(count, stdin=b"x").stdout == first


@pytest.mark.parametrize(
    ("argv", "changes", "number", "message"),
    [
        (["no-such-program"], {}, 2, "cannot execute 'no-such-program': No such file or directory"),
        (["/no/such/program"], {}, 2, "cannot execute '/no/such/program': No such file or directory"),
        (["/etc/passwd"], {}, 13, "cannot execute '/etc/passwd': Permission denied"),
        (["passwd"], {"env": {"PATH": "/nowhere:/etc/passwd:/etc"}}, 13, "cannot execute 'passwd': Permission denied"),
        (["true"], {"env": {"PATH": ""}}, 2, "cannot execute 'true': No such file or directory"),
        (["true"], {"cwd": "nowhere"}, 2, "cannot enter the directory 'nowhere': No such file or directory"),
        (["true", "x" * 131_072], {}, 7, "cannot execute 'true': Argument list too long"),
        (
            ["true"],
            {"open_files": 1 << 40},
            22,
            "cannot set the limits: the sandbox's own limit of {} is below 1099511627776: raise it where the sandbox"
            " is made",
        ),
    ],
)
def test_a_script_that_cannot_start_is_told_from_one_that_fails(
    init: InitProcess, argv: list[str], changes: dict[str, Any], number: int, message: str
) -> None:
    result = init.run(argv, **changes)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert result.failed == {"errno": number, "message": message.format(hard)}
    assert init.run(["true"]).ended == ("exited", 0, None)


def test_a_file_without_shebang_is_not_given_to_a_shell(init: InitProcess) -> None:
    init.stage({"script": b"echo oops\n"}, executable=("script",))
    result = init.run(["./script"])
    assert result.failed == {"errno": 8, "message": "cannot execute './script': Exec format error"}


def test_the_program_is_looked_up_in_the_scripts_own_path(init: InitProcess) -> None:
    init.stage(
        {"bin/tool": b"#!/bin/sh\necho mine\n", "tool": b"#!/bin/sh\necho wrong\n"}, executable=("bin/tool", "tool")
    )
    result = init.run(["tool"], env={"PATH": f":/nowhere:{init.skill}/bin"})
    assert plain(result) == (b"mine\n", b"", ("exited", 0, None))


def test_big_output_on_both_streams_arrives_in_order(init: InitProcess) -> None:
    source = """
import os, threading
def write(fd, letter):
    for number in range(4000):
        os.write(fd, b"%s%07d\\n" % (letter, number))
threads = [threading.Thread(target=write, args=item) for item in ((1, b"o"), (2, b"e"))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    result = init.run(python(source))
    assert result.stdout == b"".join(b"o%07d\n" % number for number in range(4000))
    assert result.stderr == b"".join(b"e%07d\n" % number for number in range(4000))


def test_output_is_bytes(init: InitProcess) -> None:
    content = bytes(range(256)) * 10
    assert init.run(["cat"], stdin=content).stdout == content


def test_a_script_can_use_home_and_temporary_directory(init: InitProcess, tmp_path: pathlib.Path) -> None:
    source = "import os; [open(f'{os.environ[name]}/x', 'w').close() for name in ('HOME', 'TMPDIR')]"
    env = ENV | {"HOME": f"{tmp_path}/home", "TMPDIR": f"{tmp_path}/tmp"}
    assert plain(init.run([sys.executable, "-c", source], env=env)) == (b"", b"", ("exited", 0, None))
    assert (tmp_path / "home" / "x").exists()
    assert (tmp_path / "tmp" / "x").exists()
