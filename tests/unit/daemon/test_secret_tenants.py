"""Secrets over TLS: a grant is one caller's, and whoever else asks for it learns nothing."""

import json
import pathlib
from typing import Any

import grpc
import pytest
from skilljail.v1 import bundle_store_pb2, bundle_store_pb2_grpc, script_runner_pb2, script_runner_pb2_grpc
from skilljaild.bundles.digest import digest_of

from .certificates import Authority
from .fake_service import reason_of, serving
from .orders import SKILL_MD, manifest
from .test_tls import authority, channel, server, settings

__all__ = ["authority", "server"]

FILES = {"SKILL.md": SKILL_MD, "run.py": b"print(1)\n"}
MANIFEST = manifest(FILES)
CANARY = "canary-0123456789"


async def upload(connection: grpc.aio.Channel) -> None:
    """Uploads the skill."""
    messages = []
    for content in (*FILES.values(), MANIFEST):
        header = bundle_store_pb2.BlobHeader(digest=digest_of(content), size_bytes=len(content))
        messages += [bundle_store_pb2.UploadRequest(header=header), bundle_store_pb2.UploadRequest(data=content)]
    store: Any = bundle_store_pb2_grpc.BundleStoreServiceStub(connection)
    await store.Upload(iter(messages))


async def ends(connection: grpc.aio.Channel, name: str = "it") -> tuple[str, dict[str, str]]:
    """How a run with a secret ends: `finished`, or the reason with its metadata."""
    runner: Any = script_runner_pb2_grpc.ScriptRunnerServiceStub(connection)
    request = script_runner_pb2.RunScriptRequest(
        bundle_digest=digest_of(MANIFEST), script_path="run.py", secrets=[name], mask_secrets=True
    )
    last = ""
    try:
        async for answer in runner.RunScript(request, timeout=20):
            last = answer.event.WhichOneof("event")
    except grpc.aio.AioRpcError as error:
        _, reason, metadata = reason_of(error)
        if CANARY in f"{error.details()} {error.trailing_metadata()}":
            reason = "told"
        return reason, metadata
    return last, {}


async def test_another_tenant_with_the_same_bundle_gets_nothing(
    authority: Authority, server: Any, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "token"
    file.write_text(CANARY)  # noqa: ASYNC240
    file.chmod(0o600)  # noqa: ASYNC240
    grant = {"tenant": "cn:alice", "skill": "demo", "bundle_digest": digest_of(MANIFEST)}
    secrets = {"it": {"variable": "TOKEN", "file": str(file), "grants": json.dumps([grant])}}
    async with (
        serving(tmp_path, **settings(authority, server), secrets=secrets) as service,
        channel(service, authority, authority.issue("alice", "/CN=alice")) as alice,
        channel(service, authority, authority.issue("bob", "/CN=bob")) as bob,
        channel(service, authority, authority.issue("local", "/CN=local")) as named_local,
    ):
        for connection in (alice, bob, named_local):
            await upload(connection)
        assert await ends(alice) == ("finished", {})
        (box,) = service.engine.boxes
        assert box.orders["start"]["env"]["TOKEN"] == CANARY
        who = {"skill": "demo", "bundle_digest": digest_of(MANIFEST)}
        for connection, tenant in ((bob, "cn:bob"), (named_local, "cn:local")):
            for name in ("it", "no"):
                assert await ends(connection, name) == ("SECRET_NOT_GRANTED", who | {"tenant": tenant, "secret": name})
        assert len(service.engine.boxes) == 1


@pytest.mark.parametrize("count", [4_097, 100_000])
async def test_more_names_than_make_sense_are_not_even_unfolded(tmp_path: pathlib.Path, count: int) -> None:
    async with serving(tmp_path) as service:
        request = script_runner_pb2.RunScriptRequest(script_path="run.py", secrets=[""] * count)
        with pytest.raises(grpc.aio.AioRpcError, match=f"secrets: {count:,} entries are far too many") as caught:
            await service.runner.RunScript(request, timeout=20).read()
        assert reason_of(caught.value)[1] == "REQUEST_INVALID"
