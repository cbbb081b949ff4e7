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
