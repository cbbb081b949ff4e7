"""The attacks of docs/attacks.md: which test holds which, what each one saw, and the table of a whole run.

A test that holds a case is marked `@pytest.mark.attack(34, "AF_ALG socket", expected="EAFNOSUPPORT")`, with several
numbers where it holds several cases, and tells through the fixture `seen` what it really observed. One that passes
without having observed anything fails. `pytest --attacks` runs the marked tests alone, wherever they lie, prints the
table, and fails when a test of the page did not pass.
"""

import collections
import dataclasses
import re
from collections.abc import Generator, Iterable, Mapping

import pytest
from harness import RUNTIME_SEEN
from named_tests import ROOT, NamedTest, named_tests

__all__ = ["PAGE", "Attack", "Case", "Seen", "cases", "report_lines"]

PAGE = ROOT / "docs" / "attacks.md"
_OBSERVED = pytest.StashKey[list[str]]()
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
_SEEN_WIDTH = 60


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the page."""

    number: int
    name: str
    held_by: str

    @property
    def tests(self) -> list[NamedTest]:
        """The tests that hold it; none when the row gives a reason instead."""
        return named_tests(self.held_by)


def cases(page: str) -> list[Case]:
    """The rows of docs/attacks.md, in its order."""
    return [Case(int(number), name, held_by) for number, name, _, held_by in _ROW.findall(page)]


@dataclasses.dataclass(frozen=True)
class Attack:
    """What a marker says."""

    numbers: tuple[int, ...]
    name: str
    expected: str

    @classmethod
    def of(cls, mark: pytest.Mark) -> "Attack":
        """Reads a marker. Raises pytest.UsageError for one that is written wrongly."""
        *numbers, name = mark.args or ("",)
        expected = mark.kwargs.get("expected")
        good = numbers and all(isinstance(one, int) for one in numbers) and name and isinstance(name, str)
        if not good or not isinstance(expected, str) or set(mark.kwargs) != {"expected"}:
            raise pytest.UsageError(f"write attack(number, ..., 'name', expected='...') instead of {mark}")
        return cls(tuple(numbers), name, expected)


class Seen:
    """Takes down what a test observed: outcomes, error names, counters."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, *observed: object) -> None:
        for one in observed:
            self.words += _words(one)


def _words(observed: object) -> list[str]:
    if isinstance(observed, Mapping):
        observed = set(map(str, observed.values()))
    if isinstance(observed, Iterable) and not isinstance(observed, str | bytes):
        return sorted({str(one) for one in observed}) or ["nothing"]
    return [str(observed)]


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Seen:
    """Takes down what a test of an attack observed."""
    one = Seen()
    request.node.stash[_OBSERVED] = one.words
    return one


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--attacks`."""
    parser.addoption("--attacks", action="store_true", help="run the tests of docs/attacks.md and print their table")


def pytest_configure(config: pytest.Config) -> None:
    """With `--attacks`, somebody keeps the table."""
    if config.getoption("--attacks"):
        config.pluginmanager.register(AttackTable(config), "attack-table")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test of an attack that has passed and says nothing about it."""
    answer = yield
    if item.get_closest_marker("attack") and not item.stash.get(_OBSERVED, []):
        pytest.fail("it holds an attack and observed nothing: tell what came of it through the fixture `seen`")
    return answer


class AttackTable:
    """Runs what is marked, and keeps what came of it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seen: dict[Attack, list[str]] = collections.defaultdict(list)
        self._outcomes: dict[Attack, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self._passed: set[NamedTest] = set()
        self._faults: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leaves out what is no attack."""
        unmarked = [item for item in items if not item.get_closest_marker("attack")]
        config.hook.pytest_deselected(items=unmarked)
        items[:] = [item for item in items if item.get_closest_marker("attack")]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Takes down what a test saw and how it ended; one that fails in its clean-up has failed."""
        report = yield
        if report.when == "call" or report.failed:
            for attack in map(Attack.of, item.iter_markers("attack")):
                self._outcomes[attack][report.outcome] += 1
                self._seen[attack] = list(dict.fromkeys([*self._seen[attack], *item.stash.get(_OBSERVED, [])]))
        if report.when == "call" and report.passed:
            file, _, test = item.nodeid.removeprefix("tests/").partition("::")
            self._passed |= {NamedTest(file, test.partition("[")[0]), NamedTest(file, "")}
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """A case whose test did not pass fails the whole."""
        missing = [
            f"{case.number} ({case.name}): {'::'.join(filter(None, (test.file, test.test)))} did not pass"
            for case in cases(PAGE.read_text())
            for test in case.tests
            if test not in self._passed
        ]
        if missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._faults = missing
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the table."""
        runtime = self._config.stash.get(RUNTIME_SEEN, "no sandbox was started")
        terminalreporter.section(f"attacks (runtime: {runtime})")
        rows = [
            (
                ", ".join(map(str, attack.numbers)),
                attack.name,
                attack.expected,
                ", ".join(self._seen[attack]),
                " ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items())),
            )
            for attack, outcomes in sorted(self._outcomes.items(), key=lambda one: (one[0].numbers, one[0].name))
        ]
        for line in report_lines([("attack", "what is tried", "expected", "seen", "tests"), *rows]):
            terminalreporter.line(line)
        for fault in self._faults:
            terminalreporter.line(f"missing: {fault}", red=True)


def report_lines(rows: list[tuple[str, ...]]) -> list[str]:
    """The rows as lines with aligned columns; what is too long is cut visibly."""
    cut = [tuple(one if len(one) <= _SEEN_WIDTH else one[: _SEEN_WIDTH - 1] + "…" for one in row) for row in rows]
    widths = [max(len(row[column]) for row in cut) for column in range(len(cut[0]))]
    return ["  ".join(one.ljust(width) for one, width in zip(row, widths, strict=True)).rstrip() for row in cut]
