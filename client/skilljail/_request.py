"""What a run is asked for, checked before anything is sent."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from skilljail._errors import InvalidRequest
from skilljail._inputs import Input, check_inputs
from skilljail._limits import Limits
from skilljail._outcome import Network
from skilljail._paths import PATH_BYTES_MAX, path_fault, shown
from skilljail.v1 import limits_pb2, run_pb2, script_runner_pb2

__all__ = ["SECRET_NAME", "PreparedRun", "RunOptions", "prepare"]

_MIB = 1024 * 1024
_ARGUMENT_BYTES_MAX = 131_071
_ARGUMENTS_BYTES_MAX = _MIB
_ENV_COUNT_MAX = 256
_STDIN_BYTES_MAX = 4 * _MIB
_PATTERN_COUNT_MAX = 64
_ALLOWED_HOSTS_MAX = 256
_LABEL_COUNT_MAX = 32
_LABEL_NAME_MAX = 63
_LABEL_VALUE_BYTES_MAX = 256
# What people write who know subprocess.run and its like.
_LIMIT_NAMES = {
    "timeout": "wall_seconds",
    "timeout_seconds": "wall_seconds",
    "cpu_time": "cpu_seconds",
    "memory": "memory_bytes",
    "disk": "disk_bytes",
}
_OPTION_NAMES = {
    "args": "argv",
    "cwd": "working_directory",
    "environment": "env",
    "allow_hosts": "allowed_hosts",
    "hosts": "allowed_hosts",
    "files": "inputs",
    "input": "stdin",
    "outputs": "artifacts",
}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_COUNT_MAX = 32
SECRET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RunOptions(TypedDict, total=False):
    """What `run` and `stream` take by keyword. All of it is optional."""

    env: Mapping[str, str] | None
    """Variables on top of the sandbox's own; nothing of the caller's environment goes along by itself."""
    stdin: bytes
    """What the script reads from standard input, at most 4 MiB. Empty: it is at its end from the start."""
    working_directory: str
    """The directory to start in, below the skill root; "" is the skill root."""
    inputs: Mapping[str, Input] | None
    """Files that are put into the skill root, by their path below it: content as bytes, or a file as a path."""
    limits: Limits | None
    """What to ask for."""
    artifacts: Sequence[str]
    """Glob patterns (`*`, `?`, `[…]`, `**`) of the new or changed files that come back."""
    labels: Mapping[str, str] | None
    """Kept with the run."""
    request_id: str | None
    """A name of A-Z a-z 0-9 . _ - that runs once: a call with it may be repeated after a broken connection."""
    interpreter: str | None
    """`python`, `node`, `bash` or `pwsh`. None: the script's shebang decides, then its suffix."""
    network: Network | Literal["none", "allowlist", "open"] | None
    """What the script may reach, of what the operator grants. None: nothing."""
    allowed_hosts: Sequence[str]
    """With `allowlist`: `example.com` is this host alone, `*.example.com` every host below it; behind `:` a port may
    stand, without one the ports are 80 and 443. None at all: nothing is reached."""
    secrets: Sequence[str]
    """Names of secrets that the operator grants to this very skill. They exclude `env`, `inputs` and `interpreter`."""
    mask_secrets: bool
    """Whether `***` takes the place of their values in the output. It helps against accidents only."""


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedRun:
    """A request that is complete but for its files, and where those come from."""

    skill_dir: str
    request: script_runner_pb2.RunScriptRequest
    inputs: Mapping[str, Input]
    """Still to be read."""


def prepare(
    skill_dir: str | os.PathLike[str],
    script: str,
    argv: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    working_directory: str = "",
    inputs: Mapping[str, Input] | None = None,
    limits: Limits | None = None,
    artifacts: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    request_id: str | None = None,
    interpreter: str | None = None,
    network: Network | Literal["none", "allowlist", "open"] | None = None,
    allowed_hosts: Sequence[str] = (),
    secrets: Sequence[str] = (),
    mask_secrets: bool = False,
    **unknown: object,
) -> PreparedRun:
    """Checks everything that can be told without the daemon. Raises InvalidRequest, naming the part at fault.

    Raises TypeError for an option that there is not.
    """
    for name, value in unknown.items():
        raise TypeError(f"a run has no option {shown(name)}; {_option_mend(name, value)}")
    if not isinstance(skill_dir, (str, os.PathLike)):
        raise InvalidRequest(f"skill_dir must be a path, got {type(skill_dir).__name__}")
    request = script_runner_pb2.RunScriptRequest(
        request_id=_request_id(request_id),
        script_path=_path("script", script),
        argv=_arguments(argv),
        env=_environment(_mapping("env", env)),
        stdin=_stdin(stdin),
        working_directory=_path("working_directory", working_directory) if working_directory != "" else "",
        limits=_limits(limits),
        artifact_patterns=_patterns(artifacts),
        labels=_labels(_mapping("labels", labels)),
        interpreter=_text("interpreter", interpreter or "", "REQUEST_INVALID"),
        network=_network(network),
        allowed_hosts=_hosts(allowed_hosts),
        secrets=_secrets(secrets),
        mask_secrets=_flag("mask_secrets", mask_secrets),
    )
    _check_network(request)
    _check_total(request)
    checked_inputs = check_inputs(inputs)
    if request.secrets:
        _check_nothing_else(env=request.env, inputs=checked_inputs, interpreter=request.interpreter)
    return PreparedRun(os.fspath(skill_dir), request, checked_inputs)


def _option_mend(name: str, value: object) -> str:
    limit = _LIMIT_NAMES.get(name, name)
    if limit in {field.name for field in dataclasses.fields(Limits)}:
        shown_value = f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int) else "…"
        return f"ask for a limit with limits=Limits({limit}={shown_value})"
    if name in _OPTION_NAMES:
        return f"it is called {_OPTION_NAMES[name]}"
    return f"there are {', '.join(RunOptions.__annotations__)}"


def _path(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be text, got {type(value).__name__}", reason="PATH_INVALID")
    fault = path_fault(value)
    if fault is not None:
        raise InvalidRequest(f"{field} {shown(value)} {fault}", reason="PATH_INVALID")
    return value


def _text(field: str, value: object, reason: str) -> str:
    """`value` as text that can go to the kernel: valid Unicode, without NUL."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be text, got {type(value).__name__}", reason=reason)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} is not valid Unicode text", reason=reason) from None
    if "\0" in value:
        raise InvalidRequest(f"{field} holds a NUL, which no program can take; remove it", reason=reason)
    return value


def _list(field: str, value: object, example: str, reason: str) -> list[str]:
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(
            f"{field} must be a list of strings such as {example}, got {type(value).__name__}", reason=reason
        )
    return [_text(f"{field}[{index}]", one, reason) for index, one in enumerate(value)]


def _mapping(field: str, value: object) -> Mapping[object, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{field} must be a mapping, got {type(value).__name__}")
    return value


def _arguments(argv: object) -> list[str]:
    arguments = _list("argv", argv, '["--value", "1"]', "ARGUMENT_INVALID")
    for index, argument in enumerate(arguments):
        if len(argument.encode()) > _ARGUMENT_BYTES_MAX:
            raise InvalidRequest(
                f"argv[{index}] is longer than {_ARGUMENT_BYTES_MAX:,} bytes, which the kernel refuses; "
                "pass it on standard input or as an input file",
                reason="ARGUMENT_INVALID",
            )
    return arguments


def _environment(env: Mapping[object, object]) -> dict[str, str]:
    if len(env) > _ENV_COUNT_MAX:
        raise InvalidRequest(
            f"env has more than {_ENV_COUNT_MAX} variables; leave some out", reason="ENVIRONMENT_INVALID"
        )
    checked: dict[str, str] = {}
    for name, value in env.items():
        if not isinstance(name, str) or _ENV_NAME.fullmatch(name) is None:
            raise InvalidRequest(
                f"env has the name {shown(str(name))}; a name is a letter or _ and then letters, digits and _",
                reason="ENVIRONMENT_INVALID",
            )
        checked[name] = _text(f"env['{name}']", value, "ENVIRONMENT_INVALID")
    return checked


def _check_total(request: script_runner_pb2.RunScriptRequest) -> None:
    total = sum(len(one.encode()) for one in request.argv)
    total += sum(len(name.encode()) + len(value.encode()) for name, value in request.env.items())
    if total > _ARGUMENTS_BYTES_MAX:
        raise InvalidRequest(
            f"argv and env are {total:,} bytes together, above {_ARGUMENTS_BYTES_MAX:,}; "
            "pass the data on standard input or as an input file",
            reason="ARGUMENT_INVALID",
        )


def _stdin(stdin: object) -> bytes:
    if not isinstance(stdin, (bytes, bytearray, memoryview)):
        hint = "; encode the text first" if isinstance(stdin, str) else ""
        raise InvalidRequest(f"stdin must be bytes, got {type(stdin).__name__}{hint}")
    data = bytes(stdin)
    if len(data) > _STDIN_BYTES_MAX:
        raise InvalidRequest(f"stdin is {len(data):,} bytes, above {_STDIN_BYTES_MAX:,}; pass it as an input file")
    return data


def _network(network: object) -> run_pb2.Network.ValueType:
    if network is None:
        return run_pb2.NETWORK_UNSPECIFIED
    names = {one.value.lower(): one.value for one in Network}
    if not isinstance(network, str) or network.lower() not in names:
        raise InvalidRequest(
            f"network must be {', '.join(map(repr, names))} or None, got {shown(str(network))}",
            reason="NETWORK_INVALID",
        )
    return run_pb2.Network.Value(f"NETWORK_{names[network.lower()]}")


def _hosts(allowed_hosts: object) -> list[str]:
    hosts = _list("allowed_hosts", allowed_hosts, '["api.example.com"]', "NETWORK_INVALID")
    if len(hosts) > _ALLOWED_HOSTS_MAX:
        raise InvalidRequest(
            f"allowed_hosts has more than {_ALLOWED_HOSTS_MAX} hosts; join some as '*.example.com'",
            reason="NETWORK_INVALID",
        )
    if "*" in hosts:
        raise InvalidRequest(
            "allowed_hosts has '*', which is no list of hosts; ask for network='open' to reach every host",
            reason="NETWORK_INVALID",
        )
    return hosts


def _check_network(request: script_runner_pb2.RunScriptRequest) -> None:
    if request.allowed_hosts and request.network != run_pb2.NETWORK_ALLOWLIST:
        mend = (
            "leave the hosts out to reach every host"
            if request.network == run_pb2.NETWORK_OPEN
            else "ask for network='allowlist'"
        )
        raise InvalidRequest(
            f"allowed_hosts means something with network='allowlist' only; {mend}", reason="NETWORK_INVALID"
        )


def _limits(limits: object) -> limits_pb2.Limits | None:
    if limits is None:
        return None
    if not isinstance(limits, Limits):
        raise InvalidRequest(f"limits must be skilljail.Limits, got {type(limits).__name__}", reason="LIMIT_INVALID")
    return limits.to_wire()


def _patterns(artifacts: object) -> list[str]:
    patterns = _list("artifacts", artifacts, '["out/*.csv"]', "REQUEST_INVALID")
    if len(patterns) > _PATTERN_COUNT_MAX:
        raise InvalidRequest(f"artifacts has more than {_PATTERN_COUNT_MAX} patterns; join some with '*'")
    for pattern in patterns:
        if not 0 < len(pattern.encode()) <= PATH_BYTES_MAX:
            raise InvalidRequest(f"the artifact pattern {shown(pattern)} must have 1 to {PATH_BYTES_MAX:,} bytes")
    return patterns


def _labels(labels: Mapping[object, object]) -> dict[str, str]:
    if len(labels) > _LABEL_COUNT_MAX:
        raise InvalidRequest(f"there are more than {_LABEL_COUNT_MAX} labels; leave some out")
    checked: dict[str, str] = {}
    for name, value in labels.items():
        label = _text("a label's name", name, "REQUEST_INVALID")
        text = _text(f"the label {shown(label)}", value, "REQUEST_INVALID")
        if not 0 < len(label) <= _LABEL_NAME_MAX or len(text.encode()) > _LABEL_VALUE_BYTES_MAX:
            raise InvalidRequest(
                f"the label {shown(label)} is too long; names have 1 to {_LABEL_NAME_MAX} characters "
                f"and values at most {_LABEL_VALUE_BYTES_MAX} bytes"
            )
        checked[label] = text
    return checked


def _secrets(secrets: object) -> list[str]:
    names = _list("secrets", secrets, '["openai"]', "REQUEST_INVALID")
    if len(names) > _SECRET_COUNT_MAX:
        raise InvalidRequest(f"secrets has more than {_SECRET_COUNT_MAX} names; leave some out")
    for name in names:
        if SECRET_NAME.fullmatch(name) is None:
            raise InvalidRequest(
                f"secrets has the name {shown(name)}; a name is 1 to 64 characters of a-z 0-9 . _ - and begins with a "
                "letter or a digit"
            )
        if names.count(name) > 1:
            raise InvalidRequest(f"secrets has {shown(name)} twice; name it once")
    return names


def _check_nothing_else(**brought: object) -> None:
    """A run with secrets is the granted skill alone: the daemon refuses what could bring other code to them."""
    for field, value in brought.items():
        if value:
            raise InvalidRequest(
                f"{field} cannot go along with secrets: such a run is the granted skill and nothing else; pass data as "
                "arguments or on standard input"
            )


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{field} must be True or False, got {type(value).__name__}")
    return value


def _request_id(request_id: object) -> str:
    if request_id is None:
        return ""
    if not isinstance(request_id, str) or _REQUEST_ID.fullmatch(request_id) is None:
        raise InvalidRequest("request_id must be 1 to 128 characters of A-Z a-z 0-9 . _ -")
    return request_id
