"""An init in whose sandbox the probe runs, and what the probe prints."""

import json
from collections.abc import Callable

from skilljail_init.frames import DATA_MAX, FrameType
from skilljaild.posture.probe import CONTROLS, GVISOR, ON_LINUX

from .facts import good_facts, gvisor_facts
from .fake_engine import EXITED, Box, Init, serve_script

__all__ = ["GOOD", "at_level", "printed", "probed", "sight_of"]

GOOD = {name: [True, "EPERM"] for name in CONTROLS}
"""What the probe prints where every wall holds."""


def sight_of(**failing: str) -> dict[str, object]:
    """The same, where some do not: by what was seen there. Underscores stand for spaces and, before an s, for
    an apostrophe."""
    wrong = {name.replace("_", " ").replace(" s ", "'s "): [False, seen] for name, seen in failing.items()}
    assert set(wrong) <= set(GOOD)
    return GOOD | wrong


def printed(output: bytes, *, exit_code: int = 0) -> Init:
    """An init whose probe prints `output`."""
    pieces = [output[start : start + DATA_MAX] for start in range(0, len(output), DATA_MAX)]
    return serve_script(
        *((FrameType.STDOUT, piece) for piece in pieces),
        (FrameType.EXIT, EXITED | {"exit_code": exit_code}),
        (FrameType.DONE, b""),
    )


def probed(**failing: str) -> Init:
    """An init whose probe finds these controls failing, and all the others good."""
    return printed(json.dumps(sight_of(**failing)).encode())


def at_level(boot_id: Callable[[], str] | None, **failing: str) -> Init:
    """An init in a sandbox with a kernel that has this boot id, None for gVisor; `failing`: as in `sight_of`."""

    async def init(box: Box) -> None:
        facts = gvisor_facts(box.spec.limits, box.spec.place) if boot_id is None else good_facts(box.spec.limits)
        if boot_id is not None:
            facts["kernel"]["boot_id"] = boot_id()
        box.say(FrameType.READY, {"isolation": facts})
        order = (await box.hear(FrameType.STAGE)).json()
        for file in order["files"]:  # type: ignore[attr-defined]
            await box.bytes(file["size"])
        box.say(FrameType.STAGED)
        argv = box.orders["start"] = (await box.hear(FrameType.START)).json()["argv"]
        box.say(FrameType.STARTED, {})
        left_out = ON_LINUX if GVISOR in argv else frozenset()  # type: ignore[operator]
        box.say(
            FrameType.STDOUT,
            json.dumps({name: value for name, value in sight_of(**failing).items() if name not in left_out}).encode(),
        )
        box.say(FrameType.EXIT, EXITED)
        box.say(FrameType.DONE)

    return init
