"""The calls to Docker's API that make, watch and destroy a sandbox.

One container for each sandbox, spoken to over the attach stream alone. Neither exec nor the archive API is ever used.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import docker
import docker.errors
import requests.exceptions
import urllib3.exceptions
from docker.utils import kwargs_from_env

from skilljaild.engines.base import (
    ByteStream,
    EngineError,
    EngineReport,
    EngineUnavailable,
    Image,
    ImageMissing,
    IsolationError,
    OwnedSandbox,
    SandboxSpec,
    SandboxStats,
)
from skilljaild.engines.docker.attach import AttachStream
from skilljaild.engines.docker.config import (
    LABEL_DEADLINE,
    LABEL_OWNER,
    LABEL_RUN,
    container_config,
    labels_of,
    sandbox_name,
)
from skilljaild.engines.docker.dialect import Dialect, DockerDialect, PodmanDialect
from skilljaild.engines.docker.gvisor import held_limits, host_pids, in_gvisors_terms, is_gvisor
from skilljaild.engines.docker.inspection import checks
from skilljaild.engines.docker.report import engine_report, is_podman
from skilljaild.engines.floor import Floor, container_floor

__all__ = ["DockerEngine"]

DEFAULT_URL = "unix:///var/run/docker.sock"
THREADS = 64
"""Calls to the engine that may wait at one time. The package is synchronous."""

UNDERTAKERS = 8
"""Sandboxes that are destroyed at one time."""

T = TypeVar("T")


class DockerEngine:
    """An `Engine` (see `skilljaild.engines.base`) over Docker's API."""

    def __init__(self, url: str = "", runtime: str = "", timeout_seconds: float = 60.0) -> None:
        """`url`: the API; empty means DOCKER_HOST, then Docker's usual socket. `runtime`: empty means its default.

        Nothing is contacted yet.
        """
        self._url = url
        self._runtime = runtime
        self._timeout_seconds = timeout_seconds
        self._client: Any = None  # docker's own stubs are full of holes
        self._threads = concurrent.futures.ThreadPoolExecutor(THREADS, "engine")
        # Its own: a sandbox must die also while every other thread waits for an engine or a stream that is stuck.
        self._undertakers = concurrent.futures.ThreadPoolExecutor(UNDERTAKERS, "engine-destroy")
        self._dialect: Dialect = DockerDialect()
        self._host: dict[str, Any] = {}
        """What both `container_config` and `checks` must know of the engine and its host."""
        self._held = False
        """Whether the limits of a sandbox on gVisor were found on the host, since the engine was last connected."""
        self._streams: dict[str, AttachStream] = {}

    async def _call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        call = functools.partial(self._translated, function, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _translated(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Calls, with the package's many exceptions turned into ours."""
        try:
            return function(*arguments, **options)
        except docker.errors.APIError as error:
            raise EngineError(f"the engine refused: {error.explanation or error}") from error
        except (
            docker.errors.DockerException,
            requests.exceptions.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            self._client, self._held = None, False  # a new one is made when the engine is back
            raise EngineUnavailable(self._why(error)) from error

    def _why(self, error: Exception) -> str:
        """What was tried, what is wrong, and the mend."""
        url = self._url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        if "PermissionError" in str(error):
            return (
                f"the container engine at {url} may not be used by this user. Let the user in (for Docker: the group "
                "`docker`, which is as good as root), or use a rootless engine with engine.url or --engine-url."
            )
        text = str(error)
        detail = "there is no such socket" if "FileNotFoundError" in text else f"{type(error).__name__}: {text[:200]}"
        return (
            f"no container engine answers at {url} ({detail}). Start it; or install one (on Debian: `apt-get install "
            "docker.io`); or name another with engine.url, --engine-url or DOCKER_HOST, for Podman "
            "unix:///run/podman/podman.sock."
        )

    def _api(self) -> Any:
        """The connection, made when first used and again after the engine was away."""
        client = self._client
        if client is None:
            options: dict[str, Any] = {"timeout": self._timeout_seconds, "version": "auto"}
            environment = kwargs_from_env()
            if self._url:
                environment["base_url"] = self._url
            client = docker.APIClient(**environment, **options, num_pools=THREADS)
            self._dialect = PodmanDialect() if is_podman(client.version()) else DockerDialect()
            info = client.info()
            is_docker = isinstance(self._dialect, DockerDialect)
            self._host = {
                "cpus": int(info.get("NCPU") or 0),
                "gvisor": is_docker and is_gvisor(info, self._runtime),
            }
            self._client = client
        return client

    def _floor(self) -> Floor:
        """In the words of the runtime; after `_api`, which tells."""
        return in_gvisors_terms(container_floor()) if self._host["gvisor"] else container_floor()

    # What the engine is

    async def probe(self) -> EngineReport:
        return await self._call(self._probe)

    def _probe(self) -> EngineReport:
        api = self._api()
        return engine_report(api.info(), api.version(), self._runtime)

    async def image(self, reference: str) -> Image:
        return await self._call(self._image, reference)

    def _image(self, reference: str) -> Image:
        try:
            found = self._api().inspect_image(reference)
        except docker.errors.NotFound:
            raise ImageMissing(f"the engine has no image {reference}; build it with `skilljail images build`") from None
        labels = (found.get("Config") or {}).get("Labels") or {}
        digest = found["Id"] if found["Id"].startswith("sha256:") else f"sha256:{found['Id']}"
        return Image(reference, digest, dict(labels))

    # A sandbox's life

    async def create(self, spec: SandboxSpec) -> str:
        return await self._call(self._create, spec)

    def _create(self, spec: SandboxSpec) -> str:
        api, floor, name = self._api(), self._floor(), sandbox_name(spec.run_id)
        config = container_config(
            api,
            self._dialect,
            spec,
            floor,
            runtime=self._runtime,
            **self._host,
        )
        self._dialect.prepare_work(api, name, spec, floor, labels_of(spec))
        try:
            self._dialect.create(api, name, config)
        except docker.errors.ImageNotFound:
            self._release_work(api, name)
            raise ImageMissing(
                f"the engine lost the image {spec.image_digest}; build it with `skilljail images build`"
            ) from None
        except BaseException:
            self._release_work(api, name)
            raise
        return name

    def _release_work(self, api: Any, name: str) -> None:
        """After a failed creation: the reason of the failure must not be hidden by one of the clean-up."""
        with contextlib.suppress(docker.errors.APIError):
            self._dialect.release_work(api, name)

    async def verify(self, sandbox_id: str, spec: SandboxSpec) -> None:
        await self._call(self._verify, sandbox_id, spec)

    def _verify(self, sandbox_id: str, spec: SandboxSpec) -> None:
        api = self._api()
        inspected = api.inspect_container(sandbox_id)
        found = checks(
            api,
            inspected,
            self._dialect,
            spec,
            self._floor(),
            self._runtime,
            **self._host,
        )
        faults = [name for name, holds in found.items() if not holds]
        if faults:
            raise IsolationError(f"the engine did not apply: {'; '.join(faults)}. Nothing was run.")

    async def stream(self, sandbox_id: str) -> ByteStream:
        return await self._call(self._attach_and_start, sandbox_id, asyncio.get_running_loop())

    def _attach_and_start(self, sandbox_id: str, loop: asyncio.AbstractEventLoop) -> ByteStream:
        api = self._api()
        # Attached before it starts, so that nothing of init is missed. Without detach keys: our bytes hold any value.
        attached = api.attach_socket(sandbox_id, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "detachKeys": ""})
        stream = AttachStream(attached, loop, self._threads)
        try:
            api.start(sandbox_id)
        except BaseException:
            stream.shut()
            raise
        self._streams[sandbox_id] = stream
        return stream

    async def confirm(self, sandbox_id: str, spec: SandboxSpec) -> None:
        if not self._held:
            await self._call(self._confirm, sandbox_id, spec)

    def _confirm(self, sandbox_id: str, spec: SandboxSpec) -> None:
        """Once for each connection: the same runtime sets all limits of all sandboxes in the same way, and an engine
        with other things to do may let one wait a second for its accounts."""
        api = self._api()
        accounts = api.stats(sandbox_id, stream=False, one_shot=True)
        found = held_limits(accounts, spec, host_pids(spec.limits.pids))
        faults = [name for name, holds in found.items() if not holds]
        if faults:
            raise IsolationError(
                f"on the engine's host no control group holds the sandbox to its {' and '.join(faults)}. Take "
                "--ignore-cgroups from the runtime's arguments (docs/gvisor.md). Nothing was run."
            )
        self._held = True

    async def stats(self, sandbox_id: str) -> SandboxStats:
        state = (await self._call(self._inspect, sandbox_id))["State"]
        return SandboxStats(running=bool(state.get("Running")), oom_killed=bool(state.get("OOMKilled")))

    def _inspect(self, sandbox_id: str) -> dict[str, Any]:
        inspected: dict[str, Any] = self._api().inspect_container(sandbox_id)
        return inspected

    async def kill(self, sandbox_id: str) -> None:
        await self._call(self._kill, sandbox_id)

    def _kill(self, sandbox_id: str) -> None:
        with contextlib.suppress(docker.errors.NotFound):
            try:
                self._api().kill(sandbox_id)
            except docker.errors.APIError:
                if self._inspect(sandbox_id)["State"].get("Running"):
                    raise  # else it has ended already, which was wanted

    async def destroy(self, sandbox_id: str) -> None:
        call = functools.partial(self._translated, self._destroy, sandbox_id)
        await asyncio.get_running_loop().run_in_executor(self._undertakers, call)

    def _destroy(self, sandbox_id: str) -> None:
        """Removes, and tries again when the engine is just noticing that the container has ended by itself."""
        stream = self._streams.pop(sandbox_id, None)
        if stream is not None:
            # Docker waits for whoever is attached to take all output before it calls a container dead. A sandbox whose
            # output nobody reads would live on for as long as its flood is stuck.
            stream.shut()
        api = self._api()
        for wait_seconds in (0.05, 0.1, 0.2, 0.4, None):
            try:
                api.remove_container(sandbox_id, v=True, force=True)
                break
            except docker.errors.NotFound:
                break
            except docker.errors.APIError:
                if wait_seconds is None:
                    raise
                time.sleep(wait_seconds)
        self._dialect.release_work(api, sandbox_id)

    async def list_owned(self, owner: str) -> tuple[OwnedSandbox, ...]:
        return await self._call(self._list_owned, owner)

    def _list_owned(self, owner: str) -> tuple[OwnedSandbox, ...]:
        api, label = self._api(), f"{LABEL_OWNER}={owner}"
        containers = [one["Labels"] for one in api.containers(all=True, filters={"label": [label]})]
        found = {one[LABEL_RUN]: one for one in containers + self._dialect.left_behind(api, label)}
        return tuple(
            OwnedSandbox(sandbox_name(run_id), run_id, int(labels.get(LABEL_DEADLINE) or 0))
            for run_id, labels in found.items()
        )

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._undertakers.shutdown(wait=False, cancel_futures=True)
