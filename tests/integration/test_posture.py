"""The posture of the host that these tests run on, on the engine at DOCKER_HOST, and what the daemon makes of it."""

import contextlib
import io
import json
import os
import pathlib
import secrets
import subprocess
import sys
from collections.abc import Iterator

import docker
import pytest
import skilljail
from harness import INTERPRETERS, Daemon, MakeSkill, owned_containers, running_daemon
from skilljail import IsolationLevel, Outcome, Posture, Severity
from skilljaild import images
from skilljaild.engines.floor import container_floor
from skilljaild.engines.known_bad import known_bad
from skilljaild.posture import probe

EXIT_CANNOT_START = 3


@pytest.fixture(scope="module")
def posture(daemon: Daemon) -> Posture:
    """What an operator of the shared daemon sees."""
    with skilljail.Client(daemon.address) as client:
        return client.self_test()


def serve(directory: pathlib.Path, *settings: str, command: str = "serve") -> subprocess.CompletedProcess[str]:
    """A command of the daemon that ends by itself."""
    place = ["--listen", f"unix:{directory}/s.sock", "--state-dir", f"{directory}/state"]
    flags = [word for setting in settings for word in ("--set", setting)]
    return subprocess.run(
        [sys.executable, "-m", "skilljaild", command, *place, *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        stdin=subprocess.DEVNULL,
    )


@contextlib.contextmanager
def image_of(api: docker.APIClient, *lines: str, tag: str = "") -> Iterator[str]:
    """An image that somebody made of the one for bash."""
    reference = tag or f"skilljail-test/{secrets.token_hex(6)}:1"
    dockerfile = "\n".join([f"FROM {images.reference('bash')}", *lines, ""])
    said = list(api.build(fileobj=io.BytesIO(dockerfile.encode()), tag=reference, rm=True, forcerm=True, decode=True))
    assert not any("error" in line for line in said), said
    try:
        yield reference
    finally:
        api.remove_image(reference, force=True)


SETUID = ("USER 0", "RUN chmod u+s /usr/bin/env", "USER 65532:65532")
OTHER_PROGRAM = ('ENTRYPOINT ["/bin/cat", "/etc/os-release"]',)


def test_every_image_passes_with_every_control(posture: Posture) -> None:
    assert [(one.interpreter, one.passed, one.fault) for one in posture.images] == [
        (name, True, "") for name in INTERPRETERS
    ]
    for image in posture.images:
        names = [control.name for control in image.controls]
        assert len(names) == len(set(names))
        gvisor = image.isolation_level is IsolationLevel.GVISOR
        assert set(probe.CONTROLS) - (probe.ON_LINUX if gvisor else set()) <= set(names)
        assert image.duration_seconds > 0


def test_the_posture_is_that_of_the_engine(posture: Posture, engine_api: docker.APIClient) -> None:
    info = engine_api.info()
    assert posture.kernel == info["KernelVersion"]
    assert posture.cgroup_version == int(info.get("CgroupVersion") or 1)
    assert posture.isolation_level in {IsolationLevel.CONTAINER, IsolationLevel.GVISOR, IsolationLevel.VM}
    assert posture.isolation_minimum is IsolationLevel.CONTAINER
    found = {(one.subject, one.message, one.source) for one in posture.findings}
    bad = known_bad(posture.engine, posture.engine_version, posture.runtime, posture.runtime_version)
    assert {(one.subject, one.message, one.source) for one in bad} <= found
    ranks = [list(Severity).index(one.severity) for one in posture.findings]
    assert ranks == sorted(ranks, reverse=True)
    if posture.runtime == "runc" and posture.runtime_version.startswith("1.1.5"):
        assert any(one.source == "CVE-2025-31133, -52565, -52881" for one in posture.findings)


def test_nothing_of_a_self_test_is_left(posture: Posture, daemon: Daemon, engine_api: docker.APIClient) -> None:
    assert posture.images
    assert owned_containers(engine_api, daemon.owner) == []


def test_strict_the_daemon_starts_only_where_nothing_is_known_to_be_bad(
    posture: Posture, tmp_path: pathlib.Path
) -> None:
    bad = [one for one in posture.findings if one.severity is Severity.KNOWN_BAD]
    if not bad:
        with running_daemon("--set", "isolation.strict=true"):
            return
    done = serve(tmp_path, "isolation.strict=true")
    assert done.returncode == EXIT_CANNOT_START
    for one in bad:
        line = f"isolation.strict is set, and this is known to be bad: {one.subject}: {one.message}"
        assert line in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "s.sock").exists()


@pytest.mark.parametrize("minimum", ["gvisor", "vm"])
def test_the_daemon_starts_only_at_the_level_that_is_demanded(
    posture: Posture, tmp_path: pathlib.Path, minimum: str
) -> None:
    levels = list(IsolationLevel)
    if levels.index(posture.isolation_level) >= levels.index(IsolationLevel(minimum.upper())):
        with running_daemon("--set", f"isolation.minimum={minimum}"):
            return
    done = serve(tmp_path, f"isolation.minimum={minimum}")
    assert done.returncode == EXIT_CANNOT_START
    seen = posture.isolation_level.lower()
    assert f"its isolation is {seen}, and isolation.minimum is {minimum}; name a runtime that gives it" in done.stderr
    # The doctor says the same, without a daemon.
    done = serve(tmp_path, f"isolation.minimum={minimum}", command="doctor")
    assert done.returncode == 1
    assert f"its isolation is {seen}, and isolation.minimum is {minimum}" in done.stdout


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (SETUID, "no setuid or setgid file (seen: /usr/bin/env)"),
        (OTHER_PROGRAM, "its init does not do what it must"),
    ],
)
def test_the_daemon_does_not_start_with_an_image_that_was_tampered_with(
    engine_api: docker.APIClient, tmp_path: pathlib.Path, lines: tuple[str, ...], fault: str
) -> None:
    with image_of(engine_api, *lines) as reference:
        done = serve(tmp_path, f"images.bash={reference}")
        assert done.returncode == EXIT_CANNOT_START
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("  ")]
        assert line.startswith(f"  bash ({reference}): ")
        assert fault in line
        assert "skilljail images build" in line


def test_an_image_that_comes_later_is_tested_before_its_first_run(
    engine_api: docker.APIClient, make_skill: MakeSkill
) -> None:
    skill = make_skill({"scripts/x.sh": "echo hello\n", "scripts/x.py": "print('hello')\n"})
    reference = f"skilljail-test/{secrets.token_hex(6)}:1"
    with running_daemon("--set", f"images.bash={reference}") as daemon, skilljail.Client(daemon.address) as client:
        with pytest.raises(skilljail.InterpreterUnavailable):
            client.run(skill, "scripts/x.sh")
        with image_of(engine_api, *SETUID, tag=reference), pytest.raises(skilljail.IsolationRefused) as caught:
            _until_seen(client, skill)
        assert "no setuid or setgid file (seen: /usr/bin/env)" in str(caught.value)
        assert client.run(skill, "scripts/x.py").stdout == b"hello\n"
        with image_of(engine_api, "LABEL seen=1", tag=reference):
            result = _until_seen(client, skill, refused=True)
        assert (result.outcome, result.stdout) == (Outcome.EXITED, b"hello\n")
        assert owned_containers(engine_api, daemon.owner) == []


def _until_seen(client: skilljail.Client, skill: pathlib.Path, *, refused: bool = False) -> skilljail.RunResult:
    """Runs the script as soon as the daemon looks at the engine again, which it does within some seconds."""
    while True:
        try:
            return client.run(skill, "scripts/x.sh")
        except skilljail.InterpreterUnavailable:
            continue
        except skilljail.IsolationRefused:
            if not refused:
                raise


def test_the_probe_sees_the_walls_that_a_plain_container_lacks(engine_api: docker.APIClient) -> None:
    """A probe that could not fail would prove nothing: here nothing of the floor is applied."""
    host = engine_api.create_host_config(
        network_mode="none", security_opt=["seccomp=unconfined"], tmpfs={"/work": "exec,uid=60100"}
    )
    made = engine_api.create_container(
        image=images.reference("bash"),
        entrypoint=["/bin/bash", "-c"],
        command=['mkdir /work/tmp && /usr/bin/python3 -I -S -c "$PROBE" $MASKED; exit $?'],
        user="60100:60100",
        environment={
            "PROBE": pathlib.Path(probe.__file__).read_text(),
            "MASKED": " ".join(container_floor().masked_paths),
        },
        host_config=host,
    )["Id"]
    try:
        engine_api.start(made)
        assert engine_api.wait(made, timeout=60)["StatusCode"] == 0
        found = json.loads(engine_api.logs(made, stdout=True, stderr=False))
    finally:
        engine_api.remove_container(made, force=True, v=True)
    assert set(found) == set(probe.CONTROLS)
    missing = {name for name, (holds, _) in found.items() if not holds}
    assert {
        "no socket of family AF_NETLINK",
        "no user namespace by unshare",
        "no user namespace by clone",
        "no user namespace by clone3",
        "no ptrace",
        "no process_vm_readv",
        "no userfaultfd",
        "no io_uring",
        "no keyctl",
        "the root is read-only",
        "a script gains no new privileges",
        "no capability",
        "init's environment and addresses cannot be read",
        "init cannot be traced",
        "a hidden path shows nothing",
    } <= missing
    if os.uname().machine == "x86_64":
        assert "no call of a 32-bit entry" in missing
