"""How an attack is run, and what it tells."""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import skilljail
from harness import MakeSkill
from skilljail import Outcome, RunResult, RunStream

__all__ = ["Attacks"]

SANDBOXED = pathlib.Path(__file__).parent / "sandboxed"

LAUNCHERS = {
    "python": ("scripts/x.py", "import runpy\nrunpy.run_path('scripts/attack.py', run_name='__main__')\n"),
    "node": (
        "scripts/x.js",
        "const all = ['scripts/attack.py', ...process.argv.slice(2)];\n"
        "const ended = require('child_process').spawnSync('/usr/bin/python3', all, { stdio: 'inherit' });\n"
        "process.exit(ended.status ?? 70);\n",
    ),
    "bash": ("scripts/x.sh", 'exec /usr/bin/python3 scripts/attack.py "$@"\n'),
    "pwsh": ("scripts/x.ps1", "& /usr/bin/python3 scripts/attack.py @args\nexit $LASTEXITCODE\n"),
}
"""How a script of each interpreter goes over to Python, which every image has for init."""


@dataclasses.dataclass(frozen=True)
class Attacks:
    """Runs attacks on the shared daemon."""

    client: skilljail.Client
    make_skill: MakeSkill

    def run(self, script: str, name: str = "x.py", **options: Any) -> RunResult:
        """Runs a script of any interpreter; `name` tells which. `options`: those of `Client.run`."""
        return self.client.run(self._skill({name: script}), f"scripts/{name}", **options)

    def report(self, script: str, interpreter: str = "python", **options: Any) -> Any:
        """Runs a Python script in the sandbox of an interpreter and returns what it printed as JSON.

        It must have run to its end, undisturbed.
        """
        path, launcher = LAUNCHERS[interpreter]
        name = pathlib.PurePath(path).name
        result = self.client.run(self._skill({name: launcher, "attack.py": script}), path, **options)
        assert (result.outcome, result.exit_code, result.stderr) == (Outcome.EXITED, 0, b""), result
        return json.loads(result.stdout)

    @contextlib.contextmanager
    def under_way(self, script: str, name: str = "x.py", **options: Any) -> Iterator[RunStream]:
        """A run whose script has written something. It is killed at the end, if it still runs."""
        with self.client.stream(self._skill({name: script}), f"scripts/{name}", **options) as stream:
            for event in stream:
                if isinstance(event, skilljail.Output):
                    break
            yield stream

    def _skill(self, scripts: dict[str, str]) -> pathlib.Path:
        files: dict[str, str | bytes | None] = {
            f"scripts/{path.name}": path.read_text() for path in SANDBOXED.glob("[a-z]*.py")
        }
        return self.make_skill(files | {f"scripts/{name}": script for name, script in scripts.items()})
