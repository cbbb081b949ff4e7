"""Where the data files of the sandbox live: Dockerfiles, init, the container floor, the seccomp profile."""

import pathlib

__all__ = ["sandbox_images_directory"]


def sandbox_images_directory() -> pathlib.Path:
    """The `sandbox-images` folder: inside the installed package, or in the source tree."""
    here = pathlib.Path(__file__).parent
    installed = here / "sandbox_images"
    return installed if installed.is_dir() else here.parent.parent / "sandbox-images"
