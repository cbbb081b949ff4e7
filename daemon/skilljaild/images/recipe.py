"""The recipe of an image: one hash over all that decides its content. The same recipe means nothing to do."""

import hashlib
import json
from collections.abc import Mapping

from skilljaild.images.definition import ImageDefinition

__all__ = ["recipe"]

FORMAT = 1
"""Raised when the builder itself makes another image from the same inputs."""


def recipe(definition: ImageDefinition, files: Mapping[str, bytes], parent_id: str, archive_sha256: str | None) -> str:
    """The sha256, in hex, over the Dockerfile, the context, the parent's id, the download and the labels.

    The source revision is left out on purpose: a commit that touches no input must not rebuild images.
    """
    inputs = {
        "format": FORMAT,
        "name": definition.name,
        "reference": definition.reference,
        "title": definition.title,
        "licenses": definition.licenses,
        "version_command": definition.version_command,
        "files": {path: hashlib.sha256(content).hexdigest() for path, content in files.items()},
        "parent": parent_id,
        "archive": archive_sha256,
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
