"""Valid conversations, from which the mutations start."""

import hashlib
from typing import Any

from skilljail_init.frames import FrameType
from unit.daemon.facts import good_facts
from unit.daemon.fake_engine import EXITED

from .mutation import Said

__all__ = ["FROM_DAEMON", "FROM_INIT", "STAGE", "START"]


def _entry(path: str, content: bytes) -> dict[str, Any]:
    return {"path": path, "size": len(content), "executable": True, "sha256": hashlib.sha256(content).hexdigest()}


STAGE: dict[str, Any] = {"directories": ["out", "a/b"], "files": [_entry("SKILL.md", b"# x"), _entry("a/x", b"hello")]}
START: dict[str, Any] = {
    "argv": ["sh", "-c", "cat; echo error >&2; echo made > out/file; exit 3"],
    "env": {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
    "cwd": "",
    "stdin_bytes": 5,
    "wall_seconds": 2,
    "cpu_seconds": 1.5,
    "output_bytes": 1_000,
    "open_files": 64,
    "pids": 16,
    "cpus": 1.0,
    "disk_bytes": 100_000,
    "disk_inodes": 1_000,
    "egress": False,
    "artifact_patterns": ["out/*", "**/[!a]?.txt"],
    "artifact_count": 3,
    "artifact_bytes": 1_000,
}
_RUN: list[Said] = [(FrameType.START, START), (FrameType.DATA, b"input")]

FROM_DAEMON: list[list[Said]] = [
    [(FrameType.STAGE, STAGE), (FrameType.DATA, b"# x"), (FrameType.DATA, b"hello"), *_RUN],
    [(FrameType.STAGE, {"directories": [], "files": []}), *_RUN],
    [*_RUN, *_RUN],
    [*_RUN, (FrameType.CANCEL, b""), (FrameType.STAGE, STAGE), (FrameType.DATA, b"# xhello")],
]
"""What a daemon says to init."""

_READY: Said = (FrameType.READY, {"isolation": good_facts()})
_ENDED: list[Said] = [
    (FrameType.EXIT, EXITED),
    (FrameType.ARTIFACT, {"path": "out/a.csv", "size": 5, "executable": False}),
    (FrameType.DATA, b"he"),
    (FrameType.DATA, b"llo"),
    (FrameType.ARTIFACT, {"path": "empty", "size": 0, "executable": True}),
    (FrameType.SKIPPED, {"path": "\\xff", "reason": "unsafe_name"}),
    (FrameType.DONE, {"skipped_omitted": 7}),
]
FROM_INIT: list[list[Said]] = [
    [
        _READY,
        (FrameType.STAGED, b""),
        (FrameType.STARTED, {}),
        (FrameType.STDOUT, b"out"),
        (FrameType.STDERR, b"error"),
        (FrameType.STDOUT, b"more"),
        *_ENDED,
    ],
    [
        _READY,
        (FrameType.STAGED, b""),
        (FrameType.STARTED, {}),
        (FrameType.EXIT, EXITED | {"cause": "signaled", "exit_code": None, "signal": 9, "oom_kills": 1}),
        (FrameType.DONE, b""),
    ],
    [
        _READY,
        (FrameType.STAGED, b""),
        (FrameType.FAILED, {"errno": 2, "message": "no such file"}),
        (FrameType.DONE, b""),
    ],
    [_READY, (FrameType.FATAL, {"message": "no memory"})],
]
"""What init says to a daemon."""
