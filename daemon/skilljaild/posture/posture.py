"""What holds on this host, what the operator demands of it, and what follows."""

import dataclasses
import datetime

from skilljaild.engines.base import EngineReport
from skilljaild.engines.finding import Finding, Severity
from skilljaild.posture.self_test import ImageTest, weakest_level
from skilljaild.runs.level import IsolationLevel

__all__ = ["Demands", "Posture", "fault_of"]

FAILING_NAMED_MAX = 5
"""Controls that a message names; one that is missing altogether fails dozens."""
MEND = (
    "update the engine, its runtime and the kernel; build the image with `skilljail images build`, and in a Dockerfile "
    "of your own run /opt/skilljail/seal last. docs/posture.md says more"
)
LEVEL_MEND = (
    "name a runtime that gives it in engine.runtime (runsc for gvisor, Kata Containers for vm), or lower "
    "isolation.minimum; docs/gvisor.md tells how runsc is added to an engine"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Demands:
    """What the operator demands, as in `[isolation]`."""

    minimum: IsolationLevel
    strict: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Posture:
    """What the engine tells about itself and what was seen in a sandbox of each image that is there."""

    time: datetime.datetime
    demands: Demands
    report: EngineReport
    images: tuple[ImageTest, ...]

    @property
    def level(self) -> IsolationLevel | None:
        """The weakest level over all images; None when none was seen."""
        return weakest_level(self.images)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What an operator should know, worst first."""
        found = [Finding(Severity.KNOWN_BAD, "engine", f"it lacks {one}") for one in self.report.missing]
        found += self.report.findings
        found += [_weakness(name) for name in sorted({one.name for test in self.images for one in test.weak})]
        if not self.images:
            message = "there is no image, so nothing was seen from inside; run `skilljail images build`"
            found.append(Finding(Severity.WARNING, "posture unproven", message))
        return tuple(sorted(found, key=lambda one: -one.severity))

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the daemon must not start here, a line each with its mend; empty when it may."""
        lines = [f"{', '.join(names)}: {fault}" for fault, names in self._image_faults().items()]
        if not self.images and (self.demands.minimum > IsolationLevel.CONTAINER or self.demands.strict):
            demand = "isolation.strict" if self.demands.strict else f"isolation.minimum {_word(self.demands.minimum)}"
            lines.append(
                f"{demand} is set, and without an image nothing can be proven; run `skilljail images build`, or "
                "unset it"
            )
        if self.demands.strict:
            bad = [one for one in self.report.findings if one.severity >= Severity.KNOWN_BAD]
            lines += [f"isolation.strict is set, and this is known to be bad: {one.text}" for one in bad]
        return tuple(lines)

    def _image_faults(self) -> dict[str, list[str]]:
        """Images by what is wrong with them: on a weak host it is the same with all."""
        found: dict[str, list[str]] = {}
        for test in self.images:
            if fault := fault_of(test, self.demands):
                found.setdefault(fault, []).append(f"{test.interpreter} ({test.image.reference})")
        return found


def fault_of(test: ImageTest, demands: Demands) -> str:
    """Why no script may run in an image, with the mend; empty when scripts may."""
    if test.fault:
        return f"its self-test could not be done: {test.fault}"
    if test.failing:
        named = [f"{one.name} (seen: {one.seen})" for one in test.failing[:FAILING_NAMED_MAX]]
        more = f", and {len(test.failing) - FAILING_NAMED_MAX} more" if len(test.failing) > FAILING_NAMED_MAX else ""
        return f"in its sandbox this does not hold: {'; '.join(named)}{more}. To mend it: {MEND}"
    if demands.strict and test.weak:
        weak = ", ".join(one.name for one in test.weak)
        return (
            f"isolation.strict is set, and in its sandbox this does not hold: {weak}; use a newer gVisor, or unset it"
        )
    if test.level is None or test.level < demands.minimum:
        seen = "nothing" if test.level is None else _word(test.level)
        return f"its isolation is {seen}, and isolation.minimum is {_word(demands.minimum)}; {LEVEL_MEND}"
    return ""


def _weakness(name: str) -> Finding:
    """What gVisor does not hold."""
    message = (
        f"this does not hold: {name}. A script can forge the result of its own run, and reach nothing else; use a "
        "release that keeps /proc/PID/fd closed"
    )
    return Finding(Severity.KNOWN_BAD, "gVisor", message)


def _word(level: IsolationLevel) -> str:
    """A level as the configuration writes it."""
    return level.name.lower()
