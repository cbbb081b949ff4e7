"""Which images there are, and what to do where there is none."""

import pytest
from skilljaild import images
from skilljaild.catalogue import Catalogue
from skilljaild.config import ImagesConfig

from .fake_engine import FakeEngine


@pytest.mark.parametrize(
    ("reference", "mend"),
    [
        (images.reference("python"), "build it with `skilljail images build python`"),
        ("elsewhere/python:1", "correct images.python"),  # no build of ours makes that one
    ],
)
async def test_a_missing_image_is_told_with_the_mend_that_fits(reference: str, mend: str) -> None:
    engine = FakeEngine()
    engine.images = {}
    entry = await Catalogue(ImagesConfig(python=reference), engine).entry("python")
    assert entry.image is None
    assert entry.fault == f"there is no image {reference} on the engine; {mend}"
