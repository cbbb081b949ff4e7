"""docs/attacks.md lists every attack with the tests that hold it, and the tests say the same."""

import ast
import collections
import pathlib

import pytest
from attack_table import PAGE, Attack, Case, Seen, cases, report_lines
from named_tests import ROOT, NamedTest

OF_THE_LIST = sorted(set(range(1, 90)) - {8, 11, 13, 24, 28, 59, 69, 79, 80, 82})
"""The numbers that the list of attacks has; what is above them is our own."""
CASES = cases(PAGE.read_text())


def marked_tests() -> dict[int, set[NamedTest]]:
    """The tests that carry a marker, by number, without importing them."""
    found: dict[int, set[NamedTest]] = collections.defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for attack in filter(None, map(attack_of, node.decorator_list)):
                    named = NamedTest(path.relative_to(ROOT / "tests").as_posix(), node.name)
                    for number in attack.numbers:
                        found[number].add(named)
    return found


def attack_of(decorator: ast.expr) -> Attack | None:
    """What `@pytest.mark.attack(...)` says; None for another decorator."""
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "pytest.mark.attack":
        return None
    arguments = [ast.literal_eval(one) for one in decorator.args]
    keywords = {one.arg or "": ast.literal_eval(one.value) for one in decorator.keywords}
    return Attack.of(pytest.Mark("attack", tuple(arguments), keywords, _ispytest=True))


MARKED = marked_tests()


def test_every_number_of_the_list_has_its_row_in_order() -> None:
    numbers = [case.number for case in CASES]
    assert numbers == sorted(set(numbers))
    assert [number for number in numbers if number < 100] == OF_THE_LIST
    assert set(MARKED) <= set(numbers)


@pytest.mark.parametrize("case", CASES, ids=lambda one: str(one.number))
def test_each_row_names_its_tests_or_gives_a_reason(case: Case) -> None:
    """And the tests that it names are there and carry its number; a whole file is named where it is one attack's."""
    whole_files = {test.file for test in case.tests if not test.test}
    assert [test for test in case.tests if not test.exists()] == []
    assert {test for test in case.tests if test.test} == {
        test for test in MARKED[case.number] if test.file not in whole_files
    }
    assert case.tests or len(case.held_by) > 40, "a reason takes a sentence"


def test_a_marker_that_is_written_wrongly_is_refused() -> None:
    for arguments, keywords in (
        ((), {"expected": "x"}),
        (("a name alone",), {"expected": "x"}),
        ((1,), {"expected": "x"}),
        ((1, "name"), {}),
        ((1, "name"), {"expected": "x", "other": 1}),
        (("1", "name"), {"expected": "x"}),
    ):
        with pytest.raises(pytest.UsageError, match="attack"):
            Attack.of(pytest.Mark("attack", arguments, keywords, _ispytest=True))


def test_what_is_seen_is_kept_in_words() -> None:
    seen = Seen()
    seen("EXITED", 0, {"b", "a"}, [], {"one": "EPERM", "other": "EPERM"})
    assert seen.words == ["EXITED", "0", "a", "b", "nothing", "EPERM"]


def test_the_table_is_aligned_and_what_is_too_long_is_cut() -> None:
    assert report_lines([("a", "b"), ("longer", "x" * 100)]) == ["a       b", "longer  " + "x" * 59 + "…"]


INNER = """
import pytest
@pytest.mark.attack(1, "silent", expected="x")
def test_silent(seen): pass
@pytest.mark.attack(2, "good", expected="EPERM")
def test_good(seen): seen("EPERM")
@pytest.mark.attack(3, "broken at its end", expected="x")
def test_broken(seen, breaks): seen("y")
@pytest.fixture
def breaks():
    yield
    raise OSError
def test_no_attack(): pass
"""


def test_a_run_of_the_attacks_prints_the_table_and_fails_for_silence_and_absence(pytester: pytest.Pytester) -> None:
    """A test that observed nothing, one that breaks in its clean-up, and cases of the page that nobody held."""
    pytester.makeconftest("pytest_plugins = ['attack_table']")
    pytester.makepyprojecttoml(
        f"[tool.pytest.ini_options]\npythonpath = [{str(ROOT / 'tests')!r}]\nmarkers = ['attack: ...']\n"
    )
    pytester.mkdir("tests")
    file = pytester.path / "tests" / "test_inner.py"
    file.write_text(INNER)
    done = pytester.runpytest_subprocess("--attacks", "-p", "no:cacheprovider", str(file))
    lines = done.stdout.lines
    done.assert_outcomes(passed=2, failed=1, errors=1, deselected=1)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    (good,) = [line for line in lines if line.startswith("2 ")]
    assert good.split() == ["2", "good", "EPERM", "EPERM", "passed", "1"]
    assert any("it holds an attack and observed nothing" in line for line in lines)
    assert any(line.startswith("missing: 1 (") for line in lines)
    assert any("runtime: no sandbox was started" in line for line in lines)


def test_a_test_of_no_attack_need_not_tell_anything(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("pytest_plugins = ['attack_table']")
    pytester.makepyprojecttoml(
        f"[tool.pytest.ini_options]\npythonpath = [{str(ROOT / 'tests')!r}]\nmarkers = ['attack: ...']\n"
    )
    file = pytester.makepyfile("def test_no_attack(): pass")
    pytester.runpytest_subprocess("-p", "no:cacheprovider", str(file)).assert_outcomes(passed=1)


def test_the_page_is_not_empty() -> None:
    assert pathlib.Path(ROOT, "docs", "attacks.md") == PAGE
    assert sum(bool(case.tests) for case in CASES) > 70
