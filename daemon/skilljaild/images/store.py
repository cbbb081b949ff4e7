"""An engine's image store, through the Docker API: what Docker and Podman both serve."""

import dataclasses
import io
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, cast

import docker
import docker.errors
import docker.utils
import requests
from docker.types import LogConfig, Ulimit

from skilljaild.images.context import BuildContext
from skilljaild.images.error import BuildFailed, ImageError, StoreUnavailable

__all__ = ["ImageStore", "StoredImage"]

STEP = re.compile(r"step (\d+)/(\d+) ?: (.*)", flags=re.IGNORECASE | re.DOTALL)
SILENCE_SECONDS = 900
"""How long a step of a build may say nothing."""
ARCHITECTURES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}


@dataclasses.dataclass(frozen=True, slots=True)
class StoredImage:
    """An image that is on the engine."""

    image_id: str
    """`sha256:` and 64 hex digits."""
    labels: Mapping[str, str]
    size_bytes: int
    """With all its layers; images share those of their parents."""
    created: str
    """RFC 3339."""
    repo_digests: tuple[str, ...]
    """Under which digests a registry knows it; empty for an image that was made here."""


class ImageStore:
    """Inspects, pulls, imports and builds images. Close it, or use it as a context manager.

    Every method raises StoreUnavailable when the engine does not answer, and ImageError when it refuses.
    """

    def __init__(self, engine_url: str | None = None) -> None:
        """Connects to `engine_url`, else to DOCKER_HOST, else to Docker's default socket."""
        environment = docker.utils.kwargs_from_env()
        self.url = engine_url or environment.get("base_url") or "unix:///var/run/docker.sock"
        environment["base_url"] = self.url
        with self._errors():
            self._api = docker.APIClient(**environment, version="auto", timeout=SILENCE_SECONDS)

    def close(self) -> None:
        """Gives the connection back."""
        self._api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _errors(self, doing: str = "") -> "_Errors":
        return _Errors(self.url, doing)

    def architecture(self) -> str:
        """The engine's architecture, as `uname -m` names it: it may be another than ours."""
        with self._errors():
            name = str(self._api.version()["Arch"])
        if name not in ARCHITECTURES:
            raise ImageError(f"the engine at {self.url} is for {name}: there are images for x86_64 and aarch64 only")
        return ARCHITECTURES[name]

    def find(self, reference: str) -> StoredImage | None:
        """The image of this name or id, if it is there."""
        with self._errors(f"look for {reference}"):
            try:
                answer: dict[str, Any] = self._api.inspect_image(reference)  # type: ignore[no-untyped-call]
            except docker.errors.ImageNotFound:
                return None
        return StoredImage(
            image_id=_prefixed(answer["Id"]),
            labels=answer["Config"].get("Labels") or {},
            size_bytes=answer["Size"],
            created=answer["Created"],
            repo_digests=tuple(answer.get("RepoDigests") or ()),
        )

    def pull(self, reference: str, say: Callable[[str], None], silence_seconds: float) -> StoredImage:
        """Pulls an image; gives up once the engine says nothing for `silence_seconds`."""
        repository, tag = docker.utils.parse_repository_tag(reference)
        previous, self._api.timeout = self._api.timeout, cast("int", silence_seconds)
        try:
            with self._errors(f"pull {reference}"):
                for event in self._api.pull(repository, tag=tag or "latest", stream=True, decode=True):
                    _raise_if_error(event, reference)
                    if "id" in event and event.get("status") == "Pull complete":
                        say(f"pulled layer {event['id']}")
        finally:
            self._api.timeout = previous
        return self._require(reference)

    def import_root(self, root: pathlib.Path, reference: str, labels: Mapping[str, str]) -> StoredImage:
        """Makes an image of one layer from a tar of a root file system."""
        changes = [f'LABEL {name}="{value}"' for name, value in labels.items()]
        with self._errors(f"import {root}"):
            # Podman 4 overlooks a tag that stands apart from its repository.
            answer = self._api.import_image(src=str(root), repository=reference, changes=changes)
        if '"error"' in answer:
            raise ImageError(f"the engine could not import {root}: {answer.strip()}")
        return self._require(reference)

    def build(
        self,
        context: BuildContext,
        tag: str,
        say: Callable[[str], None],
        arguments: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> StoredImage:
        """Builds an image; `say` gets each step as it begins. `fresh` uses no layer of an earlier build.

        The steps have the host's network, as a bridge is not to be had everywhere. Raises BuildFailed with the
        engine's log.
        """
        with self._errors(f"build {tag}"):
            events = self._api.build(
                fileobj=context.file(),
                custom_context=True,
                decode=True,
                tag=tag,
                rm=True,
                forcerm=True,
                nocache=fresh,
                network_mode="host",
                buildargs=dict(arguments or {}),
                labels=dict(labels or {}),
            )
            _follow(events, tag, say)
        return self._require(tag)

    def label(self, parent: str, tag: str, labels: Mapping[str, str]) -> StoredImage:
        """Makes an image that is `parent` with labels, under the name `tag`."""
        with BuildContext() as context:
            context.add_bytes("Dockerfile", f"FROM {parent}\n".encode())
            return self.build(context, tag, lambda _: None, labels=labels)

    def untag(self, tag: str) -> None:
        """Takes a name away; the image goes too when nothing else needs it."""
        with self._errors(f"remove the tag {tag}"):
            self._api.remove_image(tag, noprune=True)

    def output_of(self, image_id: str, command: Sequence[str], seconds: float) -> str:
        """Runs a command in a throw-away container with no network, no capabilities and a read-only root.

        Returns its standard output and error. Raises ImageError when it fails or takes longer than `seconds`.
        """
        with self._errors(f"run {command[0]} in the image"):
            config = self._api.create_host_config(
                network_mode="none",
                read_only=True,
                tmpfs={"/work": "rw,nosuid,nodev,size=64m,mode=1777"},
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                log_config=LogConfig(type="json-file"),
                # Podman's own defaults can be above what the host lets it set.
                ulimits=[Ulimit(name="nofile", soft=1024, hard=1024), Ulimit(name="nproc", soft=4096, hard=4096)],
            )
            container = self._api.create_container(
                image_id,
                entrypoint=list(command[:1]),
                command=list(command[1:]),
                environment={"HOME": "/work", "TMPDIR": "/work"},
                host_config=config,
            )["Id"]
            try:
                self._api.start(container)
                return self._wait(container, command, seconds)
            finally:
                self._api.remove_container(container, force=True, v=True)

    def _wait(self, container: str, command: Sequence[str], seconds: float) -> str:
        try:
            status = self._api.wait(container, timeout=cast("int", seconds))["StatusCode"]
        except (requests.exceptions.ReadTimeout, requests.exceptions.ConnectionError) as error:
            raise ImageError(
                f"`{' '.join(command)}` did not end within {seconds:.0f} s in the finished image"
            ) from error
        output = self._api.logs(container).decode(errors="replace").strip()
        if status != 0:
            raise ImageError(f"`{' '.join(command)}` does not work in the finished image: exit code {status}: {output}")
        return output

    def _require(self, reference: str) -> StoredImage:
        image = self.find(reference)
        if image is None:
            raise ImageError(f"the engine at {self.url} says that it made {reference}, but has no such image")
        return image


class _Errors:
    """Turns what the docker package raises into ImageError and StoreUnavailable."""

    def __init__(self, url: str, doing: str) -> None:
        self._url = url
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, docker.errors.APIError):
            raise ImageError(
                f"the engine at {self._url} could not {self._doing}: {error.explanation or error}"
            ) from error
        if isinstance(error, (docker.errors.DockerException, requests.exceptions.RequestException)):
            reason = f" to {self._doing}" if self._doing else ""
            raise StoreUnavailable(
                f"no engine answers at {self._url}{reason}: start Docker or Podman, or name its socket with "
                f"--engine-url or DOCKER_HOST ({error})"
            ) from error


def _follow(events: Iterator[dict[str, Any]], tag: str, say: Callable[[str], None]) -> None:
    """Reads a build to its end. Raises BuildFailed, with everything that was said, when a step fails."""
    log = io.StringIO()
    step = "the first step"
    for event in events:
        text = str(event.get("stream", ""))
        log.write(text)
        if match := STEP.match(text.strip()):
            step = f"step {match[1]} of {match[2]}"
            say(f"step {match[1]}/{match[2]}  {match[3]}")
        if "error" in event:
            raise BuildFailed(f"building {tag} failed at {step}: {str(event['error']).strip()}", log.getvalue())


def _raise_if_error(event: Mapping[str, Any], reference: str) -> None:
    if "error" in event:
        raise ImageError(f"cannot pull {reference}: {event['error']}")


def _prefixed(image_id: str) -> str:
    """Podman leaves the algorithm out."""
    return image_id if image_id.startswith("sha256:") else f"sha256:{image_id}"
