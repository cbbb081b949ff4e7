"""What the attacks share, and what must hold after each of them."""

import dataclasses
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import docker
import pytest
import skilljail
from harness import Daemon, MakeSkill, owned_containers, wait_until

from isolation.attacks import Attacks

LOOK_AROUND = """
import hashlib, json, os, pathlib
programs = [pathlib.Path(one) for one in ("/proc/self/exe", "/usr/bin/bash", "/etc/passwd")]
programs += sorted(pathlib.Path("/opt/skilljail/init").rglob("*.py*"))
programs += sorted(pathlib.Path("/usr/lib").glob("*-linux-gnu/libc.so.6"))
def lines(path):
    return open(path).read().splitlines()[1:] if os.path.exists(path) else []
print(json.dumps({
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "files": sorted(name for place in ("/work", "/dev/shm", "/dev/mqueue", "/tmp", os.environ["HOME"])
        if os.path.isdir(place) for name in os.listdir(place)
        if not name.startswith(".skilljail-")),  # init's own, for a moment, where it counts files (gVisor)
    "shared": [line for kind in ("shm", "sem", "msg") for line in lines(f"/proc/sysvipc/{kind}")],
    "sockets": lines("/proc/net/unix") + lines("/proc/net/tcp"),
    "programs": {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in programs},
}))
"""


@pytest.fixture
def attacks(client: skilljail.Client, make_skill: MakeSkill) -> Attacks:
    """Attacks on the daemon that tests share."""
    return Attacks(client, make_skill)


@dataclasses.dataclass
class Watch:
    """What a sandbox looked like before the first attack, and when one was last looked at."""

    untouched: Any
    looked: int


@pytest.fixture(scope="session")
def watch(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """Looks around before the first attack."""
    return Watch(_look_around(daemon, tmp_path_factory.mktemp("untouched")), int(time.time()))


@pytest.fixture(autouse=True)
def nothing_remains(
    request: pytest.FixtureRequest,
    daemon: Daemon,
    engine_api: docker.APIClient,
    watch: Watch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """After each attack the daemon serves the next run, which finds all as it was; nothing is left of the last one.

    After the last of a test's parameters: until then the next one is the next run.
    """
    yield
    if "attacks" not in request.fixturenames or _is_followed_by_itself(request):
        return
    wait_until(lambda: owned_containers(engine_api, daemon.owner) == [])
    assert _look_around(daemon, tmp_path_factory.mktemp("next")) == watch.untouched
    made = _containers_made(engine_api, daemon.owner, watch.looked)
    watch.looked = int(time.time())
    assert made, "the engine must know at least the sandbox of the look around"
    wait_until(lambda: not _traces(made))


def _is_followed_by_itself(request: pytest.FixtureRequest) -> bool:
    items = request.session.items
    after = items[items.index(request.node) + 1 :][:1]
    return [one.nodeid.partition("[")[0] for one in after] == [request.node.nodeid.partition("[")[0]]


def _look_around(daemon: Daemon, folder: pathlib.Path) -> Any:
    with skilljail.Client(daemon.address) as client:
        return Attacks(client, lambda files: _write(folder, files)).report(LOOK_AROUND)


def _write(folder: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, content in {"SKILL.md": "---\nname: next\ndescription: Looks around.\n---\n", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def _containers_made(api: docker.APIClient, owner: str, since: int) -> set[str]:
    """Ids of the containers that a daemon made."""
    filters = {"type": ["container"], "event": ["create"], "label": [f"io.skilljail.owner={owner}"]}
    events = api.events(since=since, until=f"{time.time():.9f}", filters=filters, decode=True)
    return {event["Actor"]["ID"] for event in events}


def _traces(containers: set[str]) -> list[str]:
    """Control groups and processes of these containers that this host still has."""
    groups = [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if _names_one(name, containers)]
    return groups + [str(path) for path in pathlib.Path("/proc").glob("[0-9]*/cgroup") if _is_in_one(path, containers)]


def _is_in_one(path: pathlib.Path, containers: set[str]) -> bool:
    try:
        return _names_one(path.read_text(), containers)
    except OSError:
        return False  # it has ended meanwhile


def _names_one(text: str, containers: set[str]) -> bool:
    return any(one in text for one in containers)
