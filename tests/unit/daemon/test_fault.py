"""What the log tells of a fault of ours: where, and never in whose words."""

import asyncio

import pytest
from skilljaild.fault import CHAIN_MAX, traced


def fail(depth: int) -> None:
    """Raises KeyError, with as many errors behind it."""
    if depth == 0:
        int("hunter2")
    try:
        fail(depth - 1)
    except (ValueError, KeyError) as error:
        raise KeyError("hunter2") from error


def test_a_fault_is_told_with_what_is_behind_it_and_without_its_words() -> None:
    with pytest.raises(KeyError) as caught:
        fail(1)
    told = traced(caught.value)
    assert told["error"] == "KeyError from ValueError"
    assert told["trace"].count("daemon/test_fault.py:") == 4
    assert told["trace"].endswith(" fail")
    assert "hunter2" not in str(told)


def test_a_context_that_was_hidden_is_not_told() -> None:
    def hide() -> None:
        try:
            int("hunter2")
        except ValueError:
            raise KeyError from None

    with pytest.raises(KeyError) as caught:
        hide()
    assert traced(caught.value)["error"] == "KeyError"


async def test_the_first_fault_of_a_group_is_told() -> None:
    async def divide() -> None:
        raise ZeroDivisionError("hunter2")

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(divide())
    told = traced(caught.value)
    assert told["error"] == "ExceptionGroup from ZeroDivisionError"
    assert told["trace"].endswith(" divide")


def test_a_chain_has_an_end() -> None:
    with pytest.raises(KeyError) as caught:
        fail(CHAIN_MAX + 5)
    assert traced(caught.value)["error"].count(" from ") == CHAIN_MAX - 1
