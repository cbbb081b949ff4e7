"""Run the scripts of Agent Skills in locked-down, single-use containers: the thin client.

    import skilljail

    with skilljail.Client() as client:
        result = client.run("skills/unit-converter", "scripts/convert.py", ["--value", "26.2"])
        print(result.outcome, result.exit_code, result.stdout_text)

It talks gRPC to a skilljail daemon and knows nothing of containers. It imports grpcio, protobuf and
googleapis-common-protos, and nothing of the daemon.

Clients
    `Client(address=None, *, tls=None, insecure=False)` and `AsyncClient(…)` have the same methods; those of
    `AsyncClient` are awaited, and its context manager is `async with`. `address` is `unix:/path`, `/path` or
    `host:port`; None takes `SKILLJAIL_ADDRESS`, else the local daemon's socket. `host:port` is spoken to over TLS:
    `tls=TLS(ca_file, cert_file, key_file)`, else the variables `SKILLJAIL_TLS_CA`, `SKILLJAIL_TLS_CERT` and
    `SKILLJAIL_TLS_KEY`, else the system's authorities. `insecure=True` drops TLS, towards a loopback address only.

    run(skill_dir, script, argv=(), **options: RunOptions) -> RunResult
    stream(skill_dir, script, argv=(), **options: RunOptions) -> RunStream | AsyncRunStream
    get_run(run_id) -> Run
    list_runs(*, page_size=50) -> iterator of Run, newest first, over all pages
    cancel_run(run_id) -> Run
    capabilities() -> Capabilities
    self_test() -> Posture                           for operators: tries the walls of a sandbox of each image
    wait_ready(timeout_seconds=30.0) -> Capabilities
    close()

    RunOptions (all by keyword, all optional)
        env: Mapping[str, str]                       variables on top of the sandbox's own
        stdin: bytes                                 what the script reads; empty: end of file at once
        working_directory: str                       below the skill root; "" is the skill root
        inputs: Mapping[str, bytes | os.PathLike]    files put into the skill root, by path below it
        limits: Limits                               what to ask for; a field left None takes the operator's default
        artifacts: Sequence[str]                     glob patterns of the files that come back
        labels: Mapping[str, str]                    kept with the run
        request_id: str                              a name that runs once
        interpreter: str                             python, node, bash or pwsh; else shebang and suffix decide
        network: str                                 none, allowlist or open; else none
        allowed_hosts: Sequence[str]                 with allowlist: api.example.com, *.example.com, example.com:8443
        secrets: Sequence[str]                       names of secrets that the operator grants to this very skill
        mask_secrets: bool                           *** in place of their values in the output

Streams
    with client.stream(…) as stream:
        for event in stream: …                       Queued, Started, Output, EgressDecision, ArtifactChunk,
                                                     Heartbeat, Finished
    `stream.wait() -> RunResult` reads what is left. `stream.result` is the result once `Finished` came.
    `stream.run_id` is "" before the first event. `stream.cancel()` ends the run; the stream then goes on to
    `Finished` with `Outcome.CANCELLED`. Leaving the block, or an exception, Ctrl-C or a cancelled task inside it,
    kills a run that is not finished.

Results (frozen dataclasses; sizes in bytes, times in seconds)
    RunResult     run_id, outcome, exit_code, signal, message, stdout, stderr, usage, phases, artifacts,
                  skipped_artifacts, skipped_artifacts_omitted, egress_decisions, egress_decisions_omitted, started;
                  `ok`, `stdout_text`, `stderr_text`,
                  `text(stream="stdout")`, `save_artifacts(directory, *, overwrite=False) -> list[Path]`
    Artifact      path, name, size_bytes, digest, media_type, executable, content;
                  `save(directory, *, overwrite=False) -> Path`
    `save_artifacts` saves what it can and then raises ArtifactRefused, whose `saved` and `refusals` tell the rest.
    Posture       time, isolation_level, isolation_minimum, strict, engine, engine_version, runtime, runtime_version,
                  kernel, cgroup_version, user_namespace, lsms, rootless, findings: Finding, images: ImageSelfTest
    Finding       severity: Severity, subject, message, source; worst first
    ImageSelfTest interpreter, image_digest, passed, controls: Control, fault, duration_seconds, isolation_level;
                  `failing`
    Control       name, holds, seen
    A non-zero exit code is a result, never an exception. `exit_code` is None where the script has none.

Errors: why something could not run
    SkilljailError                    .reason, .metadata, .violations, .retry_after_seconds
    ├── InvalidRequest                the request is wrong; nothing ran and trying again is useless (also a ValueError)
    │   ├── InvalidAddress            no address of a daemon
    │   ├── SkillInvalid              the skill folder cannot be staged
    │   ├── ScriptNotFound            the skill has no such file
    │   ├── InterpreterUnknown        neither shebang nor suffix names a known interpreter
    │   └── LimitAboveCeiling         a limit is above what the operator allows
    ├── Unavailable                   nothing ran; trying again later may help
    │   ├── DaemonUnavailable         nobody answers at the address, or its socket is closed to this user
    │   ├── EngineUnavailable         the daemon's engine could not make a sandbox
    │   ├── QueueFull                 too many runs wait
    │   └── ShuttingDown              the daemon is being stopped
    ├── InterpreterUnavailable        the daemon has no image for that interpreter
    ├── IsolationRefused              a control did not hold on the sandbox; nothing ran
    ├── NetworkNotAllowed             the operator does not grant the network or the host that was asked for
    ├── SecretNotGranted              the operator has not granted the secret to this skill
    ├── SecretUnavailable             the operator's source of a granted secret gave no value
    ├── OperatorOnly                  the call is for operators
    ├── Unauthenticated               the daemon does not accept this caller
    ├── BundleMissing                 the daemon dropped the skill's content again and again
    ├── StoreFull                     the daemon cannot take the skill's content
    ├── RequestIdInUse                the request id was used before; .run_id
    ├── RunNotFound                   no such run
    ├── RunCancelled                  this client dropped the run or the call; no daemon reports it
    ├── StreamBroken                  the stream ended, went wrong or outran its limits before the result; .run_id
    ├── DaemonFault                   a fault of the daemon itself
    └── ArtifactRefused               an artifact cannot be written where it was to go; .saved, .refusals
"""

from skilljail._address import default_address, default_socket_path
from skilljail._artifact import Artifact, ArtifactInfo
from skilljail._async_client import AsyncClient, AsyncRunStream
from skilljail._capabilities import Capabilities, Engine, Interpreter
from skilljail._client import Client, RunStream
from skilljail._egress import EgressDecisionInfo
from skilljail._errors import (
    ArtifactRefused,
    BundleMissing,
    DaemonFault,
    DaemonUnavailable,
    EngineUnavailable,
    InterpreterUnavailable,
    InterpreterUnknown,
    InvalidAddress,
    InvalidRequest,
    IsolationRefused,
    LimitAboveCeiling,
    NetworkNotAllowed,
    OperatorOnly,
    QueueFull,
    RequestIdInUse,
    RunCancelled,
    RunNotFound,
    ScriptNotFound,
    SecretNotGranted,
    SecretUnavailable,
    ShuttingDown,
    SkillInvalid,
    SkilljailError,
    StoreFull,
    StreamBroken,
    Unauthenticated,
    Unavailable,
    Violation,
)
from skilljail._events import ArtifactChunk, EgressDecision, Event, Finished, Heartbeat, Output, Queued, Started
from skilljail._limits import Limits
from skilljail._outcome import EgressRefusal, Network, Outcome, RunState, SkipReason
from skilljail._posture import Control, Finding, ImageSelfTest, IsolationLevel, Posture, Severity
from skilljail._request import RunOptions
from skilljail._result import Phases, Policy, Run, RunResult, RunSummary, SkippedArtifact, Usage
from skilljail._tls import TLS
from skilljail._version import __version__

__all__ = [
    "TLS",
    "Artifact",
    "ArtifactChunk",
    "ArtifactInfo",
    "ArtifactRefused",
    "AsyncClient",
    "AsyncRunStream",
    "BundleMissing",
    "Capabilities",
    "Client",
    "Control",
    "DaemonFault",
    "DaemonUnavailable",
    "EgressDecision",
    "EgressDecisionInfo",
    "EgressRefusal",
    "Engine",
    "EngineUnavailable",
    "Event",
    "Finding",
    "Finished",
    "Heartbeat",
    "ImageSelfTest",
    "Interpreter",
    "InterpreterUnavailable",
    "InterpreterUnknown",
    "InvalidAddress",
    "InvalidRequest",
    "IsolationLevel",
    "IsolationRefused",
    "LimitAboveCeiling",
    "Limits",
    "Network",
    "NetworkNotAllowed",
    "OperatorOnly",
    "Outcome",
    "Output",
    "Phases",
    "Policy",
    "Posture",
    "QueueFull",
    "Queued",
    "RequestIdInUse",
    "Run",
    "RunCancelled",
    "RunNotFound",
    "RunOptions",
    "RunResult",
    "RunState",
    "RunStream",
    "RunSummary",
    "ScriptNotFound",
    "SecretNotGranted",
    "SecretUnavailable",
    "Severity",
    "ShuttingDown",
    "SkillInvalid",
    "SkilljailError",
    "SkipReason",
    "SkippedArtifact",
    "Started",
    "StoreFull",
    "StreamBroken",
    "Unauthenticated",
    "Unavailable",
    "Usage",
    "Violation",
    "__version__",
    "default_address",
    "default_socket_path",
]
