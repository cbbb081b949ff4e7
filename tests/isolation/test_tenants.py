"""Tenants of a real daemon, told apart by their certificates: nothing of one is there for another."""

import dataclasses
import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import grpc
import pytest
import skilljail
from attack_table import Seen
from harness import MakeSkill
from skilljail import Outcome, RunState
from skilljail._bundle import Bounds, Bundle
from skilljail.v1 import bundle_store_pb2, bundle_store_pb2_grpc, script_runner_pb2, script_runner_pb2_grpc
from unit.daemon.certificates import Authority

SLOW = "import os, time\nos.write(1, b'up\\n')\nopen('secret.txt', 'w').write('of alice')\ntime.sleep(600)"


@dataclasses.dataclass(frozen=True)
class Tenants:
    """A daemon behind mutual TLS and two callers of it."""

    alice: skilljail.Client
    bob: skilljail.Client
    bobs_channel: grpc.Channel


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture
def tenants(tmp_path: pathlib.Path) -> Iterator[Tenants]:
    """Alice and Bob, each with a certificate of the operator's authority."""
    authority = Authority(tmp_path, "operator")
    server, alice, bob = (authority.issue(name, f"/O=x/CN={name}") for name in ("server", "alice", "bob"))
    address = f"localhost:{_free_port()}"
    with tempfile.TemporaryDirectory(prefix="skilljail-test-") as directory:
        config = pathlib.Path(directory, "config.toml")
        files = {
            "certificate_file": server.certificate,
            "key_file": server.key,
            "client_ca_file": authority.certificate,
        }
        lines = [f"{name} = {json.dumps(str(path))}" for name, path in files.items()]
        config.write_text(
            f'listen = "{address}"\nstate_directory = "{directory}/state"\n\n[tls]\n' + "\n".join(lines) + "\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "skilljaild", "serve", "--config", str(config)],
            stdin=subprocess.DEVNULL,
        )
        try:
            clients = [
                skilljail.Client(
                    address,
                    tls=skilljail.TLS(
                        ca_file=authority.certificate, cert_file=identity.certificate, key_file=identity.key
                    ),
                )
                for identity in (alice, bob)
            ]
            clients[0].wait_ready(60)
            credentials = grpc.ssl_channel_credentials(
                authority.certificate.read_bytes(), bob.key.read_bytes(), bob.certificate.read_bytes()
            )
            with clients[0], clients[1], grpc.secure_channel(address, credentials) as channel:
                yield Tenants(clients[0], clients[1], channel)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.attack(87, "another tenant's run, while it goes and after it", expected="RUN_NOT_FOUND")
def test_a_run_of_another_tenant_is_not_there(tenants: Tenants, make_skill: MakeSkill, seen: Seen) -> None:
    """To be read, cancelled, listed; nor is its request id taken."""
    skill = make_skill({"x.py": SLOW})
    with tenants.alice.stream(skill, "x.py", request_id="the-same", artifacts=["*.txt"]) as stream:
        next(event for event in stream if isinstance(event, skilljail.Output))
        for call in (tenants.bob.get_run, tenants.bob.cancel_run):
            with pytest.raises(skilljail.RunNotFound) as caught:
                call(stream.run_id)
            seen(caught.value.reason)
        assert list(tenants.bob.list_runs()) == []
        assert tenants.alice.get_run(stream.run_id).state is RunState.RUNNING
        other = tenants.bob.run(make_skill({"x.py": "print('his')"}), "x.py", request_id="the-same")
        assert (other.outcome, other.stdout) == (Outcome.EXITED, b"his\n")
        stream.cancel()
        result = stream.wait()
    assert (result.outcome, result.stdout) == (Outcome.CANCELLED, b"up\n")
    with pytest.raises(skilljail.RunNotFound):
        tenants.bob.get_run(stream.run_id)
    assert [run.run_id for run in tenants.bob.list_runs()] == [other.run_id]
    assert [run.run_id for run in tenants.alice.list_runs()] == [stream.run_id]


@pytest.mark.attack(87, "another tenant's blob and bundle by digest", expected="missing, BUNDLE_MISSING")
def test_a_blob_of_another_tenant_is_not_there(tenants: Tenants, make_skill: MakeSkill, seen: Seen) -> None:
    """A digest proves knowledge of a content, not a right to it; nor does it tell whether somebody has it."""
    skill = make_skill({"x.py": "print(open('data.txt').read())", "data.txt": "known to alice"})
    assert tenants.alice.run(skill, "x.py").stdout == b"known to alice\n"
    bundle = Bundle.read(skill, Bounds())
    store = bundle_store_pb2_grpc.BundleStoreServiceStub(tenants.bobs_channel)
    answer = store.FindMissing(bundle_store_pb2.FindMissingRequest(digests=list(bundle.blobs)), timeout=60)
    assert set(answer.missing_digests) == set(bundle.blobs)
    seen("missing" if answer.missing_digests else "found")
    runner = script_runner_pb2_grpc.ScriptRunnerServiceStub(tenants.bobs_channel)
    request = script_runner_pb2.RunScriptRequest(script_path="x.py", bundle_digest=bundle.digest)
    with pytest.raises(grpc.RpcError) as caught:
        next(runner.RunScript(request, timeout=60))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert b"BUNDLE_MISSING" in dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    seen(caught.value.code().name)
    # What he uploads himself is his, and hers stays hers.
    assert tenants.bob.run(skill, "x.py").stdout == b"known to alice\n"
    assert len(list(tenants.bob.list_runs())) == 1
