"""What bad input gets: one clear error that names the thing and the mend, before anything runs, and nothing is left.

Twice: from the public client, which checks early and says what the daemon would say; and over the bare stubs, as a
caller who skips every check of the client's.
"""

import contextlib
import dataclasses
import hashlib
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import docker
import grpc
import pytest
import skilljail
from attack_table import Seen
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from harness import SKILL_MD, Daemon, MakeSkill, owned_containers, running_daemon, wait_until
from skilljail import Limits, Outcome
from skilljail.v1 import (
    bundle_store_pb2,
    bundle_store_pb2_grpc,
    limits_pb2,
    run_pb2,
    script_runner_pb2,
    script_runner_pb2_grpc,
)

MIB = 1024 * 1024
INVALID = grpc.StatusCode.INVALID_ARGUMENT
RUNS: Mapping[str, str | bytes | None] = {"scripts/run.sh": "echo ran"}
RUN = "scripts/run.sh"

Undisturbed = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture
def undisturbed(
    client: skilljail.Client, daemon: Daemon, engine_api: docker.APIClient, make_skill: MakeSkill
) -> Undisturbed:
    """A block after which the shared daemon remembers no new run, has made no sandbox, and works as before."""

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        before = newest_run(client)
        yield
        assert newest_run(client) == before
        assert owned_containers(engine_api, daemon.owner) == []
        assert list((daemon.directory / "state" / "blobs").rglob("new-*")) == []

    return block


def newest_run(client: skilljail.Client) -> skilljail.Run | None:
    """What the daemon remembers last."""
    return next(client.list_runs(page_size=1), None)


# The public client


@dataclasses.dataclass(frozen=True)
class Bad:
    """A call that is wrong, and what its error must say. What is not given is right."""

    words: tuple[str, ...]
    reason: str
    error: type[skilljail.SkilljailError] = skilljail.InvalidRequest
    script: object = RUN
    argv: object = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def path(script: object, *words: str) -> Bad:
    return Bad((*words, "script"), "PATH_INVALID", script=script)


def argument(argv: object, *words: str) -> Bad:
    return Bad(words, "ARGUMENT_INVALID", argv=argv)


def option(
    reason: str, *words: str, error: type[skilljail.SkilljailError] = skilljail.InvalidRequest, **options: Any
) -> Bad:
    return Bad(words, reason, error, options=options)


BAD_CALLS = {
    "script above the root": path("../run.sh", "'..'", "below the skill folder"),
    "script in absolute terms": path("/etc/passwd", "absolute", "relative"),
    "script with a NUL": path("scripts/run\0.sh", "control character"),
    "script with a backslash": path("scripts\\run.sh", "backslash", "'/'"),
    "script with a line break": path("scripts/run\n.sh", "control character"),
    "script with a surrogate": path("scripts/\udcff.sh", "UTF-8"),
    "script without a name": path("", "empty"),
    "script with a long name": path("x" * 256, "255 bytes"),
    "script with a long path": path("/".join(["x" * 200] * 6), "1,024 bytes"),
    "script very deep": path("/".join("x" * 40), "32 names"),
    "script as a path object": path(pathlib.Path(RUN), "PosixPath"),
    "script that is missing": Bad(
        ("no file 'scripts/no.sh'", "scripts/run.sh"), "SCRIPT_NOT_FOUND", skilljail.ScriptNotFound, "scripts/no.sh"
    ),
    "script that is a directory": Bad(
        ("no file 'scripts'", "SKILL.md"), "SCRIPT_NOT_FOUND", skilljail.ScriptNotFound, "scripts"
    ),
    "script in another case": Bad(
        ("no file 'Scripts/run.sh'",), "SCRIPT_NOT_FOUND", skilljail.ScriptNotFound, "Scripts/run.sh"
    ),
    "script of an unknown kind": Bad(
        ("'SKILL.md'", "python, node, bash, pwsh", ".py"),
        "INTERPRETER_UNKNOWN",
        skilljail.InterpreterUnknown,
        "SKILL.md",
    ),
    "arguments by name": argument({"value": "1"}, "argv", "list of strings", "dict"),
    "an argument that is a number": argument(["a", 1], "argv[1]", "text", "int"),
    "an argument with a NUL": argument(["a\0b"], "argv[0]", "NUL", "remove it"),
    "an argument with a surrogate": argument(["\ud800"], "argv[0]", "Unicode"),
    "an argument beyond the kernel's limit": argument(["x" * 131_072], "argv[0]", "131,071 bytes", "standard input"),
    "arguments beyond the kernel's limit": argument(["x" * 100_000] * 11, "1,100,000", "1,048,576", "input file"),
    "variable without a name": option("ENVIRONMENT_INVALID", "env", "''", "letter or _", env={"": "1"}),
    "variable with a hyphen": option("ENVIRONMENT_INVALID", "env", "'A-B'", env={"A-B": "1"}),
    "variable with an equals sign": option("ENVIRONMENT_INVALID", "env", "'A=B'", env={"A=B": "1"}),
    "variable with a line break": option("ENVIRONMENT_INVALID", "env", r"'A\n'", env={"A\n": "1"}),
    "variable that is a number": option("ENVIRONMENT_INVALID", "env['A']", "text", "int", env={"A": 1}),
    "variable with a NUL": option("ENVIRONMENT_INVALID", "env['A']", "NUL", env={"A": "a\0b"}),
    "too many variables": option("ENVIRONMENT_INVALID", "env", "256", env={f"A{one}": "" for one in range(257)}),
    "a variable beyond the kernel's limit": option("ENVIRONMENT_INVALID", "env", "131,071", env={"A": "x" * 131_071}),
    "variables beyond the kernel's limit": option(
        "ARGUMENT_INVALID", "env", "1,048,576", env={f"A{one}": "x" * 100_000 for one in range(11)}
    ),
    "variables as a list": option("REQUEST_INVALID", "env", "mapping", "list", env=["A=1"]),
    "input as text": option("REQUEST_INVALID", "stdin", "bytes", "encode", stdin="text"),
    "too much input": option("REQUEST_INVALID", "stdin", "4,194,304", "input file", stdin=bytes(4 * MIB + 1)),
    "working directory above the root": option("PATH_INVALID", "working_directory", "'..'", working_directory=".."),
    "working directory that is missing": option(
        "PATH_INVALID", "working_directory", "'no'", "leave it empty", working_directory="no"
    ),
    "working directory that is a file": option(
        "PATH_INVALID", "working_directory", "'SKILL.md'", working_directory="SKILL.md"
    ),
    "input file above the root": option("PATH_INVALID", "input path '../x'", "'..'", inputs={"../x": b""}),
    "input file in absolute terms": option("PATH_INVALID", "input path '/x'", "absolute", inputs={"/x": b""}),
    "input file that the skill has": option("PATH_INVALID", "'SKILL.md'", "another path", inputs={"SKILL.md": b""}),
    "input file that the skill has as a directory": option(
        "SKILL_INVALID", "'scripts'", "file and as a directory", error=skilljail.SkillInvalid, inputs={"scripts": b""}
    ),
    "input file below a file": option(
        "SKILL_INVALID",
        "'SKILL.md'",
        "file and as a directory",
        error=skilljail.SkillInvalid,
        inputs={"SKILL.md/x": b""},
    ),
    "input file that is missing": option(
        "REQUEST_INVALID", "'/nowhere/x'", "No such file", inputs={"x": pathlib.Path("/nowhere/x")}
    ),
    "input file that is a directory": option(
        "REQUEST_INVALID", "'/'", "no regular file", inputs={"x": pathlib.Path("/")}
    ),
    "input file that is a device": option(
        "REQUEST_INVALID", "'/dev/zero'", "no regular file", inputs={"x": pathlib.Path("/dev/zero")}
    ),
    "input file as text": option("REQUEST_INVALID", "'x'", "bytes", "str", inputs={"x": "text"}),
    "too many input files": option("REQUEST_INVALID", "256", "archive", inputs={f"{one}": b"" for one in range(257)}),
    "too large input files": option(
        "REQUEST_INVALID", "67,108,864", inputs={"x": bytes(33 * MIB), "y": bytes(32 * MIB)}
    ),
    "pattern as text": option("REQUEST_INVALID", "artifacts", "list of strings", "str", artifacts="*.csv"),
    "pattern without a name": option("REQUEST_INVALID", "pattern", "1 to 1,024", artifacts=[""]),
    "pattern above the root": option("PATH_INVALID", "artifact_patterns", "'../*'", "below", artifacts=["../*"]),
    "pattern in absolute terms": option("PATH_INVALID", "artifact_patterns", "'/etc/*'", artifacts=["/etc/*"]),
    "too many patterns": option("REQUEST_INVALID", "64", artifacts=["*"] * 65),
    "too many labels": option("REQUEST_INVALID", "32 labels", labels={f"{one}": "" for one in range(33)}),
    "label with a long name": option("REQUEST_INVALID", "label", "63", labels={"x" * 64: ""}),
    "label with a long name in bytes": option("REQUEST_INVALID", "label", "63", labels={"é" * 40: ""}),
    "label with a long value": option("REQUEST_INVALID", "label 'x'", "256", labels={"x": "x" * 257}),
    "request id with a space": option("REQUEST_INVALID", "request_id", "128", request_id="a b"),
    "request id too long": option("REQUEST_INVALID", "request_id", "128", request_id="x" * 129),
    "request id without a character": option("REQUEST_INVALID", "request_id", request_id=""),
    "interpreter that nobody has": option(
        "INTERPRETER_UNKNOWN",
        "'ruby'",
        "python, node, bash, pwsh",
        error=skilljail.InterpreterUnknown,
        interpreter="ruby",
    ),
    "network that there is not": option("NETWORK_INVALID", "network", "'allowlist'", "'host'", network="host"),
    "network above the ceiling": option(
        "NETWORK_NOT_ALLOWED",
        "network",
        "NETWORK_OPEN",
        "network.ceiling to open",
        error=skilljail.NetworkNotAllowed,
        network="open",
    ),
    "network with hosts above the ceiling": option(
        "NETWORK_NOT_ALLOWED",
        "NETWORK_ALLOWLIST",
        "network.ceiling to allowlist",
        error=skilljail.NetworkNotAllowed,
        network="allowlist",
        allowed_hosts=["api.example.com"],
    ),
    "hosts without a network": option(
        "NETWORK_INVALID", "allowed_hosts", "ask for network='allowlist'", allowed_hosts=["api.example.com"]
    ),
    "hosts of an open network": option(
        "NETWORK_INVALID", "allowed_hosts", "leave the hosts out", network="open", allowed_hosts=["api.example.com"]
    ),
    "every host in a list": option(
        "NETWORK_INVALID", "'*'", "network='open'", network="allowlist", allowed_hosts=["*"]
    ),
    "host that is an address": option(
        "NETWORK_INVALID", "'10.0.0.1'", "by its name", network="allowlist", allowed_hosts=["10.0.0.1"]
    ),
    "too many hosts": option(
        "NETWORK_INVALID", "256 hosts", "*.example.com", network="allowlist", allowed_hosts=["a.com"] * 257
    ),
    "limits as a mapping": option("LIMIT_INVALID", "limits", "skilljail.Limits", "dict", limits={"pids": 5}),
    "memory below what can work": option("LIMIT_INVALID", "memory_bytes", "33,554,432", limits=Limits(memory_bytes=1)),
    "processes below what can work": option("LIMIT_INVALID", "pids", "4 or more", limits=Limits(pids=1)),
    "disk that is not below memory": option(
        "LIMIT_INVALID",
        "disk_bytes",
        "memory_bytes",
        "lives in memory",
        limits=Limits(memory_bytes=64 * MIB, disk_bytes=64 * MIB),
    ),
}


@pytest.mark.parametrize("bad", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_a_bad_call_of_the_client_is_refused(
    client: skilljail.Client, make_skill: MakeSkill, undisturbed: Undisturbed, bad: Bad
) -> None:
    skill = make_skill(dict(RUNS))
    with undisturbed(), pytest.raises(skilljail.SkilljailError) as caught:
        client.run(skill, bad.script, bad.argv, **bad.options)  # type: ignore[arg-type]
    assert (type(caught.value), caught.value.reason) == (bad.error, bad.reason)
    for word in bad.words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert str(caught.value).isprintable()


LIMIT_NAMES = {field.name for field in dataclasses.fields(Limits)}
WIRE_NAMES = {"wall_seconds": "wall_time", "cpu_seconds": "cpu_time"}


@pytest.mark.parametrize("name", sorted(LIMIT_NAMES))
def test_a_limit_above_the_ceiling_is_refused_with_both_numbers(
    client: skilljail.Client, make_skill: MakeSkill, undisturbed: Undisturbed, name: str
) -> None:
    ceiling = getattr(client.capabilities().limit_ceilings, name)
    asked = Limits(**{name: ceiling + 1})
    with undisturbed(), pytest.raises(skilljail.LimitAboveCeiling) as caught:
        client.run(make_skill(dict(RUNS)), RUN, limits=asked)
    wire_name = WIRE_NAMES.get(name, name)
    assert caught.value.reason == "LIMIT_ABOVE_CEILING"
    assert [one.subject for one in caught.value.violations] == [f"limits.{wire_name}"]
    assert caught.value.metadata.keys() == {"limit", "asked", "ceiling"}
    assert caught.value.metadata["limit"] == wire_name
    assert float(caught.value.metadata["asked"]) == ceiling + 1
    assert float(caught.value.metadata["ceiling"]) == ceiling
    assert f"limits.ceiling.{name}" in str(caught.value)


@pytest.mark.parametrize("name", sorted(LIMIT_NAMES))
@pytest.mark.parametrize("value", [0, -1, -0.5, math.nan, math.inf, -math.inf, True, "1", 2**63])
def test_a_limit_that_is_none_is_refused_where_it_is_written(name: str, value: object) -> None:
    with pytest.raises(skilljail.InvalidRequest, match=rf"limits\.{name} must be") as caught:
        Limits(**{name: value})  # type: ignore[arg-type]
    assert caught.value.reason == "LIMIT_INVALID"


def spoil_root(skill: pathlib.Path) -> pathlib.Path:
    return skill.parent / "no-such-skill"


def spoil_file(skill: pathlib.Path) -> pathlib.Path:
    return skill / "SKILL.md"


def spoil_name(skill: pathlib.Path) -> pathlib.Path:
    (skill / "SKILL.md").rename(skill / "skill.md")
    return skill


def spoil_manifest(skill: pathlib.Path) -> pathlib.Path:
    (skill / "SKILL.md").unlink()
    return skill


def spoil_manifest_kind(skill: pathlib.Path) -> pathlib.Path:
    (skill / "SKILL.md").unlink()
    (skill / "SKILL.md").mkdir()
    return skill


def spoil_with_fifo(skill: pathlib.Path) -> pathlib.Path:
    os.mkfifo(skill / "pipe")
    return skill


def spoil_with_socket(skill: pathlib.Path) -> pathlib.Path:
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(skill):
        made.bind("socket")
    return skill


def spoil_with_dangling(skill: pathlib.Path) -> pathlib.Path:
    (skill / "link").symlink_to("nowhere")
    return skill


def spoil_with_escape(skill: pathlib.Path) -> pathlib.Path:
    (skill / "link").symlink_to("/etc/hostname")
    return skill


def spoil_with_escape_upwards(skill: pathlib.Path) -> pathlib.Path:
    (skill / "scripts/link").symlink_to("../../..")
    return skill


def spoil_with_loop(skill: pathlib.Path) -> pathlib.Path:
    (skill / "scripts/link").symlink_to("..")
    return skill


def spoil_with_self(skill: pathlib.Path) -> pathlib.Path:
    (skill / "link").symlink_to("link")
    return skill


def spoil_with_control(skill: pathlib.Path) -> pathlib.Path:
    (skill / "line\nbreak").touch()
    return skill


def spoil_with_bytes(skill: pathlib.Path) -> pathlib.Path:
    (pathlib.Path(os.fsdecode(bytes(skill) + b"/bad\xff"))).touch()
    return skill


def spoil_with_backslash(skill: pathlib.Path) -> pathlib.Path:
    (skill / "back\\slash").touch()
    return skill


def spoil_with_depth(skill: pathlib.Path) -> pathlib.Path:
    (skill / "/".join("x" * 33)).mkdir(parents=True)
    return skill


def spoil_with_size(skill: pathlib.Path) -> pathlib.Path:
    with (skill / "big.bin").open("wb") as file:
        file.truncate(64 * MIB + 1)
    return skill


def spoil_with_count(skill: pathlib.Path) -> pathlib.Path:
    for number in range(10_000):
        (skill / f"{number}").touch()
    return skill


BAD_FOLDERS: Mapping[Callable[[pathlib.Path], pathlib.Path], tuple[str, ...]] = {
    spoil_root: ("no skill folder", "correct the path"),
    spoil_file: ("SKILL.md' is a file", "name the folder"),
    spoil_name: ("has no SKILL.md", "rename 'skill.md'"),
    spoil_manifest: ("has no SKILL.md", "name the folder that holds it"),
    spoil_manifest_kind: ("SKILL.md", "no file"),
    spoil_with_fifo: ("'pipe'", "named pipe", "remove it"),
    spoil_with_socket: ("'socket'", "socket", "remove it"),
    spoil_with_dangling: ("'link'", "leads nowhere", "remove it"),
    spoil_with_escape: ("'link'", "leads out of the skill folder", "put a copy"),
    spoil_with_escape_upwards: ("'scripts/link'", "leads out of the skill folder"),
    spoil_with_loop: ("'scripts/link'", "no end", "remove it"),
    spoil_with_self: ("'link'", "cannot be followed", "remove it"),
    spoil_with_control: (r"'line\nbreak'", "control character", "rename it"),
    spoil_with_bytes: (r"'bad\udcff'", "UTF-8", "rename it"),
    spoil_with_backslash: ("slash'", "backslash"),
    spoil_with_depth: ("32 names",),
    spoil_with_size: ("67,108,864 bytes", "'big.bin'", "leave out", "operator"),
    spoil_with_count: ("10,000 files and directories", "leave out", "operator"),
}


@pytest.mark.parametrize("spoil", BAD_FOLDERS.keys(), ids=lambda spoil: spoil.__name__)
def test_a_folder_that_cannot_be_staged_is_refused(
    client: skilljail.Client,
    make_skill: MakeSkill,
    undisturbed: Undisturbed,
    spoil: Callable[[pathlib.Path], pathlib.Path],
) -> None:
    skill = spoil(make_skill(dict(RUNS)))
    with undisturbed(), pytest.raises(skilljail.SkillInvalid) as caught:
        client.run(skill, RUN)
    assert caught.value.reason == "SKILL_INVALID"
    for word in BAD_FOLDERS[spoil]:
        assert word in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("skill", [7, None, b"skill", "", "sk\0ill"])
def test_a_skill_folder_that_is_no_path_is_refused(client: skilljail.Client, skill: object) -> None:
    with pytest.raises(skilljail.InvalidRequest, match="skill"):
        client.run(skill, RUN)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode_of", "named"), [("secret.txt", "'secret.txt'"), ("assets", "'assets'"), ("SKILL.md", "'SKILL.md'")]
)
def test_what_the_caller_may_not_read_is_named(daemon: Daemon, mode_of: str, named: str) -> None:
    """Root may read everything, so a root test asks as somebody else."""
    program = """
import os, sys, skilljail
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
client = skilljail.Client(sys.argv[1])
try:
    client.run(sys.argv[2], "x.sh")
except skilljail.SkillInvalid as error:
    print(error)
"""
    with tempfile.TemporaryDirectory(prefix="skilljail-test-") as directory:
        skill = pathlib.Path(directory, "skill")
        (skill / "assets").mkdir(parents=True)
        for name, content in {"SKILL.md": SKILL_MD, "x.sh": "echo ran", "secret.txt": "s", "assets/x": "x"}.items():
            (skill / name).write_text(content)
        pathlib.Path(directory).chmod(0o755)
        (skill / mode_of).chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", program, daemon.address, str(skill)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        (skill / mode_of).chmod(0o755)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{named} of the skill folder ")
    assert done.stdout.endswith("cannot be read (Permission denied); correct its permissions or remove it\n")


def test_a_bundle_above_the_bounds_of_its_daemon_is_refused(
    make_skill: MakeSkill, engine_api: docker.APIClient
) -> None:
    """The operator's bounds, below those that the client knows by itself."""
    many = make_skill({**RUNS, **{f"assets/{one}": "" for one in range(10)}})
    large = make_skill({**RUNS, "big.bin": bytes(100_000)})
    small = make_skill(dict(RUNS))
    settings = ("--set", "bundles.bundle_entries=10", "--set", "bundles.bundle_bytes=64KiB")
    with running_daemon(*settings) as daemon, skilljail.Client(daemon.address) as client:
        with pytest.raises(skilljail.SkillInvalid, match=r"14 files and directories, at most 10 .*bundle_entries"):
            client.run(many, RUN)
        with pytest.raises(skilljail.SkillInvalid, match=r"bytes, at most 65,536 .*bundle_bytes"):
            client.run(large, RUN)
        assert newest_run(client) is None
        assert owned_containers(engine_api, daemon.owner) == []
        assert client.run(small, RUN).stdout == b"ran\n"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nonsense",
        "http://localhost:1",
        "localhost",
        "localhost:0",
        "localhost:70000",
        "unix:",
        f"/{'x' * 200}",
        7,
        b"/x",
    ],
)
def test_an_address_that_is_none_is_refused(address: object) -> None:
    with pytest.raises(skilljail.InvalidAddress) as caught:
        skilljail.Client(address)  # type: ignore[arg-type]
    assert caught.value.reason == "ADDRESS_INVALID"


# The bare stubs


@dataclasses.dataclass(frozen=True)
class Refused:
    """A status and its details."""

    code: grpc.StatusCode
    reason: str
    fields: tuple[str, ...]
    """Of BadRequest."""
    message: str
    metadata: Mapping[str, str]
    missing: tuple[str, ...]
    """Subjects of PreconditionFailure, type MISSING."""
    retry_seconds: float | None

    @classmethod
    def of(cls, error: Any) -> "Refused":
        """Reads a grpc.RpcError as AIP-193 has it: at most one detail of a kind, and an ErrorInfo of our domain."""
        status = status_pb2.Status.FromString(dict(error.trailing_metadata())[DETAILS_KEY])
        assert (status.code, status.message) == (error.code().value[0], error.details())
        info = error_details_pb2.ErrorInfo()
        bad = error_details_pb2.BadRequest()
        failure = error_details_pb2.PreconditionFailure()
        retry = error_details_pb2.RetryInfo()
        known = {one.DESCRIPTOR.full_name: one for one in (info, bad, failure, retry)}
        for detail in status.details:
            assert detail.Unpack(known.pop(detail.TypeName()))
        assert info.domain == "skilljail"
        assert {one.type for one in failure.violations} <= {"MISSING"}
        assert all(one.description for one in bad.field_violations)
        return cls(
            error.code(),
            info.reason,
            tuple(one.field for one in bad.field_violations),
            status.message,
            dict(info.metadata),
            tuple(one.subject for one in failure.violations),
            None if "google.rpc.RetryInfo" in known else retry.retry_delay.ToTimedelta().total_seconds(),
        )


DETAILS_KEY = "grpc-status-details-bin"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def header(digest: str, size: int) -> bundle_store_pb2.UploadRequest:
    return bundle_store_pb2.UploadRequest(header=bundle_store_pb2.BlobHeader(digest=digest, size_bytes=size))


def data(content: bytes) -> bundle_store_pb2.UploadRequest:
    return bundle_store_pb2.UploadRequest(data=content)


def entry(
    name: str, content: bytes = b"", size: int | None = None, digest: str | None = None
) -> bundle_store_pb2.BundleFile:
    """A file of a manifest."""
    return bundle_store_pb2.BundleFile(
        path=name, digest=digest or digest_of(content), size_bytes=len(content) if size is None else size
    )


class Stranger:
    """A caller who has the stubs and no manners."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.runner = script_runner_pb2_grpc.ScriptRunnerServiceStub(self.channel)
        self.store = bundle_store_pb2_grpc.BundleStoreServiceStub(self.channel)

    def upload(self, *requests: bundle_store_pb2.UploadRequest) -> bundle_store_pb2.UploadResponse:
        """Uploads just that."""
        response: bundle_store_pb2.UploadResponse = self.store.Upload(iter(requests), timeout=60)
        return response

    def put(self, content: bytes) -> str:
        """Uploads a blob and returns its digest."""
        pieces = [data(content[start : start + MIB]) for start in range(0, len(content), MIB)]
        assert self.upload(header(digest_of(content), len(content)), *pieces).blobs_stored == 1
        return digest_of(content)

    def manifest(self, files: Iterable[bundle_store_pb2.BundleFile] = (), directories: Iterable[str] = ()) -> str:
        """Uploads a manifest; with a good SKILL.md and script in it unless `files` says otherwise."""
        good = {"SKILL.md": SKILL_MD.encode(), "scripts/run.sh": b"echo ran"}
        for content in good.values():
            self.put(content)
        every = [*(entry(name, content) for name, content in good.items()), *files]
        return self.put(bundle_store_pb2.BundleManifest(files=every, directories=directories).SerializeToString())

    def run(self, **fields: Any) -> list[run_pb2.RunEvent]:
        """Runs the good bundle, but for what `fields` says, to the end."""
        request = {"script_path": RUN, **fields}
        if "bundle_digest" not in fields:
            request["bundle_digest"] = self.manifest()
        stream = self.runner.RunScript(script_runner_pb2.RunScriptRequest(**request), timeout=60)
        return [response.event for response in stream]

    def refused(self, **fields: Any) -> Refused:
        """The same, when it must be refused before the first event."""
        with pytest.raises(grpc.RpcError) as caught:
            self.run(**fields)
        return Refused.of(caught.value)


@pytest.fixture
def stranger(daemon: Daemon) -> Iterator[Stranger]:
    one = Stranger(daemon.address)
    yield one
    one.channel.close()


def test_the_stranger_is_served_when_nothing_is_wrong(stranger: Stranger) -> None:
    """What every refusal below rests on."""
    events = stranger.run()
    assert [one.sequence for one in events] == list(range(1, len(events) + 1))
    assert [one.WhichOneof("event") for one in events] == ["queued", "started", "output", "finished"]
    assert events[2].output.data == b"ran\n"
    assert events[3].finished.result.outcome == run_pb2.OUTCOME_EXITED


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A request that is wrong: its fields, and what its refusal must have."""

    reason: str
    field: str
    words: tuple[str, ...]
    fields: Mapping[str, Any]


def wrong(reason: str, field: str, *words: str, **fields: Any) -> Wrong:
    return Wrong(reason, field, words, fields)


def files(*some: script_runner_pb2.InputFile) -> Mapping[str, Any]:
    return {"files": some}


def given(name: str, content: bytes | None = b"", digest: str = "") -> script_runner_pb2.InputFile:
    """An input file."""
    if content is None:
        return (
            script_runner_pb2.InputFile(path=name, digest=digest) if digest else script_runner_pb2.InputFile(path=name)
        )
    return script_runner_pb2.InputFile(path=name, content=content)


def lasting(seconds: int = 0, nanos: int = 0) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=seconds, nanos=nanos)


BAD_PATHS = {
    "above the root": ("../x.sh", "'..'"),
    "dots in the middle": ("a/../../x.sh", "'..'"),
    "absolute": ("/etc/passwd", "absolute"),
    "NUL": ("x\0.sh", "NUL"),
    "backslash": ("a\\x.sh", "backslash"),
    "line break": ("x\n.sh", "control character"),
    "escape": ("x\x1b[2J.sh", "control character"),
    "C1": ("x\x9b.sh", "control character"),
    "dot": ("./x.sh", "shortest form"),
    "double slash": ("a//x.sh", "shortest form"),
    "slash at the end": ("a/", "shortest form"),
    "deep": ("/".join("x" * 40), "32 directories"),
    "long name": ("x" * 256, "255 bytes"),
    "long name in bytes": ("é" * 128, "255 bytes"),
    "long": ("/".join(["x" * 200] * 6), "1,024 bytes"),
}

WRONG = {
    "script without a path": wrong("PATH_INVALID", "script_path", "empty", script_path=""),
    "script that is missing": wrong("SCRIPT_NOT_FOUND", "script_path", "'no.sh'", script_path="no.sh"),
    "script that is a directory": wrong("SCRIPT_NOT_FOUND", "script_path", "'scripts'", script_path="scripts"),
    "script of an unknown kind": wrong(
        "INTERPRETER_UNKNOWN", "script_path", "'SKILL.md'", "python, node, bash, pwsh", script_path="SKILL.md"
    ),
    "working directory that is missing": wrong(
        "PATH_INVALID", "working_directory", "'no'", "leave it empty", working_directory="no"
    ),
    "working directory that is a file": wrong(
        "PATH_INVALID", "working_directory", "'SKILL.md'", working_directory="SKILL.md"
    ),
    "argument with a NUL": wrong("ARGUMENT_INVALID", "argv[1]", "NUL", argv=["a", "a\0b"]),
    "argument too long": wrong("ARGUMENT_INVALID", "argv[0]", "131,072", "131,071", "input file", argv=["x" * 131_072]),
    "argument too long in bytes": wrong("ARGUMENT_INVALID", "argv[0]", "131,072", argv=["é" * 65_536]),
    "arguments too long": wrong("ARGUMENT_INVALID", "argv", "1,048,576", "input file", argv=["x" * 100_000] * 11),
    "arguments too many": wrong("ARGUMENT_INVALID", "argv", "1,048,576", argv=[""] * 140_000),
    "variable without a name": wrong("ENVIRONMENT_INVALID", "env", "''", env={"": "1"}),
    "variable with an equals sign": wrong(
        "ENVIRONMENT_INVALID", "env", "'A=B'", "letters, digits and _", env={"A=B": ""}
    ),
    "variable with a line break": wrong("ENVIRONMENT_INVALID", "env", r"'A\n'", env={"A\n": ""}),
    "variable with a NUL in its name": wrong("ENVIRONMENT_INVALID", "env", r"'A\x00'", env={"A\0": ""}),
    "variable with a NUL": wrong("ENVIRONMENT_INVALID", "env", "value of A", "NUL", env={"A": "s3cret\0"}),
    "variable too long": wrong("ENVIRONMENT_INVALID", "env", "value of A", "131,071", env={"A": "s3cret" * 30_000}),
    "variables too many": wrong("ENVIRONMENT_INVALID", "env", "257", "256", env={f"A{one}": "" for one in range(257)}),
    "standard input too long": wrong("REQUEST_INVALID", "stdin", "4,194,305", "input file", stdin=bytes(4 * MIB + 1)),
    "request id with a space": wrong("REQUEST_INVALID", "request_id", "'a b'", "128", request_id="a b"),
    "request id with a line break": wrong("REQUEST_INVALID", "request_id", r"'a\n'", request_id="a\n"),
    "request id too long": wrong("REQUEST_INVALID", "request_id", "128", request_id="x" * 129),
    "pattern without a name": wrong("PATH_INVALID", "artifact_patterns", "''", artifact_patterns=[""]),
    "pattern above the root": wrong("PATH_INVALID", "artifact_patterns", "'../*'", artifact_patterns=["../*"]),
    "pattern in absolute terms": wrong("PATH_INVALID", "artifact_patterns", "'/*'", artifact_patterns=["/*"]),
    "pattern with a NUL": wrong("PATH_INVALID", "artifact_patterns", r"'*\x00'", artifact_patterns=["*\0"]),
    "pattern too long": wrong("PATH_INVALID", "artifact_patterns", "xxx", artifact_patterns=["x" * 1_025]),
    "patterns too many": wrong("REQUEST_INVALID", "artifact_patterns", "65", "64", artifact_patterns=["*"] * 65),
    "label without a name": wrong("REQUEST_INVALID", "labels", "''", "63", labels={"": ""}),
    "label with a long name": wrong("REQUEST_INVALID", "labels", "63", labels={"x" * 64: ""}),
    "label with a long value": wrong("REQUEST_INVALID", "labels", "'x'", "256", labels={"x": "é" * 129}),
    "labels too many": wrong("REQUEST_INVALID", "labels", "33", "32", labels={f"{one}": "" for one in range(33)}),
    "interpreter that nobody has": wrong(
        "INTERPRETER_UNKNOWN", "interpreter", "'ruby'", "python, node, bash, pwsh", interpreter="ruby"
    ),
    "interpreter in capitals": wrong("INTERPRETER_UNKNOWN", "interpreter", "'PYTHON'", interpreter="PYTHON"),
    "interpreter that is an image": wrong(
        "INTERPRETER_UNKNOWN", "interpreter", "'docker.io/x/y:1'", interpreter="docker.io/x/y:1"
    ),
    "interpreter with a NUL": wrong("INTERPRETER_UNKNOWN", "interpreter", r"'bash\x00'", interpreter="bash\0"),
    "network of a later version": wrong("NETWORK_INVALID", "network", "9 is no network", "NETWORK_OPEN", network=9),
    "hosts without a network": wrong(
        "NETWORK_INVALID", "allowed_hosts", "ask for NETWORK_ALLOWLIST", allowed_hosts=["a.com"]
    ),
    "hosts of no network": wrong(
        "NETWORK_INVALID", "allowed_hosts", "leave the hosts out", network=1, allowed_hosts=["a.com"]
    ),
    "hosts of an open network": wrong(
        "NETWORK_INVALID", "allowed_hosts", "leave the hosts out", network=3, allowed_hosts=["a.com"]
    ),
    "every host in a list": wrong(
        "NETWORK_INVALID", "allowed_hosts", "NETWORK_OPEN", network=2, allowed_hosts=["a.com", "*"]
    ),
    "host that is an address": wrong(
        "NETWORK_INVALID", "allowed_hosts", "'0x7f.1'", "by its name", network=2, allowed_hosts=["0x7f.1"]
    ),
    "host with a NUL": wrong("NETWORK_INVALID", "allowed_hosts", r"'a.com\x00'", network=2, allowed_hosts=["a.com\0"]),
    "host that is a page": wrong(
        "NETWORK_INVALID", "allowed_hosts", "'https://a.com/'", network=2, allowed_hosts=["https://a.com/"]
    ),
    "hosts too many": wrong("NETWORK_INVALID", "allowed_hosts", "257", "256", network=2, allowed_hosts=["a.com"] * 257),
    "hosts far too many": wrong(
        "NETWORK_INVALID", "allowed_hosts", "far too many", network=2, allowed_hosts=[""] * 10_000
    ),
    "no skill at all": wrong("SKILL_INVALID", "bundle_digest", "SKILL.md", bundle_digest=""),
    "digest that is none": wrong("REQUEST_INVALID", "bundle_digest", "'x'", "64 lower-case hex", bundle_digest="x"),
    "digest in capitals": wrong("REQUEST_INVALID", "bundle_digest", "lower-case", bundle_digest="sha256:" + "A" * 64),
    "digest of another kind": wrong("REQUEST_INVALID", "bundle_digest", "md5", bundle_digest="md5:" + "a" * 32),
    "digest that is a path": wrong(
        "REQUEST_INVALID", "bundle_digest", "no digest", bundle_digest="sha256:../../../../etc/passwd"
    ),
    "digest with a line break": wrong("REQUEST_INVALID", "bundle_digest", bundle_digest=f"sha256:{'a' * 64}\n"),
    "input without content": wrong("REQUEST_INVALID", "files", "'x'", "neither content", **files(given("x", None))),
    "input with a bad digest": wrong("REQUEST_INVALID", "files", "'x'", **files(given("x", None, "sha256:x"))),
    "input that the skill has": wrong("PATH_INVALID", "files", "'SKILL.md'", **files(given("SKILL.md"))),
    "input that another input is": wrong("SKILL_INVALID", "files", "'x'", "twice", **files(given("x"), given("x"))),
    "input that is a directory": wrong("SKILL_INVALID", "files", "'scripts'", "directory", **files(given("scripts"))),
    "input below a file": wrong("SKILL_INVALID", "files", "'SKILL.md'", "directory", **files(given("SKILL.md/x"))),
    "inputs too many": wrong(
        "REQUEST_INVALID", "files", "257", "256", **files(*(given(f"{one}") for one in range(257)))
    ),
    "inputs too large": wrong(
        "REQUEST_INVALID", "files", "4,194,305", "upload", **files(given("x", bytes(4 * MIB)), given("y", b"1"))
    ),
    **{
        f"{field} {name}": wrong("PATH_INVALID", field, word, **{field: bad})
        for field in ("script_path", "working_directory")
        for name, (bad, word) in BAD_PATHS.items()
    },
    **{
        f"input {name}": wrong("PATH_INVALID", "files", word, **files(given(bad)))
        for name, (bad, word) in BAD_PATHS.items()
    },
}


@pytest.mark.parametrize("bad", WRONG.values(), ids=WRONG.keys())
def test_a_request_that_is_wrong_is_refused(stranger: Stranger, undisturbed: Undisturbed, bad: Wrong) -> None:
    with undisturbed():
        refused = stranger.refused(**bad.fields)
    assert (refused.code, refused.reason, refused.fields) == (INVALID, bad.reason, (bad.field,))
    for word in bad.words:
        assert word in refused.message
    assert len(refused.message) < 1_500
    assert refused.message.isprintable()
    assert "s3cret" not in refused.message


MESSAGE_LIMITS: Mapping[str, tuple[Any, Any]] = {
    "wall_time": (lasting(10**6), lasting(0, 1)),
    "cpu_time": (lasting(10**6), lasting(0, 1)),
    "cpus": (1e9, 1e-9),
    "memory_bytes": (2**50, 1),
    "pids": (2**30, 1),
    "disk_bytes": (2**50, 1),
    "disk_inodes": (2**50, 1),
    "open_files": (2**30, 1),
    "output_bytes": (2**50, -1),
    "artifact_count": (2**30, -1),
    "artifact_bytes": (2**50, -1),
    "egress_bytes": (2**50, -1),
    "egress_connections": (1_000_000, -1),
}
"""A value above every ceiling, and one below what can work."""


def test_every_limit_of_the_contract_is_tried() -> None:
    assert set(MESSAGE_LIMITS) == set(limits_pb2.Limits.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("name", MESSAGE_LIMITS)
def test_a_limit_above_the_ceiling_is_refused_never_lowered(
    stranger: Stranger, undisturbed: Undisturbed, name: str
) -> None:
    with undisturbed():
        refused = stranger.refused(limits=limits_pb2.Limits(**{name: MESSAGE_LIMITS[name][0]}))
    assert (refused.code, refused.reason, refused.fields) == (INVALID, "LIMIT_ABOVE_CEILING", (f"limits.{name}",))
    assert refused.metadata.keys() == {"limit", "asked", "ceiling"}
    assert refused.metadata["limit"] == name
    assert float(refused.metadata["asked"]) > float(refused.metadata["ceiling"])
    assert "limits.ceiling." in refused.message


SENSELESS = {
    **{f"{name} too small": {name: low} for name, (_, low) in MESSAGE_LIMITS.items()},
    **{f"{name} below zero": {name: -1} for name in MESSAGE_LIMITS if not name.endswith("_time")},
    "wall_time below zero": {"wall_time": lasting(-1)},
    "wall_time a bit below zero": {"wall_time": lasting(0, -1)},
    "wall_time of two signs": {"wall_time": lasting(5, -1)},
    "wall_time with too many nanoseconds": {"wall_time": lasting(1, 10**9)},
    "cpu_time below zero": {"cpu_time": lasting(-(2**63))},
    "cpus that are no number": {"cpus": math.nan},
    "cpus without end": {"cpus": -math.inf},
    "cpus next to nothing": {"cpus": 5e-324},
    "memory_bytes at the very bottom": {"memory_bytes": -(2**63)},
    "pids at the very bottom": {"pids": -(2**31)},
    "disk_bytes as much as memory_bytes": {"disk_bytes": 256 * MIB, "memory_bytes": 256 * MIB},
}


@pytest.mark.parametrize("limits", SENSELESS.values(), ids=SENSELESS.keys())
def test_a_limit_that_makes_no_sense_is_refused(
    stranger: Stranger, undisturbed: Undisturbed, limits: dict[str, Any]
) -> None:
    with undisturbed():
        refused = stranger.refused(limits=limits_pb2.Limits(**limits))
    assert (refused.code, refused.reason) == (INVALID, "LIMIT_INVALID")
    assert refused.fields == (f"limits.{next(iter(limits))}",)


@pytest.mark.parametrize(
    "limits",
    [
        {"cpus": math.inf},
        {"cpus": 1.7e308},
        {"memory_bytes": 2**63 - 1},
        {"pids": 2**31 - 1},
        {"wall_time": lasting(2**63 - 1, 999_999_999)},
    ],
    ids=lambda limits: next(iter(limits)),
)
def test_a_limit_at_the_very_top_is_above_the_ceiling(
    stranger: Stranger, undisturbed: Undisturbed, limits: dict[str, Any]
) -> None:
    with undisturbed():
        refused = stranger.refused(limits=limits_pb2.Limits(**limits))
    assert (refused.code, refused.reason) == (INVALID, "LIMIT_ABOVE_CEILING")
    assert "too small" not in refused.message


def test_a_limit_of_zero_takes_the_default(stranger: Stranger, client: skilljail.Client) -> None:
    """The contract's word for "not asked for"."""
    zero = limits_pb2.Limits(wall_time=lasting(), cpu_time=lasting(), cpus=-0.0, pids=0)
    started = next(one.started for one in stranger.run(limits=zero) if one.WhichOneof("event") == "started")
    assert Limits.from_wire(started.policy.limits) == client.capabilities().default_limits


# Bundles


GOOD = b"good"
BAD_MANIFESTS: Mapping[str, tuple[str, tuple[str, ...], list[bundle_store_pb2.BundleFile], list[str]]] = {
    **{f"file {name}": ("PATH_INVALID", (word,), [entry(bad, GOOD)], []) for name, (bad, word) in BAD_PATHS.items()},
    **{f"directory {name}": ("PATH_INVALID", (word,), [], [bad]) for name, (bad, word) in BAD_PATHS.items()},
    "file without a path": ("PATH_INVALID", ("empty",), [entry("", GOOD)], []),
    "directory without a path": ("PATH_INVALID", ("empty",), [], [""]),
    "a file twice": ("SKILL_INVALID", ("'x'", "twice"), [entry("x", GOOD), entry("x", GOOD)], []),
    "the script twice": ("SKILL_INVALID", (f"'{RUN}'", "twice"), [entry(RUN, GOOD)], []),
    "a file that is a directory": ("SKILL_INVALID", ("'x'", "file and as a directory"), [entry("x", GOOD)], ["x"]),
    "a file below a file": ("SKILL_INVALID", ("'x'", "directory"), [entry("x", GOOD), entry("x/y", GOOD)], []),
    "a directory below a file": ("SKILL_INVALID", ("'x'", "directory"), [entry("x", GOOD)], ["x/y/z"]),
    "a size below zero": ("SKILL_INVALID", ("'x'", "size"), [entry("x", GOOD, -1)], []),
    "a size that the blob has not": ("SKILL_INVALID", ("'x'", "size"), [entry("x", GOOD, 5)], []),
    "a size of nothing": ("SKILL_INVALID", ("'x'", "size"), [entry("x", GOOD, 0)], []),
    "a size beyond everything": ("SKILL_INVALID", ("bytes, at most",), [entry("x", GOOD, 2**63 - 1)], []),
    "sizes beyond everything": (
        "SKILL_INVALID",
        ("bytes, at most",),
        [entry(f"{one}", GOOD, 2**63 - 1) for one in range(9)],
        [],
    ),
    "a digest that is none": ("SKILL_INVALID", ("'x'", "digest"), [entry("x", digest="sha256:x")], []),
    "a digest in capitals": ("SKILL_INVALID", ("'x'", "digest"), [entry("x", digest="sha256:" + "A" * 64)], []),
    "a digest that is a path": ("SKILL_INVALID", ("'x'", "digest"), [entry("x", digest="../../../etc/passwd")], []),
    "files too many": ("SKILL_INVALID", ("at most 10,000",), [entry(f"{one}", GOOD) for one in range(10_000)], []),
    "directories too many": ("SKILL_INVALID", ("at most 10,000",), [], [f"{one}" for one in range(10_000)]),
    "directories too many by their parents": (
        "SKILL_INVALID",
        ("at most 10,000",),
        [],
        [f"{one}/a/b/c/d/e/f/g" for one in range(2_000)],
    ),
}


@pytest.mark.parametrize("bad", BAD_MANIFESTS.values(), ids=BAD_MANIFESTS.keys())
def test_a_manifest_that_lies_is_refused(
    stranger: Stranger,
    undisturbed: Undisturbed,
    bad: tuple[str, tuple[str, ...], list[bundle_store_pb2.BundleFile], list[str]],
) -> None:
    reason, words, some, directories = bad
    stranger.put(GOOD)
    digest = stranger.manifest(some, directories)
    with undisturbed():
        refused = stranger.refused(bundle_digest=digest)
    assert (refused.code, refused.reason, refused.fields) == (INVALID, reason, ("bundle_digest",))
    for word in words:
        assert word in refused.message
    assert refused.message.isprintable()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 100,
        SKILL_MD.encode(),
        b"\x0a\xff\xff\xff\xff\x0f",
        os.urandom(10_000),
        b"\x0a\x02\x0a\x00" * 1_000,
    ],
    ids=["nothing", "ones", "text", "a length beyond the end", "noise", "empty files"],
)
def test_a_blob_that_is_no_manifest_is_refused(stranger: Stranger, undisturbed: Undisturbed, content: bytes) -> None:
    digest = stranger.put(content)
    with undisturbed():
        refused = stranger.refused(bundle_digest=digest)
    assert (refused.code, refused.fields) == (INVALID, ("bundle_digest",))
    assert refused.reason in {"SKILL_INVALID", "PATH_INVALID"}


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param(b"\x12\x01a", id="the same directory again and again"),
        pytest.param(b"\x0a\x03\x0a\x01a", id="the same file again and again"),
    ],
)
def test_a_manifest_of_millions_of_entries_costs_the_daemon_little(
    stranger: Stranger, undisturbed: Undisturbed, client: skilljail.Client, unit: bytes
) -> None:
    """Three bytes for an entry: what is too much must be told before each of them is looked at."""
    digest = stranger.put(unit * (15 * MIB // len(unit)))
    with undisturbed():
        began = time.monotonic()
        refused = stranger.refused(bundle_digest=digest)
        assert time.monotonic() - began < 60
    assert (refused.code, refused.reason, refused.fields) == (INVALID, "SKILL_INVALID", ("bundle_digest",))
    assert "at most 10,000" in refused.message


def test_a_manifest_that_is_too_large_is_refused_unread(stranger: Stranger, undisturbed: Undisturbed) -> None:
    digest = stranger.put(bytes(17 * MIB))
    with undisturbed():
        refused = stranger.refused(bundle_digest=digest)
    assert (refused.code, refused.reason, refused.fields) == (INVALID, "SKILL_INVALID", ("bundle_digest",))
    assert "16,777,216 bytes" in refused.message


def test_a_request_of_a_million_arguments_costs_the_daemon_little(stranger: Stranger, undisturbed: Undisturbed) -> None:
    with undisturbed():
        began = time.monotonic()
        refused = stranger.refused(argv=[""] * 4_000_000)
        assert time.monotonic() - began < 60
    assert (refused.code, refused.reason, refused.fields) == (INVALID, "REQUEST_INVALID", ())
    assert "150,000 fields" in refused.message


def test_blobs_that_are_not_there_are_named(stranger: Stranger, undisturbed: Undisturbed) -> None:
    absent, lacking = digest_of(b"absent"), stranger.manifest([entry("x", b"absent too")])
    with undisturbed():
        manifest = stranger.refused(bundle_digest=absent)
        content = stranger.refused(bundle_digest=lacking)
        file = stranger.refused(**files(given("x", None, absent)))
    missing = ((absent,), (digest_of(b"absent too"),), (absent,))
    for refused, subjects in zip((manifest, content, file), missing, strict=True):
        assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "BUNDLE_MISSING")
        assert refused.missing == subjects
        assert "upload them and try again" in refused.message


def test_more_missing_blobs_than_a_status_can_hold_are_counted(stranger: Stranger, undisturbed: Undisturbed) -> None:
    """A status travels as metadata, of which peers take 8 KiB."""
    digest = stranger.manifest([entry(f"{one}", f"absent {one}".encode()) for one in range(5_000)])
    with undisturbed():
        refused = stranger.refused(bundle_digest=digest)
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "BUNDLE_MISSING")
    assert set(refused.missing) < {digest_of(f"absent {one}".encode()) for one in range(5_000)}
    assert refused.missing
    assert "5000 blobs" in refused.message.replace(",", "")


# What the wire allows and the contract does not


def test_what_a_request_does_not_have_it_cannot_choose(stranger: Stranger) -> None:
    """Unknown fields, as a caller of another version sends them, change nothing."""
    request = script_runner_pb2.RunScriptRequest(script_path=RUN, bundle_digest=stranger.manifest())
    image = b"\xa2\x06\x06evil:1"  # field 100, a string
    raw: Any = stranger.channel.unary_stream(
        "/skilljail.v1.ScriptRunnerService/RunScript",
        request_serializer=lambda message: message.SerializeToString() + image,
        response_deserializer=script_runner_pb2.RunScriptResponse.FromString,
    )
    events = [one.event for one in raw(request, timeout=60)]
    assert events[-1].finished.result.outcome == run_pb2.OUTCOME_EXITED
    assert events[1].started.policy.interpreter == "bash"


UNREADABLE = {INVALID, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
"""gRPC itself answers what is no message at all; which of these it takes changes with its version."""


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x1a\x01\xff", b"\xff\xff\xff", b"\x1a\xff\xff\xff\x7f", b"\x22\x02\xc3\x28"],
    ids=["a path that is no UTF-8", "noise", "a length beyond the end", "an argument that is no UTF-8"],
)
def test_a_message_that_is_none_is_refused_and_the_daemon_goes_on(
    stranger: Stranger, undisturbed: Undisturbed, request_bytes: bytes
) -> None:
    raw: Any = stranger.channel.unary_stream("/skilljail.v1.ScriptRunnerService/RunScript")
    with undisturbed():
        with pytest.raises(grpc.RpcError) as caught:
            list(raw(request_bytes, timeout=60))
        assert caught.value.code() in UNREADABLE
    assert stranger.run()[-1].WhichOneof("event") == "finished"


def test_a_message_that_is_too_large_is_refused_and_the_daemon_goes_on(
    stranger: Stranger, undisturbed: Undisturbed
) -> None:
    raw: Any = stranger.channel.unary_stream("/skilljail.v1.ScriptRunnerService/RunScript")
    with undisturbed():
        with pytest.raises(grpc.RpcError) as caught:
            list(raw(bytes(10 * MIB + 1), timeout=60))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stranger.run()[-1].WhichOneof("event") == "finished"


def test_an_input_whose_source_is_of_another_version_is_refused(stranger: Stranger, undisturbed: Undisturbed) -> None:
    file = script_runner_pb2.InputFile.FromString(b"\x0a\x01x" + b"\xca\x02\x01y")  # field 41 in place of a source
    with undisturbed():
        refused = stranger.refused(files=[file])
    assert (refused.code, refused.reason, refused.fields) == (INVALID, "REQUEST_INVALID", ("files",))


def test_standard_input_may_hold_any_byte(stranger: Stranger) -> None:
    every = bytes(range(256))
    events = stranger.run(files=[given("cat.sh", b"cat")], script_path="cat.sh", stdin=every)
    assert b"".join(one.output.data for one in events) == every


def test_a_request_id_runs_once(stranger: Stranger, undisturbed: Undisturbed) -> None:
    name = f"once-{os.getpid()}-{time.time_ns()}"
    run_id = stranger.run(request_id=name)[0].run_id
    with undisturbed():
        refused = stranger.refused(request_id=name)
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_IN_USE")
    assert (refused.metadata, refused.fields) == ({"run_id": run_id}, ("request_id",))
    assert run_id in refused.message


def test_a_refused_request_does_not_use_its_id_up(stranger: Stranger) -> None:
    name = f"again-{os.getpid()}-{time.time_ns()}"
    assert stranger.refused(request_id=name, script_path="no.sh").reason == "SCRIPT_NOT_FOUND"
    assert stranger.run(request_id=name)[-1].WhichOneof("event") == "finished"


@pytest.mark.parametrize("run_id", ["", "no-such-run", "x" * 10_000, "a\0b", "../x"])
@pytest.mark.parametrize("method", ["GetRun", "CancelRun"])
def test_a_run_that_is_not_there_is_not_found(stranger: Stranger, method: str, run_id: str) -> None:
    request = getattr(script_runner_pb2, f"{method}Request")(run_id=run_id)
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stranger.runner, method)(request, timeout=60)
    refused = Refused.of(caught.value)
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "RUN_NOT_FOUND")
    assert (refused.fields, refused.message.isprintable()) == (("run_id",), True)


@pytest.mark.parametrize("token", ["x", "no-such-token", "0" * 31, "z" * 32, f"{'0' * 32}\n", "a\0b", "x" * 10_000])
def test_a_page_token_that_nobody_gave_is_refused(stranger: Stranger, token: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stranger.runner.ListRuns(script_runner_pb2.ListRunsRequest(page_token=token), timeout=60)
    refused = Refused.of(caught.value)
    assert (refused.code, refused.reason, refused.fields) == (INVALID, "PAGE_TOKEN_INVALID", ("page_token",))
    assert refused.message.isprintable()


def test_a_page_of_less_than_nothing_is_refused(stranger: Stranger) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stranger.runner.ListRuns(script_runner_pb2.ListRunsRequest(page_size=-1), timeout=60)
    refused = Refused.of(caught.value)
    assert (refused.code, refused.reason, refused.fields) == (INVALID, "REQUEST_INVALID", ("page_size",))


# Uploads

CONTENT = b"content that nobody has uploaded before: " + os.urandom(16)

BAD_UPLOADS: Mapping[str, tuple[str, tuple[str, ...], list[bundle_store_pb2.UploadRequest]]] = {
    "neither header nor data": ("REQUEST_INVALID", ("header",), [bundle_store_pb2.UploadRequest()]),
    "a piece of another version": (
        "REQUEST_INVALID",
        ("header",),
        [bundle_store_pb2.UploadRequest.FromString(b"\xca\x02\x01y")],
    ),
    "a digest that is none": ("REQUEST_INVALID", ("'x'", "64 lower-case hex"), [header("x", 1), data(b"1")]),
    "a digest that is a path": ("REQUEST_INVALID", ("no digest",), [header("sha256:../../../x", 1), data(b"1")]),
    "no digest": ("REQUEST_INVALID", ("''",), [header("", 0)]),
    "another digest": ("BLOB_INVALID", ("another digest",), [header(digest_of(CONTENT), 5), data(b"other")]),
    "too few bytes": (
        "BLOB_INVALID",
        (f"{len(CONTENT)}", "announced"),
        [header(digest_of(CONTENT), len(CONTENT)), data(CONTENT[:-1])],
    ),
    "no bytes": ("BLOB_INVALID", ("announced",), [header(digest_of(CONTENT), len(CONTENT))]),
    "too few bytes before the next": (
        "BLOB_INVALID",
        ("announced",),
        [header(digest_of(CONTENT), len(CONTENT)), data(CONTENT[:5]), header(digest_of(b"next"), 4), data(b"next")],
    ),
    "too many bytes": (
        "BLOB_INVALID",
        ("more than", "announced"),
        [header(digest_of(CONTENT), len(CONTENT)), data(CONTENT), data(b"1")],
    ),
    "a size that is too small": (
        "BLOB_INVALID",
        ("more than", "announced"),
        [header(digest_of(CONTENT), 0), data(CONTENT)],
    ),
    "a size below zero": ("BLOB_INVALID", ("below 0",), [header(digest_of(CONTENT), -1), data(CONTENT)]),
    "a size at the very bottom": ("BLOB_INVALID", ("below 0",), [header(digest_of(CONTENT), -(2**63))]),
    "a piece above 1 MiB": (
        "BLOB_INVALID",
        ("1,048,576",),
        [header(digest_of(bytes(2 * MIB)), 2 * MIB), data(bytes(2 * MIB))],
    ),
}


@pytest.mark.parametrize("bad", BAD_UPLOADS.values(), ids=BAD_UPLOADS.keys())
def test_an_upload_that_breaks_the_protocol_is_refused(
    stranger: Stranger, undisturbed: Undisturbed, bad: tuple[str, tuple[str, ...], list[bundle_store_pb2.UploadRequest]]
) -> None:
    """What was complete before stays, nothing else does, and no file is left behind."""
    reason, words, requests = bad
    before = b"before " + os.urandom(16)
    complete = [header(digest_of(before), len(before)), data(before), header(digest_of(b""), 0)]
    with undisturbed(), pytest.raises(grpc.RpcError) as caught:
        stranger.upload(*complete, *requests)
    refused = Refused.of(caught.value)
    assert (refused.code, refused.reason) == (INVALID, reason)
    for word in words:
        assert word in refused.message
    asked = [digest_of(before), digest_of(CONTENT), digest_of(bytes(2 * MIB))]
    response = stranger.store.FindMissing(bundle_store_pb2.FindMissingRequest(digests=asked), timeout=60)
    assert list(response.missing_digests) == asked[1:]


def test_data_without_any_header_is_refused(stranger: Stranger) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stranger.upload(data(b"x"))
    refused = Refused.of(caught.value)
    assert (refused.code, refused.reason) == (INVALID, "BLOB_INVALID")
    assert "send a header first" in refused.message


def test_an_upload_of_nothing_stores_nothing(stranger: Stranger) -> None:
    assert stranger.upload().blobs_stored == 0


def test_an_upload_that_is_dropped_leaves_nothing(stranger: Stranger, daemon: Daemon) -> None:
    """The caller goes away in the middle of a blob."""
    hold = threading.Event()

    def requests() -> Iterator[bundle_store_pb2.UploadRequest]:
        yield header(digest_of(CONTENT), len(CONTENT))
        yield data(CONTENT[:10])
        hold.wait(30)

    call = stranger.store.Upload.future(requests(), timeout=60)
    blobs = daemon.directory / "state" / "blobs"
    wait_until(lambda: list(blobs.rglob("new-*")) != [])
    call.cancel()
    hold.set()
    wait_until(lambda: list(blobs.rglob("new-*")) == [])
    request = bundle_store_pb2.FindMissingRequest(digests=[digest_of(CONTENT)])
    assert list(stranger.store.FindMissing(request, timeout=60).missing_digests) == [digest_of(CONTENT)]


@pytest.mark.parametrize(
    ("digests", "word"),
    [
        (["x"], "64 lower-case hex"),
        (["sha256:" + "A" * 64], "lower-case"),
        ([""], "no digest"),
        ([digest_of(b"")] * 10_001, "10,000"),
        ([digest_of(b""), "sha256:../x"], "no digest"),
    ],
)
def test_a_question_for_blobs_that_is_wrong_is_refused(stranger: Stranger, digests: list[str], word: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stranger.store.FindMissing(bundle_store_pb2.FindMissingRequest(digests=digests), timeout=60)
    refused = Refused.of(caught.value)
    assert (refused.code, refused.reason, refused.fields) == (INVALID, "REQUEST_INVALID", ("digests",))
    assert word in refused.message


def test_a_store_that_is_full_says_so(make_skill: MakeSkill) -> None:
    """Of a blob that can never fit, and of one that does not fit beside those that runs are using."""
    skill = make_skill({"x.sh": "echo going; sleep 600", "big.bin": os.urandom(700_000)})
    with running_daemon("--set", "bundles.store_bytes=1MiB") as daemon, skilljail.Client(daemon.address) as client:
        stranger = Stranger(daemon.address)
        with stranger.channel, client.stream(skill, "x.sh") as stream:
            next(one for one in stream if isinstance(one, skilljail.Output))
            with pytest.raises(grpc.RpcError) as caught:
                stranger.put(bytes(MIB + 1))
            never = Refused.of(caught.value)
            with pytest.raises(grpc.RpcError) as caught:
                stranger.put(bytes(400_000))
            now = Refused.of(caught.value)
            with pytest.raises(skilljail.StoreFull, match=r"bundles\.store_bytes"):
                client.run(make_skill({"x.sh": "echo ran", "other.bin": os.urandom(400_000)}), "x.sh")
            stream.cancel()
        for refused in (never, now):
            assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "STORE_FULL")
            assert "bundles.store_bytes" in refused.message
        assert (never.retry_seconds, bool(now.retry_seconds)) == (None, True)
        assert list((daemon.directory / "state" / "blobs").rglob("new-*")) == []
        assert client.run(make_skill({"x.sh": "echo ran", "other.bin": os.urandom(400_000)}), "x.sh").ok


# A daemon, an engine, an image that is not there


def test_a_daemon_that_is_not_there_is_named_with_the_mend(make_skill: MakeSkill) -> None:
    with skilljail.Client("unix:/nowhere/sock") as client:
        for call in (
            lambda: client.run(make_skill(dict(RUNS)), RUN),
            client.capabilities,
            lambda: list(client.list_runs()),
        ):
            with pytest.raises(skilljail.DaemonUnavailable, match=r"unix:/nowhere/sock .*`skilljaild serve`"):
                call()
        began = time.monotonic()
        with pytest.raises(skilljail.DaemonUnavailable, match=r"unix:/nowhere/sock within 0\.5 seconds"):
            client.wait_ready(0.5)
        assert time.monotonic() - began < 20


@pytest.mark.attack(88, "no engine", expected="the daemon does not start")
@pytest.mark.parametrize("url", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:9"])
def test_without_an_engine_the_daemon_does_not_start(url: str, seen: Seen) -> None:
    with tempfile.TemporaryDirectory(prefix="skilljail-test-") as directory:
        listen = pathlib.Path(directory, "sock")
        command = [sys.executable, "-m", "skilljaild", "serve", "--listen", f"unix:{listen}"]
        done = subprocess.run(
            [*command, "--state-dir", f"{directory}/state", "--engine-url", url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not listen.exists()
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"skilljaild: no container engine answers at {url} (")
    assert "Start it; or install one" in last
    assert "or name another with engine.url, --engine-url or DOCKER_HOST" in last
    assert "DOCKER_HOST" in last
    assert "Traceback" not in done.stderr
    seen(f"exit {done.returncode}")


class Relay:
    """A socket in front of the engine's, which a test can close and open again."""

    def __init__(self, listen: pathlib.Path, engine: str) -> None:
        self._listen = listen
        self._engine = engine
        self._ends: set[socket.socket] = set()
        self._listener: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._listen}"

    def open(self) -> None:
        """The engine is there."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._listen))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """The engine is gone: nobody can connect, and every connection breaks."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
            self._listen.unlink()
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._engine)
                self._ends |= {near, far}
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65_536):
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        self._ends.discard(source)


@pytest.fixture
def relay() -> Iterator[Relay]:
    """Between a daemon and the engine of the tests."""
    engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    assert engine.startswith("/"), "this test needs an engine on a unix socket; set DOCKER_HOST=unix:///…"
    with tempfile.TemporaryDirectory(prefix="skilljail-test-") as directory:
        one = Relay(pathlib.Path(directory, "engine"), engine)
        one.open()
        yield one
        one.close()


@pytest.fixture
def relayed(relay: Relay) -> Iterator[Daemon]:
    """A daemon whose engine can vanish."""
    with running_daemon("--engine-url", relay.url) as daemon:
        yield daemon
        relay.close()


@pytest.mark.parametrize("warm", [True, False], ids=["images just seen", "images not seen for a while"])
def test_an_engine_that_vanishes_is_told_and_found_again(
    relay: Relay, relayed: Daemon, make_skill: MakeSkill, engine_api: docker.APIClient, warm: bool
) -> None:
    skill = make_skill(dict(RUNS))
    with skilljail.Client(relayed.address) as client:
        if warm:
            assert client.run(skill, RUN).stdout == b"ran\n"
        else:
            time.sleep(5.5)  # the daemon believes for 5 s what it saw
        relay.close()
        with pytest.raises(skilljail.EngineUnavailable) as caught:
            client.run(skill, RUN)
        assert caught.value.reason == "ENGINE_UNAVAILABLE"
        assert relay.url in str(caught.value)
        assert "Start it; or install one" in str(caught.value)
        assert caught.value.retry_after_seconds == 5
        relay.open()
        assert client.run(skill, RUN).stdout == b"ran\n"
    assert owned_containers(engine_api, relayed.owner) == []


def test_an_engine_that_vanishes_under_a_script_is_a_result_without_an_exit_code(
    relay: Relay, relayed: Daemon, make_skill: MakeSkill, engine_api: docker.APIClient
) -> None:
    """Nobody knows how it would have ended; what it left behind is removed when the engine is back."""
    skill = make_skill({"x.sh": "echo going; sleep 600"})
    with skilljail.Client(relayed.address) as client:
        with client.stream(skill, "x.sh") as stream:
            next(one for one in stream if isinstance(one, skilljail.Output))
            relay.close()
            result = stream.wait()
        assert (result.outcome, result.exit_code, result.signal) == (Outcome.SANDBOX_ERROR, None, None)
        assert result.stdout == b"going\n"
        assert result.message.startswith("The sandbox was lost while the script ran: ")
        relay.open()
        assert client.run(make_skill(dict(RUNS)), RUN).stdout == b"ran\n"
    assert relayed.stop() == 0
    assert owned_containers(engine_api, relayed.owner) == []


def test_a_daemon_whose_engine_is_gone_stops_well(relay: Relay, relayed: Daemon) -> None:
    relay.close()
    began = time.monotonic()
    assert relayed.stop(signal.SIGTERM) == 0
    assert time.monotonic() - began < 30
    assert "Traceback" not in relayed.log.read_text()
    assert not (relayed.directory / "sock").exists()


def test_an_image_that_is_not_built_is_named_and_the_others_run(
    make_skill: MakeSkill, engine_api: docker.APIClient
) -> None:
    skill = make_skill({**RUNS, "x.ps1": "'ran'"})
    with running_daemon("--set", "images.pwsh=skilljail/nope:1") as daemon, skilljail.Client(daemon.address) as client:
        with pytest.raises(skilljail.InterpreterUnavailable) as caught:
            client.run(skill, "x.ps1")
        assert caught.value.reason == "INTERPRETER_UNAVAILABLE"
        assert caught.value.metadata["interpreter"] == "pwsh"
        assert str(caught.value) == (
            "pwsh scripts cannot run here: there is no image skilljail/nope:1 on the engine; correct images.pwsh"
        )
        assert newest_run(client) is None
        assert owned_containers(engine_api, daemon.owner) == []
        known = {one.name: one.available for one in client.capabilities().interpreters}
        assert known == {"python": True, "node": True, "bash": True, "pwsh": False}
        assert client.run(skill, RUN).stdout == b"ran\n"


@pytest.mark.parametrize("reference", ["UPPER/case", "a b", ":", "x@sha256:1"])
def test_an_image_reference_that_is_none_concerns_its_own_interpreter_only(
    make_skill: MakeSkill, reference: str
) -> None:
    skill = make_skill({**RUNS, "x.ps1": "'ran'"})
    with running_daemon("--set", f"images.pwsh={reference}") as daemon, skilljail.Client(daemon.address) as client:
        with pytest.raises(skilljail.InterpreterUnavailable, match="pwsh scripts cannot run here") as caught:
            client.run(skill, "x.ps1")
        assert reference in str(caught.value)
        assert client.run(skill, RUN).stdout == b"ran\n"
