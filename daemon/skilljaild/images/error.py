"""What goes wrong when an image is built."""

__all__ = ["BuildFailed", "ImageError", "StoreUnavailable"]


class ImageError(Exception):
    """The image could not be built. The message names the thing and the mend."""


class StoreUnavailable(ImageError):
    """No engine answers; no image can be built or listed."""


class BuildFailed(ImageError):
    """A step of a Dockerfile failed. `log` is all that the engine said during the build."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log
