"""`[secrets.NAME]`: what an operator may write, and what is told when it is wrong."""

import json
import pathlib
from typing import Any

import pytest
from skilljaild.config import Config, ConfigError, load
from skilljaild.policy import SANDBOX_ENVIRONMENT

from .test_config import fault, from_flags, no_variables

__all__ = ["no_variables"]

DIGEST = "sha256:" + "d" * 64
GRANT = {"tenant": "local", "skill": "web-search", "bundle_digest": DIGEST}
GOOD = {"variable": "OPENAI_API_KEY", "file": "/etc/skilljail/openai", "grants": [GRANT]}


def lines(table: dict[str, Any], name: str = "it") -> list[str]:
    """What is told of a wrong table."""
    found = fault({"secrets": {name: table}}).splitlines()
    assert found[0] == "The configuration is wrong:"
    return [one.strip() for one in found[1:]]


def test_a_file_says_everything(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "skilljaild.toml"
    file.write_text(
        '[secrets.openai]\nvariable = "OPENAI_API_KEY"\nfile = "/etc/skilljail/openai"\n'
        f'[[secrets.openai.grants]]\ntenant = "cn:acme"\nskill = "web-search"\nbundle_digest = "{DIGEST}"\n'
        f'[[secrets.openai.grants]]\ntenant = "local"\nskill = "web-search"\nbundle_digest = "{DIGEST}"\n'
        '[secrets."my.db-1"]\nvariable = "DB"\ncommand = ["pass", "show", "db"]\n'
        f'grants = [{{ tenant = "local", skill = "x", bundle_digest = "{DIGEST}" }}]\n'
    )
    secrets = load(file, {}).secrets
    assert list(secrets) == ["openai", "my.db-1"]
    assert (secrets["openai"].variable, secrets["openai"].file) == (
        "OPENAI_API_KEY",
        pathlib.Path("/etc/skilljail/openai"),
    )
    assert [one.tenant for one in secrets["openai"].grants] == ["cn:acme", "local"]
    assert secrets["my.db-1"].command == ("pass", "show", "db")


def in_words(config: Config) -> Any:
    """A secret as plain data."""
    return config.secrets["it"].model_dump(mode="json", exclude_none=True)


def test_flags_and_variables_say_the_same_with_lists_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"variable": "TOKEN", "command": ["pass", "it"], "grants": [GRANT]}
    grants = json.dumps([GRANT])
    flags = ["secrets.it.variable=TOKEN", 'secrets.it.command=["pass", "it"]', f"secrets.it.grants={grants}"]
    assert in_words(from_flags(*(word for flag in flags for word in ("--set", flag)))) == expected
    monkeypatch.setenv("SKILLJAILD_SECRETS__IT__VARIABLE", "TOKEN")
    monkeypatch.setenv("SKILLJAILD_SECRETS__IT__COMMAND", '["pass", "it"]')
    monkeypatch.setenv("SKILLJAILD_SECRETS__IT__GRANTS", grants)
    assert in_words(load(None, {})) == expected


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a b", "a/b", "ä", "x" * 65])
def test_another_name_of_a_secret_is_refused(name: str) -> None:
    (line,) = lines(GOOD, name)
    assert line.startswith("secrets: ")
    assert "is no name of a secret; it has 1 to 64 of a-z 0-9 . _ -" in line


@pytest.mark.parametrize("variable", ["", "1A", "A-B", "A=B", "A B", "ä", "A\n", "x" * 129])
def test_what_is_no_variable_is_refused(variable: str) -> None:
    assert lines(GOOD | {"variable": variable}) == [
        "secrets.it.variable: must be a variable's name: letters, digits and _, not starting with a digit, at most 128"
    ]


@pytest.mark.parametrize(
    "variable",
    [
        *SANDBOX_ENVIRONMENT,
        *(
            "path",
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "NODE_OPTIONS",
            "NODE_EXTRA_CA_CERTS",
        ),
        *("BASH_ENV", "BASH_FUNC_x", "ENV", "IFS", "PS4", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "NO_PROXY"),
        *("DOTNET_STARTUP_HOOKS", "PSModulePath", "GLIBC_TUNABLES", "SSL_CERT_FILE", "LC_ALL", "SKILLJAIL_X"),
    ],
)
def test_a_variable_that_something_in_a_sandbox_listens_to_is_refused(variable: str) -> None:
    (line,) = lines(GOOD | {"variable": variable})
    assert line.startswith("secrets.it.variable: must not be a variable that the sandbox, a loader,")


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "NODE_AUTH_TOKEN", "_x", "PROXY_TOKEN", "x" * 128])
def test_an_ordinary_variable_is_taken(variable: str) -> None:
    assert load(None, {"secrets": {"it": GOOD | {"variable": variable}}}).secrets["it"].variable == variable


SOURCES = {"file": "/x", "environment": "X", "command": ["x"]}


@pytest.mark.parametrize("given", [(), ("file", "environment"), ("file", "command"), tuple(SOURCES)])
def test_exactly_one_source_is_needed(given: tuple[str, ...]) -> None:
    table = {"variable": "X", "grants": [GRANT]} | {name: SOURCES[name] for name in given}
    assert lines(table) == [
        f"secrets.it: takes exactly one of file, environment and command, and has {' and '.join(given) or 'none'}; a "
        "value cannot stand in the configuration itself"
    ]


def test_a_secret_without_grants_is_refused() -> None:
    assert lines(GOOD | {"grants": []}) == [
        "secrets.it: has no grants, so nobody could use it; `skilljail digest --grant` prints one for a skill folder"
    ]
    assert lines({"variable": "X", "file": "/x"}) == ["secrets.it.grants: is needed"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"tenant": "acme"},
            "tenant: must be local (the unix socket), or cn: and the common name of a client certificate",
        ),
        ({"tenant": "*"}, "tenant: must be local"),
        ({"tenant": ""}, "tenant: must be local"),
        ({"tenant": "cn:"}, "tenant: must be local"),
        ({"tenant": "cn:a\n"}, "tenant: must be local"),
        ({"skill": ""}, "skill: must be the name in SKILL.md"),
        ({"skill": "x" * 65}, "skill: must be the name in SKILL.md: 1 to 64 characters"),
        ({"bundle_digest": "d" * 64}, "bundle_digest: must be sha256: and 64 lower-case hex digits; `skilljail digest"),
        ({"bundle_digest": "sha256:" + "D" * 64}, "bundle_digest: must be sha256:"),
        ({"bundle_digest": "*"}, "bundle_digest: must be sha256:"),
        ({"skil": "x"}, "skil: there is no such setting; did you mean secrets.it.grants.0.skill?"),
    ],
)
def test_a_grant_is_exact(change: dict[str, str], line: str) -> None:
    (found,) = lines(GOOD | {"grants": [GRANT | change]})
    assert found.startswith(f"secrets.it.grants.0.{line}")


@pytest.mark.parametrize("missing", list(GRANT))
def test_a_grant_needs_all_three(missing: str) -> None:
    grant = {name: value for name, value in GRANT.items() if name != missing}
    assert lines(GOOD | {"grants": [grant]}) == [f"secrets.it.grants.0.{missing}: is needed"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"file": "etc/openai"}, "secrets.it.file: must be an absolute path"),
        ({"file": None, "command": []}, "secrets.it.command: must be a program and its arguments, without NUL"),
        ({"file": None, "command": ["a\0"]}, "secrets.it.command: must be a program and its arguments, without NUL"),
        ({"file": None, "command": ["bin/x"]}, "secrets.it.command: must begin with a program's name, which PATH"),
        ({"file": None, "command": "pass show"}, "secrets.it.command: must be a list; in a flag or a variable, one in"),
        ({"grants": 5}, "secrets.it.grants: must be a list"),
        ({"fil": "/x"}, "secrets.it.fil: there is no such setting; did you mean secrets.it.file?"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], line: str) -> None:
    table = {name: value for name, value in (GOOD | change).items() if value is not None}
    (found,) = lines(table)
    assert found.startswith(line)


CANARY = "sk-canary-0123456789"


@pytest.mark.parametrize(
    "secrets",
    [
        CANARY,
        {"it": CANARY},
        {"it": {"value": CANARY}},
        {"it": GOOD | {"value": CANARY}},
        {"it": GOOD | {"variable": CANARY}},
        {"it": {"variable": "X", "environment": CANARY, "grants": [GRANT]}},
        {"it": GOOD | {"file": CANARY}},
        {"it": GOOD | {"command": CANARY}},
        {"it": GOOD | {"grants": CANARY}},
        {"it": GOOD | {"grants": [CANARY]}},
        {"it": GOOD | {"grants": [GRANT | {"tenant": CANARY}]}},
    ],
)
def test_a_value_that_was_put_into_the_configuration_is_not_repeated(
    secrets: object, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "canary" not in fault({"secrets": secrets})
    file = tmp_path / "skilljaild.toml"
    file.write_text(f'[secrets.it]\nvalue = "{CANARY}"\nvariable = "{CANARY}" oops\n')
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert "canary" not in str(caught.value)
    monkeypatch.setenv("SKILLJAILD_SECRETS", CANARY)
    assert "canary" not in fault({})
