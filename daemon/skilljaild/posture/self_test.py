"""Makes a sandbox of an image as a run would get it, and has the probe try its walls."""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import importlib.resources
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from skilljail_init.frames import Cause

from skilljaild.engines.base import Engine, EngineError, EngineUnavailable, Image, SandboxSpec
from skilljaild.engines.floor import container_floor
from skilljaild.limits import Limits
from skilljaild.policy import SANDBOX_ENVIRONMENT
from skilljaild.posture.kernels import boot_id_of, own_boot_id
from skilljaild.posture.probe import GVISOR, INIT_STREAM
from skilljaild.posture.sight import OUTPUT_BYTES_MAX, Control, SightError, read_sight
from skilljaild.runs.admission import Admission
from skilljaild.runs.conversation import Conversation, Exit, ProtocolError, StartFailed, StreamEnded
from skilljaild.runs.level import IsolationLevel, level_of
from skilljaild.runs.sandbox import Sandbox, open_sandbox
from skilljaild.runs.start import start_order

__all__ = ["ImageTest", "SelfTest", "weakest_level"]

TEST_SECONDS = 60.0
"""How long one image may take on a loaded host."""
WALL_SECONDS = 30.0
_LIMITS = Limits(
    wall_seconds=WALL_SECONDS,
    cpu_seconds=WALL_SECONDS,
    cpus=1.0,
    memory_bytes=128 * 1024 * 1024,
    pids=32,
    disk_bytes=1024 * 1024,
    disk_inodes=64,
    open_files=64,
    output_bytes=OUTPUT_BYTES_MAX,
    artifact_count=1,
    artifact_bytes=1,
    egress_bytes=1,
    egress_connections=1,
)
"""What a self-test takes of a host, or less of these where the operator's ceilings are lower:"""
_OF_THE_HOST = ("cpus", "memory_bytes", "pids", "disk_bytes", "disk_inodes")
WEAK_ON_GVISOR = {INIT_STREAM}
"""gVisor shows more of init than Linux does. With it a script can forge the result of its own run, and reach nothing
else: that is told as a finding, and keeps nobody from the stronger wall."""
PROBE = "probe.py"
INIT_PYTHON = "/usr/bin/python3"
"""init's own interpreter: the one that every image has."""


@dataclasses.dataclass(frozen=True, slots=True)
class ImageTest:
    """What a self-test saw in a sandbox of one image."""

    interpreter: str
    image: Image
    controls: tuple[Control, ...]
    fault: str
    """Why it could not be done to the end; empty when it could."""
    seconds: float
    level: IsolationLevel | None
    """None when it was not seen."""
    weak: tuple[Control, ...] = ()
    """What does not hold on gVisor, and would fail the image anywhere else. Not among the controls."""

    @property
    def passed(self) -> bool:
        """Whether it was done and every control holds."""
        return not self.fault and bool(self.controls) and all(control.holds for control in self.controls)

    @property
    def failing(self) -> tuple[Control, ...]:
        """The controls that do not hold."""
        return tuple(control for control in self.controls if not control.holds)


def weakest_level(tests: Iterable[ImageTest]) -> IsolationLevel | None:
    """The weakest level that was seen; None when none was."""
    return min((test.level for test in tests if test.level is not None), default=None)


class SelfTest:
    """Tests images, one sandbox at a time for each call. What it makes carries this daemon's label."""

    def __init__(self, engine: Engine, owner: str, ceiling: Limits, admission: Admission) -> None:
        """`ceiling`: the most that a run may have; a self-test takes no more. `admission`: for places that are lost."""
        self._engine = engine
        self._owner = owner
        self._admission = admission
        less = {name: min(getattr(_LIMITS, name), getattr(ceiling, name)) for name in _OF_THE_HOST}
        self._limits = dataclasses.replace(_LIMITS, **less)
        self._under_way: set[str] = set()

    def under_way(self) -> frozenset[str]:
        """Ids of the sandboxes that are wanted, for the reaper."""
        return frozenset(self._under_way)

    async def run(self, interpreter: str, image: Image, place: int) -> ImageTest:
        """Tests an image. `place`: as in `SandboxSpec`.

        Raises EngineUnavailable; every other failure is in the result's `fault`.
        """
        started = time.monotonic()
        controls: tuple[Control, ...] = ()
        weak: tuple[Control, ...] = ()
        level, fault = None, ""
        try:
            async with asyncio.timeout(TEST_SECONDS):
                controls, facts = await self._look(image, place)
                level = await self._level(facts, image, place)
                if level is IsolationLevel.GVISOR:
                    weak = tuple(one for one in controls if one.name in WEAK_ON_GVISOR and not one.holds)
                    controls = tuple(one for one in controls if one not in weak)
        except EngineUnavailable:
            raise
        except TimeoutError:
            fault = f"it took longer than {TEST_SECONDS:g} s; is the host overloaded?"
        except SightError as error:
            fault = str(error)
        except StartFailed as error:
            fault = f"the probe could not be started: {error}"
        except (StreamEnded, ProtocolError) as error:
            fault = f"its init does not do what it must ({error}); build the image with `skilljail images build`"
        except EngineError as error:
            fault = str(error)
        return ImageTest(interpreter, image, controls, fault, time.monotonic() - started, level, weak)

    async def _look(self, image: Image, place: int) -> tuple[tuple[Control, ...], dict[str, Any]]:
        """What init and the probe saw in a sandbox, and init's facts."""
        async with self._sandbox(image, place) as sandbox:
            gvisor = level_of(sandbox.facts) is IsolationLevel.GVISOR
            output = await _probe(sandbox.conversation, self._limits, gvisor=gvisor)
            seen = read_sight(output, gvisor=gvisor)
            verified = tuple(Control(sentence, holds=True, seen="read by init") for sentence in sandbox.verified)
            return (*verified, *seen), sandbox.facts

    async def _level(self, facts: dict[str, Any], image: Image, place: int) -> IsolationLevel:
        """The level that the facts prove.

        Whether a kernel is the sandbox's own, only a second sandbox can tell: with another kernel it has another boot
        id. It is not made where the first one shows the daemon's own kernel, which is the usual case.
        """
        level = level_of(facts)
        boot_id = boot_id_of(facts)
        if level is not IsolationLevel.CONTAINER or boot_id in {"", own_boot_id()}:
            return level
        async with self._sandbox(image, place) as other:
            return level_of(facts, boot_id_of(other.facts))

    @contextlib.asynccontextmanager
    async def _sandbox(self, image: Image, place: int) -> AsyncIterator[Sandbox]:
        spec = SandboxSpec(
            owner=self._owner,
            run_id=secrets.token_hex(16),
            deadline=int(time.time() + 2 * TEST_SECONDS),
            image_digest=image.digest,
            limits=self._limits,
            place=place,
        )
        self._under_way.add(spec.run_id)
        try:
            async with open_sandbox(self._engine, spec, self._admission.lose) as sandbox:
                yield sandbox
        finally:
            self._under_way.discard(spec.run_id)


@functools.cache
def _source() -> bytes:
    return importlib.resources.files("skilljaild.posture").joinpath(PROBE).read_bytes()


async def _probe(conversation: Conversation, limits: Limits, *, gvisor: bool) -> bytes:
    """Stages the probe, has it run as a script, and returns what it printed."""
    source = _source()
    entry: dict[str, object] = {
        "path": PROBE,
        "size": len(source),
        "executable": False,
        "sha256": hashlib.sha256(source).hexdigest(),
    }

    async def contents() -> AsyncIterator[bytes]:
        yield source

    await conversation.stage([], [entry], contents())
    # init's own Python, isolated from whatever the image has put beside it.
    command = [INIT_PYTHON, "-I", "-S", PROBE, *([GVISOR] if gvisor else []), *container_floor().masked_paths]
    await conversation.start(start_order(command, SANDBOX_ENVIRONMENT, limits), b"")
    output = b""
    async for event in conversation.output(limits.output_bytes):
        if isinstance(event, Exit):
            _check_end(event)
        elif event.stream == 1:
            output += event.data
    return output


def _check_end(end: Exit) -> None:
    if end.cause is not Cause.EXITED or end.exit_code != 0:
        raise SightError(f"the probe did not end by itself and well ({end.cause}, {end.exit_code})")
