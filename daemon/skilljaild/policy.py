"""What a run gets of what it asks for. Operators set defaults and ceilings; requests ask below them."""

import dataclasses
import math
import re

from skilljail_init.frames import EGRESS_PORT

from skilljaild.errors import Reason, Refusal
from skilljaild.limits import Limits
from skilljaild.paths import shown

__all__ = [
    "EGRESS_ENVIRONMENT",
    "LABELS_MAX",
    "SANDBOX_ENVIRONMENT",
    "AskedLimits",
    "check_arguments",
    "check_arguments_with_secrets",
    "check_labels",
    "effective_limits",
    "environment",
]

ARGUMENT_BYTES_MAX = 131_071
"""MAX_ARG_STRLEN of Linux, without the NUL at the end."""
ARGUMENTS_BYTES_MAX = 1024 * 1024
VARIABLES_MAX = 256
LABELS_MAX = 32
MEMORY_BYTES_MIN = 32 * 1024 * 1024

SANDBOX_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/work/home",
    "TMPDIR": "/work/tmp",
    "LANG": "C.UTF-8",
    "USER": "sandbox",
    "NO_COLOR": "1",  # pwsh colours even what goes into a pipe
    "PYTHONDONTWRITEBYTECODE": "1",  # or every import leaves an artifact
    "PYTHONUNBUFFERED": "1",  # partial output of a run that is killed must not be lost in a buffer
    "POWERSHELL_TELEMETRY_OPTOUT": "1",
    "POWERSHELL_UPDATECHECK": "Off",
    "DOTNET_EnableDiagnostics": "0",  # no debugger sockets
}
"""What every script sees; a request's variables come on top."""

_PROXY = f"http://127.0.0.1:{EGRESS_PORT}"
_OWN_HOST = "localhost,127.0.0.1,::1"
EGRESS_ENVIRONMENT = {
    # Both spellings: curl reads http_proxy in lower case only, others look for upper case first.
    "HTTP_PROXY": _PROXY,
    "HTTPS_PROXY": _PROXY,
    "http_proxy": _PROXY,
    "https_proxy": _PROXY,
    # Servers that the script itself starts in its sandbox.
    "NO_PROXY": _OWN_HOST,
    "no_proxy": _OWN_HOST,
    "NODE_USE_ENV_PROXY": "1",  # without it node's fetch looks at none of these
}
"""What a script with egress sees besides. No ALL_PROXY: it would lead protocols here that are neither HTTP nor HTTPS,
and some programs read it as the address of a SOCKS proxy."""


@dataclasses.dataclass(frozen=True, slots=True)
class AskedLimits:
    """The limits of a request; None takes the default. Fields as in `Limits`."""

    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    disk_inodes: int | None = None
    open_files: int | None = None
    output_bytes: int | None = None
    artifact_count: int | None = None
    artifact_bytes: int | None = None
    egress_bytes: int | None = None
    egress_connections: int | None = None


FLOORS = Limits(
    wall_seconds=0.001,
    cpu_seconds=0.001,
    cpus=0.01,
    memory_bytes=MEMORY_BYTES_MIN,
    pids=4,
    disk_bytes=64 * 1024,
    disk_inodes=64,
    open_files=32,
    output_bytes=1,
    artifact_count=1,
    artifact_bytes=1,
    egress_bytes=1,
    egress_connections=1,
)
"""Below these no sandbox can work."""


def effective_limits(asked: AskedLimits, default: Limits, ceiling: Limits) -> Limits:
    """Fills in the defaults and checks every limit. Raises Refusal LIMIT_INVALID or LIMIT_ABOVE_CEILING."""
    values: dict[str, float | int] = {}
    for field in dataclasses.fields(Limits):
        value = getattr(asked, field.name)
        values[field.name] = getattr(default, field.name) if value is None else value
        if value is not None:
            _check_limit(field.name, value, getattr(FLOORS, field.name), getattr(ceiling, field.name))
    if asked.disk_bytes is None:
        # Whoever asks for little memory alone did not ask for a work directory that cannot fit into it.
        values["disk_bytes"] = min(values["disk_bytes"], values["memory_bytes"] // 2)
    limits = Limits(**values)  # type: ignore[arg-type]
    if limits.disk_bytes >= limits.memory_bytes:
        raise Refusal(
            Reason.LIMIT_INVALID,
            f"limits.disk_bytes: {limits.disk_bytes:,} is not below memory_bytes ({limits.memory_bytes:,}). The work "
            "directory lives in memory: ask for more memory or less disk.",
            field="limits.disk_bytes",
            limit="disk_bytes",
        )
    return limits


_CONTRACT_NAMES = {"wall_seconds": "wall_time", "cpu_seconds": "cpu_time"}
"""Where the contract's name of a limit is not the configuration's."""


def _check_limit(name: str, value: float, floor: float, ceiling: float) -> None:
    limit = _CONTRACT_NAMES.get(name, name)
    field = f"limits.{limit}"
    if math.isnan(value) or value < floor:
        raise Refusal(
            Reason.LIMIT_INVALID,
            f"{field}: with {value:,} nothing can run; ask for {floor:,} or more, or leave it out",
            field=field,
            limit=limit,
        )
    if value > ceiling:
        raise Refusal(
            Reason.LIMIT_ABOVE_CEILING,
            f"{field}: {value:,} is above this daemon's ceiling of {ceiling:,}; ask for less, or have its operator "
            f"raise limits.ceiling.{name}",
            field=field,
            limit=limit,
            asked=f"{value}",
            ceiling=f"{ceiling}",
        )


def check_arguments(argv: tuple[str, ...], env: dict[str, str]) -> None:
    """Refuses what the kernel could not pass on: NUL, one item too long, all of them too long."""
    for index, argument in enumerate(argv):
        field = f"argv[{index}]"
        if "\0" in argument:
            raise Refusal(Reason.ARGUMENT_INVALID, f"{field}: an argument cannot hold a NUL", field=field)
        if (size := len(argument.encode())) > ARGUMENT_BYTES_MAX:
            raise Refusal(
                Reason.ARGUMENT_INVALID,
                f"{field}: {size:,} bytes are more than the kernel passes in one argument ({ARGUMENT_BYTES_MAX:,}); "
                "pass the data on standard input or as an input file",
                field=field,
            )
    total = _passed_bytes(argv, env)
    if total > ARGUMENTS_BYTES_MAX:
        raise Refusal(
            Reason.ARGUMENT_INVALID,
            f"argv: arguments and environment are {total:,} bytes together, at most {ARGUMENTS_BYTES_MAX:,} can be "
            "passed; use standard input or an input file",
            field="argv",
        )


def check_arguments_with_secrets(argv: tuple[str, ...], env: dict[str, str]) -> None:
    """Refuses arguments that passed `check_arguments` and leave no room for the secrets that `env` now holds."""
    if _passed_bytes(argv, env) > ARGUMENTS_BYTES_MAX:
        # No sum: whoever knows the rest would know how long the secrets are.
        raise Refusal(
            Reason.ARGUMENT_INVALID,
            "argv: together with the secrets they are more than the kernel passes; use standard input",
            field="argv",
        )


def _passed_bytes(argv: tuple[str, ...], env: dict[str, str]) -> int:
    """What the kernel counts, about: each text with its end and a pointer to it."""
    total = sum(len(item.encode()) + 9 for item in argv)
    return total + sum(len(name.encode()) + len(value.encode()) + 10 for name, value in env.items())


def environment(asked: dict[str, str], *, egress: bool = False) -> dict[str, str]:
    """The whole environment of a script. `egress`: whether it has any.

    Raises Refusal ENVIRONMENT_INVALID for what cannot be passed on.
    """
    if len(asked) > VARIABLES_MAX:
        raise Refusal(
            Reason.ENVIRONMENT_INVALID,
            f"env: {len(asked)} variables, at most {VARIABLES_MAX} are possible",
            field="env",
        )
    for name, value in asked.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Refusal(
                Reason.ENVIRONMENT_INVALID,
                f"env: {shown(name)} is not a variable's name; use letters, digits and _, not starting with a digit",
                field="env",
            )
        # The value stays out of the message: it may be a secret.
        if "\0" in value or len(name.encode()) + len(value.encode()) + 1 > ARGUMENT_BYTES_MAX:
            raise Refusal(
                Reason.ENVIRONMENT_INVALID,
                f"env: the value of {name} holds a NUL or is longer than {ARGUMENT_BYTES_MAX:,} bytes",
                field="env",
            )
    return SANDBOX_ENVIRONMENT | (EGRESS_ENVIRONMENT if egress else {}) | asked


def check_labels(labels: dict[str, str]) -> None:
    """Refuses labels that are too many or too long."""
    if len(labels) > LABELS_MAX:
        raise Refusal(Reason.REQUEST_INVALID, f"labels: {len(labels)}, at most {LABELS_MAX} are kept", field="labels")
    for name, value in labels.items():
        if not 1 <= len(name.encode()) <= 63 or len(value.encode()) > 256:
            raise Refusal(
                Reason.REQUEST_INVALID,
                f"labels: {shown(name)}: a name has 1 to 63 bytes and a value at most 256",
                field="labels",
            )
