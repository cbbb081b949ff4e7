"""Files that a run made."""

import dataclasses
import os
import pathlib

from skilljail._output_directory import OutputDirectory
from skilljail.v1 import run_pb2

__all__ = ["Artifact", "ArtifactInfo"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactInfo:
    """What is known of a file that a run made or changed. All of it was chosen by the script."""

    path: str
    """Below the skill root, names joined by `/`. Do not open it yourself: `Artifact.save` is confined."""
    size_bytes: int
    digest: str
    """`sha256:` and 64 hex digits."""
    media_type: str
    executable: bool
    """Whether the script made it executable. Saving never does."""

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.path.rpartition("/")[2]

    @classmethod
    def from_wire(cls, message: run_pb2.Artifact) -> "ArtifactInfo":
        """Reads the message of the contract."""
        return ArtifactInfo(
            path=message.path,
            size_bytes=message.size_bytes,
            digest=message.digest,
            media_type=message.media_type,
            executable=message.executable,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Artifact(ArtifactInfo):
    """A file that a run made, with its content, which has the size and the digest that are given."""

    content: bytes = dataclasses.field(repr=False)

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> pathlib.Path:
        """Writes the content to `directory`/`path`, makes the directories between, and returns where it is.

        Nothing outside `directory` is ever written, whatever the path says, and no link below it is followed. A file
        that exists is replaced only with `overwrite`; the new file is never executable. Raises ArtifactRefused.
        """
        return OutputDirectory(directory).write(self.path, self.content, overwrite=overwrite)
