"""The thin client at both ends of the ranges that it allows, with its own dependencies and nothing else."""

import json
import os
import pathlib
import subprocess
import sys
import tomllib
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
RUN = {
    "outcome": "EXITED",
    "exit_code": 3,
    "stdout_whole": True,
    "stderr": "why",
    "artifacts": {"out/a": "ä"},
    "wall_seconds": 0.25,
}


def round_trip(directory: pathlib.Path, resolution: str) -> dict[str, Any]:
    """What `round_trip.py` tells in an environment of its own: of the allowed versions the `lowest-direct` or `highest`
    that have wheels for this Python."""
    uv = os.environ.get("UV") or str(pathlib.Path(sys.executable).parent / "uv")
    command = [uv, "run", "--quiet", "--isolated", "--no-project", "--no-build", "--python", sys.executable]
    wanted = [word for one in DEPENDENCIES for word in ("--with", one)]
    done = subprocess.run(
        [
            *command,
            "--resolution",
            resolution,
            *wanted,
            "python",
            "-W",
            "error::DeprecationWarning:google",
            str(ROOT / "tests" / "unit" / "round_trip.py"),
            str(directory),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'client'}:{ROOT / 'tests' / 'unit' / 'client'}"},
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(("resolution", "major"), [("lowest-direct", "5.29"), ("highest", "7")])
def test_the_client_works_with_the_oldest_and_the_newest_protobuf(
    tmp_path: pathlib.Path, resolution: str, major: str
) -> None:
    answer = round_trip(tmp_path, resolution)
    versions = answer.pop("versions")
    assert versions["protobuf"].startswith(f"{major}.")
    assert answer == {
        "async": RUN,
        "run": RUN,
        "staged": ["SKILL.md", "scripts/run.py"],
        "asked_wall_seconds": 60.5,
        "interpreters": ["python", "pwsh"],
        "error": ["LIMIT_ABOVE_CEILING", "limits.pids: too many", {"limit": "pids"}],
    }
