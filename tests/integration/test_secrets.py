"""Secrets in real sandboxes: the granted script has the value, and nothing and nobody else does."""

import base64
import contextlib
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import docker
import grpc
import pytest
import skilljail
from attack_table import Seen
from harness import Daemon, owned_containers, running_daemon
from skilljail import Limits, Outcome, Output
from skilljail.cli import main
from skilljail.v1 import script_runner_pb2, script_runner_pb2_grpc

FILE = "canary-Qx7-of-the-file-0001"
ENVIRONMENT = "canary-Qx7-of-the-environment-0002"
COMMAND = "canary-Qx7-of-the-command-0003\nsecond-line-of-the-command\nshort"
SECRETS = {"file": ("A_TOKEN", FILE), "environment": ("B_TOKEN", ENVIRONMENT), "command": ("C_TOKEN", COMMAND)}

SHOW = """
import hashlib, json, os, pathlib, resource, sys
names = ("A_TOKEN", "B_TOKEN", "C_TOKEN")
found = {name: hashlib.sha256(os.environ[name].encode()).hexdigest() for name in names if name in os.environ}
others = []
for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
    if int(path.parent.name) in (os.getpid(), os.getppid()) and path.parent.name != "1":
        continue
    try:
        others.append(path.read_bytes().decode(errors="replace"))
    except OSError as error:
        others.append(error.strerror)
print(json.dumps({"found": found, "others": others, "core": resource.getrlimit(resource.RLIMIT_CORE)}), flush=True)
if "wait" in sys.argv:
    sys.stdin.read()
    import time
    time.sleep(600)
"""
PRINT = """
import os, sys, time
for stream in (1, 2):
    for name in ("A_TOKEN", "B_TOKEN", "C_TOKEN"):
        for byte in f"<{os.environ[name]}>\\n".encode():
            os.write(stream, bytes([byte]))
os.write(1, os.environ["A_TOKEN"].encode()[:-1])
if "wait" in sys.argv:
    time.sleep(600)
"""


def forms(value: str) -> list[bytes]:
    """A value as it may turn up: as it is, escaped, in base64 at each alignment, in hex."""
    raw = value.encode()
    found = {raw, json.dumps(value)[1:-1].encode(), urllib.parse.quote(value).encode(), raw.hex().encode()}
    for skipped in range(3):
        whole = raw[skipped : skipped + (len(raw) - skipped) // 3 * 3]
        found |= {base64.b64encode(whole), base64.urlsafe_b64encode(whole)}
    return [one for one in found if len(one) >= 8]


CANARIES = [one for value in (FILE, ENVIRONMENT, *COMMAND.splitlines()[:2]) for one in forms(value)]


def clean(what: bytes) -> bool:
    """Whether no secret is in some bytes, in whatever form."""
    return not any(canary in what for canary in CANARIES)


def test_the_search_for_canaries_finds_them() -> None:
    for hidden in (FILE.encode(), base64.b64encode(b"x" + ENVIRONMENT.encode()), repr({"a": COMMAND}).encode()):
        assert not clean(b"..." + hidden + b"...")
    assert clean(b"nothing here")


class World:
    """A daemon with secrets, and the skill that is granted all of them."""

    def __init__(self, daemon: Daemon, skill: pathlib.Path, file: pathlib.Path, digest: str) -> None:
        self.daemon = daemon
        self.skill = skill
        self.file = file
        self.digest = digest


def write_skill(root: pathlib.Path, **scripts: str) -> pathlib.Path:
    """A skill folder `root` with the name `granted`."""
    (root / "scripts").mkdir(parents=True)
    (root / "SKILL.md").write_text("---\nname: granted\ndescription: Of a test.\n---\n")
    for name, content in ({"show": SHOW, "print": PRINT} | scripts).items():
        (root / "scripts" / f"{name}.py").write_text(content)
    return root


def digest_of(skill: pathlib.Path) -> str:
    """What `skilljail digest` tells."""
    with contextlib.redirect_stdout(output := io.StringIO()):
        assert main(["digest", str(skill), "--json"]) == 0
    return str(json.loads(output.getvalue())["bundle_digest"])


def flags_for(digest: str, **sources: Any) -> list[str]:
    """Settings of secrets that are granted to the skill of this digest, by name: variable, kind and source."""
    grants = json.dumps([{"tenant": "local", "skill": "granted", "bundle_digest": digest}])
    flags: list[str] = []
    for name, (variable, kind, source) in sources.items():
        for setting in (f"variable={variable}", f"{kind}={source}", f"grants={grants}"):
            flags += ["--set", f"secrets.{name}.{setting}"]
    return flags


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One daemon for all tests of this file."""
    directory = tmp_path_factory.mktemp("secrets")
    file = directory / "token"
    file.write_text(FILE + "\n")
    file.chmod(0o600)
    command = directory / "command.py"
    command.write_text(f"import sys; sys.stderr.write({COMMAND!r}); print({COMMAND!r})")
    skill = write_skill(directory / "granted")
    digest = digest_of(skill)
    flags = flags_for(
        digest,
        file=("A_TOKEN", "file", file),
        environment=("B_TOKEN", "environment", "CANARY_SOURCE"),
        command=("C_TOKEN", "command", json.dumps([sys.executable, str(command)])),
    )
    with running_daemon(*flags, environment={"CANARY_SOURCE": ENVIRONMENT}) as daemon:
        yield World(daemon, skill, file, digest)


@pytest.fixture
def one(world: World) -> Iterator[skilljail.Client]:
    """A client of that daemon."""
    with skilljail.Client(world.daemon.address) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_is_told(world: World) -> Iterator[None]:
    """After each test: no value is in the log, in the state, or in what the daemon tells of any run."""
    yield
    assert clean(world.daemon.log.read_bytes())
    for path in (world.daemon.directory / "state").rglob("*"):
        assert not path.is_file() or clean(path.read_bytes())
    with grpc.insecure_channel(world.daemon.address) as channel:
        runner: Any = script_runner_pb2_grpc.ScriptRunnerServiceStub(channel)
        page = runner.ListRuns(script_runner_pb2.ListRunsRequest(page_size=500))
        told = [page, *(runner.GetRun(script_runner_pb2.GetRunRequest(run_id=run.run_id)) for run in page.runs)]
        assert clean(b"".join(message.SerializeToString() for message in told) + str(told).encode())


def hashes() -> dict[str, str]:
    """What the granted script tells when it has the values."""
    return {variable: hashlib.sha256(value.encode()).hexdigest() for variable, value in SECRETS.values()}


def test_the_granted_script_has_every_value(world: World, one: skilljail.Client) -> None:
    result = one.run(world.skill, "scripts/show.py", secrets=list(SECRETS))
    told = json.loads(result.stdout)
    assert told["found"] == hashes()
    assert result.started is not None
    assert (result.started.policy.secrets, result.started.policy.mask_secrets) == (tuple(SECRETS), False)
    run = one.get_run(result.run_id)
    assert run.policy is not None
    assert run.policy.secrets == tuple(SECRETS)
    # The log is what it is searched for: it tells of this run.
    assert result.run_id.encode() in world.daemon.log.read_bytes()


def test_a_script_has_what_it_asked_for_and_no_more(world: World, one: skilljail.Client) -> None:
    assert json.loads(one.run(world.skill, "scripts/show.py").stdout)["found"] == {}
    found = json.loads(one.run(world.skill, "scripts/show.py", secrets=["command"]).stdout)["found"]
    assert found == {"C_TOKEN": hashes()["C_TOKEN"]}


def test_a_value_is_read_anew_for_each_run(world: World, one: skilljail.Client) -> None:
    world.file.write_text("rotated-in-between")
    try:
        found = json.loads(one.run(world.skill, "scripts/show.py", secrets=["file"]).stdout)["found"]
    finally:
        world.file.write_text(FILE + "\n")
    assert found == {"A_TOKEN": hashlib.sha256(b"rotated-in-between").hexdigest()}


@pytest.mark.attack(81, "a secret's value, looked for everywhere", expected="in the script alone")
def test_neither_the_container_nor_anything_beside_the_script_holds_a_value(
    world: World, one: skilljail.Client, engine_api: docker.APIClient, tmp_path: pathlib.Path, seen: Seen
) -> None:
    other = write_skill(tmp_path / "other")
    (other / "extra").touch()
    with one.stream(world.skill, "scripts/show.py", ["wait"], secrets=list(SECRETS)) as stream:
        output = next(event for event in stream if isinstance(event, Output))
        told = json.loads(output.data)
        assert told["found"] == hashes()
        # PID 1 is among them: its environment cannot be read, and what can be read holds nothing.
        assert told["others"] != []
        assert clean(json.dumps(told["others"]).encode())
        assert told["core"] == [0, 0]
        (name,) = owned_containers(engine_api, world.daemon.owner)
        inspected = json.dumps(engine_api.inspect_container(name)).encode()
        assert world.daemon.owner.encode() in inspected
        assert clean(inspected)
        assert clean(json.dumps(engine_api.top(name, ps_args="-eo pid,args")).encode())
        # Another run at the same time sees nothing.
        beside = json.loads(one.run(other, "scripts/show.py").stdout)
        assert beside["found"] == {}
        assert clean(json.dumps(beside).encode())
        stream.cancel()
        assert stream.wait().outcome is Outcome.CANCELLED
    seen(f"{len(told['found'])} in the script", f"{len(beside['found'])} beside it")


def test_the_daemon_leaves_no_core_and_no_variable_to_its_children(world: World) -> None:
    proc = pathlib.Path(f"/proc/{world.daemon.process.pid}")
    (core,) = [line for line in (proc / "limits").read_text().splitlines() if line.startswith("Max core file size")]
    assert core.split()[4:6] == ["0", "0"]


# Masking


LINES = b"<***>\n<***>\n<***>\n"


def test_values_are_masked_on_both_streams_byte_by_byte(world: World, one: skilljail.Client) -> None:
    result = one.run(world.skill, "scripts/print.py", secrets=list(SECRETS), mask_secrets=True)
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert (result.stdout, result.stderr) == (LINES + b"***", LINES)
    assert (result.usage.stdout_bytes, result.usage.stderr_bytes) == (len(LINES) + 3, len(LINES))
    plain = one.run(world.skill, "scripts/print.py", secrets=list(SECRETS))
    assert FILE.encode() in plain.stdout


def test_partial_output_at_the_wall_time_is_masked(world: World, one: skilljail.Client) -> None:
    result = one.run(
        world.skill,
        "scripts/print.py",
        ["wait"],
        secrets=list(SECRETS),
        mask_secrets=True,
        limits=Limits(wall_seconds=3),
    )
    assert result.outcome is Outcome.WALL_TIMEOUT
    assert (result.stdout, result.stderr) == (LINES + b"***", LINES)


def test_the_output_limit_counts_what_the_script_wrote(world: World, one: skilljail.Client) -> None:
    result = one.run(
        world.skill, "scripts/print.py", secrets=list(SECRETS), mask_secrets=True, limits=Limits(output_bytes=60)
    )
    assert result.outcome is Outcome.OUTPUT_LIMIT
    assert result.stdout == b"<***>\n<***"


# Attacks


def refused(client: skilljail.Client, skill: pathlib.Path, **options: Any) -> skilljail.SkilljailError:
    """Why a run is refused; the error holds no value."""
    with pytest.raises(skilljail.SkilljailError) as caught:
        client.run(skill, "scripts/show.py", **{"secrets": ["file"]} | options)
    error = caught.value
    assert clean(f"{error} {error.metadata} {error.violations}".encode())
    return error


@pytest.mark.attack(81, "a granted skill that was changed", expected="SECRET_NOT_GRANTED")
def test_a_skill_of_the_same_name_that_was_changed_gets_nothing(
    world: World, one: skilljail.Client, tmp_path: pathlib.Path, engine_api: docker.APIClient, seen: Seen
) -> None:
    changed = write_skill(tmp_path / "granted", show=SHOW + "\n")
    error = refused(one, changed)
    assert isinstance(error, skilljail.SecretNotGranted)
    assert error.metadata == {
        "secret": "file",
        "tenant": "local",
        "skill": "granted",
        "bundle_digest": digest_of(changed),
    }
    assert f'bundle_digest = "{digest_of(changed)}"' in str(error)
    unknown = refused(one, changed, secrets=["nowhere"])
    assert str(unknown) == str(error).replace("'file'", "'nowhere'").replace("secrets.file.", "secrets.nowhere.")
    assert owned_containers(engine_api, world.daemon.owner) == []
    seen(error.reason)


def test_the_granted_skill_under_another_name_gets_nothing(
    world: World, one: skilljail.Client, tmp_path: pathlib.Path
) -> None:
    renamed = write_skill(tmp_path / "renamed")
    (renamed / "SKILL.md").write_text("---\nname: another\ndescription: Of a test.\n---\n")
    assert refused(one, renamed).metadata["skill"] == "another"


HOSTILE = {
    "a bomb": ("---\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)) + "---\n"),
    "10 MB": "---\nname: granted\n---\n" + "x" * 10_000_000,
    "no mapping": "---\n- granted\n---\n",
    "a list as name": "---\nname: [granted]\n---\n",
    "two names": "---\nname: granted\nname: other\n---\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_skill_file_gets_nothing(
    world: World, one: skilljail.Client, tmp_path: pathlib.Path, text: str
) -> None:
    hostile = write_skill(tmp_path / "hostile")
    (hostile / "SKILL.md").write_text(text)
    started = time.monotonic()
    error = refused(one, hostile)
    assert (type(error), error.reason) == (skilljail.SkillInvalid, "SKILL_INVALID")
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("files", {"files": [script_runner_pb2.InputFile(path="scripts/sitecustomize.py", content=b"print(1)")]}),
        ("env", {"env": {"PYTHONPATH": "/work/skill/scripts"}}),
        ("env", {"env": {"A_TOKEN": "x"}}),
        ("interpreter", {"interpreter": "bash"}),
    ],
)
def test_the_granted_bundle_with_anything_of_the_callers_gets_nothing(
    world: World, one: skilljail.Client, engine_api: docker.APIClient, field: str, fields: dict[str, Any]
) -> None:
    one.run(world.skill, "scripts/show.py")  # uploads it
    request = script_runner_pb2.RunScriptRequest(
        bundle_digest=world.digest, script_path="scripts/show.py", secrets=["file"], **fields
    )
    with grpc.insecure_channel(world.daemon.address) as channel:
        runner: Any = script_runner_pb2_grpc.ScriptRunnerServiceStub(channel)
        with pytest.raises(grpc.RpcError, match=f"{field}: a run with secrets is the granted skill and nothing else"):
            list(runner.RunScript(request))
    assert owned_containers(engine_api, world.daemon.owner) == []


def test_a_skill_file_that_is_brought_along_does_not_make_a_grant(world: World, one: skilljail.Client) -> None:
    one.run(world.skill, "scripts/show.py")
    request = script_runner_pb2.RunScriptRequest(
        bundle_digest=world.digest,
        script_path="scripts/show.py",
        secrets=["file"],
        files=[script_runner_pb2.InputFile(path="SKILL.md", content=b"---\nname: granted\n---\n")],
    )
    with grpc.insecure_channel(world.daemon.address) as channel:
        runner: Any = script_runner_pb2_grpc.ScriptRunnerServiceStub(channel)
        with pytest.raises(grpc.RpcError, match=r"files: the skill has 'SKILL\.md' already"):
            list(runner.RunScript(request))


def unavailable(world: World, client: skilljail.Client, cause: str) -> None:
    """The run is refused before its script, and the log alone says why."""
    before = len(world.daemon.log.read_bytes())
    error = refused(client, world.skill)
    assert isinstance(error, skilljail.SecretUnavailable)
    assert str(error) == (
        "secrets: 'file': the operator's source gave no usable value; the daemon's log tells its operator why"
    )
    assert cause in world.daemon.log.read_bytes()[before:].decode()
    run = next(client.list_runs(page_size=1))
    assert run.start_time is None


def test_a_file_that_became_something_else_gives_nothing(
    world: World, one: skilljail.Client, tmp_path: pathlib.Path, engine_api: docker.APIClient
) -> None:
    try:
        world.file.write_text("canary")
        unavailable(world, one, "the value is not 8 to 32,768 bytes long")
        world.file.write_text(FILE)
        world.file.chmod(0o644)
        unavailable(world, one, "can be read or changed by others; chmod 600 it")
        world.file.unlink()
        unavailable(world, one, f"there is no file {world.file}")
        os.mkfifo(world.file, 0o600)
        unavailable(world, one, "is no regular file")
        world.file.unlink()
        world.file.symlink_to("/etc/passwd")
        unavailable(world, one, "can be read or changed by others")
    finally:
        world.file.unlink(missing_ok=True)
        world.file.write_text(FILE + "\n")
        world.file.chmod(0o600)
    assert owned_containers(engine_api, world.daemon.owner) == []
    assert one.run(world.skill, "scripts/show.py", secrets=["file"]).ok


def test_a_command_that_hangs_or_floods_gives_nothing_and_holds_nobody_up(
    world: World, tmp_path: pathlib.Path, engine_api: docker.APIClient
) -> None:
    flood = [sys.executable, "-c", f"while True: print({FILE!r})"]
    flags = flags_for(
        world.digest,
        hangs=("A_TOKEN", "command", json.dumps(["sleep", "600"])),
        floods=("B_TOKEN", "command", json.dumps(flood)),
    )
    with running_daemon(*flags) as daemon, skilljail.Client(daemon.address) as client:
        started = time.monotonic()
        with pytest.raises(skilljail.SecretUnavailable):
            client.run(world.skill, "scripts/show.py", secrets=["floods"])
        with client.stream(world.skill, "scripts/show.py", secrets=["hangs"]) as stream:
            next(iter(stream))
            assert json.loads(client.run(world.skill, "scripts/show.py").stdout)["found"] == {}
            with pytest.raises(skilljail.SecretUnavailable):
                stream.wait()
        assert time.monotonic() - started < 60
        assert clean(daemon.log.read_bytes())
        assert "the command did not end in time and was killed" in daemon.log.read_text()
        assert owned_containers(engine_api, daemon.owner) == []


def test_a_daemon_does_not_start_with_a_secret_that_others_can_read(world: World, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "open"
    file.write_text(FILE)
    file.chmod(0o644)
    flags = flags_for(world.digest, it=("A_TOKEN", "file", file))
    listen = ["--listen", f"unix:{tmp_path}/sock", "--state-dir", f"{tmp_path}/state"]
    done = subprocess.run(
        [sys.executable, "-m", "skilljaild", "serve", *listen, *flags], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 3
    assert done.stderr.decode() == f"skilljaild: secrets.it: {file} can be read or changed by others; chmod 600 it\n"
