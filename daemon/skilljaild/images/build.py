"""Builds images: decides what is to be done, does it, and says what came of it."""

import dataclasses
import enum
import os
import re
from collections.abc import Callable, Mapping, Sequence

from skilljaild import images
from skilljaild.images import label
from skilljaild.images.archive import add_download
from skilljaild.images.archive_source import Archive, PwshChoice, kept_archive, named_archive, pinned_archive
from skilljaild.images.base_source import BaseChoice, resolve_base
from skilljaild.images.context import BuildContext
from skilljaild.images.definition import ImageDefinition, load_definitions
from skilljaild.images.error import ImageError, StoreUnavailable
from skilljaild.images.lock import build_lock
from skilljaild.images.progress import Progress
from skilljaild.images.recipe import recipe
from skilljaild.images.store import ImageStore, StoredImage

__all__ = ["BuildOptions", "BuildResult", "BuildState", "build"]

VERSION = re.compile(r"\d+\.\d+(\.\d+)?([-+.][0-9A-Za-z.-]+)?")
VERSION_SECONDS = 60
"""How long a fresh interpreter may take to tell its version; pwsh takes 2 s on a small machine."""
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclasses.dataclass(frozen=True, slots=True)
class BuildOptions:
    """What an operator may choose."""

    base: BaseChoice = dataclasses.field(default_factory=BaseChoice)
    pwsh: PwshChoice | None = None
    """None takes the archive that the image was built from before if an operator named one, else the download."""
    refresh: bool = False
    """Build even if nothing changed, with the newest packages of Debian."""


class BuildState(enum.Enum):
    """What came of an image."""

    BUILT = "built"
    UP_TO_DATE = "up to date"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class BuildResult:
    """What came of one image."""

    name: str
    state: BuildState
    seconds: float
    image: StoredImage | None
    """None when it failed."""
    error: ImageError | None = None

    @property
    def reference(self) -> str:
        return images.reference(self.name)


def build(
    names: Sequence[str], store: ImageStore, options: BuildOptions, write: Callable[[str], None]
) -> list[BuildResult]:
    """Builds the named images, and the parents they need, on the store's engine. One build runs at a time.

    An image that fails does not stop the others, except those that are built on it. `write` gets the lines of
    progress. Returns one result for each image that was asked for or built, parents first. Raises StoreUnavailable
    when the engine does not answer.
    """
    definitions = load_definitions()
    with build_lock(write):
        session = _Session(store, options, store.architecture())
        results: dict[str, BuildResult] = {}
        for name in _with_parents(names, definitions):
            results[name] = session.build(definitions[name], results, Progress(name, write))
    return [result for name, result in results.items() if name in names or result.state is not BuildState.UP_TO_DATE]


def _with_parents(names: Sequence[str], definitions: Mapping[str, ImageDefinition]) -> list[str]:
    """The named images and all that they are built on, parents first."""
    wanted = set(names)
    for name in names:
        parent = definitions[name].parent
        while parent is not None:
            wanted.add(parent)
            parent = definitions[parent].parent
    return [name for name in definitions if name in wanted]


@dataclasses.dataclass(frozen=True, slots=True)
class _Parent:
    """What an image is built on, and the labels that tell it."""

    image_id: str
    labels: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class _Session:
    """One call of `build`."""

    store: ImageStore
    options: BuildOptions
    arch: str

    def build(self, definition: ImageDefinition, done: Mapping[str, BuildResult], progress: Progress) -> BuildResult:
        """Brings one image up to date, after its parent."""
        try:
            current = self.store.find(definition.reference)
            archive = self._archive(definition, current, progress)
            if current and not self.options.refresh and self._is_current(definition, current, done, archive):
                return BuildResult(definition.name, BuildState.UP_TO_DATE, progress.seconds, current)
            if archive is not None and archive.is_lost:
                archive = pinned_archive(archive.name, self.arch)
            image = self._make(definition, done, archive, progress)
        except StoreUnavailable:
            raise
        except ImageError as error:
            progress.step("failed")
            return BuildResult(definition.name, BuildState.FAILED, progress.seconds, None, error)
        progress.step(f"built {definition.reference}")
        return BuildResult(definition.name, BuildState.BUILT, progress.seconds, image)

    def _is_current(
        self,
        definition: ImageDefinition,
        current: StoredImage,
        done: Mapping[str, BuildResult],
        archive: Archive | None,
    ) -> bool:
        """Whether building would make the image that is there. Asks no registry and downloads nothing."""
        labels = current.labels
        if definition.parent is None:
            if not self.options.base.accepts(labels.get(label.BASE_REFERENCE, "")):
                return False
            parent_id = labels.get(label.PARENT_ID, "")
        else:
            parent_id = _parent_of(definition, done)
        wanted = recipe(definition, definition.context_files(), parent_id, archive.sha256 if archive else None)
        return labels.get(label.RECIPE) == wanted

    def _archive(self, definition: ImageDefinition, current: StoredImage | None, progress: Progress) -> Archive | None:
        """The file that the image is to be unpacked from, not fetched yet; None for an image without one."""
        name = definition.download
        if name is None:
            return None
        if name == "pwsh" and self.options.pwsh is not None:
            return named_archive(self.options.pwsh, self.arch, progress)
        labels = current.labels if current else {}
        if labels.get(label.ARCHIVE_ORIGIN.format(name)) == "archive":
            return kept_archive(labels.get(label.ARCHIVE_SHA256.format(name), ""), self.arch)
        return pinned_archive(name, self.arch)

    def _make(
        self,
        definition: ImageDefinition,
        done: Mapping[str, BuildResult],
        archive: Archive | None,
        progress: Progress,
    ) -> StoredImage:
        """Builds the image, lets its interpreter tell its version, and gives it its labels and its name."""
        parent = self._parent(definition, done, progress)
        files = definition.context_files()
        digest = recipe(definition, files, parent.image_id, archive.sha256 if archive else None)
        labels = label.common_labels(definition, digest, parent.image_id) | parent.labels
        if archive is not None:
            labels[label.ARCHIVE_SHA256.format(archive.name)] = archive.sha256
            labels[label.ARCHIVE_ORIGIN.format(archive.name)] = archive.origin
        unnamed = f"skilljail/{definition.name}:building-{digest[:12]}"
        built = self._build_context(files, archive, parent, unnamed, progress)
        try:
            if definition.version_command:
                labels |= self._interpreter_labels(definition, built, progress)
            return self.store.label(built.image_id, definition.reference, labels)
        finally:
            self.store.untag(unnamed)

    def _parent(self, definition: ImageDefinition, done: Mapping[str, BuildResult], progress: Progress) -> _Parent:
        if definition.parent is not None:
            return _Parent(_parent_of(definition, done))
        reference, image = resolve_base(self.store, self.options.base, self.options.refresh, progress)
        labels = {label.BASE_REFERENCE: reference, "org.opencontainers.image.base.name": reference}
        if image.repo_digests:
            labels["org.opencontainers.image.base.digest"] = image.repo_digests[0].partition("@")[2]
        return _Parent(image.image_id, labels)

    def _build_context(
        self,
        files: Mapping[str, bytes],
        archive: Archive | None,
        parent: _Parent,
        tag: str,
        progress: Progress,
    ) -> StoredImage:
        """Lays out the build context and has the engine build it."""
        with BuildContext() as context:
            for path, content in files.items():
                context.add_bytes(path, content)
            if archive is not None:
                progress.step(f"fetch and check {archive.name} ({archive.origin}, sha256 {archive.sha256[:12]}…)")
                add_download(archive.name, archive.fetch(), context)
            arguments = {"PARENT": parent.image_id} | _proxies()
            return self.store.build(context, tag, progress.step, arguments, fresh=self.options.refresh)

    def _interpreter_labels(
        self, definition: ImageDefinition, built: StoredImage, progress: Progress
    ) -> dict[str, str]:
        """Starts the interpreter in the image. An image whose interpreter does not run gets no name."""
        progress.step(f"run {' '.join(definition.version_command)}")
        output = self.store.output_of(built.image_id, definition.version_command, VERSION_SECONDS)
        version = VERSION.search(output)
        if version is None:
            raise ImageError(f"{definition.version_command[0]} in the image told no version, but {output!r}")
        return {label.INTERPRETER: definition.name, label.INTERPRETER_VERSION: version[0]}


def _parent_of(definition: ImageDefinition, done: Mapping[str, BuildResult]) -> str:
    """The id of the image that this one stands on. Raises ImageError when that could not be built."""
    assert definition.parent is not None  # noqa: S101 (the base has its own branch)
    parent = done[definition.parent].image
    if parent is None:
        raise ImageError(f"{definition.name} is built on {definition.parent}, which failed")
    return parent.image_id


def _proxies() -> dict[str, str]:
    """The caller's proxy settings, for apt. Docker knows these names and keeps them out of the image."""
    return {name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ}
