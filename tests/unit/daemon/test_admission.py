"""When a run may start."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljaild.errors import Reason, Refusal
from skilljaild.runs import admission as module
from skilljaild.runs.admission import Admission, Ticket


def called(*tickets: Ticket) -> list[bool]:
    """Whose turn has come."""
    return [ticket._called.is_set() for ticket in tickets]


async def test_so_many_start_at_once_and_the_others_wait_in_order() -> None:
    admission = Admission(2, 3)
    tickets = [admission.admit() for _ in range(5)]
    assert [ticket.position for ticket in tickets] == [0, 0, 1, 2, 3]
    assert called(*tickets) == [True, True, False, False, False]
    admission.release(tickets[1])
    assert called(*tickets) == [True, True, True, False, False]
    admission.release(tickets[0])
    assert called(*tickets) == [True, True, True, True, False]


async def test_a_full_queue_refuses_and_tells_when_to_come_again() -> None:
    admission = Admission(1, 1)
    first, waiting = admission.admit(), admission.admit()
    with pytest.raises(Refusal) as caught:
        admission.admit()
    assert (caught.value.reason, caught.value.retry_seconds) == (Reason.QUEUE_FULL, 1)
    assert caught.value.message.startswith("1 runs wait already; try again in a moment")
    admission.release(first)
    assert called(waiting) == [True]
    assert admission.admit().position == 1


async def test_without_places_to_wait_a_run_starts_at_once_or_never() -> None:
    admission = Admission(1, 0)
    ticket = admission.admit()
    assert called(ticket) == [True]
    with pytest.raises(Refusal):
        admission.admit()
    admission.release(ticket)
    assert called(admission.admit()) == [True]


async def test_a_run_that_gives_up_in_the_queue_takes_nobodys_turn() -> None:
    admission = Admission(1, 3)
    running, gives_up, next_one, last = (admission.admit() for _ in range(4))
    admission.release(gives_up)
    assert called(gives_up, next_one, last) == [False, False, False]
    admission.release(running)
    assert called(gives_up, next_one, last) == [False, True, False]


async def test_what_requests_hold_in_memory_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 100)
    admission = Admission(1, 9)
    running, waiting = admission.admit(60), admission.admit(40)
    with pytest.raises(Refusal, match="hold 100 bytes already; try again in a moment, with smaller") as caught:
        admission.admit(1)
    assert (caught.value.reason, caught.value.retry_seconds) == (Reason.QUEUE_FULL, 1)
    # One that holds nothing waits still.
    admission.release(admission.admit(0))
    admission.release(waiting)
    with pytest.raises(Refusal):
        admission.admit(41)
    admission.release(admission.admit(40))
    admission.release(running)
    assert called(admission.admit(100)) == [True]


async def test_turn_returns_when_it_has_come() -> None:
    admission = Admission(1, 1)
    first, second = admission.admit(), admission.admit()
    await first.turn()
    waiting = asyncio.create_task(second.turn())
    await asyncio.sleep(0)
    assert not waiting.done()
    admission.release(first)
    await asyncio.wait_for(waiting, 30)


@given(st.integers(1, 3), st.integers(0, 3), st.lists(st.integers(0, 9), max_size=40))
def test_never_more_run_or_wait_than_may_and_nobody_is_passed_over(
    running: int, waiting: int, steps: list[int]
) -> None:
    admission = Admission(running, waiting)
    held: list[Ticket] = []
    for step in steps:
        if step < 5:
            try:
                held.append(admission.admit())
            except Refusal:
                assert len(held) == running + waiting
        elif held:
            ticket = held.pop(step % len(held))
            admission.release(ticket)
        turns = called(*held)
        assert sum(turns) == min(running, len(held))
        # Those that wait came after those that run.
        assert turns == sorted(turns, reverse=True)


@pytest.mark.parametrize("first", ["lose", "release"])
def test_a_lost_place_is_nobodys_until_it_is_regained(first: str) -> None:
    """Whether the loss is known before the run is over, or only afterwards."""
    admission = Admission(2, 2)
    ticket, other = admission.admit(), admission.admit()
    for step in (first, "release" if first == "lose" else "lose"):
        if step == "lose":
            admission.lose(ticket.place, "run-1")
        else:
            admission.release(ticket)
    waiting = admission.admit()
    assert (waiting.position, called(waiting)) == (1, [False])
    admission.release(other)
    assert called(waiting) == [True]
    assert waiting.place == other.place
    last = admission.admit()
    assert called(last) == [False]
    admission.regain(["run-1", "run-2"])
    assert called(last) == [True]
    assert last.place == ticket.place


def test_a_place_that_is_regained_before_its_run_is_over_is_given_back_once() -> None:
    admission = Admission(1, 3)
    ticket = admission.admit()
    admission.lose(ticket.place, "run-1")
    admission.regain(["run-1"])
    waiting = [admission.admit(), admission.admit()]
    assert called(*waiting) == [False, False]
    admission.release(ticket)
    assert called(*waiting) == [True, False]


def test_a_place_beyond_those_of_the_runs_makes_no_more_room_when_it_is_regained() -> None:
    """The self-tests at start have a place for each image, also where fewer runs may be under way."""
    admission = Admission(1, 1)
    admission.lose(3, "self-test")
    assert admission.lost() == {"self-test"}
    admission.regain(["self-test"])
    assert called(admission.admit(), admission.admit()) == [True, False]
    assert admission.lost() == frozenset()
