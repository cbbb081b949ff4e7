"""Secrets from the caller's side: names that are asked for, and what an operator needs to grant them."""

import json
import pathlib
import tomllib
from typing import Any

import grpc
import pytest
import skilljail
from skilljail._skill_name import skill_name
from skilljail.v1 import run_pb2

from .fake_daemon import FakeDaemon, Refusal, finished, queued, started
from .test_cli import skilljail as command
from .test_maf_runner import run as run_for_model


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"secrets": "openai"}, r'secrets must be a list of strings such as \["openai"\], got str'),
        ({"secrets": [1]}, r"secrets\[0\] must be text, got int"),
        ({"secrets": ["OpenAI"]}, "secrets has the name 'OpenAI'; a name is 1 to 64"),
        ({"secrets": [""]}, "secrets has the name ''"),
        ({"secrets": ["x" * 65]}, "a name is 1 to 64"),
        ({"secrets": ["a\n"]}, "a name is 1 to 64"),
        ({"secrets": ["a", "a"]}, "secrets has 'a' twice"),
        ({"secrets": [f"s{number}" for number in range(33)]}, "secrets has more than 32 names"),
        ({"mask_secrets": 1}, "mask_secrets must be True or False, got int"),
        ({"secrets": ["a"], "env": {"A": "1"}}, "env cannot go along with secrets"),
        ({"secrets": ["a"], "inputs": {"x": b""}}, "inputs cannot go along with secrets"),
        ({"secrets": ["a"], "interpreter": "bash"}, "interpreter cannot go along with secrets"),
    ],
)
def test_what_a_daemon_would_refuse_is_not_sent(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(skilljail.InvalidRequest, match=fault) as caught:
        client.run(skill, "scripts/run.py", **options)
    assert caught.value.reason == "REQUEST_INVALID"
    assert fake.calls == []


def with_secrets() -> list[run_pb2.RunEvent]:
    """A run whose script got two secrets."""
    start = started()
    start.started.policy.secrets.extend(["openai", "my.db-1"])
    start.started.policy.mask_secrets = True
    return [queued(), start, finished()]


async def test_names_are_sent_and_the_policy_tells_them(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = lambda *_: with_secrets()
    with skilljail.Client(fake.address) as client:
        result = client.run(skill, "scripts/run.py", secrets=["openai", "my.db-1"], mask_secrets=True)
    async with skilljail.AsyncClient(fake.address) as client:
        same = await client.run(skill, "scripts/run.py", secrets=("openai", "my.db-1"), mask_secrets=True)
    for one, request in zip((result, same), fake.requests, strict=True):
        assert (list(request.secrets), request.mask_secrets) == (["openai", "my.db-1"], True)
        assert one.started is not None
        assert (one.started.policy.secrets, one.started.policy.mask_secrets) == (("openai", "my.db-1"), True)
    assert (list(fake.requests[0].files), dict(fake.requests[0].env)) == ([], {})


def test_the_command_asks_for_secrets_and_tells_them(fake: FakeDaemon, skill: pathlib.Path) -> None:
    fake.script = lambda *_: with_secrets()
    arguments = ["--secret", "openai", "--secret", "my.db-1", "--mask-secrets", "--json"]
    done = command(fake, "run", str(skill), "scripts/run.py", *arguments)
    assert (list(fake.requests[-1].secrets), fake.requests[-1].mask_secrets) == (["openai", "my.db-1"], True)
    policy = json.loads(done.stdout)["policy"]
    assert (policy["secrets"], policy["mask_secrets"]) == (["openai", "my.db-1"], True)


async def test_a_model_gets_the_secrets_of_its_skill_and_no_other_variables_with_them(
    fake: FakeDaemon, skill: pathlib.Path
) -> None:
    options: dict[str, Any] = {"env": {"A": "1"}, "mask_secrets": True}
    assert await run_for_model(fake, skill, secrets={"demo": ["openai"]}, **options) == "(no output)"
    assert await run_for_model(fake, skill, secrets={"other": ["openai"]}, **options) == "(no output)"
    asked = [(list(one.secrets), dict(one.env), one.mask_secrets) for one in fake.requests]
    assert asked == [(["openai"], {}, True), ([], {"A": "1"}, True)]
    with pytest.raises(skilljail.InvalidRequest, match=r"secrets\['demo'\] must be a list of names, got str"):
        await run_for_model(fake, skill, secrets={"demo": "openai"})


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "SECRET_NOT_GRANTED"),
        (grpc.StatusCode.FAILED_PRECONDITION, "SECRET_UNAVAILABLE"),
    ],
)
async def test_a_model_is_told_that_a_secret_is_missing_and_not_which(
    fake: FakeDaemon, skill: pathlib.Path, code: grpc.StatusCode, reason: str
) -> None:
    def refuse(*_: object) -> None:
        raise Refusal(code, reason, "secrets: 'openai' of tenant cn:acme")

    fake.script = refuse  # type: ignore[assignment]
    assert await run_for_model(fake, skill, secrets={"demo": ["openai"]}) == (
        "Error: Script 'scripts/run.py' lacks a secret that it needs to run. Do not retry; tell the user."
    )


# `skilljail digest`


def test_name_and_digest_of_a_folder_are_those_that_a_run_sends(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    client.run(skill, "scripts/run.py")
    digest = fake.requests[-1].bundle_digest
    plain = command(None, "digest", str(skill))
    assert (plain.returncode, plain.stdout.decode()) == (0, f"name    demo\ndigest  {digest}\n")
    assert json.loads(command(None, "digest", str(skill), "--json").stdout) == {
        "name": "demo",
        "bundle_digest": digest,
    }
    (skill / "scripts" / "run.py").chmod(0o644)
    assert digest.encode() not in command(None, "digest", str(skill)).stdout


@pytest.mark.parametrize(("tenant", "secret"), [("local", "openai"), ('cn:a"b \\ ä', "my.db-1")])
def test_a_grant_is_printed_as_the_daemon_reads_it(skill: pathlib.Path, tenant: str, secret: str) -> None:
    done = command(None, "digest", str(skill), "--grant", tenant, "--secret", secret)
    (grant,) = tomllib.loads(done.stdout.decode())["secrets"][secret]["grants"]
    digest = json.loads(command(None, "digest", str(skill), "--json").stdout)["bundle_digest"]
    assert grant == {"tenant": tenant, "skill": "demo", "bundle_digest": digest}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--grant", "local"], 2, "--grant TENANT and --secret NAME go together"),
        (["--secret", "openai"], 2, "--grant TENANT and --secret NAME go together"),
        (["--grant", "local", "--secret", "a", "--json"], 2, "--json and --grant exclude each other"),
        (["--grant", "acme", "--secret", "a"], 125, "write local, or cn: and a certificate's common name"),
        (["--grant", "local", "--secret", "A"], 125, "a name has 1 to 64"),
    ],
)
def test_a_grant_that_would_never_match_is_not_printed(
    skill: pathlib.Path, arguments: list[str], status: int, message: str
) -> None:
    done = command(None, "digest", str(skill), *arguments)
    assert (done.returncode, done.stdout) == (status, b"")
    assert message in done.stderr.decode()


def test_a_folder_whose_name_cannot_be_read_is_told(skill: pathlib.Path) -> None:
    (skill / "SKILL.md").write_text("# No frontmatter\n")
    done = command(None, "digest", str(skill))
    assert (done.returncode, done.stdout) == (125, b"")
    assert "has no single line 'name: …'" in done.stderr.decode()
    (skill / "SKILL.md").write_bytes(b"\xff")
    assert "SKILL.md cannot be read" in command(None, "digest", str(skill)).stderr.decode()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("---\nname: web-search\n---\n", "web-search"),
        ("\ufeff---\r\ndescription: x\r\nname: 'web-search' # c\r\n---\r\n", "web-search"),
        ('---\nmetadata:\n  name: other\nname: "web-search"\n---\nname: third\n', "web-search"),
        ("---\nname: web-search\nname: other\n---\n", None),
        ("---\n'name': other\nname: web-search\n---\n", None),
        ("---\nname: \"web-search'\n---\n", None),
        ("---\nname: [web-search]\n---\n", None),
        ("---\nname: |\n  web-search\n---\n", None),
        ("---\ndescription: x\n---\n", None),
        ("name: web-search\n", None),
    ],
)
def test_only_a_plain_name_is_read_without_a_parser(text: str, name: str | None) -> None:
    assert skill_name(text) == name
