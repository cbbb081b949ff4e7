"""Whose requests may have a secret: the granted bundle of the granted caller, and nothing else with it."""

import dataclasses
import pathlib
from typing import Any

import pytest
from skilljaild.bundles.digest import digest_of
from skilljaild.bundles.store import BlobStore
from skilljaild.config import BundleConfig
from skilljaild.errors import Reason, Refusal
from skilljaild.network import NetworkCeiling
from skilljaild.policy import SANDBOX_ENVIRONMENT
from skilljaild.runs.order import InputFile, OrderDesk, RunRequest
from skilljaild.secrets.config import SecretConfig
from skilljaild.secrets.keeper import SecretKeeper

from .facts import LIMITS
from .orders import SKILL_MD, inline, make_request, manifest, put

FILES = {"SKILL.md": SKILL_MD, "scripts/run.py": b"print(1)\n"}


@pytest.fixture
def store(tmp_path: pathlib.Path) -> BlobStore:
    """A store with room for everything."""
    return BlobStore(tmp_path, 64 << 20)


def upload(store: BlobStore, files: dict[str, bytes]) -> str:
    """Uploads a skill and returns its digest."""
    for content in files.values():
        put(store, content)
    return put(store, manifest(files))


def desk(digest: str, skill: str = "demo", tenant: str = "cn:acme") -> OrderDesk:
    """A desk that grants the secret `it`."""
    grant = {"tenant": tenant, "skill": skill, "bundle_digest": digest}
    secret = SecretConfig.model_validate({"variable": "TOKEN", "command": ["x"], "grants": [grant]})
    return OrderDesk(LIMITS, LIMITS, BundleConfig(), NetworkCeiling(), SecretKeeper({"it": secret}))


def asking(digest: str, **fields: Any) -> RunRequest:
    """A request for the secret `it`."""
    return dataclasses.replace(make_request(bundle_digest=digest, files=(), secrets=("it",)), **fields)


def refusal(one: OrderDesk, request: RunRequest, store: BlobStore, tenant: str = "cn:acme") -> Refusal:
    """Why a request is refused."""
    with pytest.raises(Refusal) as caught:
        one.check(request, store, tenant)
    return caught.value


def test_the_granted_skill_of_the_granted_caller_may_have_it(store: BlobStore) -> None:
    digest = upload(store, FILES)
    request = asking(digest, argv=("a",), stdin=b"in", working_directory="scripts", mask_secrets=True)
    order = desk(digest).check(request, store, "cn:acme")
    assert (order.policy.secrets, order.policy.mask_secrets) == (("it",), True)
    assert order.env == SANDBOX_ENVIRONMENT


@pytest.mark.parametrize("tenant", ["cn:other", "local", "acme", "cn:ACME", ""])
def test_another_caller_may_not(store: BlobStore, tenant: str) -> None:
    digest = upload(store, FILES)
    found = refusal(desk(digest), asking(digest), store, tenant)
    assert found.reason is Reason.SECRET_NOT_GRANTED
    assert found.metadata == {"secret": "it", "tenant": tenant, "skill": "demo", "bundle_digest": digest}


def test_a_bundle_of_the_same_name_may_not(store: BlobStore) -> None:
    granted = upload(store, FILES)
    changed = upload(store, FILES | {"scripts/run.py": b"print(2)\n"})
    more = upload(store, FILES | {"scripts/sitecustomize.py": b""})
    for digest in (changed, more):
        assert refusal(desk(granted), asking(digest), store).reason is Reason.SECRET_NOT_GRANTED


def test_the_granted_bundle_under_another_name_may_not(store: BlobStore) -> None:
    """The operator looked at a skill of another name, or took the wrong digest."""
    digest = upload(store, FILES)
    found = refusal(desk(digest, skill="other"), asking(digest), store)
    assert (found.reason, found.metadata["skill"]) == (Reason.SECRET_NOT_GRANTED, "demo")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("files", (inline("scripts/sitecustomize.py", b""),)),
        ("files", (InputFile("data", None, "sha256:" + "0" * 64, executable=False),)),
        ("env", {"PYTHONPATH": "/work"}),
        ("env", {"A": ""}),
        ("interpreter", "bash"),
        ("interpreter", "python"),
    ],
)
def test_nothing_of_the_callers_comes_to_a_secret(store: BlobStore, field: str, value: Any) -> None:
    digest = upload(store, FILES)
    if field == "files" and value[0].content is None:
        value = (InputFile("data", None, put(store, b"data"), executable=False),)
    found = refusal(desk(digest), asking(digest, **{field: value}), store)
    assert (found.reason, found.field) == (Reason.REQUEST_INVALID, field)
    assert found.message.startswith(
        f"{field}: a run with secrets is the granted skill and nothing else, so it takes no "
    )


def with_first_line(store: BlobStore, name: str, line: str) -> RunRequest:
    """A request for the secret `it` by a script that begins so."""
    return asking(upload(store, FILES | {name: line.encode() + b"\n"}), script_path=name)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.py", "#!/usr/bin/python3 -i"),
        ("a.py", "#!/usr/bin/env -S python3 -u -i"),
        ("a.py", "#!/usr/bin/python3 -Bi"),
        ("a.py", "#!/usr/bin/python3 -"),
        ("a.py", "#!/usr/bin/python3 -c"),
        ("a.py", "#!/usr/bin/python3 -m pdb"),
        ("a.py", "#!/usr/bin/python3 -W"),  # it would take the script's path, and the caller's argument as a script
        ("a.py", "#!/usr/bin/python3 other.py"),
        ("a.sh", "#!/bin/bash -s"),
        ("a.sh", "#!/bin/sh -es"),
        ("a.sh", "#!/bin/bash -i"),
        ("a.sh", "#!/bin/bash -ic"),
        ("a.sh", "#!/bin/bash -o"),
        ("a.sh", "#!/bin/bash -o pipefail -s"),
        ("a.sh", "#!/bin/bash --rcfile"),
        ("a.sh", "#!/bin/bash '-e '"),
        ("a.js", "#!/usr/bin/env -S node -i"),
        ("a.js", "#!/usr/bin/env -S node --require"),
        ("a.js", "#!/usr/bin/env -S node --experimental-loader"),
        ("a.ps1", "#!/usr/bin/env -S pwsh -Interactive"),
        ("a.ps1", "#!/usr/bin/env -S pwsh -Command -"),
    ],
)
def test_a_script_whose_first_line_could_make_the_callers_input_run_has_no_secret(
    store: BlobStore, name: str, line: str
) -> None:
    request = with_first_line(store, name, line)
    one = desk(request.bundle_digest)
    found = refusal(one, request, store)
    assert (found.reason, found.field) == (Reason.SKILL_INVALID, "script_path")
    assert "leave them out" in found.message
    assert one.check(dataclasses.replace(request, secrets=()), store, "cn:acme").policy.secrets == ()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.py", "#!/usr/bin/env python3"),
        ("a.py", "#!/usr/bin/python3 -uB"),
        ("a.py", "#!/usr/bin/env -S python3 -I -X utf8 -X dev -W error"),
        ("a.py", "#!/usr/bin/python3 -Wignore"),
        ("a.sh", "#!/bin/bash -eu"),
        ("a.sh", "#!/bin/sh -e"),
        ("a.sh", "#!/usr/bin/env -S bash --norc -x -euo pipefail -o errtrace"),
        ("a.js", "#!/usr/bin/env -S node --no-warnings --max-old-space-size=100"),
        ("a.ps1", "#!/usr/bin/env -S pwsh -noprofile -ExecutionPolicy Bypass -File"),
        ("a.py", "print(1)"),
    ],
)
def test_a_script_with_a_harmless_first_line_may_have_it(store: BlobStore, name: str, line: str) -> None:
    request = with_first_line(store, name, line)
    assert desk(request.bundle_digest).check(request, store, "cn:acme").policy.secrets == ("it",)


def test_a_skill_that_comes_inline_has_no_secret(store: BlobStore) -> None:
    request = make_request(secrets=("it",))
    assert refusal(desk("sha256:" + "0" * 64), request, store).reason is Reason.REQUEST_INVALID


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (("it", "it"), "'it' is there twice"),
        (("",), "'' is no name of a secret"),
        (("IT",), "'IT' is no name of a secret"),
        (("a\n",), "is no name of a secret"),
        (tuple(f"s{number}" for number in range(33)), "33, at most 32 are given"),
    ],
)
def test_names_that_make_no_sense_are_refused(store: BlobStore, names: tuple[str, ...], fault: str) -> None:
    digest = upload(store, FILES)
    found = refusal(desk(digest), asking(digest, secrets=names), store)
    assert (found.reason, found.field) == (Reason.REQUEST_INVALID, "secrets")
    assert fault in found.message


@pytest.mark.parametrize(
    "skill_file",
    [
        b"",
        b"---\nname: [demo]\n---\n",
        b"---\n" + b"[" * 10_000 + b"\n---\n",
        b"---\nname: demo\n---\n" + b"x" * 10_000_000,
    ],
    ids=["empty", "a list as name", "brackets", "10 MB"],
)
def test_a_hostile_skill_file_is_refused_with_secrets_and_no_matter_without(
    store: BlobStore, skill_file: bytes
) -> None:
    digest = upload(store, FILES | {"SKILL.md": skill_file})
    found = refusal(desk(digest), asking(digest), store)
    assert (found.reason, found.field) == (Reason.SKILL_INVALID, "bundle_digest")
    assert found.message.startswith("SKILL.md ")
    assert desk(digest).check(asking(digest, secrets=()), store, "cn:acme").policy.secrets == ()


def test_a_desk_without_secrets_grants_none(store: BlobStore) -> None:
    digest = upload(store, FILES)
    one = OrderDesk(LIMITS, LIMITS, BundleConfig(), NetworkCeiling())
    assert refusal(one, asking(digest), store).reason is Reason.SECRET_NOT_GRANTED
    assert digest == digest_of(manifest(FILES))
