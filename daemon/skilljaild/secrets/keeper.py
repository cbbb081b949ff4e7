"""Who gets which secret, and its value when a script is about to start."""

import asyncio
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Iterable, Mapping

import pydantic
import structlog

from skilljaild.errors import Reason, Refusal
from skilljaild.secrets.config import SecretConfig
from skilljaild.secrets.source import SourceError, check_file, checked, from_command, from_file

__all__ = ["Grantee", "SecretKeeper", "SecretsError"]

READ_SECONDS = 10.0
"""How long the sources of one run may take together."""
GIVE_UP_SECONDS = 2.0
"""How much longer a file system that does not answer is waited for."""
READERS_MAX = 8
"""Runs whose secrets are read at one time. Readers of their own: one that hangs must not stop the daemon's others."""

log = structlog.get_logger()


class SecretsError(Exception):
    """A secret's source cannot be used as it is; the message names it and the mend, and holds no value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Grantee:
    """Who asks for a secret: a caller, with exactly this skill."""

    tenant: str
    skill: str
    bundle_digest: str


class SecretKeeper:
    """The operator's secrets. Holds no value but those that came in the daemon's own environment."""

    def __init__(self, secrets: Mapping[str, SecretConfig] | None = None) -> None:
        """Takes the values of `environment` sources, and out of this process's environment.

        Raises SecretsError for a variable that is not there or no value, and for a file that others may read.
        """
        self._secrets = dict(secrets or {})
        self._grants = {
            (name, Grantee(one.tenant, one.skill, one.bundle_digest))
            for name, secret in self._secrets.items()
            for one in secret.grants
        }
        self._values = {
            name: _of_environment(name, secret.environment)
            for name, secret in self._secrets.items()
            if secret.environment is not None
        }
        self.absent: dict[str, str] = {}
        """Files that are not there, by the name of their secret. They may come: what writes them may be starting."""
        for name, secret in self._secrets.items():
            if secret.environment is not None:
                os.environ.pop(secret.environment, None)
            if secret.file is not None and not _is_there(name, secret.file):
                self.absent[name] = str(secret.file)
        self._readers = concurrent.futures.ThreadPoolExecutor(READERS_MAX, "secrets")

    def check(self, names: Iterable[str], grantee: Grantee) -> None:
        """Raises Refusal SECRET_NOT_GRANTED for the first secret that is not the grantee's.

        A secret that does not exist and one that is not granted are told in the same words.
        """
        taken: dict[str, str] = {}
        for name in names:
            if (name, grantee) not in self._grants:
                raise _not_granted(name, grantee)
            variable = self._secrets[name].variable
            if variable in taken:
                raise Refusal(
                    Reason.REQUEST_INVALID,
                    f"secrets: '{taken[variable]}' and '{name}' are both the variable {variable}; ask for one of them",
                    field="secrets",
                )
            taken[variable] = name

    async def read(self, names: Iterable[str]) -> dict[str, pydantic.SecretStr]:
        """Values by variable, from their sources as they are now. Raises Refusal SECRET_UNAVAILABLE."""
        wanted = tuple(names)
        if not wanted:
            return {}
        deadline = time.monotonic() + READ_SECONDS
        reading = asyncio.get_running_loop().run_in_executor(self._readers, self._read, wanted, deadline)
        try:
            async with asyncio.timeout(READ_SECONDS + GIVE_UP_SECONDS):
                return await reading
        except TimeoutError:
            log.warning("secrets not read in time", secrets=wanted)
            raise _unavailable(wanted) from None

    def _read(self, names: tuple[str, ...], deadline: float) -> dict[str, pydantic.SecretStr]:
        values: dict[str, pydantic.SecretStr] = {}
        for name in names:
            try:
                values[self._secrets[name].variable] = self._value(name, deadline)
            except SourceError as error:
                log.warning("secret not available", secret=name, error=str(error))
                raise _unavailable((name,)) from None
        return values

    def _value(self, name: str, deadline: float) -> pydantic.SecretStr:
        secret = self._secrets[name]
        if secret.file is not None:
            return from_file(secret.file)
        if secret.command is not None:
            return from_command(secret.command, deadline)
        return self._values[name]


def _of_environment(name: str, variable: str) -> pydantic.SecretStr:
    value = os.environ.get(variable)
    if value is None:
        raise SecretsError(
            f"secrets.{name}: the daemon's environment has no variable {variable}; set it, or take another source"
        )
    try:
        return checked(os.fsencode(value))
    except SourceError as error:
        raise SecretsError(f"secrets.{name}: {variable}: {error}") from None


def _is_there(name: str, file: pathlib.Path) -> bool:
    """Whether a file is there. Raises SecretsError for one that cannot be a secret's."""
    try:
        check_file(file)
    except FileNotFoundError:
        return False
    except SourceError as error:
        raise SecretsError(f"secrets.{name}: {error}") from None
    return True


def _not_granted(name: str, grantee: Grantee) -> Refusal:
    grant = ", ".join(f"{field} = {json.dumps(value)}" for field, value in dataclasses.asdict(grantee).items())
    return Refusal(
        Reason.SECRET_NOT_GRANTED,
        f"secrets: '{name}' is not granted to this skill of yours. Its operator grants it with a table "
        f"[[secrets.{_key(name)}.grants]] of {grant}.",
        field="secrets",
        secret=name,
        **dataclasses.asdict(grantee),
    )


def _key(name: str) -> str:
    """A name as a key of TOML."""
    return f'"{name}"' if "." in name else name


def _unavailable(names: tuple[str, ...]) -> Refusal:
    these = ", ".join(f"'{name}'" for name in names)
    return Refusal(
        Reason.SECRET_UNAVAILABLE,
        f"secrets: {these}: the operator's source gave no usable value; the daemon's log tells its operator why",
        field="secrets",
        secret=names[0],
    )
