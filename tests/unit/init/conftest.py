"""Fixtures: an init that waits for orders."""

import os
import pathlib
import tempfile
from collections.abc import Iterator

import pytest

from .driver import UID, InitProcess


@pytest.fixture
def init(tmp_path: pathlib.Path) -> Iterator[InitProcess]:
    """A fresh init on an empty work directory."""
    with InitProcess(tmp_path) as process:
        yield process


@pytest.fixture
def open_folder() -> Iterator[pathlib.Path]:
    """A folder that an unprivileged user owns and can reach."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "work"
        folder.mkdir()
        pathlib.Path(name).chmod(0o755)
        if os.geteuid() == 0:
            os.chown(folder, UID, UID)
        yield folder
