"""The posture of the host as messages of the contract."""

from google.protobuf import duration_pb2
from skilljail.v1 import posture_pb2

from skilljaild.engines.finding import Finding
from skilljaild.posture.posture import Posture
from skilljaild.posture.self_test import ImageTest
from skilljaild.runs.level import IsolationLevel

__all__ = ["level_number", "posture_message"]


def level_number(level: IsolationLevel | None) -> posture_pb2.IsolationLevel.ValueType:
    """A level's number; that of "not known" for None."""
    name = "UNSPECIFIED" if level is None else level.name
    return posture_pb2.IsolationLevel.Value(f"ISOLATION_LEVEL_{name}")


def posture_message(posture: Posture) -> posture_pb2.Posture:
    """The whole posture."""
    report = posture.report
    message = posture_pb2.Posture(
        isolation_level=level_number(posture.level),
        isolation_minimum=level_number(posture.demands.minimum),
        strict=posture.demands.strict,
        engine=report.product,
        engine_version=report.version,
        runtime=report.runtime,
        runtime_version=report.runtime_version,
        kernel=report.kernel,
        cgroup_version=report.cgroup_version,
        user_namespace=report.user_namespace,
        lsms=report.lsms,
        rootless=report.rootless,
        findings=[_finding(one) for one in posture.findings],
        images=[_image(one) for one in posture.images],
    )
    message.time.FromDatetime(posture.time)
    return message


def _finding(finding: Finding) -> posture_pb2.Finding:
    return posture_pb2.Finding(
        severity=posture_pb2.Severity.Value(f"SEVERITY_{finding.severity.name}"),
        subject=finding.subject,
        message=finding.message,
        source=finding.source,
    )


def _image(test: ImageTest) -> posture_pb2.ImageSelfTest:
    duration = duration_pb2.Duration()
    duration.FromMicroseconds(round(test.seconds * 1e6))
    return posture_pb2.ImageSelfTest(
        interpreter=test.interpreter,
        image_digest=test.image.digest,
        passed=test.passed,
        controls=[posture_pb2.Control(name=one.name, holds=one.holds, seen=one.seen) for one in test.controls],
        fault=test.fault,
        duration=duration,
        isolation_level=level_number(test.level),
    )
