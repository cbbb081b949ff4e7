"""The seam between a run and what makes its sandbox."""

import dataclasses
from typing import Protocol

from skilljaild.engines.finding import Finding, Severity
from skilljaild.limits import Limits

__all__ = [
    "ByteStream",
    "Engine",
    "EngineError",
    "EngineReport",
    "EngineUnavailable",
    "Image",
    "ImageMissing",
    "IsolationError",
    "OwnedSandbox",
    "SandboxSpec",
    "SandboxStats",
]


class EngineError(Exception):
    """The engine could not do what it was asked. The message names the thing and the mend."""


class EngineUnavailable(EngineError):
    """The engine does not answer. Trying again later may help."""


class ImageMissing(EngineError):
    """The image is not on the engine."""


class IsolationError(EngineError):
    """A required control does not hold on the sandbox. It must not run anything."""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine says about itself and its host."""

    name: str
    """The engine's kind: `docker`."""
    product: str
    """What answers: `Docker`, `Podman`."""
    version: str
    runtime: str
    runtime_version: str
    """Empty when the engine does not tell."""
    kernel: str
    cgroup_version: int
    missing: tuple[str, ...]
    """Controls that every run needs and that it lacks, each with its mend. The daemon starts only when empty."""
    findings: tuple[Finding, ...]
    """What an operator should know, worst first: known-bad versions, weaker controls."""
    user_namespace: bool = False
    """Whether sandboxes run in a user namespace of their own."""
    lsms: tuple[str, ...] = ()
    """Linux security modules that confine sandboxes, such as `apparmor`."""
    rootless: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """The findings that are more than good to know, a sentence each."""
        return tuple(one.text for one in self.findings if one.severity >= Severity.WARNING)


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image that is on the engine."""

    reference: str
    digest: str
    """`sha256:` and 64 hex digits; sandboxes are made from this, never from the reference."""
    labels: dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything that may differ between two sandboxes. All else is the container floor."""

    owner: str
    """This daemon's instance, for the label `io.skilljail.owner`."""
    run_id: str
    deadline: int
    """Seconds since the epoch after which nobody can want the sandbox any more."""
    image_digest: str
    limits: Limits
    place: int = 0
    """A number that no other sandbox of this daemon has while this one is alive; it decides the sandbox's user."""


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxStats:
    """What the engine itself recorded of a sandbox."""

    running: bool
    oom_killed: bool


@dataclasses.dataclass(frozen=True, slots=True)
class OwnedSandbox:
    """A sandbox with our label."""

    sandbox_id: str
    run_id: str
    deadline: int


class ByteStream(Protocol):
    """init's standard input and output. What is read is hostile."""

    async def read(self) -> bytes:
        """The next bytes, 1 to 2 MiB; b"" at the end of the stream, also when the sandbox was killed."""
        ...

    async def write(self, data: bytes) -> None:
        """Writes all of `data`. Raises EngineError when the other end is gone."""
        ...

    async def close(self) -> None:
        """Closes both directions. May be called twice; a pending read returns b""."""
        ...


class Engine(Protocol):
    """Makes sandboxes. Every method may raise EngineUnavailable; all are safe to call concurrently.

    An engine passes `tests/integration/test_engine.py`.
    """

    async def probe(self) -> EngineReport:
        """Asks the engine about itself and its host. Changes nothing."""
        ...

    async def image(self, reference: str) -> Image:
        """Finds an image by reference or digest. Raises ImageMissing; never pulls."""
        ...

    async def create(self, spec: SandboxSpec) -> str:
        """Makes a sandbox on the container floor and returns its id. Nothing runs in it yet.

        Raises ImageMissing or EngineError; then nothing is left behind.
        """
        ...

    async def verify(self, sandbox_id: str, spec: SandboxSpec) -> None:
        """Reads every control back from the engine, before the sandbox starts.

        Raises IsolationError naming each control that does not hold.
        """
        ...

    async def stream(self, sandbox_id: str) -> ByteStream:
        """Attaches to init's standard input and output, then starts the sandbox."""
        ...

    async def confirm(self, sandbox_id: str, spec: SandboxSpec) -> None:
        """Looks on the host for the limits of a running sandbox that cannot see its control group.

        Raises IsolationError naming each that is not there. An engine may do so for one sandbox and take it for all
        that it makes in the same way.
        """
        ...

    async def stats(self, sandbox_id: str) -> SandboxStats:
        """What the engine recorded. Meaningful also after the sandbox died and until it is destroyed."""
        ...

    async def kill(self, sandbox_id: str) -> None:
        """Kills every process of the sandbox. No error when it is dead or gone."""
        ...

    async def destroy(self, sandbox_id: str) -> None:
        """Closes the sandbox's stream, kills and removes it with all it has. No error when it is gone.

        Works within a second whatever the sandbox did, also when nobody reads what it writes.
        """
        ...

    async def list_owned(self, owner: str) -> tuple[OwnedSandbox, ...]:
        """Every sandbox with the label of this owner, running or not."""
        ...

    async def close(self) -> None:
        """Gives back connections and threads. Sandboxes stay as they are."""
        ...
