"""What a model reads of each end: the texts of the Agent Framework adapter, letter by letter."""

import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
import skilljail
from harness import Daemon, on
from skilljail import Limits, Outcome, RunResult
from skilljail.adapters.maf import ScriptRunner

from conformance.framework import Framework

Skills = Callable[..., pathlib.Path]


class Golden(NamedTuple):
    """A script and its text."""

    path: str
    script: str
    text: str


NODE_STACK = re.compile(r"(\n    at [^\n]+)+\n\nNode\.js v\d+\.\d+\.\d+")
"""Lines and versions of node itself change with every release."""

THE_END_OF_MEMORY = on(
    runc=".",
    gvisor="; the whole sandbox died.",
    why="to the host's kernel a sandbox is one process, gVisor's, and init is in it",
)
GOLDEN = [
    # standard output only
    Golden("x.py", "print('one'); print('two')", "one\ntwo"),
    Golden("x.js", "console.log('one'); console.log('two')", "one\ntwo"),
    Golden("x.sh", "echo one; echo two", "one\ntwo"),
    Golden("x.ps1", "'one'; 'two'", "one\ntwo"),
    # both streams
    Golden("x.py", "import sys; print('o'); print('e', file=sys.stderr)", "o\n\nStderr:\ne"),
    Golden("x.js", "console.log('o'); console.error('e')", "o\n\nStderr:\ne"),
    Golden("x.sh", "echo o; echo e >&2", "o\n\nStderr:\ne"),
    Golden("x.ps1", "'o'; Write-Error 'e'", "o\n\nStderr:\nWrite-Error: e"),
    # standard error only, and no failure
    Golden("x.py", "import sys; print('e', file=sys.stderr)", "Stderr:\ne"),
    Golden("x.js", "console.warn('e')", "Stderr:\ne"),
    Golden("x.sh", "echo e >&2", "Stderr:\ne"),
    Golden("x.ps1", "[Console]::Error.WriteLine('e')", "Stderr:\ne"),
    # no output
    Golden("x.py", "", "(no output)"),
    Golden("x.js", "", "(no output)"),
    Golden("x.sh", "", "(no output)"),
    Golden("x.ps1", "", "(no output)"),
    Golden("x.sh", "echo; echo '  '", "(no output)"),
    # a failure
    Golden("x.sh", "exit 3", "Script exited with code 3"),
    Golden("x.sh", "echo o; exit 3", "o\n\nScript exited with code 3"),
    Golden("x.sh", "echo o; echo e >&2; exit 3", "o\n\nStderr:\ne\n\nScript exited with code 3"),
    Golden("x.sh", "printf o; printf e >&2; exit 3", "o\nStderr:\ne\nScript exited with code 3"),
    # an exception that nobody catches
    Golden(
        "x.py",
        "print('o')\nraise ValueError('no such unit: ☃')",
        """o

Stderr:
Traceback (most recent call last):
  File "/work/skill/scripts/x.py", line 2, in <module>
    raise ValueError('no such unit: ☃')
ValueError: no such unit: ☃

Script exited with code 1""",
    ),
    Golden(
        "x.js",
        "throw new Error('no such unit: ☃');",
        """Stderr:
/work/skill/scripts/x.js:1
throw new Error('no such unit: ☃');
^

Error: no such unit: ☃
    at …

Script exited with code 1""",
    ),
    Golden(
        "x.sh",
        'set -u\necho "$NO_SUCH_UNIT"',
        """Stderr:
/work/skill/scripts/x.sh: line 2: NO_SUCH_UNIT: unbound variable

Script exited with code 1""",
    ),
    Golden(
        "x.ps1",
        'throw "no such unit: ☃"',
        """Stderr:
Exception: /work/skill/scripts/x.ps1:1
Line |
   1 |  throw "no such unit: ☃"
     |  ~~~~~~~~~~~~~~~~~~~~~~~
     | no such unit: ☃

Script exited with code 1""",
    ),
    # a syntax error
    Golden(
        "x.py",
        "print('never')\ndef broken(:",
        """Stderr:
  File "/work/skill/scripts/x.py", line 2
    def broken(:
               ^
SyntaxError: invalid syntax

Script exited with code 1""",
    ),
    Golden(
        "x.js",
        "console.log('never');\nlet let = 1;",
        """Stderr:
/work/skill/scripts/x.js:2
let let = 1;
    ^^^

SyntaxError: let is disallowed as a lexically bound name
    at …

Script exited with code 1""",
    ),
    Golden(
        "x.sh",
        "echo first\nif then",
        """first

Stderr:
/work/skill/scripts/x.sh: line 2: syntax error near unexpected token `then'
/work/skill/scripts/x.sh: line 2: `if then'

Script exited with code 2""",
    ),
    Golden(
        "x.ps1",
        "'never'\nfunction broken( {",
        """Stderr:
ParserError: /work/skill/scripts/x.ps1:2
Line |
   2 |  function broken( {
     |                  ~
     | Missing ')' in function parameter list.

Script exited with code 1""",
    ),
    # output that is no text
    Golden("x.sh", r"printf 'a\xffb\xc3'", "a\ufffdb\ufffd"),
    # ends that the script did not choose
    Golden("x.sh", "kill -SEGV $$", "Error: Script 'scripts/x.sh' was ended by signal 11."),
    Golden("x.sh", "sleep 600", "Error: Script 'scripts/x.sh' timed out after 1 seconds."),
    Golden(
        "x.py",
        "import sys, time\nprint('part', flush=True)\nprint('why', file=sys.stderr, flush=True)\ntime.sleep(600)",
        "Error: Script 'scripts/x.py' timed out after 1 seconds.\npart\n\nStderr:\nwhy",
    ),
    Golden(
        "x.js",
        "console.log('part'); setTimeout(() => {}, 600_000)",
        "Error: Script 'scripts/x.js' timed out after 1 seconds.\npart",
    ),
    Golden(
        "x.ps1",
        "[Console]::Out.WriteLine('part'); Start-Sleep 600",
        "Error: Script 'scripts/x.ps1' timed out after 3 seconds.\npart",
    ),
    Golden(
        "x.sh",
        "echo part; while :; do :; done",
        "Error: Script 'scripts/x.sh' was stopped (CPU_TIMEOUT): "
        "The script used more than 1 s of CPU (cpu_time) and was killed.\npart",
    ),
    Golden(
        "x.sh",
        "echo part; yes",
        "Error: Script 'scripts/x.sh' was stopped (OUTPUT_LIMIT): "
        "The script wrote more than 11 bytes (output_bytes) and was killed.\npart\ny\ny\ny",
    ),
    Golden(
        "x.py",
        "print('part', flush=True); x = b'x' * 10**9",
        "Error: Script 'scripts/x.py' was stopped (OOM_KILLED): "
        "The script needed more memory than 268,435,456 bytes (memory_bytes)"
        f"{THE_END_OF_MEMORY}\npart",
    ),
]


def limits_for(golden: Golden) -> Limits:
    """Such that the texts have whole numbers in them."""
    timeout = re.search(r"timed out after (\d+) seconds", golden.text)
    return Limits(
        wall_seconds=float(timeout[1]) if timeout else None,
        cpu_seconds=1 if "CPU_TIMEOUT" in golden.text else None,
        output_bytes=11 if "OUTPUT_LIMIT" in golden.text else None,
        memory_bytes=256 * 1024 * 1024 if "OOM_KILLED" in golden.text else None,
    )


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden.path} {golden.text.splitlines()[-1][:40]}")
async def test_a_model_reads(daemon: Daemon, skills: Skills, golden: Golden) -> None:
    """Case 25."""
    path = f"scripts/{golden.path}"
    async with skilljail.AsyncClient(daemon.address) as client:
        runner = ScriptRunner(client, limits=limits_for(golden))
        framework = await Framework.over(runner, skills({path: golden.script}))
        text = await framework.run_skill_script("test-skill", path)
    assert NODE_STACK.sub("\n    at …", text) == golden.text


async def test_the_host_gets_the_facts_before_the_model_gets_the_text(daemon: Daemon, skills: Skills) -> None:
    """Case 25: the text is for the model; who needs more than that is given the result."""
    results: list[RunResult] = []

    async def keep(result: RunResult) -> None:
        results.append(result)

    folder = skills({"scripts/x.sh": "echo made > out.txt; echo o; exit 3"})
    async with skilljail.AsyncClient(daemon.address) as client:
        framework = await Framework.over(ScriptRunner(client, artifacts=["**/*.txt"], on_result=keep), folder)
        text = await framework.run_skill_script("test-skill", "scripts/x.sh")
    (result,) = results
    assert text == "o\n\nScript exited with code 3"
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXITED, 3, b"o\n")
    assert {one.path: one.content for one in result.artifacts} == {"scripts/out.txt": b"made\n"}


@pytest.mark.parametrize(("start_in", "directory"), [("script", "/work/skill/scripts"), ("skill", "/work/skill")])
async def test_a_host_may_choose_where_scripts_start(
    daemon: Daemon, skills: Skills, start_in: str, directory: str
) -> None:
    """Case 25: beside the script, as the framework's own sample does, or in the skill root."""
    async with skilljail.AsyncClient(daemon.address) as client:
        runner = ScriptRunner(client, start_in=start_in)  # type: ignore[arg-type]
        framework = await Framework.over(runner, skills({"scripts/x.sh": "pwd"}))
        assert await framework.run_skill_script("test-skill", "scripts/x.sh") == directory
