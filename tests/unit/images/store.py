"""An image store that keeps what is built in memory."""

import hashlib
import pathlib
import tarfile
from collections.abc import Callable, Mapping, Sequence

from skilljaild.images.context import BuildContext
from skilljaild.images.error import BuildFailed, ImageError
from skilljaild.images.store import ImageStore, StoredImage

__all__ = ["MemoryStore"]


class MemoryStore(ImageStore):
    """Builds nothing, but remembers what it was asked to build. It has Debian, and no registry."""

    def __init__(self) -> None:
        self.url = "memory://"
        self.images: dict[str, StoredImage] = {}
        self.contexts: dict[str, list[str]] = {}
        self.pulled: list[str] = []
        self.broken: set[str] = set()
        """Images whose Dockerfile fails."""
        self.silent: set[str] = set()
        """Interpreters that do not start."""
        self._put("docker.io/library/debian:trixie-slim", {})

    def _put(self, tag: str, labels: Mapping[str, str]) -> StoredImage:
        image_id = "sha256:" + hashlib.sha256(f"{tag}{len(self.contexts)}".encode()).hexdigest()
        self.images[tag] = StoredImage(image_id, dict(labels), 1, "2026-01-01T00:00:00Z", ())
        return self.images[tag]

    def architecture(self) -> str:
        return "x86_64"

    def find(self, reference: str) -> StoredImage | None:
        return self.images.get(reference)

    def pull(self, reference: str, say: Callable[[str], None], silence_seconds: float) -> StoredImage:
        say(f"silent for {silence_seconds}")
        self.pulled.append(reference)
        raise ImageError("no such host")

    def import_root(self, root: pathlib.Path, reference: str, labels: Mapping[str, str]) -> StoredImage:
        assert root.is_file()
        return self._put(reference, labels)

    def build(
        self,
        context: BuildContext,
        tag: str,
        say: Callable[[str], None],
        arguments: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> StoredImage:
        say(f"step 1/1 fresh={fresh} from {(arguments or {}).get('PARENT')}")
        name = tag.removeprefix("skilljail/").partition(":")[0]
        if name in self.broken:
            raise BuildFailed(f"building {tag} failed at step 1 of 1", "the log")
        with tarfile.open(fileobj=context.file()) as tar:
            self.contexts[tag] = tar.getnames()
        return self._put(tag, labels or {})

    def label(self, parent: str, tag: str, labels: Mapping[str, str]) -> StoredImage:
        assert parent in {image.image_id for image in self.images.values()}
        return self._put(tag, labels)

    def untag(self, tag: str) -> None:
        del self.images[tag]

    def output_of(self, image_id: str, command: Sequence[str], seconds: float) -> str:
        assert seconds > 0
        assert image_id in {image.image_id for image in self.images.values()}
        if command[0] in self.silent:
            raise ImageError(f"`{command[0]}` does not work in the finished image")
        return f"{command[0]} version 1.2.3"

    def close(self) -> None:
        """Nothing to give back."""
