"""The posture as a client sees it."""

import datetime

import pytest
import skilljail
from skilljail import Control, Finding, ImageSelfTest, IsolationLevel, OperatorOnly, Posture, Severity
from skilljail.v1 import posture_pb2

from .fake_daemon import FakeDaemon, posture

EXPECTED = Posture(
    time=datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC),
    isolation_level=IsolationLevel.CONTAINER,
    isolation_minimum=IsolationLevel.CONTAINER,
    strict=True,
    engine="Docker",
    engine_version="29.7.0",
    runtime="runc",
    runtime_version="1.1.5",
    kernel="6.18",
    cgroup_version=2,
    user_namespace=True,
    lsms=("apparmor",),
    rootless=True,
    findings=(Finding(Severity.KNOWN_BAD, "runc 1.1.5", "it leaks; update", "CVE-1"),),
    images=(
        ImageSelfTest(
            interpreter="python",
            image_digest="sha256:" + "b" * 64,
            passed=False,
            controls=(
                Control("no mount", holds=True, seen="EPERM"),
                Control("no bpf", holds=False, seen="it worked"),
            ),
            fault="",
            duration_seconds=1.5,
            isolation_level=IsolationLevel.CONTAINER,
        ),
    ),
)


def test_an_operator_gets_the_posture(fake: FakeDaemon) -> None:
    fake.posture = posture(failing=True)
    with skilljail.Client(fake.address) as client:
        found = client.self_test()
    assert found == EXPECTED
    assert [one.name for one in found.images[0].failing] == ["no bpf"]


async def test_the_asynchronous_client_gets_the_same(fake: FakeDaemon) -> None:
    fake.posture = posture(failing=True)
    async with skilljail.AsyncClient(fake.address) as client:
        assert await client.self_test() == EXPECTED


async def test_who_is_no_operator_gets_an_exception_of_its_own(fake: FakeDaemon) -> None:
    with skilljail.Client(fake.address) as client, pytest.raises(OperatorOnly, match="for operators"):
        client.self_test()
    async with skilljail.AsyncClient(fake.address) as other:
        with pytest.raises(OperatorOnly):
            await other.self_test()


def test_a_daemon_of_a_later_version_may_know_more(fake: FakeDaemon) -> None:
    fake.posture = posture(isolation_level=9)
    fake.posture.findings[0].severity = 9
    with skilljail.Client(fake.address) as client:
        found = client.self_test()
    assert (found.isolation_level, found.findings[0].severity) == ("UNKNOWN_9", "UNKNOWN_9")


def test_a_level_that_is_not_known_is_said_to_be_so(fake: FakeDaemon) -> None:
    with skilljail.Client(fake.address) as client:
        assert client.capabilities().engine.isolation_level is IsolationLevel.CONTAINER
    assert IsolationLevel.of(posture_pb2.ISOLATION_LEVEL_UNSPECIFIED) is IsolationLevel.UNSPECIFIED
