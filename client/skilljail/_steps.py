"""What a client does on the wire, as steps that say what and not how.

The blocking and the asynchronous client share every decision: it is a generator that yields steps and gets their
answers, or their errors, sent in. Only how a step is performed differs between the two.
"""

import dataclasses
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from skilljail._blob import Blob, Upload
from skilljail._bundle import Bounds, Bundle
from skilljail._inputs import read_inputs
from skilljail._request import PreparedRun
from skilljail.v1 import script_runner_pb2

__all__ = ["Content", "Open", "Pause", "Read", "Send", "Step", "Steps", "Unary"]

_UNARY_SECONDS = 30.0
_UPLOAD_SECONDS = 600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """Everything that a run brings along, read and hashed."""

    bundle: Bundle
    files: list[script_runner_pb2.InputFile]
    input_blobs: Mapping[str, Blob]


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """Read the skill folder and the inputs. Blocks on the disk. The answer is Content."""

    run: PreparedRun
    bounds: Bounds

    def perform(self) -> Content:
        """Does it. Raises InvalidRequest."""
        return Content(Bundle.read(self.run.skill_dir, self.bounds), *read_inputs(self.run.inputs))


@dataclasses.dataclass(frozen=True, slots=True)
class Unary:
    """Call `method` with one request. The answer is its response."""

    method: str
    request: Message
    timeout_seconds: float = _UNARY_SECONDS
    wait_for_ready: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Send:
    """Upload blobs. There is no answer."""

    upload: Upload
    timeout_seconds: float = _UPLOAD_SECONDS


@dataclasses.dataclass(frozen=True, slots=True)
class Open:
    """Call RunScript and wait for the first event. The answer is the call, and that event or None at its end."""

    request: script_runner_pb2.RunScriptRequest


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """Wait. There is no answer."""

    seconds: float


Step = Read | Unary | Send | Open | Pause

_T = TypeVar("_T")
Steps = Generator[Step, Any, _T]
