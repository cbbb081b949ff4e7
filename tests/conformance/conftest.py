"""What the cases share: skills where a framework looks for them, and a runner of the framework."""

import contextlib
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator

import docker
import pytest
import skilljail
from harness import SKILL_MD, Daemon, owned_containers
from skilljail.adapters.maf import ScriptRunner


@pytest.fixture
async def runner(daemon: Daemon) -> AsyncIterator[ScriptRunner]:
    """The framework's script runner on the daemon that tests share."""
    async with skilljail.AsyncClient(daemon.address) as client:
        yield ScriptRunner(client)


@pytest.fixture
def skills(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """Makes a folder with one skill, `test-skill`, in it: the framework wants a skill's folder to bear its name."""

    def make(files: dict[str, str], folder: str = "skills") -> pathlib.Path:
        root = tmp_path / folder
        for name, content in {"SKILL.md": SKILL_MD, **files}.items():
            path = root / "test-skill" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return root

    return make


@pytest.fixture
def nothing_launched(
    client: skilljail.Client, daemon: Daemon, engine_api: docker.APIClient
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A block in which the daemon admits no run and makes no sandbox."""

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        before = next(client.list_runs(page_size=1), None)
        yield
        assert next(client.list_runs(page_size=1), None) == before
        assert owned_containers(engine_api, daemon.owner) == []

    return block
