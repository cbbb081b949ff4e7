"""SPECIFICATION.md names tests that exist."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", (ROOT / "SPECIFICATION.md").read_text())))


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_the_specification_names_exists(file: str, test: str) -> None:
    path = ROOT / "tests" / file.removeprefix("tests/")
    assert path.is_file()
    if test:
        assert re.search(rf"^(async )?def {test}\(", path.read_text(), re.MULTILINE)


def test_the_specification_names_tests() -> None:
    assert len(NAMED) > 40
