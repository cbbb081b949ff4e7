"""Requests and orders as a test needs them: everything ordinary but what the test names."""

import dataclasses
from typing import Any

from skilljail.v1 import bundle_store_pb2
from skilljaild.bundles.bundle import Bundle, BundleFile
from skilljaild.bundles.digest import digest_of
from skilljaild.bundles.store import BlobStore
from skilljaild.limits import Limits
from skilljaild.policy import AskedLimits, environment
from skilljaild.runs.events import EffectivePolicy
from skilljaild.runs.order import InputFile, Order, RunRequest

from .facts import LIMITS

__all__ = ["SKILL_MD", "inline", "make_order", "make_request", "manifest", "put"]

SKILL_MD = b"---\nname: demo\ndescription: Demo.\n---\n"


def inline(path: str, content: bytes = b"", *, executable: bool = False) -> InputFile:
    """An input with its content."""
    return InputFile(path, content, "", executable)


def make_request(**fields: Any) -> RunRequest:
    """A request for `scripts/run.py` of a skill that comes inline."""
    plain = RunRequest(
        request_id="",
        bundle_digest="",
        script_path="scripts/run.py",
        argv=(),
        env={},
        stdin=b"",
        working_directory="",
        files=(inline("SKILL.md", SKILL_MD), inline("scripts/run.py", b"print(1)\n")),
        limits=AskedLimits(),
        artifact_patterns=(),
        labels={},
        interpreter="",
        network=0,
        allowed_hosts=(),
    )
    return dataclasses.replace(plain, **fields)


def make_order(limits: Limits = LIMITS, files: list[BundleFile] | None = None, **fields: Any) -> Order:
    """An order as the desk makes it of `make_request`; `files` beside its own two."""
    request = make_request(**fields)
    own = [
        BundleFile(one.path, digest_of(one.content), len(one.content), one.executable, one.content)
        for one in request.files
        if one.content is not None
    ]
    bundle = Bundle.of(own + (files or []), [], bytes_max=1 << 30, entries_max=100)
    command = ("python3", "/work/skill/scripts/run.py", *request.argv)
    return Order(request, bundle, EffectivePolicy("python", command, limits), environment(request.env))


def put(store: BlobStore, content: bytes) -> str:
    """Stores a blob and returns its digest."""
    digest = digest_of(content)
    with store.writer(digest, len(content)) as writer:
        writer.write(content)
        writer.commit()
    return digest


def manifest(files: dict[str, bytes], directories: tuple[str, ...] = (), **fields: Any) -> bytes:
    """The bytes of a BundleManifest."""
    message = bundle_store_pb2.BundleManifest(
        files=[
            bundle_store_pb2.BundleFile(path=path, digest=digest_of(content), size_bytes=len(content))
            for path, content in files.items()
        ],
        directories=directories,
        **fields,
    )
    return message.SerializeToString()
