"""What an image is built from, as `sandbox-images/images.toml` says."""

import dataclasses
import tomllib
from typing import Any

from skilljaild import images
from skilljaild.assets import sandbox_images_directory

__all__ = ["ImageDefinition", "load_definitions"]


@dataclasses.dataclass(frozen=True, slots=True)
class ImageDefinition:
    """One image. The fields are described at the top of images.toml."""

    name: str
    title: str
    licenses: str
    parent: str | None
    download: str | None
    folders: tuple[str, ...]
    version_command: tuple[str, ...]

    @property
    def reference(self) -> str:
        return images.reference(self.name)

    def context_files(self) -> dict[str, bytes]:
        """The files of the build context that come from the tree: path in the context to content, sorted."""
        root = sandbox_images_directory()
        files = {path.name: path for path in (root / self.name).iterdir() if path.is_file()}
        for folder in self.folders:
            files |= {str(path.relative_to(root)): path for path in (root / folder).rglob("*.py")}
        return {name: files[name].read_bytes() for name in sorted(files)}


def load_definitions() -> dict[str, ImageDefinition]:
    """Every image by name, parents first."""
    tables = tomllib.loads((sandbox_images_directory() / "images.toml").read_text())
    return {name: _definition(name, tables[name]) for name in images.IMAGE_NAMES}


def _definition(name: str, table: dict[str, Any]) -> ImageDefinition:
    return ImageDefinition(
        name=name,
        title=table["title"],
        licenses=table["licenses"],
        parent=table.get("parent"),
        download=table.get("download"),
        folders=tuple(table.get("folders", ())),
        version_command=tuple(table.get("version", ())),
    )
