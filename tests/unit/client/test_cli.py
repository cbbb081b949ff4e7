"""The command `skilljail`, as a process."""

import base64
import dataclasses
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import time

import grpc
import pytest
from attack_table import Seen
from skilljail import Outcome
from skilljail.cli import main
from skilljail.cli.run import _status as run_status
from skilljail.cli.terminal import harmless
from skilljail.v1 import posture_pb2, run_pb2

from .fake_daemon import FakeDaemon, Refusal, decision, events, finished, posture, queued, started
from .test_artifacts import result_with
from .test_stream import endless

COMMAND = [
    sys.executable,
    "-c",
    # What a shell has put into the background ignores interrupts, and so does all that it starts.
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from skilljail.cli import main; sys.exit(main())",
]


def skilljail(
    fake: FakeDaemon | None, *arguments: str, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    address = {"SKILLJAIL_ADDRESS": fake.address} if fake else {}
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        env={**os.environ, **address, **environment},
        timeout=60,
    )


def test_output_is_passed_on_as_it_is_and_the_status_is_the_scripts(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = lambda *_: events(b"\x1b[31m\xff\r\n", b"err\n", exit_code=7)
    done = skilljail(fake, "run", str(skill), "scripts/run.py", "--", "--json", "-h", "a b", "")
    assert (done.returncode, done.stdout) == (7, b"\x1b[31m\xff\r\n")
    assert done.stderr == b"err\nskilljail: EXITED: the script ended with status 7\n"
    assert list(fake.requests[-1].argv) == ["--json", "-h", "a b", ""]


def test_success_adds_nothing(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = lambda *_: events(b"out")
    done = skilljail(fake, "run", str(skill), "./scripts/run.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out", b"")


@pytest.mark.parametrize(
    ("outcome", "exit_code", "signal_number", "status"),
    [
        ("WALL_TIMEOUT", None, 9, 124),
        ("CPU_TIMEOUT", None, 9, 124),
        ("OOM_KILLED", 1, None, 137),
        ("PIDS_LIMIT", 1, None, 122),
        ("DISK_LIMIT", 1, None, 122),
        ("OUTPUT_LIMIT", None, None, 122),
        ("SIGNALED", None, 11, 139),
        ("START_FAILED", None, None, 126),
        ("CANCELLED", None, None, 125),
        ("SHUTDOWN", None, None, 125),
        ("SANDBOX_ERROR", None, None, 125),
    ],
)
def test_every_outcome_has_its_status_and_its_line(
    fake: FakeDaemon, skill: pathlib.Path, outcome: str, exit_code: int | None, signal_number: int | None, status: int
) -> None:
    number = run_pb2.Outcome.Value(f"OUTCOME_{outcome}")
    fake.script = lambda *_: [
        queued(),
        started(),
        finished(number, exit_code, signal=signal_number, message="what happened"),
    ]
    done = skilljail(fake, "run", str(skill), "scripts/run.py")
    assert (done.returncode, done.stdout) == (status, b"")
    assert done.stderr.decode() == f"skilljail: {outcome}: what happened\n"


def test_what_could_not_run_ends_with_125_and_the_reason(fake: FakeDaemon, skill: pathlib.Path) -> None:
    def refuse(*_: object) -> None:
        raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, "INTERPRETER_UNAVAILABLE", "no image; build it")

    fake.script = refuse  # type: ignore[assignment]
    done = skilljail(fake, "run", str(skill), "scripts/run.py", "--json")
    assert (done.returncode, done.stderr) == (125, b"skilljail: no image; build it\n")
    assert json.loads(done.stdout) == {
        "error": {
            "reason": "INTERPRETER_UNAVAILABLE",
            "message": "no image; build it",
            "metadata": {},
            "violations": [],
            "retry_after_seconds": None,
        }
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scripts/run.py", "--value", "1"], "unknown arguments: --value 1; a script's arguments come after --"),
        (["../x.py"], "script '../x.py' has '..' in it"),
        (["scripts/run.py", "--timeout", "soon"], "'soon' is not a duration such as 30s or 2m"),
        (["scripts/run.py", "--memory", "0"], "'0' is not a size such as 256MiB"),
        (["scripts/run.py", "--env", "NOT_SET_HERE"], "there is no such variable here to pass on"),
        (["scripts/run.py", "--label", "x"], "write NAME=VALUE"),
        (["scripts/run.py", "--stdin", "/absent"], "--stdin /absent: No such file"),
        (["scripts/run.py", "--input", "/absent"], "'/absent' cannot be read"),
        (["scripts/run.py", "--artifact", "*.csv"], "add --artifacts DIR"),
        (["run.py"], "did you mean 'scripts/run.py'?"),
        (["scripts/"], "that is a folder"),
        ([], "the following arguments are required: SCRIPT"),
    ],
)
def test_mistakes_end_with_125_before_anything_runs(
    fake: FakeDaemon, skill: pathlib.Path, arguments: list[str], message: str
) -> None:
    done = skilljail(fake, "run", str(skill), *arguments)
    assert (done.returncode, done.stdout) == (125, b"")
    assert message in done.stderr.decode()
    assert fake.requests == []


def test_options_reach_the_request(fake: FakeDaemon, skill: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "data.csv").write_text("1,2\n")
    arguments = ["--timeout", "2m", "--cpu-time", "500ms", "--memory", "256MiB", "--cpus", "0.5", "--pids", "20"]
    arguments += ["--disk", "1MB", "--output-limit", "64k", "--env", "A=b=c", "--env", "PASSED", "--label", "team=a"]
    arguments += ["--input", str(tmp_path / "data.csv"), "--input", f"{tmp_path / 'data.csv'}=in/x.csv"]
    arguments += ["--stdin", "-", "--cwd", "./scripts/", "--interpreter", "bash"]
    arguments += ["--artifact", "*.txt", "--artifacts", str(tmp_path / "made")]
    done = skilljail(fake, "run", str(skill), "scripts/run.py", *arguments, stdin=b"in\xff", PASSED="on")
    assert (done.returncode, done.stderr) == (0, b"skilljail: no new or changed file matches '*.txt'\n")
    request = fake.requests[-1]
    assert dict(request.env) == {"A": "b=c", "PASSED": "on"}
    assert (request.stdin, request.working_directory, request.interpreter) == (b"in\xff", "scripts", "bash")
    assert [(one.path, one.content) for one in request.files] == [("data.csv", b"1,2\n"), ("in/x.csv", b"1,2\n")]
    limits = request.limits
    assert (limits.wall_time.seconds, limits.cpu_time.nanos) == (120, 500_000_000)
    assert (limits.memory_bytes, limits.cpus, limits.pids) == (256 * 1024 * 1024, 0.5, 20)
    assert (limits.disk_bytes, limits.output_bytes) == (1_000_000, 65_536)
    assert (dict(request.labels), list(request.artifact_patterns)) == ({"team": "a"}, ["*.txt"])


@pytest.mark.parametrize(
    ("arguments", "network", "hosts"),
    [
        ([], 0, []),
        (["--allow-host", "a.com", "--allow-host", "*.b.com"], 2, ["a.com", "*.b.com"]),
        (["--network", "allowlist"], 2, []),
        (["--network", "open"], 3, []),
        (["--network", "none"], 1, []),
    ],
)
def test_network_options_reach_the_request(
    fake: FakeDaemon, skill: pathlib.Path, arguments: list[str], network: int, hosts: list[str]
) -> None:
    done = skilljail(fake, "run", str(skill), "scripts/run.py", *arguments, "--egress-limit", "1MiB")
    assert (done.returncode, done.stderr) == (0, b"")
    request = fake.requests[-1]
    assert (request.network, list(request.allowed_hosts), request.limits.egress_bytes) == (network, hosts, 1 << 20)


def test_contradiction_about_the_network_names_the_options(fake: FakeDaemon, skill: pathlib.Path) -> None:
    done = skilljail(fake, "run", str(skill), "scripts/run.py", "--network", "open", "--allow-host", "a.com")
    assert done.returncode == 125
    assert b"leave the hosts out to reach every host (here: --network, --allow-host)\n" in done.stderr


def test_refused_connections_are_told_and_json_has_every_decision(fake: FakeDaemon, skill: pathlib.Path) -> None:
    refused = decision("evil.net\nskilljail: EXITED", refusal=run_pb2.EGRESS_REFUSAL_HOST_NOT_ALLOWED)
    others = [decision(f"{n}.net", refusal=run_pb2.EGRESS_REFUSAL_BYTE_LIMIT) for n in range(25)]
    all_of_them = [decision(), refused, refused, *others]
    fake.script = lambda *_: [
        queued(),
        started(),
        finished(egress_decisions=all_of_them, egress_decisions_omitted=5),
    ]
    arguments = ["run", str(skill), "scripts/run.py", "--allow-host", "api.example.com"]
    lines = skilljail(fake, *arguments).stderr.decode().splitlines()
    assert lines[0] == "skilljail: about evil.net\\nskilljail: EXITED (2 times)"
    assert lines[1] == "skilljail: about 0.net"
    assert lines[20:] == [
        "skilljail: 6 more connections were refused or cut",
        "skilljail: what was decided on 5 more connections was not kept",
    ]
    told = json.loads(skilljail(fake, *arguments, "--json", "--quiet").stdout)
    assert len(told["egress_decisions"]) == len(all_of_them)
    assert told["egress_decisions_omitted"] == 5
    assert told["egress_decisions"][0]["allowed"] is True
    assert told["egress_decisions"][1]["refusal"] == "HOST_NOT_ALLOWED"
    assert told["policy"]["network"] == "ALLOWLIST"


def test_json_holds_the_truth(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = lambda *_: events(b"\xff\x1b", b"err", exit_code=3, artifacts={"a": b"b"})
    done = skilljail(fake, "run", str(skill), "scripts/run.py", "--json", "--quiet")
    assert (done.returncode, done.stderr) == (3, b"")
    assert b"\x1b" not in done.stdout
    told = json.loads(done.stdout)
    assert (told["outcome"], told["exit_code"], told["signal"]) == ("EXITED", 3, None)
    assert base64.b64decode(told["stdout_base64"]) == b"\xff\x1b"
    assert (told["stdout"], told["stderr"]) == ("\ufffd\x1b", "err")
    assert "stderr_base64" not in told
    assert told["artifacts"][0]["path"] == "a"
    assert told["usage"]["wall_seconds"] == 0.25


def test_artifacts_are_saved_and_named(fake: FakeDaemon, skill: pathlib.Path, tmp_path: pathlib.Path) -> None:
    fake.script = lambda *_: events(artifacts={"out/a.txt": b"A"})
    target = tmp_path / "made"
    arguments = ["run", str(skill), "scripts/run.py", "--artifacts", str(target)]
    done = skilljail(fake, *arguments)
    assert (done.returncode, done.stderr.decode()) == (0, f"skilljail: saved {target}/out/a.txt\n")
    assert (target / "out" / "a.txt").read_bytes() == b"A"
    assert list(fake.requests[-1].artifact_patterns) == ["**/*"]
    again = skilljail(fake, *arguments)
    assert again.returncode == 125
    assert again.stderr.decode() == (
        f"skilljail: the artifact 'out/a.txt' was not saved: '{target}' already has something of that name; choose an "
        "empty directory, or pass overwrite=True (here: --overwrite)\n"
    )
    assert skilljail(fake, *arguments, "--overwrite").returncode == 0


def test_safe_artifacts_are_saved_and_each_refused_one_is_told(
    fake: FakeDaemon, skill: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    fake.script = lambda *_: events(artifacts={"a/.git/config": b"1", "b": b"2", "GIT~1": b"3", "c": b"4"})
    target = tmp_path / "made"
    done = skilljail(fake, "run", str(skill), "scripts/run.py", "--artifacts", str(target), "--json")
    assert done.returncode == 125
    lines = done.stderr.decode().splitlines()
    assert [line.partition(" was not saved: ")[0] for line in lines[:2]] == [
        "skilljail: the artifact 'a/.git/config'",
        "skilljail: the artifact 'GIT~1'",
    ]
    assert lines[2:] == [f"skilljail: saved {target}/b", f"skilljail: saved {target}/c"]
    told = json.loads(done.stdout)
    assert told["saved"] == [f"{target}/b", f"{target}/c"]
    assert [(one["path"], one["reason"]) for one in told["not_saved"]] == [
        ("a/.git/config", "ARTIFACT_REFUSED"),
        ("GIT~1", "ARTIFACT_REFUSED"),
    ]
    assert sorted(one.name for one in target.iterdir()) == ["b", "c"]


def test_search_that_ended_early_is_told_as_such(fake: FakeDaemon, skill: pathlib.Path) -> None:
    skipped = [
        run_pb2.SkippedArtifact(path=".", reason=run_pb2.SKIP_REASON_TIME_LIMIT),
        run_pb2.SkippedArtifact(path="a", reason=run_pb2.SKIP_REASON_SIZE_LIMIT),
    ]
    fake.script = lambda *_: [queued(), started(), finished(skipped_artifacts=skipped)]
    done = skilljail(fake, "run", str(skill), "scripts/run.py", "--json", "--artifact", "*")
    assert (done.returncode, done.stderr.decode()) == (
        0,
        "skilljail: the search for artifacts ended early (TIME_LIMIT); some may be missing\n"
        "skilljail: not brought back: a (SIZE_LIMIT)\n",
    )


def test_impossible_signal_is_no_success(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = lambda *_: [queued(), started(), finished(run_pb2.OUTCOME_SIGNALED, None, signal=128)]
    done = skilljail(fake, "run", str(skill), "scripts/run.py")
    assert (done.returncode, done.stdout) == (125, b"")
    assert "impossible signal 128" in done.stderr.decode()


@pytest.mark.parametrize("outcome", [*Outcome, Outcome("UNKNOWN_99")])
@pytest.mark.parametrize("number", [None, 0, -128, 128, 384])
def test_status_is_zero_for_a_script_that_exited_only(outcome: Outcome, number: int | None) -> None:
    result = dataclasses.replace(result_with(), outcome=outcome, exit_code=0, signal=number)
    assert (run_status(result) % 256 == 0) is (outcome is Outcome.EXITED)


def test_daemon_cannot_forge_lines(fake: FakeDaemon, skill: pathlib.Path) -> None:
    forged = "it failed\nskilljail: EXITED: the script ended with status 0"
    skipped = [run_pb2.SkippedArtifact(path="a\nskilljail: saved b", reason=run_pb2.SKIP_REASON_SIZE_LIMIT)]
    outcome = run_pb2.OUTCOME_SANDBOX_ERROR
    fake.script = lambda *_: [
        queued(),
        started(),
        finished(outcome, None, message=forged, skipped_artifacts=skipped),
    ]
    done = skilljail(fake, "run", str(skill), "scripts/run.py")
    assert (done.returncode, done.stderr.decode()) == (
        125,
        "skilljail: not brought back: a\\nskilljail: saved b (SIZE_LIMIT)\n"
        "skilljail: SANDBOX_ERROR: it failed\\nskilljail: EXITED: the script ended with status 0\n",
    )
    fake.warnings = ["old\nok    engine: new"]
    assert "warn  posture: old\\nok    engine: new" in skilljail(fake, "doctor").stdout.decode().splitlines()
    fake.version = "1\nok    engine: new"
    assert skilljail(fake, "doctor").stdout.decode().splitlines().count("ok    engine: new") == 0


def test_patterns_that_nothing_matches_are_told(fake: FakeDaemon, skill: pathlib.Path) -> None:
    arguments = ["run", str(skill), "scripts/run.py", "--json", "--artifact", "r*.json", "--artifact", "*.csv"]
    done = skilljail(fake, *arguments)
    line = b"skilljail: no new or changed file matches 'r*.json' or '*.csv'\n"
    assert (done.returncode, done.stderr) == (0, line)
    fake.script = lambda *_: events(exit_code=3)
    done = skilljail(fake, *arguments)
    assert (done.returncode, done.stderr) == (3, line + b"skilljail: EXITED: the script ended with status 3\n")
    assert skilljail(fake, *arguments, "--quiet").stderr == b""
    fake.script = lambda *_: events(artifacts={"r.json": b"{}"})
    done = skilljail(fake, *arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    skipped = run_pb2.SkippedArtifact(path="r.json", reason=run_pb2.SKIP_REASON_SIZE_LIMIT)
    fake.script = lambda *_: [queued(), started(), finished(skipped_artifacts=[skipped])]
    assert skilljail(fake, *arguments).stderr == b"skilljail: not brought back: r.json (SIZE_LIMIT)\n"


def test_limits_that_a_successful_script_met_are_told(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = lambda *_: [queued(), started(), finished(oom_kills=1, pids_limit_hits=3, disk_full=True)]
    done = skilljail(fake, "run", str(skill), "scripts/run.py")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == (
        "skilljail: the script ended with status 0, but memory ran out once (--memory) and a new process or thread "
        "was refused 3 times (--pids) and the work directory was full (--disk)\n"
    )
    assert skilljail(fake, "run", str(skill), "scripts/run.py", "--quiet").stderr == b""
    fake.script = lambda *_: [queued(), started(), finished(oom_kills=0, pids_limit_hits=0)]
    assert skilljail(fake, "run", str(skill), "scripts/run.py").stderr == b""


def test_unknown_interpreter_names_the_option(fake: FakeDaemon, skill: pathlib.Path) -> None:
    def refuse(*_: object) -> None:
        raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INTERPRETER_UNKNOWN", "cannot tell what runs it.")

    fake.script = refuse  # type: ignore[assignment]
    done = skilljail(fake, "run", str(skill), "scripts/run.py")
    assert (done.returncode, done.stderr) == (125, b"skilljail: cannot tell what runs it. (here: --interpreter NAME)\n")


def test_interrupt_kills_the_run(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = endless
    process = _start(fake, skill)
    assert process.stdout is not None
    assert process.stdout.read(4) == b"tick"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"skilljail: interrupted; the run was killed\n")
    assert fake.dropped.wait(30)


def test_reader_that_goes_away_kills_the_run(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = endless
    process = _start(fake, skill)
    assert process.stdout is not None
    assert process.stdout.read(4) == b"tick"
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert fake.dropped.wait(30)


def _start(fake: FakeDaemon, skill: pathlib.Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "run", str(skill), "scripts/run.py"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SKILLJAIL_ADDRESS": fake.address},
    )


@pytest.mark.attack(74, "escape sequences on a terminal", expected="shown, not obeyed")
def test_terminal_is_not_obeyed(fake: FakeDaemon, skill: pathlib.Path, seen: Seen) -> None:
    fake.script = lambda *_: events("a\x1b]0;title\x07b\r\nc\rd\té\u202e\u2028".encode(), exit_code=0)
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "run", str(skill), "scripts/run.py"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "SKILLJAIL_ADDRESS": fake.address, "PYTHONIOENCODING": "utf-8"},
        check=False,
        timeout=60,
    )
    os.close(theirs)
    time.sleep(0.1)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert (done.returncode, done.stderr) == (0, b"")
    # The terminal itself makes \r\n of each newline.
    assert shown == "a\\x1b]0;title\\x07b\r\nc\\rd\té\\u202e\\u2028"
    seen("raw" if "\x1b" in shown else "escaped")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("é\n\t", "é\n\t"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800", "\\ud800"),
        ("👩‍💻", "👩‍💻"),
        ("\u200b\ufeff", "\\u200b\\ufeff"),
    ],
)
def test_harmless_text(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_interpreters_are_listed(fake: FakeDaemon) -> None:
    done = skilljail(fake, "interpreters")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == [
        "NAME    VERSION  SUFFIXES  IMAGE",
        "python  3.13.5   .py       skilljail/python sha256:bbbbbbbbbbbb",
        "pwsh    -        .ps1      not available: no image; run `skilljaild images build pwsh`",
    ]
    assert [one["name"] for one in json.loads(skilljail(fake, "interpreters", "--json").stdout)] == ["python", "pwsh"]


def test_absent_daemon_is_named(tmp_path: pathlib.Path) -> None:
    done = skilljail(None, "interpreters", "--address", f"unix:{tmp_path}/absent.sock")
    assert (done.returncode, done.stdout) == (125, b"")
    assert "skilljaild serve" in done.stderr.decode()


def test_doctor_says_what_is_there(fake: FakeDaemon) -> None:
    fake.warnings = ["an old version\x1b[2J"]
    done = skilljail(fake, "doctor")
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("ok    client: skilljail ")
    assert lines[1:] == [
        f"ok    address: {fake.address}, from SKILLJAIL_ADDRESS",
        f"ok    socket: {fake.address.removeprefix('unix:')}",
        "ok    daemon: skilljaild 0.1.0",
        "ok    engine: docker 29.0, runtime runc",
        "ok    network: scripts have none, and the operator grants none",
        "ok    interpreter python: 3.13.5 in skilljail/python",
        "warn  interpreter pwsh: no image; run `skilljaild images build pwsh`",
        "--    self-test: this call is for operators",
        "warn  posture: an old version\\x1b[2J",
    ]
    assert done.returncode == 0


def test_doctor_shows_an_operator_the_posture_and_nothing_twice(fake: FakeDaemon) -> None:
    fake.warnings = ["runc 1.1.5: it leaks; update (CVE-1)"]
    fake.posture = posture()
    done = skilljail(fake, "doctor")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0
    assert lines[-2:] == [
        "ok    self-test python: 2 controls hold, isolation container",
        "warn  posture: runc 1.1.5: it leaks; update (CVE-1)",
    ]
    assert sum("it leaks" in line for line in lines) == 1
    assert fake.calls.count("SelfTest") == 1


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (posture(failing=True), "MISS  self-test python: this does not hold: no bpf (seen: it worked)"),
        (
            posture(isolation_minimum=posture_pb2.ISOLATION_LEVEL_VM),
            "MISS  self-test python: isolation container, and isolation.minimum is vm",
        ),
        (
            posture(images=[posture_pb2.ImageSelfTest(interpreter="node", fault="no space\nok  x")]),
            "MISS  self-test node: it could not be done: no space\\nok  x",
        ),
    ],
)
def test_doctor_names_what_does_not_hold(fake: FakeDaemon, message: posture_pb2.Posture, line: str) -> None:
    fake.posture = message
    done = skilljail(fake, "doctor")
    assert done.returncode == 1
    mend = "`skilljaild doctor` on the daemon's host says what mends it"
    assert f"{line}; {mend}" in done.stdout.decode().splitlines()


def test_doctor_tells_everything_as_json(fake: FakeDaemon) -> None:
    fake.posture = posture(failing=True)
    done = skilljail(fake, "doctor", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert {"mark": "warn", "thing": "posture", "detail": "runc 1.1.5: it leaks; update (CVE-1)"} in told["lines"]
    assert told["posture"]["isolation_level"] == "CONTAINER"
    assert told["posture"]["time"] == "2023-11-14 22:13:20+00:00"
    assert told["posture"]["images"][0]["controls"][1] == {"name": "no bpf", "holds": False, "seen": "it worked"}
    fake.posture = None
    done = skilljail(fake, "doctor", "--json")
    assert (done.returncode, json.loads(done.stdout)["posture"]) == (0, None)


def test_doctor_says_what_is_missing(tmp_path: pathlib.Path) -> None:
    done = skilljail(None, "doctor", "--address", f"unix:{tmp_path}/absent.sock")
    assert done.returncode == 1
    assert "MISS  socket:" in done.stdout.decode()
    assert "MISS  daemon: no skilljail daemon answered at" in done.stdout.decode()


def test_images_hands_over_to_the_command_of_the_daemon() -> None:
    done = skilljail(None, "images", "build", "--help")
    assert done.returncode == 0
    assert done.stdout.decode().startswith("usage: skilljaild images build")


def test_packages_that_are_missing_are_named_with_the_mend(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skilljail.cli.images.missing_packages", lambda: ("docker", "pydantic"))
    assert main(["images", "list"]) == 125
    assert capsys.readouterr().err == (
        "skilljail: images are built by the daemon's command, and it lacks docker, pydantic; install them with "
        "`pip install 'skilljail[daemon]'` (in a checkout: `pip install '.[daemon]'`)\n"
    )


def test_help_says_where_scripts_start(fake: FakeDaemon) -> None:
    text = " ".join(skilljail(fake, "run", "--help").stdout.decode().split())
    assert "default: the skill root itself; the adapter for the Microsoft Agent Framework starts scripts in" in text
    assert "see its start_in" in text


@pytest.mark.parametrize("command", [[], ["run"], ["interpreters"], ["images"], ["doctor"]])
def test_every_command_has_help(command: list[str]) -> None:
    done = skilljail(None, *command, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    assert text.startswith("usage: skilljail")
    assert ("exit status:" in text) == bool(command)
    assert max(map(len, text.splitlines())) <= 120


def test_help_documents_every_status_that_run_can_end_with(fake: FakeDaemon) -> None:
    text = skilljail(fake, "run", "--help").stdout.decode()
    for status in ("122", "124", "125", "126", "130", "137", "128+N", "141"):
        assert f"\n  {status} " in text
