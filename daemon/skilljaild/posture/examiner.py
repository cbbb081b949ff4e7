"""Does self-tests at the right moments, and remembers what they showed.

At start all images at once: nothing else runs then. When an operator asks, one after the other, each with a place
among the runs, so that runs are neither starved nor the host's bounds exceeded. Before the first run of an image that
was not there at start, in that run's own place.
"""

import asyncio
import contextlib
import datetime
import time
from collections.abc import AsyncIterator
from typing import Any

import structlog

from skilljaild.catalogue import Catalogue, CatalogueEntry
from skilljaild.engines.base import Engine, EngineReport, EngineUnavailable, Image, IsolationError
from skilljaild.errors import Reason, Refusal
from skilljaild.interpreters import INTERPRETERS
from skilljaild.posture.kernels import boot_id_of, own_boot_id
from skilljaild.posture.posture import Demands, Posture, fault_of
from skilljaild.posture.self_test import ImageTest, SelfTest, weakest_level
from skilljaild.runs.admission import Admission
from skilljaild.runs.level import IsolationLevel, level_of

__all__ = ["Examiner"]

WAITING_MAX = 8
"""Callers that may wait for a self-test of their own."""
REMEMBERED_MAX = 64
"""Images whose test is remembered; the oldest go first."""
AGAIN_SECONDS = 10.0
"""After so long a self-test that could not be done is done again: its reason may be gone."""


log = structlog.get_logger()


class Examiner:
    """The daemon's `Gate`, and what `AdminService` and `doctor` ask."""

    def __init__(
        self, engine: Engine, catalogue: Catalogue, admission: Admission, self_test: SelfTest, demands: Demands
    ) -> None:
        self._engine = engine
        self._catalogue = catalogue
        self._admission = admission
        self._self_test = self_test
        self._demands = demands
        self._tests: dict[str, tuple[float, ImageTest]] = {}
        """By digest of the image: when it was tested, and what was seen."""
        self._testing = asyncio.Lock()
        """Taken with a place in hand, never before: whoever has it must not wait for one."""
        self._asked = asyncio.Lock()
        self._waiting = 0

    # What the runs ask

    @property
    def level(self) -> IsolationLevel | None:
        """See `Gate`."""
        return weakest_level(test for _, test in self._tests.values())

    def fault(self, image: Image) -> str:
        """See `Gate`."""
        _, test = self._tests.get(image.digest, (0.0, None))
        return "" if test is None else fault_of(test, self._demands)

    async def admit(self, interpreter: str, image: Image, place: int) -> None:
        """See `Gate`."""
        if not self._is_known(image):
            async with self._testing:
                if not self._is_known(image):  # whoever was first has tested it for all who wait
                    self._remember(await self._self_test.run(interpreter, image, place))
        if fault := self.fault(image):
            raise Refusal(
                Reason.ISOLATION_POSTURE,
                f"{interpreter} scripts cannot run here: {image.reference}: {fault}",
                interpreter=interpreter,
            )

    def check(self, facts: dict[str, Any]) -> None:
        """See `Gate`. That a kernel is a sandbox's own shows only beside another, in a self-test; that it is not the
        daemon's shows every time."""
        level = level_of(facts)
        if self._demands.minimum is IsolationLevel.VM and level is IsolationLevel.CONTAINER:
            level = IsolationLevel.VM if boot_id_of(facts) not in {"", own_boot_id()} else level
        if level < self._demands.minimum:
            minimum = self._demands.minimum.name.lower()
            raise IsolationError(
                f"the sandbox's isolation is {level.name.lower()}, and isolation.minimum is {minimum}. Nothing was run."
            )

    def under_way(self) -> frozenset[str]:
        """Ids of the sandboxes that are wanted, for the reaper."""
        return self._self_test.under_way()

    def _is_known(self, image: Image) -> bool:
        tested, test = self._tests.get(image.digest, (0.0, None))
        return test is not None and (not test.fault or time.monotonic() - tested < AGAIN_SECONDS)

    def _remember(self, test: ImageTest) -> None:
        about = {"interpreter": test.interpreter, "image": test.image.reference, "digest": test.image.digest}
        if fault := fault_of(test, self._demands):
            log.warning("self-test failed, no script runs in this image", **about, fault=fault)
        else:
            log.debug("self-test passed", **about, seconds=round(test.seconds, 3))
        self._tests.pop(test.image.digest, None)
        self._tests[test.image.digest] = (time.monotonic(), test)
        if len(self._tests) > REMEMBERED_MAX:
            del self._tests[next(iter(self._tests))]

    # What operators ask

    async def at_start(self, report: EngineReport, at_once: int) -> Posture:
        """Tests all images that are there, so many at the same time, while nothing else runs.

        Raises EngineUnavailable, or Refusal for the same.
        """
        places = asyncio.Semaphore(at_once)

        async def test(interpreter: str, place: int) -> ImageTest | None:
            async with places:
                return await self._test(interpreter, await self._catalogue.entry(interpreter), place)

        async with _together() as group:
            tests = [group.create_task(test(name, place)) for place, name in enumerate(INTERPRETERS)]
        return self._posture(report, [task.result() for task in tests])

    async def examine(self) -> Posture:
        """Asks the engine again and tests one image after the other.

        Raises Refusal QUEUE_FULL, also when too many wait for a self-test, or ENGINE_UNAVAILABLE.
        """
        if self._waiting >= WAITING_MAX:
            raise Refusal(
                Reason.QUEUE_FULL, f"{WAITING_MAX} self-tests wait already; try again in a moment", retry_seconds=5
            )
        self._waiting += 1
        try:
            async with self._asked:
                report = await self._engine.probe()
                tests = [await self._test_in_turn(name) for name in INTERPRETERS]
                return self._posture(report, tests)
        except EngineUnavailable as error:
            raise Refusal(Reason.ENGINE_UNAVAILABLE, str(error), retry_seconds=5) from error
        finally:
            self._waiting -= 1

    async def _test_in_turn(self, interpreter: str) -> ImageTest | None:
        """Tests an image in a place of its own among the runs."""
        ticket = self._admission.admit()
        try:
            await ticket.turn()
            return await self._test(interpreter, await self._catalogue.entry(interpreter), ticket.place)
        finally:
            self._admission.release(ticket)

    async def _test(self, interpreter: str, entry: CatalogueEntry, place: int) -> ImageTest | None:
        """Tests an image; None when there is none."""
        if entry.image is None:
            return None
        test = await self._self_test.run(interpreter, entry.image, place)
        self._remember(test)
        return test

    def _posture(self, report: EngineReport, tests: list[ImageTest | None]) -> Posture:
        images = tuple(test for test in tests if test is not None)
        return Posture(datetime.datetime.now(datetime.UTC), self._demands, report, images)


@contextlib.asynccontextmanager
async def _together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group whose first error is raised as it is. The others are cancelled, and their sandboxes destroyed."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
