"""The files that building downloads, as `sandbox-images/pins.toml` pins them by hash."""

import dataclasses
import tomllib

from skilljaild.assets import sandbox_images_directory
from skilljaild.images.error import ImageError

__all__ = ["Pin", "find_pin", "load_pins"]


@dataclasses.dataclass(frozen=True, slots=True)
class Pin:
    """One downloadable file. The fields are described at the top of pins.toml."""

    name: str
    version: str
    arch: str
    url: str
    sha256: str
    max_bytes: int
    licence: str
    source: str

    @property
    def package(self) -> str | None:
        """`NAME==VERSION` of a file that comes from the Python package index."""
        return self.url.removeprefix("pypi:").partition("/")[0] if self.url.startswith("pypi:") else None

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def load_pins() -> tuple[Pin, ...]:
    """Every pin of the file."""
    tables = tomllib.loads((sandbox_images_directory() / "pins.toml").read_text())
    return tuple(Pin(**table) for table in tables["pin"])


def find_pin(name: str, arch: str) -> Pin:
    """The pin of a download for an architecture (`x86_64`, `aarch64`). Raises ImageError when there is none."""
    for pin in load_pins():
        if (pin.name, pin.arch) == (name, arch):
            return pin
    raise ImageError(f"no {name} is pinned for {arch}: use an engine on x86_64 or aarch64, or add it to pins.toml")
