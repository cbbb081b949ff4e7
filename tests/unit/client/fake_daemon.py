"""A daemon without a sandbox: it keeps blobs as the contract says and plays the events that a test gives it."""

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2
from skilljail.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    bundle_store_pb2,
    bundle_store_pb2_grpc,
    limits_pb2,
    posture_pb2,
    run_pb2,
    script_runner_pb2,
    script_runner_pb2_grpc,
)

__all__ = [
    "RUN_ID",
    "FakeDaemon",
    "Refusal",
    "artifact",
    "decided",
    "decision",
    "digest_of",
    "events",
    "finished",
    "numbered",
    "output",
    "posture",
]

RUN_ID = "run-1"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclasses.dataclass
class Refusal(Exception):
    """A gRPC status with the details that the contract promises."""

    code: grpc.StatusCode
    reason: str
    message: str
    metadata: dict[str, str] = dataclasses.field(default_factory=dict)
    missing: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    retry_seconds: float | None = None

    def abort(self, context: grpc.ServicerContext) -> None:
        details: list[message.Message] = [
            error_details_pb2.ErrorInfo(domain="skilljail", reason=self.reason, metadata=self.metadata)
        ]
        if self.missing:
            violation = error_details_pb2.PreconditionFailure.Violation
            details.append(
                error_details_pb2.PreconditionFailure(
                    violations=[violation(type="MISSING", subject=one, description="gone") for one in self.missing]
                )
            )
        if self.fields:
            field = error_details_pb2.BadRequest.FieldViolation
            details.append(
                error_details_pb2.BadRequest(
                    field_violations=[field(field=name, description=text) for name, text in self.fields]
                )
            )
        if self.retry_seconds is not None:
            delay = duration_pb2.Duration()
            delay.FromMilliseconds(round(self.retry_seconds * 1000))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(self.code, self.message)


def queued() -> run_pb2.RunEvent:
    return run_pb2.RunEvent(queued=run_pb2.Queued())


def started(**limits: Any) -> run_pb2.RunEvent:
    """`limits`: fields of Limits that are not as usual."""
    usual: dict[str, Any] = {
        "wall_time": duration_pb2.Duration(seconds=30),
        "memory_bytes": 256 * 1024 * 1024,
        "output_bytes": 1024,
        "artifact_count": 10,
        "artifact_bytes": 4096,
    }
    return run_pb2.RunEvent(
        started=run_pb2.Started(
            policy=run_pb2.EffectivePolicy(
                interpreter="python",
                command=["python3", "scripts/run.py"],
                limits=limits_pb2.Limits(**{**usual, **limits}),
                network=run_pb2.NETWORK_NONE,
            ),
            image_digest="sha256:" + "a" * 64,
            sandbox_id="box",
            sandbox_start=run_pb2.SANDBOX_START_COLD,
            isolation=run_pb2.Isolation(verified=["no network"], runtime="runc"),
        )
    )


def output(data: bytes, offset: int, stream: int = run_pb2.OUTPUT_STREAM_STDOUT) -> run_pb2.RunEvent:
    return run_pb2.RunEvent(output=run_pb2.Output(stream=stream, offset=offset, data=data))


def decision(host: str = "api.example.com", *, refusal: int = 0, **fields: Any) -> run_pb2.EgressDecision:
    """A connection that was allowed, or refused when `refusal` says why."""
    usual: dict[str, Any] = {"port": 443, "allowed": not refusal, "message": f"about {host}"}
    usual |= {} if refusal else {"address": "93.184.215.14"}
    return run_pb2.EgressDecision(host=host, refusal=refusal, **usual | fields)  # type: ignore[arg-type]


def decided(*some: run_pb2.EgressDecision) -> list[run_pb2.RunEvent]:
    return [run_pb2.RunEvent(egress_decision=one) for one in some]


def chunk(path: str, data: bytes, offset: int = 0) -> run_pb2.RunEvent:
    return run_pb2.RunEvent(artifact_chunk=run_pb2.ArtifactChunk(path=path, offset=offset, data=data))


def artifact(path: str, content: bytes) -> run_pb2.Artifact:
    return run_pb2.Artifact(
        path=path, size_bytes=len(content), digest=digest_of(content), media_type="application/octet-stream"
    )


def finished(
    outcome: int = run_pb2.OUTCOME_EXITED,
    exit_code: int | None = 0,
    stdout_bytes: int = 0,
    stderr_bytes: int = 0,
    **fields: Any,
) -> run_pb2.RunEvent:
    result = run_pb2.RunResult(
        outcome=outcome,
        exit_code=exit_code,
        usage=run_pb2.Usage(
            wall_time=duration_pb2.Duration(nanos=250_000_000),
            stdout_bytes=stdout_bytes,
            stderr_bytes=stderr_bytes,
            output_truncated=fields.pop("output_truncated", False),
            oom_kills=fields.pop("oom_kills", None),
            pids_limit_hits=fields.pop("pids_limit_hits", None),
            disk_full=fields.pop("disk_full", False),
            egress_sent_bytes=fields.pop("egress_sent_bytes", 0),
            egress_received_bytes=fields.pop("egress_received_bytes", 0),
            egress_connections=fields.pop("egress_connections", 0),
        ),
        phases=run_pb2.Phases(queued=duration_pb2.Duration(nanos=1_000_000)),
        **fields,
    )
    return run_pb2.RunEvent(finished=run_pb2.Finished(result=result))


def events(
    stdout: bytes = b"",
    stderr: bytes = b"",
    *,
    artifacts: dict[str, bytes] | None = None,
    **result: Any,
) -> list[run_pb2.RunEvent]:
    """A whole run that is as it should be."""
    files = artifacts or {}
    return [
        queued(),
        started(),
        *([output(stdout, 0)] if stdout else []),
        *([output(stderr, 0, run_pb2.OUTPUT_STREAM_STDERR)] if stderr else []),
        *(chunk(path, content) for path, content in files.items()),
        finished(
            stdout_bytes=len(stdout),
            stderr_bytes=len(stderr),
            artifacts=[artifact(path, content) for path, content in files.items()],
            **result,
        ),
    ]


def posture(*, failing: bool = False, **fields: Any) -> posture_pb2.Posture:
    """What a self-test finds: one image, one finding."""
    message = posture_pb2.Posture(
        isolation_level=posture_pb2.ISOLATION_LEVEL_CONTAINER,
        isolation_minimum=posture_pb2.ISOLATION_LEVEL_CONTAINER,
        strict=True,
        engine="Docker",
        engine_version="29.7.0",
        runtime="runc",
        runtime_version="1.1.5",
        kernel="6.18",
        cgroup_version=2,
        user_namespace=True,
        lsms=["apparmor"],
        rootless=True,
        findings=[
            posture_pb2.Finding(
                severity=posture_pb2.SEVERITY_KNOWN_BAD,
                subject="runc 1.1.5",
                message="it leaks; update",
                source="CVE-1",
            )
        ],
        images=[
            posture_pb2.ImageSelfTest(
                interpreter="python",
                image_digest="sha256:" + "b" * 64,
                passed=not failing,
                controls=[
                    posture_pb2.Control(name="no mount", holds=True, seen="EPERM"),
                    posture_pb2.Control(name="no bpf", holds=not failing, seen="it worked" if failing else "EPERM"),
                ],
                duration=duration_pb2.Duration(seconds=1, nanos=500_000_000),
                isolation_level=posture_pb2.ISOLATION_LEVEL_CONTAINER,
            )
        ],
    )
    message.time.seconds = 1_700_000_000
    message.MergeFrom(posture_pb2.Posture(**fields))
    return message


def numbered(some: Iterable[run_pb2.RunEvent]) -> Iterator[run_pb2.RunEvent]:
    """The events with their sequence and the run's name, where a test has not given them others."""
    for number, event in enumerate(some, start=1):
        event.sequence = event.sequence or number
        event.run_id = event.run_id or RUN_ID
        event.time.seconds = 1_700_000_000
        yield event


Script = Callable[[script_runner_pb2.RunScriptRequest, grpc.ServicerContext], Iterable[run_pb2.RunEvent]]


class FakeDaemon(
    script_runner_pb2_grpc.ScriptRunnerServiceServicer,
    bundle_store_pb2_grpc.BundleStoreServiceServicer,
    admin_pb2_grpc.AdminServiceServicer,
):
    """Serves all services on `address`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.blobs: dict[str, bytes] = {}
        self.requests: list[script_runner_pb2.RunScriptRequest] = []
        self.calls: list[str] = []
        self.cancelled: list[str] = []
        self.script: Script = lambda _request, _context: events()
        self.before_run: Callable[[int], None] = lambda _attempt: None
        self.running = threading.Event()
        self.dropped = threading.Event()
        self.bundle_entries_max = 10_000
        self.bundle_bytes_max = 64 * 1024 * 1024
        self.runs: list[run_pb2.Run] = []
        self.pages: Callable[[str], script_runner_pb2.ListRunsResponse] | None = None
        self.grants_more = False
        self.version = "0.1.0"
        self.warnings: list[str] = []
        self.posture: posture_pb2.Posture | None = None
        """What a self-test finds; None: the caller is no operator."""
        self._server: grpc.Server | None = None

    def start(self) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        if not hasattr(self._server, "add_registered_method_handlers"):
            # The oldest grpcio that the client runs with has the generic handlers only; they do the same.
            self._server.add_registered_method_handlers = lambda *_: None
        script_runner_pb2_grpc.add_ScriptRunnerServiceServicer_to_server(self, self._server)
        bundle_store_pb2_grpc.add_BundleStoreServiceServicer_to_server(self, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def manifest(self, request: script_runner_pb2.RunScriptRequest) -> bundle_store_pb2.BundleManifest:
        return bundle_store_pb2.BundleManifest.FromString(self.blobs[request.bundle_digest])

    def staged(self) -> dict[str, bytes]:
        """The files of the last request's bundle and inputs."""
        request = self.requests[-1]
        files = {one.path: self.blobs[one.digest] for one in self.manifest(request).files}
        for one in request.files:
            files[one.path] = self.blobs[one.digest] if one.digest else one.content
        return files

    # AdminService

    def SelfTest(  # noqa: N802
        self, _request: admin_pb2.SelfTestRequest, context: grpc.ServicerContext
    ) -> admin_pb2.SelfTestResponse:
        self.calls.append("SelfTest")
        if self.posture is None:
            Refusal(grpc.StatusCode.PERMISSION_DENIED, "OPERATOR_ONLY", "this call is for operators").abort(context)
        return admin_pb2.SelfTestResponse(posture=self.posture)

    # BundleStoreService

    def FindMissing(  # noqa: N802  # the contract's name
        self, request: bundle_store_pb2.FindMissingRequest, _context: grpc.ServicerContext
    ) -> bundle_store_pb2.FindMissingResponse:
        self.calls.append("FindMissing")
        assert len(request.digests) <= 10_000
        return bundle_store_pb2.FindMissingResponse(
            missing_digests=[one for one in request.digests if one not in self.blobs]
        )

    def Upload(  # noqa: N802
        self, request_iterator: Iterator[bundle_store_pb2.UploadRequest], context: grpc.ServicerContext
    ) -> bundle_store_pb2.UploadResponse:
        self.calls.append("Upload")
        header: bundle_store_pb2.BlobHeader | None = None
        data = b""
        stored = 0

        def keep() -> int:
            if header is None:
                return 0
            if digest_of(data) != header.digest or len(data) != header.size_bytes:
                Refusal(
                    grpc.StatusCode.INVALID_ARGUMENT, "BLOB_INVALID", f"blob {header.digest} has other content"
                ).abort(context)
            self.blobs[header.digest] = data
            return 1

        for piece in request_iterator:
            if piece.WhichOneof("piece") == "header":
                stored += keep()
                header, data = piece.header, b""
            else:
                assert 0 < len(piece.data) <= 1024 * 1024
                data += piece.data
        return bundle_store_pb2.UploadResponse(blobs_stored=stored + keep())

    # ScriptRunnerService

    def RunScript(  # noqa: N802
        self, request: script_runner_pb2.RunScriptRequest, context: grpc.ServicerContext
    ) -> Iterator[script_runner_pb2.RunScriptResponse]:
        self.calls.append("RunScript")
        self.requests.append(request)
        context.add_callback(self.dropped.set)
        self.before_run(len(self.requests))
        missing = self._missing(request)
        try:
            if missing:
                code = grpc.StatusCode.FAILED_PRECONDITION
                Refusal(code, "BUNDLE_MISSING", "upload the blobs", missing=missing).abort(context)
            for event in numbered(self.script(request, context)):
                if event.HasField("started") and not self.grants_more:
                    event.started.policy.limits.MergeFrom(request.limits)
                    event.started.policy.network = request.network or run_pb2.NETWORK_NONE
                    event.started.policy.allowed_hosts.extend(request.allowed_hosts)
                if event.WhichOneof("event") == "output":
                    self.running.set()
                yield script_runner_pb2.RunScriptResponse(event=event)
        except Refusal as refusal:
            refusal.abort(context)

    def _missing(self, request: script_runner_pb2.RunScriptRequest) -> tuple[str, ...]:
        if request.bundle_digest not in self.blobs:
            return (request.bundle_digest,)
        wanted = [one.digest for one in self.manifest(request).files]
        wanted += [one.digest for one in request.files if one.digest]
        return tuple(one for one in wanted if one not in self.blobs)

    def GetRun(  # noqa: N802
        self, request: script_runner_pb2.GetRunRequest, context: grpc.ServicerContext
    ) -> script_runner_pb2.GetRunResponse:
        for run in self.runs:
            if run.run_id == request.run_id:
                return script_runner_pb2.GetRunResponse(run=run)
        Refusal(grpc.StatusCode.NOT_FOUND, "RUN_NOT_FOUND", f"there is no run {request.run_id}").abort(context)
        raise AssertionError

    def ListRuns(  # noqa: N802
        self, request: script_runner_pb2.ListRunsRequest, _context: grpc.ServicerContext
    ) -> script_runner_pb2.ListRunsResponse:
        self.calls.append("ListRuns")
        if self.pages is not None:
            return self.pages(request.page_token)
        start = int(request.page_token or 0)
        end = start + request.page_size
        return script_runner_pb2.ListRunsResponse(
            runs=self.runs[start:end], next_page_token=str(end) if end < len(self.runs) else ""
        )

    def CancelRun(  # noqa: N802
        self, request: script_runner_pb2.CancelRunRequest, _context: grpc.ServicerContext
    ) -> script_runner_pb2.CancelRunResponse:
        self.cancelled.append(request.run_id)
        return script_runner_pb2.CancelRunResponse(
            run=run_pb2.Run(run_id=request.run_id, state=run_pb2.RUN_STATE_FINISHED)
        )

    def GetCapabilities(  # noqa: N802
        self, _request: script_runner_pb2.GetCapabilitiesRequest, _context: grpc.ServicerContext
    ) -> script_runner_pb2.GetCapabilitiesResponse:
        self.calls.append("GetCapabilities")
        return script_runner_pb2.GetCapabilitiesResponse(
            daemon_version=self.version,
            interpreters=[
                script_runner_pb2.Interpreter(
                    name="python",
                    available=True,
                    version="3.13.5",
                    image="skilljail/python",
                    image_digest="sha256:" + "b" * 64,
                    suffixes=[".py"],
                ),
                script_runner_pb2.Interpreter(
                    name="pwsh",
                    unavailable_reason="no image; run `skilljaild images build pwsh`",
                    suffixes=[".ps1"],
                ),
            ],
            default_limits=limits_pb2.Limits(wall_time=duration_pb2.Duration(seconds=30), cpus=1.0),
            limit_ceilings=limits_pb2.Limits(wall_time=duration_pb2.Duration(seconds=300), memory_bytes=1 << 30),
            bundle_bytes_max=self.bundle_bytes_max,
            bundle_entries_max=self.bundle_entries_max,
            engine=script_runner_pb2.Engine(
                name="docker", version="29.0", runtime="runc", warnings=self.warnings, isolation_level=1
            ),
            concurrent_runs_max=8,
            queued_runs_max=64,
        )
