"""What every engine promises (`skilljaild.engines.base.Engine`), on the engine at DOCKER_HOST: Docker or Podman."""

import asyncio
import dataclasses
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import docker
import pytest
from skilljail_init.frames import FrameType, encode
from skilljaild import images
from skilljaild.config import DefaultLimits
from skilljaild.engines.base import EngineUnavailable, ImageMissing, IsolationError, SandboxSpec
from skilljaild.engines.docker import DockerEngine
from skilljaild.engines.docker.attach import AttachStream
from skilljaild.engines.docker.config import container_config, labels_of, sandbox_name
from skilljaild.engines.docker.dialect import DockerDialect, PodmanDialect
from skilljaild.engines.docker.inspection import checks
from skilljaild.engines.floor import container_floor
from skilljaild.runs.conversation import Conversation, Exit, ProtocolError
from skilljaild.runs.events import Output
from skilljaild.runs.isolation import check_from_inside
from skilljaild.runs.start import start_order

LIMITS = DefaultLimits().limits()
ORDER = start_order(
    [],
    {"PATH": "/usr/bin:/bin"},
    dataclasses.replace(LIMITS, wall_seconds=20.0, cpu_seconds=20.0, output_bytes=1_000_000, disk_bytes=1 << 20),
)


@pytest.fixture
async def engine() -> AsyncIterator[DockerEngine]:
    """The engine, cleaned of what a test left on it."""
    one = DockerEngine()
    yield one
    for sandbox in await one.list_owned("test-owner"):
        await one.destroy(sandbox.sandbox_id)
    await one.close()


@pytest.fixture
async def spec(engine: DockerEngine) -> SandboxSpec:
    """A sandbox with the python image and the default limits."""
    image = await engine.image(images.reference("python"))
    return SandboxSpec("test-owner", secrets.token_hex(8), int(time.time()) + 600, image.digest, LIMITS)


async def open_conversation(engine: DockerEngine, spec: SandboxSpec) -> tuple[str, Conversation, dict[str, Any]]:
    """A started sandbox, its conversation and init's facts."""
    sandbox_id = await engine.create(spec)
    await engine.verify(sandbox_id, spec)
    conversation = Conversation(await engine.stream(sandbox_id))
    return sandbox_id, conversation, await conversation.ready()


async def no_content() -> AsyncIterator[bytes]:
    """The content of no files."""
    for content in ():
        yield content


async def run(conversation: Conversation, *argv: str) -> tuple[bytes, Exit]:
    """Runs a command in an empty skill root."""
    await conversation.stage([], [], no_content())
    await conversation.start(ORDER | {"argv": list(argv)}, b"")
    output, end = b"", None
    async for event in conversation.output(1_000_000):
        if isinstance(event, Output):
            output += event.data
        else:
            end = event
    assert end is not None
    assert [one async for one in conversation.artifacts(LIMITS)] == [0]
    return output, end


async def test_probe_tells_what_runs_here_and_misses_nothing(engine: DockerEngine) -> None:
    report = await engine.probe()
    assert report.name == "docker"
    assert report.product in {"Docker", "Podman"}
    assert report.version[0].isdigit()
    assert report.runtime
    assert report.cgroup_version in {1, 2}
    assert report.missing == ()


async def test_an_image_that_is_not_there_is_image_missing(engine: DockerEngine) -> None:
    with pytest.raises(ImageMissing, match=r"skilljail/nowhere:1.*skilljail images build"):
        await engine.image("skilljail/nowhere:1")


async def test_a_sandbox_is_verified_from_outside_and_inside_and_runs_a_command(
    engine: DockerEngine, spec: SandboxSpec
) -> None:
    sandbox_id, conversation, facts = await open_conversation(engine, spec)
    verified = check_from_inside(facts, spec.limits)
    assert "no network interface but loopback" in verified
    output, end = await run(conversation, "echo", "hello")
    assert (output, end.exit_code) == (b"hello\n", 0)
    await engine.destroy(sandbox_id)


async def test_binary_of_any_value_and_size_passes_the_stream_unchanged(
    engine: DockerEngine, spec: SandboxSpec
) -> None:
    """All byte values, those of detach keys (16, 17) among them, and more than any buffer on the way holds."""
    sandbox_id, conversation, _ = await open_conversation(engine, spec)
    content = bytes(range(256)) * 12_000
    entry: dict[str, object] = {
        "path": "blob",
        "size": len(content),
        "executable": False,
        "sha256": hashlib.sha256(content).hexdigest(),
    }

    async def contents() -> AsyncIterator[bytes]:
        yield content

    await conversation.stage([], [entry], contents())
    await conversation.start(ORDER | {"argv": ["cat", "blob"], "output_bytes": 4_000_000}, b"")
    output = b"".join([one.data async for one in conversation.output(4_000_000) if isinstance(one, Output)])
    assert output == content
    await engine.destroy(sandbox_id)


async def test_kill_ends_the_stream_with_end_of_file(engine: DockerEngine, spec: SandboxSpec) -> None:
    sandbox_id = await engine.create(spec)
    stream = await engine.stream(sandbox_id)
    assert await stream.read()
    await engine.kill(sandbox_id)
    async with asyncio.timeout(30):
        while await stream.read():
            pass
    assert not (await engine.stats(sandbox_id)).running
    await engine.kill(sandbox_id)
    await stream.close()
    await engine.destroy(sandbox_id)


async def test_a_sandbox_dies_when_our_end_of_its_stream_closes(engine: DockerEngine, spec: SandboxSpec) -> None:
    """What happens when the daemon is killed: nobody is there to destroy anything."""
    sandbox_id = await engine.create(spec)
    stream = await engine.stream(sandbox_id)
    assert await stream.read()
    await stream.close()
    async with asyncio.timeout(30):
        while (await engine.stats(sandbox_id)).running:
            await asyncio.sleep(0.05)
    await engine.destroy(sandbox_id)


async def test_destroy_removes_a_running_sandbox_and_may_be_repeated(engine: DockerEngine, spec: SandboxSpec) -> None:
    sandbox_id = await engine.create(spec)
    await engine.stream(sandbox_id)
    await engine.destroy(sandbox_id)
    assert await engine.list_owned(spec.owner) == ()
    await engine.destroy(sandbox_id)
    await engine.destroy("skilljail-never-was")


async def test_owned_sandboxes_are_listed_with_run_and_deadline(engine: DockerEngine, spec: SandboxSpec) -> None:
    sandbox_id = await engine.create(spec)
    (owned,) = await engine.list_owned(spec.owner)
    assert (owned.sandbox_id, owned.run_id, owned.deadline) == (sandbox_id, spec.run_id, spec.deadline)
    assert await engine.list_owned("somebody-else") == ()
    await engine.destroy(sandbox_id)


async def test_an_out_of_memory_kill_is_in_the_records(engine: DockerEngine, spec: SandboxSpec) -> None:
    small = dataclasses.replace(spec, limits=dataclasses.replace(LIMITS, memory_bytes=64 << 20, disk_bytes=8 << 20))
    sandbox_id, conversation, _ = await open_conversation(engine, small)
    _, end = await run(conversation, "python3", "-c", "x = bytearray(500 << 20); x[::4096] = x[::4096]")
    assert (end.signal, end.oom_kills) == (9, 1)
    await engine.destroy(sandbox_id)


async def test_creating_from_an_image_that_vanished_leaves_nothing(engine: DockerEngine, spec: SandboxSpec) -> None:
    gone = dataclasses.replace(spec, image_digest="sha256:" + "0" * 64)
    with pytest.raises(ImageMissing):
        await engine.create(gone)
    assert await engine.list_owned(spec.owner) == ()


async def test_an_engine_that_is_not_there_is_unavailable_and_named() -> None:
    engine = DockerEngine("unix:///nowhere/engine.sock")
    with pytest.raises(EngineUnavailable, match=r"unix:///nowhere/engine\.sock.*--engine-url"):
        await engine.probe()
    await engine.close()


def widen(body: dict[str, Any], name: str, value: int) -> None:
    """Raises a resource limit."""
    for one in body["HostConfig"]["Ulimits"]:
        if one["Name"] == name:
            one.update(Soft=value, Hard=value)


def rewrite_work(body: dict[str, Any], before: str, after: str) -> None:
    """Changes what the work directory is mounted with: a tmpfs of the container's, or a volume."""
    host = body["HostConfig"]
    assert before in str(host.get("Tmpfs") or host["Binds"])
    if host.get("Tmpfs"):
        host["Tmpfs"] = {path: options.replace(before, after) for path, options in host["Tmpfs"].items()}
    else:
        host["Binds"] = [bind.replace(before, after) for bind in host["Binds"]]


WEAKENINGS: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "user": ("user", lambda body: body.update(User="0:0")),
    "network": ("no network", lambda body: body["HostConfig"].update(NetworkMode="host")),
    "root": ("read-only root", lambda body: body["HostConfig"].update(ReadonlyRootfs=False)),
    "privileged": ("not privileged", lambda body: body["HostConfig"].update(Privileged=True)),
    "one capability": ("no capabilities", lambda body: body["HostConfig"].update(CapAdd=["CHOWN"])),
    "default capabilities": ("no capabilities", lambda body: body["HostConfig"].update(CapDrop=[])),
    "new privileges": (
        "no new privileges",
        lambda body: body["HostConfig"].update(SecurityOpt=body["HostConfig"]["SecurityOpt"][1:]),
    ),
    "seccomp": (
        "seccomp profile",
        lambda body: body["HostConfig"].update(SecurityOpt=["no-new-privileges", "seccomp=unconfined"]),
    ),
    "pid namespace": ("no host namespaces", lambda body: body["HostConfig"].update(PidMode="host")),
    "bind mount": (
        "no foreign mounts",
        lambda body: body["HostConfig"].update(Binds=[*body["HostConfig"].get("Binds", []), "/etc:/mnt:ro"]),
    ),
    "device": (
        "no devices",
        lambda body: body["HostConfig"].update(
            Devices=[{"PathOnHost": "/dev/full", "PathInContainer": "/dev/full", "CgroupPermissions": "r"}]
        ),
    ),
    "memory": (
        "memory limit",
        lambda body: body["HostConfig"].update(
            Memory=LIMITS.memory_bytes + 4096, MemorySwap=LIMITS.memory_bytes + 4096
        ),
    ),
    "swap": ("no swap", lambda body: body["HostConfig"].update(MemorySwap=2 * LIMITS.memory_bytes)),
    "pids": ("pids limit", lambda body: body["HostConfig"].update(PidsLimit=LIMITS.pids + 1)),
    "cpu": ("CPU limit", lambda body: body["HostConfig"].update(NanoCpus=2_000_000_000)),
    "core": ("no core files", lambda body: widen(body, "core", 1)),
    "open files": ("open files limit", lambda body: widen(body, "nofile", LIMITS.open_files + 1)),
    "file size": ("file size limit", lambda body: widen(body, "fsize", LIMITS.disk_bytes + 4096)),
    "shared memory": ("shared memory limit", lambda body: body["HostConfig"].update(ShmSize=128 << 20)),
    "uts namespace": (
        "no host namespaces",
        lambda body: (body.update(Hostname=""), body["HostConfig"].update(UTSMode="host")),
    ),
    "terminal": ("no terminal", lambda body: body.update(Tty=True)),
    "work options": ("work directory nosuid and nodev", lambda body: rewrite_work(body, ",nosuid,nodev", ",suid,dev")),
    "image": ("image by digest", lambda body: body.update(Image=images.reference("bash"))),
    "log": ("no log", lambda body: body["HostConfig"].update(LogConfig={"Type": "json-file", "Config": {}})),
}


TELLING_WEAKENINGS: dict[str, tuple[str, str, object, Callable[[object], bool]]] = {
    "cgroup namespace": ("no host namespaces", "CgroupnsMode", "host", lambda told: told == "host"),
    "out-of-memory killer": ("out-of-memory killer", "OomKillDisable", True, bool),
    "masked paths": ("masked paths", "MaskedPaths", [], lambda told: told == []),
    "one masked path": ("masked paths", "MaskedPaths", ["/proc/keys"], lambda told: told == ["/proc/keys"]),
    "read-only paths": ("read-only paths", "ReadonlyPaths", [], lambda told: told == []),
}
"""Control, key of HostConfig, value, and whether an inspection tells that the engine did it. Not every engine does:
cgroup v2 always has its out-of-memory killer, and Podman's Docker API knows no paths and no cgroup namespace."""


SHARED_NAMESPACES = {"ipc": {"IpcMode": "host", "ShmSize": 0}, "pid": {"PidMode": "host"}}


@pytest.mark.parametrize("namespace", SHARED_NAMESPACES)
async def test_a_namespace_of_the_host_is_seen_from_inside_too(
    engine: DockerEngine, spec: SandboxSpec, engine_api: docker.APIClient, namespace: str
) -> None:
    """Podman's inspection does not tell the ipc namespace."""
    await engine.probe()
    dialect, floor, name = engine._dialect, container_floor(), sandbox_name(spec.run_id)
    body = container_config(engine_api, dialect, spec, floor)
    body["HostConfig"].update(SHARED_NAMESPACES[namespace])
    dialect.prepare_work(engine_api, name, spec, floor, labels_of(spec))
    engine_api.create_container_from_config(body, name=name)
    conversation = Conversation(await engine.stream(name))
    if namespace == "pid":  # init itself refuses to be anything but process 1
        with pytest.raises(ProtocolError, match="init gave up"):
            await conversation.ready()
    else:
        facts = await conversation.ready()
        with pytest.raises(IsolationError, match="namespaces of its own"):
            check_from_inside(facts, spec.limits)
    await engine.destroy(name)


async def test_what_shows_the_host_is_seen_from_inside_too(
    engine: DockerEngine, spec: SandboxSpec, engine_api: docker.APIClient
) -> None:
    """Podman's inspection tells neither masked nor read-only paths."""
    await engine.probe()
    dialect, floor, name = engine._dialect, container_floor(), sandbox_name(spec.run_id)
    body = container_config(engine_api, dialect, spec, floor)
    host = body["HostConfig"]
    options = [option for option in host["SecurityOpt"] if not option.startswith("mask=")]
    unmask = ["unmask=ALL"] if isinstance(dialect, PodmanDialect) else []
    host.update(MaskedPaths=[], ReadonlyPaths=[], SecurityOpt=[*options, *unmask])
    dialect.prepare_work(engine_api, name, spec, floor, labels_of(spec))
    engine_api.create_container_from_config(body, name=name)
    facts = await Conversation(await engine.stream(name)).ready()
    with pytest.raises(IsolationError, match=r"is hidden; the kernel's settings are read-only"):
        check_from_inside(facts, spec.limits)
    await engine.destroy(name)


@pytest.mark.parametrize("weakening", TELLING_WEAKENINGS)
async def test_verify_refuses_what_an_engine_tells_it_weakened(
    engine: DockerEngine, spec: SandboxSpec, engine_api: docker.APIClient, weakening: str
) -> None:
    control, key, value, tells = TELLING_WEAKENINGS[weakening]
    await engine.probe()
    dialect, floor, name = engine._dialect, container_floor(), sandbox_name(spec.run_id)
    body = container_config(engine_api, dialect, spec, floor)
    body["HostConfig"][key] = value
    dialect.prepare_work(engine_api, name, spec, floor, labels_of(spec))
    engine_api.create_container_from_config(body, name=name)
    inspected = engine_api.inspect_container(name)
    found = checks(engine_api, inspected, dialect, spec, floor, "")
    weakened = tells(inspected["HostConfig"].get(key))
    assert found.get(control, True) is not weakened
    assert weakened or not isinstance(dialect, DockerDialect) or key == "OomKillDisable"
    if weakened:
        with pytest.raises(IsolationError, match=control):
            await engine.verify(name, spec)
    await engine.destroy(name)


@pytest.mark.parametrize("weakening", WEAKENINGS)
async def test_verify_refuses_a_sandbox_that_is_weaker_than_the_floor(
    engine: DockerEngine, spec: SandboxSpec, engine_api: docker.APIClient, weakening: str
) -> None:
    control, weaken = WEAKENINGS[weakening]
    await engine.probe()
    dialect = engine._dialect  # noqa: SLF001  to make what no caller can make
    floor, name = container_floor(), sandbox_name(spec.run_id)
    body = container_config(engine_api, dialect, spec, floor)
    weaken(body)
    dialect.prepare_work(engine_api, name, spec, floor, labels_of(spec))
    engine_api.create_container_from_config(body, name=name)
    with pytest.raises(IsolationError, match=control):
        await engine.verify(name, spec)
    await engine.destroy(name)


async def test_an_init_that_floods_is_read_only_as_fast_as_somebody_listens(
    engine: DockerEngine, spec: SandboxSpec
) -> None:
    """The daemon's memory is bounded whatever a sandbox sends."""
    sandbox_id, conversation, _ = await open_conversation(engine, spec)
    await conversation.stage([], [], no_content())
    flood = ["python3", "-c", "import os\nwhile True: os.write(1, bytes(65536))"]
    await conversation.start(ORDER | {"argv": flood, "output_bytes": 1 << 40}, b"")
    stream = conversation._stream  # noqa: SLF001
    assert isinstance(stream, AttachStream)
    async with asyncio.timeout(30):
        while not stream.buffered_bytes:
            await asyncio.sleep(0.05)
    await asyncio.sleep(2)  # for what would come if there were no bound
    assert 0 < stream.buffered_bytes < 2 << 20
    await engine.destroy(sandbox_id)


async def test_init_exits_when_it_is_sent_rubbish(engine: DockerEngine, spec: SandboxSpec) -> None:
    sandbox_id = await engine.create(spec)
    stream = await engine.stream(sandbox_id)
    assert await stream.read()
    await stream.write(encode(FrameType.READY, b"{}"))
    received = b""
    async with asyncio.timeout(30):
        while data := await stream.read():
            received += data
    assert received[0] == FrameType.FATAL
    await engine.destroy(sandbox_id)
