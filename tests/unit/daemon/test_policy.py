"""What a run gets of what it asks for."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljail_init.frames import EGRESS_PORT
from skilljaild.config import CeilingLimits, DefaultLimits
from skilljaild.errors import Reason, Refusal
from skilljaild.limits import Limits
from skilljaild.policy import (
    EGRESS_ENVIRONMENT,
    FLOORS,
    LABELS_MAX,
    SANDBOX_ENVIRONMENT,
    AskedLimits,
    check_arguments,
    check_labels,
    effective_limits,
    environment,
)

from .attempt import attempt

DEFAULT = DefaultLimits().limits()
CEILING = CeilingLimits(cpus=4).limits()
NAMES = [field.name for field in dataclasses.fields(Limits)]


def limits_of(**asked: Any) -> Limits:
    """The effective limits of a request."""
    return effective_limits(AskedLimits(**asked), DEFAULT, CEILING)


def contract(name: str) -> str:
    """The contract's name of a limit."""
    return {"wall_seconds": "wall_time", "cpu_seconds": "cpu_time"}.get(name, name)


def refusal(**asked: Any) -> Refusal:
    """Why a request's limits are refused."""
    with pytest.raises(Refusal) as caught:
        limits_of(**asked)
    return caught.value


def test_every_limit_can_be_asked_for_and_has_a_floor() -> None:
    assert [field.name for field in dataclasses.fields(AskedLimits)] == NAMES
    assert all(getattr(FLOORS, name) > 0 for name in NAMES)


def test_nothing_asked_gives_the_defaults() -> None:
    assert limits_of() == DEFAULT


@pytest.mark.parametrize("name", NAMES)
def test_the_ceiling_itself_may_be_asked_for_and_changes_nothing_else(name: str) -> None:
    ceiling = getattr(CEILING, name)
    more = {"memory_bytes": CEILING.memory_bytes} if name == "disk_bytes" else {}
    assert limits_of(**{name: ceiling}, **more) == dataclasses.replace(DEFAULT, **{name: ceiling}, **more)


@pytest.mark.parametrize("name", NAMES)
def test_above_the_ceiling_is_refused_and_never_lowered(name: str) -> None:
    ceiling = getattr(CEILING, name)
    asked = math.nextafter(ceiling, math.inf) if isinstance(ceiling, float) else ceiling + 1
    found = refusal(**{name: asked})
    assert (found.reason, found.field) == (Reason.LIMIT_ABOVE_CEILING, f"limits.{contract(name)}")
    assert found.metadata == {"limit": contract(name), "asked": f"{asked}", "ceiling": f"{ceiling}"}
    assert found.message == (
        f"limits.{contract(name)}: {asked:,} is above this daemon's ceiling of {ceiling:,}; ask for less, or have its "
        f"operator raise limits.ceiling.{name}"
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("below", [-1, -(2**63), "just below"])
def test_too_small_to_run_anything_is_refused(name: str, below: int | str) -> None:
    floor = getattr(FLOORS, name)
    just_below = math.nextafter(floor, 0) if isinstance(floor, float) else floor - 1
    found = refusal(**{name: just_below if below == "just below" else below})
    assert (found.reason, found.field) == (Reason.LIMIT_INVALID, f"limits.{contract(name)}")
    assert found.metadata == {"limit": contract(name)}
    assert f"ask for {floor:,} or more, or leave it out" in found.message


@pytest.mark.parametrize("name", ["wall_seconds", "cpu_seconds", "cpus"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, Reason.LIMIT_INVALID),
        (-math.inf, Reason.LIMIT_INVALID),
        (math.inf, Reason.LIMIT_ABOVE_CEILING),
    ],
)
def test_what_is_no_number_is_no_limit(name: str, value: float, reason: Reason) -> None:
    assert refusal(**{name: value}).reason is reason


def test_a_work_directory_as_large_as_the_memory_is_refused() -> None:
    found = refusal(memory_bytes=64 << 20, disk_bytes=64 << 20)
    assert (found.reason, found.field) == (Reason.LIMIT_INVALID, "limits.disk_bytes")
    assert "67,108,864 is not below memory_bytes (67,108,864)" in found.message
    # Also when it alone was asked for.
    assert refusal(disk_bytes=DEFAULT.memory_bytes).field == "limits.disk_bytes"


def test_who_asks_for_little_memory_alone_gets_a_work_directory_that_fits() -> None:
    little = dataclasses.replace(DEFAULT, memory_bytes=64 << 20, disk_bytes=32 << 20)
    assert limits_of(memory_bytes=64 << 20) == little
    assert limits_of(memory_bytes=64 << 20, disk_bytes=48 << 20) == dataclasses.replace(little, disk_bytes=48 << 20)


NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-(2**63), 2**63))


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, NUMBERS)))
def test_no_request_gets_more_than_a_ceiling_or_less_than_a_floor(asked: dict[str, Any]) -> None:
    found = attempt(lambda: limits_of(**asked))
    if isinstance(found, Refusal):
        assert found.reason in {Reason.LIMIT_INVALID, Reason.LIMIT_ABOVE_CEILING}
        return
    for name in NAMES:
        assert getattr(FLOORS, name) <= getattr(found, name) <= getattr(CEILING, name)
        assert asked.get(name) in {None, getattr(found, name)}
    assert found.disk_bytes < found.memory_bytes


def test_arguments_pass_up_to_the_kernels_limits() -> None:
    check_arguments((), {})
    check_arguments(("", "-rf", "$(id)", "ü" * 65_535, "x" * 131_071), {})
    # Each word takes its bytes and what points to it.
    check_arguments(("x" * (131_072 - 9),) * 8, {})


@pytest.mark.parametrize(
    ("argv", "env", "field", "what"),
    [
        (("a", "b\0c"), {}, "argv[1]", "an argument cannot hold a NUL"),
        (("x" * 131_072,), {}, "argv[0]", "131,072 bytes are more than the kernel passes in one argument (131,071)"),
        (("ü" * 65_536,), {}, "argv[0]", "131,072 bytes are more than the kernel passes"),
        (("x" * (131_072 - 9),) * 8 + ("",), {}, "argv", "1,048,585 bytes together, at most 1,048,576"),
        (("x" * (131_072 - 9),) * 8, {"A": "1"}, "argv", "1,048,588 bytes together, at most 1,048,576"),
        (("",) * 116_509, {}, "argv", "1,048,581 bytes together"),
    ],
)
def test_arguments_that_could_not_be_passed_on_are_refused(
    argv: tuple[str, ...], env: dict[str, str], field: str, what: str
) -> None:
    with pytest.raises(Refusal) as caught:
        check_arguments(argv, env)
    assert (caught.value.reason, caught.value.field) == (Reason.ARGUMENT_INVALID, field)
    assert caught.value.message.startswith(f"{field}: ")
    assert what in caught.value.message


def test_variables_come_on_top_of_the_sandboxes_own() -> None:
    assert environment({}) == SANDBOX_ENVIRONMENT
    assert environment({"A": "", "_b1": "=\n'", "PATH": "/x"}) == SANDBOX_ENVIRONMENT | {
        "A": "",
        "_b1": "=\n'",
        "PATH": "/x",
    }
    assert SANDBOX_ENVIRONMENT["PATH"] == "/usr/local/bin:/usr/bin:/bin"


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=B", "A-B", "ä", "A\0", "A\n", "BASH_FUNC_x%%"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(Refusal, match="is not a variable's name") as caught:
        environment({name: "x"})
    assert (caught.value.reason, caught.value.field) == (Reason.ENVIRONMENT_INVALID, "env")
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("value", ["a\0secret", "secret" * 21_846])
def test_a_value_that_cannot_be_passed_is_refused_and_not_told(value: str) -> None:
    with pytest.raises(Refusal) as caught:
        environment({"TOKEN": value})
    assert caught.value.reason is Reason.ENVIRONMENT_INVALID
    assert caught.value.message == "env: the value of TOKEN holds a NUL or is longer than 131,071 bytes"


def test_a_variable_is_as_long_as_the_kernel_takes_it() -> None:
    assert environment({"A": "x" * (131_071 - 2)})["A"] == "x" * 131_069
    with pytest.raises(Refusal):
        environment({"A": "x" * 131_070})


def test_too_many_variables_are_refused() -> None:
    assert len(environment({f"V{number}": "" for number in range(256)})) == 256 + len(SANDBOX_ENVIRONMENT)
    with pytest.raises(Refusal, match="257 variables, at most 256 are possible"):
        environment({f"V{number}": "" for number in range(257)})


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4))
def test_no_environment_that_passes_holds_what_exec_cannot_pass(asked: dict[str, str]) -> None:
    found = attempt(lambda: environment(asked))
    if isinstance(found, Refusal):
        assert found.reason is Reason.ENVIRONMENT_INVALID
        return
    assert found == SANDBOX_ENVIRONMENT | asked
    assert all(name.isascii() and name.isidentifier() for name in asked)
    assert not any("\0" in value for value in found.values())


def test_labels_are_kept_within_bounds() -> None:
    check_labels({})
    check_labels({f"{number}": "" for number in range(LABELS_MAX)})
    check_labels({"n" * 63: "ü" * 128, "é" * 31: "\0\n"})


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        ({f"{number}": "" for number in range(33)}, "labels: 33, at most 32 are kept"),
        ({"": "x"}, "labels: '': a name has 1 to 63 bytes and a value at most 256"),
        ({"n" * 64: "x"}, f"labels: '{'n' * 64}': a name has 1 to 63 bytes"),
        ({"é" * 32: "x"}, f"labels: '{'é' * 32}': a name has 1 to 63 bytes"),
        ({"a": "x" * 257}, "labels: 'a': a name has 1 to 63 bytes and a value at most 256"),
        ({"a": "ü" * 129}, "labels: 'a': a name has"),
    ],
)
def test_labels_that_are_too_many_or_too_long_are_refused(labels: dict[str, str], what: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_labels(labels)
    assert (caught.value.reason, caught.value.field) == (Reason.REQUEST_INVALID, "labels")
    assert caught.value.message.startswith(what)


def test_a_script_with_egress_is_told_of_the_proxy_and_a_request_has_the_last_word() -> None:
    assert environment({}) == SANDBOX_ENVIRONMENT
    env = environment({"HTTPS_PROXY": "http://mine"}, egress=True)
    assert env == SANDBOX_ENVIRONMENT | EGRESS_ENVIRONMENT | {"HTTPS_PROXY": "http://mine"}
    assert env["http_proxy"] == f"http://127.0.0.1:{EGRESS_PORT}"
    assert not any("proxy" in name.lower() for name in SANDBOX_ENVIRONMENT)
