"""Where the Debian below the base image comes from."""

import dataclasses

from skilljaild.images.bootstrap import BOOTSTRAP_REFERENCE, bootstrap, bootstrapped
from skilljaild.images.error import ImageError
from skilljaild.images.progress import Progress
from skilljaild.images.store import ImageStore, StoredImage

__all__ = ["DEBIAN_REFERENCE", "BaseChoice", "resolve_base"]

DEBIAN_REFERENCE = "docker.io/library/debian:trixie-slim"
REGISTRY_SILENCE_SECONDS = 6
"""How long a registry that nobody asked for by name may stay silent before the base is bootstrapped."""
NAMED_IMAGE_SILENCE_SECONDS = 60


@dataclasses.dataclass(frozen=True, slots=True)
class BaseChoice:
    """What the operator said about the base: an image, a bootstrap, or neither, which takes what there is."""

    image: str | None = None
    bootstrap: bool = False

    def accepts(self, reference: str) -> bool:
        """Whether an image that was made from `reference` is what this choice asks for."""
        if self.image is not None:
            return reference == self.image
        return not self.bootstrap or reference == BOOTSTRAP_REFERENCE


def resolve_base(store: ImageStore, choice: BaseChoice, refresh: bool, progress: Progress) -> tuple[str, StoredImage]:
    """The reference and the image that the base is built on, pulled or bootstrapped if it has to be.

    `refresh` asks the registry or Debian's archive again. Raises ImageError when the choice cannot be had.
    """
    if choice.image is not None:
        return choice.image, _named(store, choice.image, refresh, progress)
    found = None if refresh else bootstrapped(store)
    if choice.bootstrap:
        return BOOTSTRAP_REFERENCE, found or bootstrap(store, progress)
    debian = None if refresh else store.find(DEBIAN_REFERENCE)
    if debian is not None:
        return DEBIAN_REFERENCE, debian
    if found is not None:
        return BOOTSTRAP_REFERENCE, found
    try:
        progress.step(f"pull {DEBIAN_REFERENCE}")
        return DEBIAN_REFERENCE, store.pull(DEBIAN_REFERENCE, progress.step, REGISTRY_SILENCE_SECONDS)
    except ImageError as error:
        progress.step(f"no registry serves it, so the base is bootstrapped: {error}")
    return BOOTSTRAP_REFERENCE, bootstrap(store, progress)


def _named(store: ImageStore, reference: str, refresh: bool, progress: Progress) -> StoredImage:
    image = None if refresh else store.find(reference)
    if image is not None:
        return image
    progress.step(f"pull {reference}")
    try:
        return store.pull(reference, progress.step, NAMED_IMAGE_SILENCE_SECONDS)
    except ImageError as error:
        image = store.find(reference)
        if image is not None:
            return image
        raise ImageError(f"--base-image {reference} is not on the engine: {error}") from error
