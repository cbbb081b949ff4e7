"""Spends a number of examples, or an amount of time, on each target, and keeps the account.

Each session has a seed. `SKILLJAIL_FUZZ_SEED` sets it, so that what one session found can be found again.
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

__all__ = ["CACHE", "LEDGER", "MINUTES", "SEED", "Ledger", "machine", "target"]

MINUTES = float(os.environ.get("SKILLJAIL_FUZZ_MINUTES") or 0)
"""What all targets may take together; 0: each has its number of examples instead."""
SEED = int(os.environ.get("SKILLJAIL_FUZZ_SEED") or secrets.randbits(32))
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "skilljail" / "fuzz"
"""Examples that failed, out of the tree: they are tried first the next time."""

SETTINGS = hypothesis.settings(
    deadline=None,
    derandomize=False,
    print_blob=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    # CI begins with nothing, and leaves nothing.
    database=None if os.environ.get("CI") else DirectoryBasedExampleDatabase(CACHE / "examples"),
    suppress_health_check=list(HealthCheck),
)
# Real engines and processes: the same steps need not fail again, and each try takes seconds.
REAL_SETTINGS = hypothesis.settings(
    SETTINGS, database=None, phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False
)


@dataclasses.dataclass
class Account:
    """What was spent on one target."""

    share: float
    examples: int = 0
    seconds: float = 0.0


class Ledger:
    """Shares the time out, and remembers what was done with it."""

    def __init__(self, minutes: float, seed: int) -> None:
        self.accounts: dict[str, Account] = {}
        self._ends = time.monotonic() + 60 * minutes
        self._seed = seed
        self._waiting: set[str] = set()

    def expect(self, name: str, share: float) -> None:
        """A target that will be run in this session."""
        self.accounts[name] = Account(share)
        self._waiting.add(name)

    def rounds(self, name: str) -> Iterator[tuple[int, int]]:
        """The session's seed for a round, and the one for hypothesis in it: one round at least, more while there is
        time. The time is what is left, by the shares of the targets that still wait."""
        account = self.accounts.setdefault(name, Account(1.0))
        started = time.monotonic()
        left = max(0.0, self._ends - started)
        shares = sum(self.accounts[one].share for one in self._waiting | {name})
        self._waiting.discard(name)
        seed = self._seed
        try:
            while True:
                digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
                yield seed, int.from_bytes(digest[:8], "big")
                seed += 1
                if time.monotonic() - started >= left * account.share / shares:
                    return
        finally:
            account.seconds = time.monotonic() - started

    def count(self, name: str) -> None:
        """One more example."""
        self.accounts[name].examples += 1


LEDGER = Ledger(MINUTES, SEED)


def target(
    *strategies: SearchStrategy[Any],
    examples: int,
    share: float = 1.0,
    real: bool = False,
    **named: SearchStrategy[Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a target of a property, as hypothesis' `given` does.

    `examples`: of a round; `share`: of the time, 1 is usual; `real`: it works on processes and engines; `named`:
    strategies by the name of their argument, beside pytest's fixtures.
    """

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        name = _name(check)
        settings = hypothesis.settings(REAL_SETTINGS if real else SETTINGS, max_examples=examples)

        @functools.wraps(check)
        def counted(*arguments: Any, **fields: Any) -> None:
            LEDGER.count(name)
            check(*arguments, **fields)

        @functools.wraps(given(*strategies, **named)(check), updated=())
        def spend(**fixtures: Any) -> None:
            # In this order: a seed alone would put the database of failed examples out of use.
            _spend(
                name,
                lambda seed: settings(hypothesis.seed(seed)(given(*strategies, **named)(counted)))(**fixtures),
            )

        spend.fuzz_target = (name, share)  # type: ignore[attr-defined]
        return spend

    return decorate


def machine(
    *, share: float = 1.0, examples: int, steps: int, real: bool = False
) -> Callable[[Callable[..., Callable[[], RuleBasedStateMachine]]], Callable[..., None]]:
    """Makes a target of a function that takes fixtures and returns a factory of state machines.

    `steps`: of one example; `real`: it works on processes and engines.
    """

    def decorate(make: Callable[..., Callable[[], RuleBasedStateMachine]]) -> Callable[..., None]:
        name = _name(make)
        settings = hypothesis.settings(
            REAL_SETTINGS if real else SETTINGS, max_examples=examples, stateful_step_count=steps
        )

        @functools.wraps(make)
        def spend(**fixtures: Any) -> None:
            factory = make(**fixtures)

            def counted() -> RuleBasedStateMachine:
                LEDGER.count(name)
                return factory()

            _spend(name, lambda seed: run_state_machine_as_test(hypothesis.seed(seed)(counted), settings=settings))

        spend.fuzz_target = (name, share)  # type: ignore[attr-defined]
        return spend

    return decorate


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__.rpartition('.')[2]}::{function.__name__}"


def _spend(name: str, once: Callable[[int], None]) -> None:
    for session_seed, seed in LEDGER.rounds(name):
        try:
            once(seed)
        except BaseException as error:
            module, _, test = name.partition("::")
            again = f"make test TESTS=tests/fuzz/{module}.py PYTEST_FLAGS='-k {test}'"
            error.add_note(f"Again: SKILLJAIL_FUZZ_SEED={session_seed} {again}")
            raise
