"""The command line: what it says and what it exits with."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
import skilljaild
import structlog
from skilljaild import images
from skilljaild.cli import main
from skilljaild.engines.base import EngineReport, EngineUnavailable, Image, OwnedSandbox
from skilljaild.engines.finding import Finding, Severity
from skilljaild.engines.floor import FloorError

from .certificates import Authority
from .fake_engine import FINDING, REPORT, FakeEngine
from .probed import probed

NO_ENGINE = "unix:///nowhere/engine.sock"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing from the environment of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("SKILLJAILD_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A log that is set up in our process would outlive the test."""
    monkeypatch.setattr("skilljaild.cli.doctor.set_up_log", lambda _: None)
    with structlog.testing.capture_logs():
        yield


class Ended:
    """A command that has ended: its status and what it said."""

    def __init__(self, capture: pytest.CaptureFixture[str], *words: str) -> None:
        try:
            self.status: object = main(words)
        except SystemExit as end:
            self.status = end.code
        self.stdout, self.stderr = capture.readouterr()


def serve(directory: pathlib.Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `skilljaild serve` in a process of its own; its log would outlive a test in ours."""
    place = ["--listen", f"unix:{directory}/s.sock", "--state-dir", f"{directory}/state"]
    return subprocess.run(
        [sys.executable, "-m", "skilljaild", "serve", *place, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=os.environ | variables,
    )


@pytest.mark.parametrize("words", [("--help",), ("serve", "--help"), ("doctor", "--help"), ("images", "--help")])
def test_help_is_there_for_every_command(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    done = Ended(capsys, *words)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {' '.join(['skilljaild', *words[:-1]])} ")


def test_help_of_serve_names_every_exit_status_and_how_to_set_things(capsys: pytest.CaptureFixture[str]) -> None:
    text = Ended(capsys, "serve", "--help").stdout
    for part in ("--listen", "--set NAME=VALUE", "SKILLJAILD_LIMITS__CEILING__MEMORY_BYTES", "\n  2  ", "\n  3  "):
        assert part in text


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    done = Ended(capsys, "--version")
    assert (done.status, done.stdout) == (0, f"skilljaild {skilljaild.__version__}\n")


@pytest.mark.parametrize("words", [(), ("no-such-command",), ("serve", "--no-such-flag"), ("serve", "stray")])
def test_a_command_line_that_makes_no_sense_is_status_2(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    done = Ended(capsys, *words)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: skilljaild")


@pytest.mark.parametrize("command", ["serve", "doctor"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--set", "limits.ceiling.memry_bytes=1"),
            "limits.ceiling.memry_bytes: there is no such setting; did you mean",
        ),
        (("--set", "limits=5", "--set", "limits.default.pids=4"), "--set limits.default.pids=4: limits is a table"),
        (("--listen", "127.0.0.1:99999", "--insecure"), "listen: the port of '127.0.0.1:99999' is not one from"),
        (("--set", "listen"), "--set listen: write it as NAME=VALUE"),
        (("--config", "/nowhere/x.toml"), "/nowhere/x.toml: there is no such configuration file"),
        (("--listen", "0.0.0.0:1"), "is a TCP address, which needs a [tls] table"),
        (("--listen", "0.0.0.0:1", "--insecure"), "Without TLS only a loopback address is possible"),
        (("--log-level", "loud"), "log.level"),
    ],
)
def test_a_wrong_configuration_is_status_2_and_named(
    capsys: pytest.CaptureFixture[str], command: str, words: tuple[str, ...], message: str
) -> None:
    done = Ended(capsys, command, *words)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith("skilljaild: ")
    assert message in done.stderr


def test_a_wrong_variable_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLJAILD_LIMITS__CEILING__PIDS", "many")
    done = Ended(capsys, "serve")
    assert done.status == 2
    assert "limits.ceiling.pids" in done.stderr


def test_without_an_engine_nothing_starts_and_the_mend_is_told(tmp_path: pathlib.Path) -> None:
    """There is no fallback to the host."""
    done = serve(tmp_path, "--engine-url", NO_ENGINE)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(
        f"skilljaild: no container engine answers at {NO_ENGINE} (there is no such socket). Start it; or install one"
    )
    assert "or name another with engine.url, --engine-url or DOCKER_HOST" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "s.sock").exists()


def test_the_engine_of_the_environment_is_the_one_that_is_asked(tmp_path: pathlib.Path) -> None:
    done = serve(tmp_path, DOCKER_HOST=NO_ENGINE)
    assert done.returncode == 3
    assert done.stderr.startswith(f"skilljaild: no container engine answers at {NO_ENGINE} (")


def test_a_state_directory_that_cannot_be_used_is_status_3(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    done = serve(tmp_path, "--state-dir", str(tmp_path / "file" / "state"))
    assert done.returncode == 3
    assert done.stderr == (
        f"skilljaild: {tmp_path}/file/state: cannot be used as state directory (Not a directory); "
        "name another with --state-dir\n"
    )


def test_a_broken_installation_is_status_3_and_its_mend_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise FloorError("the container floor cannot be read (x); install skilljail again")

    monkeypatch.setattr("skilljaild.daemon.container_floor", broken)
    monkeypatch.setattr("skilljaild.cli.serve.set_up_log", lambda _: None)
    done = Ended(capsys, "serve", "--state-dir", str(tmp_path), "--engine-url", NO_ENGINE)
    assert (done.status, done.stdout) == (3, "")
    assert done.stderr == "skilljaild: the container floor cannot be read (x); install skilljail again\n"
    monkeypatch.setattr("skilljaild.cli.doctor.container_floor", broken)
    done = Ended(capsys, "doctor", "--state-dir", str(tmp_path), "--engine-url", NO_ENGINE)
    assert done.status == 1
    assert (
        done.stdout.splitlines()[0]
        == "MISS  container floor: the container floor cannot be read (x); install skilljail again"
    )


def test_an_engine_that_goes_away_while_the_doctor_looks_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Vanishing(FakeEngine):
        async def image(self, reference: str) -> Image:
            raise EngineUnavailable(f"the engine went away before it told of {reference}; start it")

    monkeypatch.setattr("skilljaild.cli.doctor.make_engine", lambda _: Vanishing())
    done = Ended(capsys, "doctor", "--state-dir", str(tmp_path))
    assert (done.status, done.stderr) == (1, "")
    reference = images.reference("python")
    told = f"MISS  engine: the engine went away before it told of {reference}; start it"
    assert done.stdout.splitlines()[-1] == told


def test_the_doctor_tells_what_is_there_and_what_to_do_about_the_rest(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    place = ["--state-dir", str(tmp_path / "state"), "--engine-url", NO_ENGINE]
    done = Ended(capsys, "doctor", *place)
    assert (done.status, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "ok    container floor: floor.toml and the seccomp profile are there",
        f"ok    state directory: {tmp_path}/state",
    ]
    assert lines[2].startswith(
        f"MISS  engine: no container engine answers at {NO_ENGINE} (there is no such socket). Start it;"
    )
    assert not (tmp_path / "state").exists()
    as_json = Ended(capsys, "doctor", "--json", *place)
    assert as_json.status == 1
    findings = json.loads(as_json.stdout)
    assert [(one["state"], one["thing"]) for one in findings] == [
        ("ok", "container floor"),
        ("ok", "state directory"),
        ("missing", "engine"),
    ]
    assert lines[2] == f"MISS  engine: {findings[2]['detail']}"


class Seen:
    """What the doctor says of an engine in memory."""

    def __init__(
        self,
        capture: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        directory: pathlib.Path,
        engine: FakeEngine,
        *words: str,
    ) -> None:
        monkeypatch.setattr("skilljaild.cli.doctor.make_engine", lambda _: engine)
        done = Ended(capture, "doctor", "--state-dir", str(directory / "state"), *words)
        assert done.stderr == ""
        assert not (directory / "state").exists()
        assert engine.live == {}
        self.status = done.status
        self.lines = done.stdout.splitlines()


def test_the_doctor_tests_each_image_itself_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(probed())
    seen = Seen(capsys, monkeypatch, tmp_path, engine)
    assert seen.status == 0
    tests = [line for line in seen.lines if line.startswith("ok    self-test ")]
    assert [line.split()[2].rstrip(":") for line in tests] == ["python", "node", "bash", "pwsh"]
    assert all("controls hold in its sandbox, isolation container" in line for line in tests)
    assert seen.lines[-1] == f"warn  posture: {FINDING.text}"
    assert {spec.owner for spec in engine.specs} == {"doctor"}


def test_the_doctor_says_what_keeps_the_daemon_from_starting_and_nothing_twice(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demands = ("--set", "isolation.minimum=gvisor", "--set", "isolation.strict=true")
    bad = Finding(Severity.KNOWN_BAD, "runc 1.1.5", "it leaks")

    class Old(FakeEngine):
        async def probe(self) -> EngineReport:
            return dataclasses.replace(REPORT, findings=(bad, FINDING))

    seen = Seen(capsys, monkeypatch, tmp_path, Old(probed()), *demands)
    assert seen.status == 1
    assert [line.split(" (")[0] for line in seen.lines if line.startswith("MISS")] == [
        "MISS  posture: python",
        "MISS  posture: isolation.strict is set, and this is known to be bad: runc 1.1.5: it leaks",
    ]
    assert [line for line in seen.lines if line.startswith("warn")] == [f"warn  posture: {FINDING.text}"]
    assert "its isolation is container, and isolation.minimum is gvisor" in "".join(seen.lines)
    seen = Seen(capsys, monkeypatch, tmp_path, FakeEngine(probed(no_bpf="it worked (3)")))
    assert seen.status == 1
    assert sum("no bpf (seen: it worked (3))" in line for line in seen.lines) == 1
    engine = FakeEngine(probed())
    engine.images = {}
    seen = Seen(capsys, monkeypatch, tmp_path, engine)
    assert seen.status == 1
    assert [line for line in seen.lines if "there is no image" in line and "at all" in line] == [
        "MISS  interpreters: there is no image at all; run `skilljail images build`"
    ]
    assert not any("unproven" in line for line in seen.lines)


def test_the_doctor_removes_what_one_that_was_killed_has_left(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(probed())
    engine.owned = [OwnedSandbox("old", "1", 0), OwnedSandbox("of one under way", "2", 1 << 40)]
    Seen(capsys, monkeypatch, tmp_path, engine)
    assert "list_owned doctor" in engine.calls
    assert "old" in engine.destroyed
    assert "of one under way" not in engine.destroyed


def test_the_doctor_looks_at_tls_files_and_secrets_as_serve_does(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, config = tmp_path / "secret", tmp_path / "skilljaild.toml"
    secret.write_text("canary-0123456789")
    secret.chmod(0o644)
    authority = Authority(tmp_path, "ca")
    server = authority.issue("server", "/CN=localhost")
    grant = f'[{{tenant = "local", skill = "it", bundle_digest = "sha256:{"0" * 64}"}}]'
    config.write_text(
        f'listen = "127.0.0.1:0"\n[tls]\ncertificate_file = "{server.certificate}"\n'
        f'key_file = "{server.key}"\nclient_ca_file = "{authority.certificate}"\n'
        f'[secrets.it]\nvariable = "IT"\nfile = "{secret}"\ngrants = {grant}\n'
    )
    seen = Seen(capsys, monkeypatch, tmp_path, FakeEngine(probed()), "--config", str(config))
    fault = f"secrets.it: {secret} can be read or changed by others; chmod 600 it"
    assert seen.status == 1
    assert seen.lines[2:4] == ["ok    TLS: certificate, key and client CA can be used", f"MISS  secrets: {fault}"]
    done = serve(tmp_path, "--config", str(config), "--listen", "127.0.0.1:0")
    assert (done.returncode, done.stderr) == (3, f"skilljaild: {fault}\n")
    secret.chmod(0o600)
    server.key.write_text("no key")
    seen = Seen(capsys, monkeypatch, tmp_path, FakeEngine(probed()), "--config", str(config))
    assert seen.status == 1
    assert seen.lines[2:4] == [
        f"MISS  TLS: tls.key_file: {server.key} holds no private key as PEM",
        "ok    secrets: 1, and nothing is wrong with their sources",
    ]
    secret.unlink()
    seen = Seen(capsys, monkeypatch, tmp_path, FakeEngine(probed()), "--config", str(config))
    assert seen.lines[3] == f"warn  secrets: it: {secret} is not there yet"
    assert "canary" not in "".join(seen.lines)


def test_help_of_the_doctor_names_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    text = Ended(capsys, "doctor", "--help").stdout
    for part in ("\n  0  ", "\n  1  ", "\n  2  ", "would refuse to start"):
        assert part in text
