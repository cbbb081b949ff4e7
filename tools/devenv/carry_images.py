"""Carries the interpreters' images from one engine to another: carry_images.py SOURCE-URL TARGET-URL.

It runs in the project's Python environment, not in the one of the set-up.
"""

import sys

import docker
import docker.errors
from skilljaild import images


def main(source_url: str, target_url: str) -> None:
    """Saves each image on the one engine and loads it on the other, unless it is there."""
    source = docker.DockerClient(base_url=source_url, timeout=300)
    target = docker.DockerClient(base_url=target_url, timeout=300)
    for reference in map(images.reference, images.IMAGE_NAMES):
        wanted = image_id(source, reference)
        if wanted is None:
            print(f"{reference}: not on {source_url}")
        elif image_id(target, reference) == wanted:
            print(f"{reference}: there already")
        else:
            # The whole answer must be read: the engine has the image only when it has ended.
            answer = target.api.load_image(source.images.get(reference).save(named=reference))  # type: ignore[no-untyped-call]
            for _ in answer:
                pass
            print(f"{reference}: carried")


def image_id(client: docker.DockerClient, reference: str) -> str | None:
    """The image's id, None when the engine does not have it."""
    try:
        return str(client.images.get(reference).id)
    except docker.errors.ImageNotFound:
        return None


if __name__ == "__main__":
    main(*sys.argv[1:])
