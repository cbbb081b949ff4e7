"""Builds the sandbox images and lists them: `skilljaild images build`, `skilljaild images list`.

It knows the files of `sandbox-images`, the pinned downloads and an engine's image store. It must not know runs,
policies or how a sandbox is made; what it shares with the rest of the daemon is `reference`, the name of an image.

    cli → build → definition, recipe, label, base_source, archive_source → download, context → store (the engine)
"""

import skilljaild

__all__ = ["IMAGE_NAMES", "reference"]

IMAGE_NAMES = ("base", "python", "node", "bash", "pwsh")
"""Every image, parents first. All but `base` are named for their interpreter."""


def reference(name: str) -> str:
    """The reference under which this version of skilljail builds the image and looks for it: `skilljail/python:0.1.0`.

    Raises ValueError for a name that is not in IMAGE_NAMES.
    """
    if name not in IMAGE_NAMES:
        raise ValueError(f"there is no image {name!r}: choose from {', '.join(IMAGE_NAMES)}")
    return f"skilljail/{name}:{skilljaild.__version__}"
