"""A program: the thin client against a server in the same process, with whatever protobuf and grpcio are installed.

    python round_trip.py DIRECTORY

Needs `client` and `tests/unit/client` on PYTHONPATH and nothing but the client's own dependencies. Prints one JSON
object with the versions that ran and what came of each call.
"""

import asyncio
import importlib.metadata
import json
import pathlib
import sys
from typing import Any

import grpc
import skilljail
from fake_daemon import FakeDaemon, Refusal, events

__all__ = ["main"]

PACKAGES = ("grpcio", "protobuf", "googleapis-common-protos")
STDOUT = b"\xff\0hello" + bytes(900)


def make_skill(directory: pathlib.Path) -> pathlib.Path:
    """A skill with one script, whose files are all uploaded."""
    root = directory / "demo"
    (root / "scripts").mkdir(parents=True)
    (root / "SKILL.md").write_text("---\nname: demo\ndescription: Demo.\n---\n")
    (root / "scripts" / "run.py").write_text("print('hello')\n")
    return root


def summary(result: skilljail.RunResult) -> dict[str, Any]:
    """What a test looks at."""
    return {
        "outcome": str(result.outcome),
        "exit_code": result.exit_code,
        "stdout_whole": result.stdout == STDOUT,
        "stderr": result.stderr.decode(),
        "artifacts": {one.path: one.content.decode() for one in result.artifacts},
        "wall_seconds": result.usage.wall_seconds,
    }


def blocking(daemon: FakeDaemon, skill: pathlib.Path) -> dict[str, Any]:
    """The blocking client: upload, run, capabilities, and an error with details."""
    with skilljail.Client(daemon.address) as client:
        result = client.run(
            skill,
            "scripts/run.py",
            argv=["--x", "ü"],
            env={"A": "1"},
            stdin=b"in",
            limits=skilljail.Limits(wall_seconds=60.5),
        )
        found = {
            "run": summary(result),
            "staged": sorted(daemon.staged()),
            "asked_wall_seconds": daemon.requests[-1].limits.wall_time.ToTimedelta().total_seconds(),
            "interpreters": [one.name for one in client.capabilities().interpreters],
        }
        daemon.script = refuse
        try:
            client.run(skill, "scripts/run.py")
        except skilljail.LimitAboveCeiling as error:
            found["error"] = [error.reason, str(error), dict(error.metadata)]
        return found


def refuse(*_: object) -> Any:
    """Refuses with every kind of detail."""
    raise Refusal(
        grpc.StatusCode.INVALID_ARGUMENT,
        "LIMIT_ABOVE_CEILING",
        "limits.pids: too many",
        metadata={"limit": "pids"},
        fields=(("limits.pids", "too many"),),
        retry_seconds=1.5,
    )


async def asynchronous(address: str, skill: pathlib.Path) -> dict[str, Any]:
    """The asynchronous client."""
    async with skilljail.AsyncClient(address) as client:
        return summary(await client.run(skill, "scripts/run.py"))


def main() -> None:
    """Does everything once."""
    directory = pathlib.Path(sys.argv[1])
    skill = make_skill(directory)
    daemon = FakeDaemon(f"unix:{directory}/s.sock")
    daemon.start()
    try:
        daemon.script = lambda *_: events(STDOUT, b"why", artifacts={"out/a": "ä".encode()}, exit_code=3)
        answer: dict[str, Any] = {"async": asyncio.run(asynchronous(daemon.address, skill))}
        answer |= blocking(daemon, skill)
    finally:
        daemon.stop()
    answer["versions"] = {name: importlib.metadata.version(name) for name in PACKAGES}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
