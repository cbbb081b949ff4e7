"""A run with secrets is a granted bundle and nothing else, or it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skilljaild.errors import Reason, Refusal
from skilljaild.paths import shown
from skilljaild.secrets.config import secret_name_fault
from skilljaild.secrets.keeper import Grantee, SecretKeeper
from skilljaild.secrets.skill import SKILL_FILE, SKILL_FILE_BYTES_MAX, skill_name

if TYPE_CHECKING:
    from skilljaild.bundles.bundle import Bundle
    from skilljaild.bundles.store import BlobStore
    from skilljaild.interpreters import Interpreter
    from skilljaild.runs.order import RunRequest

__all__ = ["check_first_line", "check_secrets"]

SECRETS_MAX = 32


def check_secrets(request: RunRequest, bundle: Bundle, store: BlobStore, tenant: str, keeper: SecretKeeper) -> None:
    """Checks what a request says of secrets. Raises Refusal REQUEST_INVALID, SKILL_INVALID or SECRET_NOT_GRANTED."""
    if not request.secrets:
        return
    _check_names(request.secrets)
    _check_nothing_else(request)
    file = bundle.files[SKILL_FILE]
    if file.size > SKILL_FILE_BYTES_MAX:
        raise Refusal(
            Reason.SKILL_INVALID,
            f"{SKILL_FILE} has {file.size:,} bytes, at most {SKILL_FILE_BYTES_MAX:,} are read for a skill with "
            "secrets; move what is long into files of its own",
            field="bundle_digest",
        )
    name = skill_name(store.read(file.digest, file.size))
    keeper.check(request.secrets, Grantee(tenant, name, request.bundle_digest))


def check_first_line(interpreter: Interpreter, command: tuple[str, ...]) -> None:
    """Checks the options of the `#!` line of a script that gets secrets. Raises Refusal SKILL_INVALID.

    `command`: up to and with the script.
    """
    if options := interpreter.strange_options(command):
        raise Refusal(
            Reason.SKILL_INVALID,
            f"script_path: with the options {shown(' '.join(options))} of its #! line {interpreter.name} might run "
            "what the caller sends, so this script gets no secrets; leave them out and have the skill granted again "
            "(docs/secrets.md has those that are harmless)",
            field="script_path",
        )


def _check_names(names: tuple[str, ...]) -> None:
    if len(names) > SECRETS_MAX:
        raise Refusal(
            Reason.REQUEST_INVALID,
            f"secrets: {len(names)}, at most {SECRETS_MAX} are given; ask for fewer",
            field="secrets",
        )
    for name in names:
        if fault := secret_name_fault(name):
            raise Refusal(Reason.REQUEST_INVALID, f"secrets: {fault}", field="secrets")
        if names.count(name) > 1:
            raise Refusal(Reason.REQUEST_INVALID, f"secrets: '{name}' is there twice; name it once", field="secrets")


def _check_nothing_else(request: RunRequest) -> None:
    """Refuses whatever could make a caller's own code run where a granted secret is."""
    brought = {
        "files": (request.files, "input files; pass data on standard input"),
        "env": (request.env, "variables of the caller's; pass data as arguments or on standard input"),
        "interpreter": (request.interpreter, "forced interpreter; let the script's #! line or suffix choose"),
    }
    for field, (value, what) in brought.items():
        if value:
            raise Refusal(
                Reason.REQUEST_INVALID,
                f"{field}: a run with secrets is the granted skill and nothing else, so it takes no {what}",
                field=field,
            )
