"""What images there are on an engine."""

import dataclasses

from skilljaild import images
from skilljaild.images import label
from skilljaild.images.store import ImageStore, StoredImage

__all__ = ["ListedImage", "listing"]


@dataclasses.dataclass(frozen=True, slots=True)
class ListedImage:
    """One of our images, there or not."""

    name: str
    reference: str
    image: StoredImage | None

    @property
    def interpreter_version(self) -> str:
        """As the interpreter told when the image was built; empty for `base` and for an image that is not there."""
        return self.image.labels.get(label.INTERPRETER_VERSION, "") if self.image else ""


def listing(store: ImageStore) -> list[ListedImage]:
    """Every image of this version of skilljail. Raises StoreUnavailable when the engine does not answer."""
    return [
        ListedImage(name, reference, store.find(reference))
        for name in images.IMAGE_NAMES
        for reference in (images.reference(name),)
    ]
