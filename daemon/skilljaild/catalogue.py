"""Which interpreters this daemon has an image for, at this moment."""

import dataclasses
import time

from skilljaild import images as own_images
from skilljaild.config import ImagesConfig
from skilljaild.engines.base import Engine, EngineError, EngineUnavailable, Image, ImageMissing
from skilljaild.errors import Reason, Refusal

__all__ = ["Catalogue", "CatalogueEntry"]

FRESH_SECONDS = 5.0
"""A look at the engine costs milliseconds on every run; an operator who builds an image waits no longer than this."""


@dataclasses.dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One interpreter."""

    reference: str
    image: Image | None
    fault: str
    """Why there is no image and what to do; empty when there is one."""

    @property
    def version(self) -> str:
        """The interpreter's version, as the image's label tells."""
        return "" if self.image is None else self.image.labels.get("io.skilljail.interpreter-version", "")


class Catalogue:
    """The images of the configuration, looked up on the engine."""

    def __init__(self, images: ImagesConfig, engine: Engine) -> None:
        self._references: dict[str, str] = images.model_dump()
        self._engine = engine
        self._entries: dict[str, tuple[float, CatalogueEntry]] = {}

    async def entry(self, interpreter: str) -> CatalogueEntry:
        """What there is for an interpreter. Raises Refusal ENGINE_UNAVAILABLE."""
        looked, entry = self._entries.get(interpreter, (float("-inf"), None))
        if entry is None or time.monotonic() - looked > FRESH_SECONDS:
            entry = await self._look(interpreter)
            self._entries[interpreter] = (time.monotonic(), entry)
        return entry

    async def _look(self, interpreter: str) -> CatalogueEntry:
        reference = self._references[interpreter]
        try:
            image = await self._engine.image(reference)
        except ImageMissing:
            own = reference == own_images.reference(interpreter)
            mend = f"build it with `skilljail images build {interpreter}`" if own else f"correct images.{interpreter}"
            fault = f"there is no image {reference} on the engine; {mend}"
            return CatalogueEntry(reference, None, fault)
        except EngineUnavailable as error:
            raise Refusal(Reason.ENGINE_UNAVAILABLE, str(error), retry_seconds=5) from error
        except EngineError as error:
            fault = f"the engine cannot look up {reference} ({error}); correct images.{interpreter}"
            return CatalogueEntry(reference, None, fault)
        return CatalogueEntry(reference, image, "")

    async def image(self, interpreter: str) -> Image:
        """The image of an interpreter. Raises Refusal INTERPRETER_UNAVAILABLE or ENGINE_UNAVAILABLE."""
        entry = await self.entry(interpreter)
        if entry.image is None:
            raise Refusal(
                Reason.INTERPRETER_UNAVAILABLE,
                f"{interpreter} scripts cannot run here: {entry.fault}",
                interpreter=interpreter,
            )
        return entry.image
