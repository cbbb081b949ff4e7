"""Files that a caller puts next to those of the skill."""

import os
import pathlib
import stat
from collections.abc import Mapping

from skilljail._blob import Blob, BytesSource, digest_of
from skilljail._errors import InvalidRequest
from skilljail._paths import path_fault, shown
from skilljail.v1 import script_runner_pb2

__all__ = ["Input", "check_inputs", "read_inputs"]

Input = bytes | os.PathLike[str]
"""The content itself, or the path of a file that holds it."""

_COUNT_MAX = 256
_INLINE_BYTES_MAX = 4 * 1024 * 1024
_BYTES_MAX = 64 * 1024 * 1024


def check_inputs(inputs: object) -> dict[str, Input]:
    """Checks the shape and reads nothing. Raises InvalidRequest, naming the input at fault."""
    if inputs is None:
        return {}
    if not isinstance(inputs, Mapping):
        raise InvalidRequest(f"inputs must be a mapping, got {type(inputs).__name__}")
    if len(inputs) > _COUNT_MAX:
        raise InvalidRequest(f"there are more than {_COUNT_MAX} inputs; put them into one archive")
    for path, source in inputs.items():
        fault = path_fault(path) if isinstance(path, str) else f"is no text but {type(path).__name__}"
        if fault is not None:
            raise InvalidRequest(f"the input path {shown(str(path))} {fault}", reason="PATH_INVALID")
        if not isinstance(source, (bytes, bytearray, memoryview, os.PathLike)):
            raise InvalidRequest(
                f"the input {shown(path)} must be bytes (its content) or a pathlib.Path (a file), "
                f"got {type(source).__name__}"
            )
    return {
        path: bytes(source) if isinstance(source, (bytearray, memoryview)) else source
        for path, source in inputs.items()
    }


def read_inputs(inputs: Mapping[str, Input]) -> tuple[list[script_runner_pb2.InputFile], dict[str, Blob]]:
    """The inputs as files of a request, and blobs by digest for those that have no room in it. Blocks.

    The smallest go inline. Raises InvalidRequest for a file that cannot be read.
    """
    contents = {path: _read(source) for path, source in inputs.items()}
    if sum(len(content) for content, _ in contents.values()) > _BYTES_MAX:
        raise InvalidRequest(f"the inputs are above {_BYTES_MAX:,} bytes together; leave some out")
    files: list[script_runner_pb2.InputFile] = []
    blobs: dict[str, Blob] = {}
    inline = 0
    for path, (content, executable) in sorted(contents.items(), key=lambda one: (len(one[1][0]), one[0])):
        inline += len(content)
        if inline <= _INLINE_BYTES_MAX:
            files.append(script_runner_pb2.InputFile(path=path, content=content, executable=executable))
            continue
        digest = digest_of(content)
        files.append(script_runner_pb2.InputFile(path=path, digest=digest, executable=executable))
        blobs[digest] = Blob(digest, len(content), BytesSource(content))
    return files, blobs


def _read(source: Input) -> tuple[bytes, bool]:
    """The content of an input and whether it may be executed."""
    if isinstance(source, bytes):
        return source, False
    file = pathlib.Path(source)
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRequest(f"the input file '{file}' is no regular file; pass its content as bytes")
        if status.st_size > _BYTES_MAX:
            raise InvalidRequest(f"the input file '{file}' is above {_BYTES_MAX:,} bytes")
        return file.read_bytes(), bool(status.st_mode & stat.S_IXUSR)
    except OSError as error:
        raise InvalidRequest(f"the input file '{file}' cannot be read: {error.strerror}") from error
