"""The account of the session, and the engine that may be killed."""

import pathlib
from collections.abc import Iterator

import pytest

from . import hunt
from .own_engine import OwnEngine

HANG_SECONDS = 300.0
"""What a test may take beyond its time before it counts as hanging."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tells the ledger what will be run, and gives each target the time that it needs."""
    for item in items:
        found = getattr(getattr(item, "function", None), "fuzz_target", None)
        if found is not None:
            hunt.LEDGER.expect(*found)
        if pathlib.Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(60 * hunt.MINUTES + HANG_SECONDS))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what was done."""
    done = {name: one for name, one in hunt.LEDGER.accounts.items() if one.examples}
    if not done:
        return
    terminalreporter.section("fuzzing")
    for name, account in done.items():
        terminalreporter.write_line(f"{account.examples:>9,} examples {account.seconds:>7.1f} s  {name}")
    terminalreporter.write_line(
        f"{sum(one.examples for one in done.values()):>9,} examples, SKILLJAIL_FUZZ_SEED={hunt.SEED}"
        + (f", failures are kept in {hunt.CACHE}" if hunt.SETTINGS.database is not None else "")
    )


@pytest.fixture(scope="session")
def own_engine() -> Iterator[OwnEngine]:
    """A dockerd of these tests' own, with the image of bash."""
    with OwnEngine() as engine:
        yield engine
