"""A fake daemon and a small skill."""

import pathlib
from collections.abc import Iterator

import pytest
import skilljail

from .fake_daemon import FakeDaemon


@pytest.fixture
def skill(tmp_path: pathlib.Path) -> pathlib.Path:
    """A skill folder with one script."""
    root = tmp_path / "demo"
    (root / "scripts").mkdir(parents=True)
    (root / "SKILL.md").write_text("---\nname: demo\ndescription: Demo.\n---\n")
    script = root / "scripts" / "run.py"
    script.write_text("print('hello')\n")
    script.chmod(0o755)
    return root


@pytest.fixture
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    """A fake daemon that serves."""
    fake = FakeDaemon(f"unix:{tmp_path_factory.mktemp('d')}/s.sock")
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def client(fake: FakeDaemon) -> Iterator[skilljail.Client]:
    """A blocking client of it."""
    with skilljail.Client(fake.address) as client:
        yield client
