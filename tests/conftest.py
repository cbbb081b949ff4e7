"""The real daemon on a real engine, for every test that needs one.

A missing engine or a missing image is a failure, never a skip.
"""

import collections
import pathlib
from collections.abc import Iterator

import docker
import pytest
import skilljail
from harness import RUNTIME_SEEN, SKILL_MD, Daemon, MakeSkill, Traces, running_daemon

pytest_plugins = ["attack_table", "pytester"]


@pytest.fixture(scope="session")
def daemon(pytestconfig: pytest.Config) -> Iterator[Daemon]:
    """The daemon that most tests share, with the default configuration."""
    with running_daemon() as one:
        with skilljail.Client(one.address) as client:
            pytestconfig.stash[RUNTIME_SEEN] = client.capabilities().engine.runtime
        yield one


@pytest.fixture(scope="session", autouse=True)
def traces_before() -> Traces | None:
    """What was there before the first test: other daemons may share the host."""
    try:
        api = docker.APIClient(**docker.utils.kwargs_from_env(), version="auto")
    except docker.errors.DockerException:
        return None  # unit tests alone need no engine; a test that does will say so
    try:
        return Traces.of(api)
    finally:
        api.close()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[skilljail.Client]:
    """A client of the shared daemon."""
    with skilljail.Client(daemon.address) as one:
        yield one


@pytest.fixture(scope="session")
def engine_api() -> Iterator[docker.APIClient]:
    """The engine itself, to see what is really there."""
    api = docker.APIClient(**docker.utils.kwargs_from_env(), version="auto", timeout=60)
    yield api
    api.close()


@pytest.fixture
def make_skill(tmp_path: pathlib.Path) -> MakeSkill:
    """Makes a skill folder: `make_skill({"scripts/x.py": "print(1)"})`. A content of None is an empty directory."""
    numbers = collections.Counter[str]()

    def make(files: dict[str, str | bytes | None], executable: tuple[str, ...] = ()) -> pathlib.Path:
        numbers["skill"] += 1
        root = tmp_path / f"skill-{numbers['skill']}"
        for name, content in {"SKILL.md": SKILL_MD, **files}.items():
            path = root / name
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            path.chmod(0o755 if name in executable else 0o644)
        return root

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What looks for leftovers of the whole suite runs last."""
    items.sort(key=lambda item: item.path.name == "test_nothing_left.py")
