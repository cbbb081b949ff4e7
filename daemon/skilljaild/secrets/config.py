"""`[secrets.NAME]`: where a secret comes from, as which variable it arrives, and which skills may have it."""

import json
import pathlib
import re
from typing import Annotated, Any, Self

import pydantic

from skilljaild.bundles.digest import is_digest
from skilljaild.paths import shown
from skilljaild.secrets.variables import variable_fault

__all__ = ["GrantConfig", "SecretConfig", "SecretTables", "secret_name_fault"]

ARGUMENTS_MAX = 64
GRANTS_MAX = 10_000
SKILL_LENGTH_MAX = 64
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def secret_name_fault(name: str) -> str | None:
    """Why no secret can have this name, or None when one can."""
    if _NAME.fullmatch(name):
        return None
    return f"{shown(name)} is no name of a secret; it has 1 to 64 of a-z 0-9 . _ - and begins with a letter or a digit"


def _names(tables: dict[str, Any]) -> dict[str, Any]:
    for name in tables:
        if fault := secret_name_fault(name):
            raise ValueError(fault)
    return tables


def _listed(value: object) -> object:
    """Flags and variables hold text: there a list is written as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("must be a list; in a flag or a variable, one in JSON") from None


def _variable(name: str) -> str:
    if fault := variable_fault(name):
        raise ValueError(fault)
    return name


def _absolute(path: pathlib.Path) -> pathlib.Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _command(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or not words[0] or any("\0" in word for word in words):
        raise ValueError("must be a program and its arguments, without NUL")
    if "/" in words[0] and not words[0].startswith("/"):
        raise ValueError("must begin with a program's name, which PATH is searched for, or an absolute path")
    return words


def _tenant(tenant: str) -> str:
    # The two forms of skilljaild.service.identity; a name alone would never match.
    name = tenant.removeprefix("cn:")
    if tenant != "local" and (name == tenant or not name or not name.isprintable()):
        raise ValueError("must be local (the unix socket), or cn: and the common name of a client certificate")
    return tenant


def _skill(name: str) -> str:
    if not 0 < len(name) <= SKILL_LENGTH_MAX or not name.isprintable():
        raise ValueError(f"must be the name in SKILL.md: 1 to {SKILL_LENGTH_MAX} characters")
    return name


def _digest(digest: str) -> str:
    if not is_digest(digest):
        raise ValueError("must be sha256: and 64 lower-case hex digits; `skilljail digest SKILL_DIR` tells it")
    return digest


class GrantConfig(pydantic.BaseModel):
    """`[[secrets.NAME.grants]]`: one skill of one caller. All three must be equal; there are no wildcards."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    tenant: Annotated[str, pydantic.AfterValidator(_tenant)]
    skill: Annotated[str, pydantic.AfterValidator(_skill)]
    bundle_digest: Annotated[str, pydantic.AfterValidator(_digest)]


class SecretConfig(pydantic.BaseModel):
    """`[secrets.NAME]`: exactly one of `file`, `environment` and `command` is its source."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    variable: Annotated[str, pydantic.AfterValidator(_variable)]
    """The environment variable in the sandbox."""
    file: Annotated[pathlib.Path, pydantic.AfterValidator(_absolute)] | None = None
    environment: Annotated[str, pydantic.AfterValidator(_variable)] | None = None
    """A variable of the daemon's own."""
    command: (
        Annotated[
            tuple[str, ...],
            pydantic.BeforeValidator(_listed),
            pydantic.Field(max_length=ARGUMENTS_MAX),
            pydantic.AfterValidator(_command),
        ]
        | None
    ) = None
    """A program and its arguments; no shell reads them."""
    grants: Annotated[tuple[GrantConfig, ...], pydantic.BeforeValidator(_listed), pydantic.Field(max_length=GRANTS_MAX)]

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("file", "environment", "command") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"takes exactly one of file, environment and command, and has {' and '.join(given) or 'none'}; a "
                "value cannot stand in the configuration itself"
            )
        if not self.grants:
            raise ValueError(
                "has no grants, so nobody could use it; `skilljail digest --grant` prints one for a skill folder"
            )
        return self


SecretTables = Annotated[dict[str, SecretConfig], pydantic.AfterValidator(_names)]
"""All secrets, by name."""
