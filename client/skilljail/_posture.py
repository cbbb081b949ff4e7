"""What holds on the host of a daemon, as `self_test` tells it."""

import dataclasses
import datetime

from skilljail._duration import datetime_from_timestamp, seconds_from_duration
from skilljail._outcome import OpenEnum
from skilljail.v1 import posture_pb2

__all__ = ["Control", "Finding", "ImageSelfTest", "IsolationLevel", "Posture", "Severity"]


class IsolationLevel(OpenEnum):
    """What stands between a sandbox and the host's kernel, weakest first."""

    UNSPECIFIED = "UNSPECIFIED"
    """Not known."""
    CONTAINER = "CONTAINER"
    GVISOR = "GVISOR"
    VM = "VM"

    @classmethod
    def of(cls, number: int) -> "IsolationLevel":
        """The level for a number of the contract."""
        return cls.from_wire(posture_pb2.IsolationLevel, number, "ISOLATION_LEVEL_")


class Severity(OpenEnum):
    """How much a finding weighs. `proto/skilljail/v1/posture.proto` says what each one means."""

    INFO = "INFO"
    WARNING = "WARNING"
    KNOWN_BAD = "KNOWN_BAD"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something that an operator should know."""

    severity: Severity
    subject: str
    """What it is about, such as `runc 1.1.5`."""
    message: str
    """What is wrong and what to do."""
    source: str
    """Where that is known from, such as `CVE-2025-31133`; may be empty."""

    @classmethod
    def from_wire(cls, message: posture_pb2.Finding) -> "Finding":
        """Reads the message of the contract."""
        severity = Severity.from_wire(posture_pb2.Severity, message.severity, "SEVERITY_")
        return cls(severity, message.subject, message.message, message.source)


@dataclasses.dataclass(frozen=True, slots=True)
class Control:
    """A control, and whether it holds."""

    name: str
    """What must hold, a short sentence."""
    holds: bool
    seen: str
    """What was seen, such as `EAFNOSUPPORT`."""


@dataclasses.dataclass(frozen=True, slots=True)
class ImageSelfTest:
    """What a self-test saw in a sandbox of one image."""

    interpreter: str
    image_digest: str
    passed: bool
    """Whether every control holds."""
    controls: tuple[Control, ...]
    fault: str
    """Why the self-test could not be done; then it is not passed."""
    duration_seconds: float
    isolation_level: IsolationLevel

    @property
    def failing(self) -> tuple[Control, ...]:
        """The controls that do not hold."""
        return tuple(one for one in self.controls if not one.holds)

    @classmethod
    def from_wire(cls, message: posture_pb2.ImageSelfTest) -> "ImageSelfTest":
        """Reads the message of the contract."""
        return cls(
            interpreter=message.interpreter,
            image_digest=message.image_digest,
            passed=message.passed,
            controls=tuple(Control(one.name, one.holds, one.seen) for one in message.controls),
            fault=message.fault,
            duration_seconds=seconds_from_duration(message.duration),
            isolation_level=IsolationLevel.of(message.isolation_level),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Posture:
    """What the engine tells about itself, and what was seen from inside a sandbox of each image."""

    time: datetime.datetime
    """When the self-test ended, in UTC."""
    isolation_level: IsolationLevel
    """The weakest over all images."""
    isolation_minimum: IsolationLevel
    strict: bool
    engine: str
    engine_version: str
    runtime: str
    runtime_version: str
    """Empty when the engine does not tell."""
    kernel: str
    cgroup_version: int
    user_namespace: bool
    """Whether sandboxes run in a user namespace of their own."""
    lsms: tuple[str, ...]
    rootless: bool
    findings: tuple[Finding, ...]
    """What an operator should know, worst first."""
    images: tuple[ImageSelfTest, ...]

    @classmethod
    def from_wire(cls, message: posture_pb2.Posture) -> "Posture":
        """Reads the message of the contract."""
        return cls(
            time=datetime_from_timestamp(message.time),
            isolation_level=IsolationLevel.of(message.isolation_level),
            isolation_minimum=IsolationLevel.of(message.isolation_minimum),
            strict=message.strict,
            engine=message.engine,
            engine_version=message.engine_version,
            runtime=message.runtime,
            runtime_version=message.runtime_version,
            kernel=message.kernel,
            cgroup_version=message.cgroup_version,
            user_namespace=message.user_namespace,
            lsms=tuple(message.lsms),
            rootless=message.rootless,
            findings=tuple(map(Finding.from_wire, message.findings)),
            images=tuple(map(ImageSelfTest.from_wire, message.images)),
        )
