"""Why something could not run, as exceptions."""

import contextlib
import os
import pathlib
import socket
import tempfile
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
import skilljail
from skilljail.cli import main
from skilljail.v1 import script_runner_pb2

from .fake_daemon import FakeDaemon, Refusal

EXPECTED = {
    "PATH_INVALID": skilljail.InvalidRequest,
    "ARGUMENT_INVALID": skilljail.InvalidRequest,
    "ENVIRONMENT_INVALID": skilljail.InvalidRequest,
    "LIMIT_INVALID": skilljail.InvalidRequest,
    "LIMIT_ABOVE_CEILING": skilljail.LimitAboveCeiling,
    "REQUEST_INVALID": skilljail.InvalidRequest,
    "SKILL_INVALID": skilljail.SkillInvalid,
    "SCRIPT_NOT_FOUND": skilljail.ScriptNotFound,
    "INTERPRETER_UNKNOWN": skilljail.InterpreterUnknown,
    "INTERPRETER_UNAVAILABLE": skilljail.InterpreterUnavailable,
    "BUNDLE_MISSING": skilljail.BundleMissing,
    "REQUEST_ID_IN_USE": skilljail.RequestIdInUse,
    "QUEUE_FULL": skilljail.QueueFull,
    "ENGINE_UNAVAILABLE": skilljail.EngineUnavailable,
    "SANDBOX_UNAVAILABLE": skilljail.EngineUnavailable,
    "ISOLATION_POSTURE": skilljail.IsolationRefused,
    "RUN_NOT_FOUND": skilljail.RunNotFound,
    "PAGE_TOKEN_INVALID": skilljail.InvalidRequest,
    "BLOB_INVALID": skilljail.SkillInvalid,
    "STORE_FULL": skilljail.StoreFull,
    "SHUTTING_DOWN": skilljail.ShuttingDown,
    "INTERNAL": skilljail.DaemonFault,
    "UNAUTHENTICATED": skilljail.Unauthenticated,
    "NOT_READ": skilljail.StreamBroken,
    "NETWORK_INVALID": skilljail.InvalidRequest,
    "NETWORK_NOT_ALLOWED": skilljail.NetworkNotAllowed,
    "SECRET_NOT_GRANTED": skilljail.SecretNotGranted,
    "SECRET_UNAVAILABLE": skilljail.SecretUnavailable,
    "OPERATOR_ONLY": skilljail.OperatorOnly,
}


def test_every_reason_of_the_contract_has_its_class() -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name in script_runner_pb2.ErrorReason.keys()}  # noqa: SIM118
    assert reasons - {"UNSPECIFIED"} == EXPECTED.keys()


@pytest.mark.parametrize("reason", sorted(EXPECTED.keys() - {"BUNDLE_MISSING"}))
def test_reason_becomes_its_exception(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, reason: str
) -> None:
    def refuse(*_: object) -> None:
        raise Refusal(
            grpc.StatusCode.FAILED_PRECONDITION,
            reason,
            "what is wrong; how to mend it",
            metadata={"run_id": "other", "limit": "memory"},
            fields=(("limits.memory_bytes", "too much"),),
            retry_seconds=1.5,
        )

    fake.script = refuse  # type: ignore[assignment]
    with pytest.raises(skilljail.SkilljailError) as caught:
        client.run(skill, "scripts/run.py")
    error = caught.value
    assert type(error) is EXPECTED[reason]
    assert str(error) == "what is wrong; how to mend it"
    assert error.reason == reason
    assert error.metadata == {"run_id": "other", "limit": "memory"}
    assert error.violations == (skilljail.Violation("limits.memory_bytes", "too much"),)
    assert error.retry_after_seconds == 1.5
    if isinstance(error, skilljail.RequestIdInUse):
        assert error.run_id == "other"


def test_reason_of_a_later_version_is_a_fault_of_the_daemon(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    def refuse(*_: object) -> None:
        raise Refusal(grpc.StatusCode.ABORTED, "MOON_PHASE", "wait for the full moon")

    fake.script = refuse  # type: ignore[assignment]
    with pytest.raises(skilljail.DaemonFault, match="full moon") as caught:
        client.run(skill, "scripts/run.py")
    assert caught.value.reason == "MOON_PHASE"


def test_status_without_details_is_told_as_it_is(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    def refuse(_request: object, context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff"),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")

    fake.script = refuse  # type: ignore[assignment]
    with pytest.raises(skilljail.DaemonFault, match="answered RESOURCE_EXHAUSTED: too large") as caught:
        client.run(skill, "scripts/run.py")
    assert caught.value.reason == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("text", "kind", "mend"),
    [
        ("Concurrent RPC limit exceeded!", skilljail.QueueFull, "try again later"),
        (
            "SERVER: Received message larger than max (2 vs. 1)",
            skilljail.InvalidRequest,
            "pass large inputs as input files",
        ),
    ],
)
def test_what_grpc_refuses_by_itself_has_its_exception_and_a_mend(
    fake: FakeDaemon,
    client: skilljail.Client,
    skill: pathlib.Path,
    text: str,
    kind: type[skilljail.SkilljailError],
    mend: str,
) -> None:
    def refuse(_request: object, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    fake.script = refuse  # type: ignore[assignment]
    with pytest.raises(kind, match=mend) as caught:
        client.run(skill, "scripts/run.py")
    assert caught.value.reason == kind.default_reason


def test_absent_daemon_is_named_with_the_mend(tmp_path: pathlib.Path, skill: pathlib.Path) -> None:
    address = f"unix:{tmp_path}/absent.sock"
    with skilljail.Client(address) as client, pytest.raises(skilljail.DaemonUnavailable) as caught:
        client.run(skill, "scripts/run.py")
    assert str(caught.value) == (
        f"no skilljail daemon answers at {address} (No such file or directory); start it with `skilljaild serve`, "
        "or set SKILLJAIL_ADDRESS to where it listens"
    )
    assert caught.value.reason == "DAEMON_UNAVAILABLE"


@contextlib.contextmanager
def no_user_of_power() -> Iterator[None]:
    """Root may connect to everything; so root is somebody else for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def denied() -> Iterator[str]:
    """The path of a socket that somebody listens at and this process may not connect to."""
    # pytest's own directories are closed as a whole, which is another fault.
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
        path = pathlib.Path(directory, "s.sock")
        listening.bind(str(path))
        listening.listen()
        path.chmod(0)
        path.parent.chmod(0o711)
        with no_user_of_power():
            yield str(path)
        path.parent.chmod(0o700)


def test_socket_that_is_closed_to_this_user_is_told_apart_from_no_daemon(denied: str) -> None:
    text = (
        f"the socket {denied} is there, but this user may not connect to it; have its operator set `socket_mode` (for "
        "example 660) and put you into the socket's group, or run a daemon of your own and set SKILLJAIL_ADDRESS to "
        "where it listens"
    )
    with skilljail.Client(denied) as client:
        with pytest.raises(skilljail.DaemonUnavailable) as caught:
            client.capabilities()
        assert str(caught.value) == text
        with pytest.raises(skilljail.DaemonUnavailable) as caught:
            client.wait_ready(0.3)
        assert str(caught.value) == text


def test_socket_in_a_directory_that_is_closed_to_this_user_is_told(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "closed" / "s.sock"
    path.parent.mkdir()
    path.parent.chmod(0)
    with (
        no_user_of_power(),
        skilljail.Client(f"unix:{path}") as client,
        pytest.raises(skilljail.DaemonUnavailable) as caught,
    ):
        client.capabilities()
    path.parent.chmod(0o700)
    assert str(caught.value) == (
        f"this user may not enter the directory of the socket {path}; have the daemon's operator open it or listen "
        "elsewhere, or run a daemon of your own and set SKILLJAIL_ADDRESS to where it listens"
    )


def test_doctor_has_one_finding_for_a_socket_that_is_closed_to_this_user(
    denied: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skilljail.cli.doctor.missing_packages", lambda: ("docker",))
    assert main(["doctor", "--address", denied]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines] == ["ok  ", "ok  ", "MISS", "--  "]
    finding = lines[2]
    assert finding.startswith(f"MISS  daemon: the socket {denied} is there, but this user may not connect to it; ")


def test_server_that_is_no_skilljail_daemon_is_told_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    address = f"unix:{tmp_path_factory.mktemp('o')}/s.sock"
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_insecure_port(address)
    server.start()
    try:
        with skilljail.Client(address) as client, pytest.raises(skilljail.DaemonFault, match="does not know this call"):
            client.capabilities()
    finally:
        server.stop(0)


def test_invalid_request_is_a_value_error_and_everything_is_one_tree() -> None:
    assert issubclass(skilljail.InvalidRequest, ValueError)
    for name in skilljail.__all__:
        value = getattr(skilljail, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, skilljail.SkilljailError)
            assert name in (skilljail.__doc__ or "")
