"""A store, and hypothesis within the time that a busy machine needs."""

import pathlib

import hypothesis
import pytest
from skilljaild.bundles.store import BlobStore

hypothesis.settings.register_profile(
    "daemon", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("daemon")


@pytest.fixture
def store(tmp_path: pathlib.Path) -> BlobStore:
    """An empty store of 1,000 bytes."""
    return BlobStore(tmp_path / "blobs", 1_000)
