"""SPECIFICATION.md names tests that exist."""

import pytest
from named_tests import ROOT, NamedTest, named_tests

NAMED = named_tests((ROOT / "SPECIFICATION.md").read_text())


@pytest.mark.parametrize("named", NAMED, ids=lambda one: f"{one.file}::{one.test}")
def test_a_test_that_the_specification_names_exists(named: NamedTest) -> None:
    assert named.exists()


def test_the_specification_names_tests() -> None:
    assert len(NAMED) > 40
