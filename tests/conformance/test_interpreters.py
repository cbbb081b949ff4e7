"""Which interpreter runs a script, and what happens when there is none."""

import pytest
import skilljail
from harness import INTERPRETERS, MakeSkill, running_daemon
from skilljail import Outcome

from conformance.ending import Ending

TELL = {
    "python": "import sys; print('python', sys.flags.optimize, *sys.argv[1:])",
    "node": "console.log('node', process.execArgv.join(), ...process.argv.slice(2))",
    "bash": 'echo bash "$-" "$@"',
    "pwsh": '[Console]::Out.WriteLine("pwsh $args")',
}
"""Each script can be read by its own interpreter only."""


@pytest.mark.parametrize(
    ("path", "shebang", "interpreter", "output"),
    [
        # by suffix
        ("x.py", "", "python", "python 0 a"),
        ("x.js", "", "node", "node  a"),
        ("x.cjs", "", "node", "node  a"),
        ("x.mjs", "", "node", "node  a"),
        ("x.sh", "", "bash", "bash hB a"),
        ("x.bash", "", "bash", "bash hB a"),
        ("x.ps1", "", "pwsh", "pwsh a"),
        ("X.PY", "", "python", "python 0 a"),
        # a shebang beats the suffix
        ("x.py", "#!/bin/bash", "bash", "bash hB a"),
        ("x.sh", "#!/usr/bin/env python3", "python", "python 0 a"),
        ("x.py", "#!/usr/bin/node", "node", "node  a"),
        ("x.txt", "#!/usr/bin/env pwsh", "pwsh", "pwsh a"),
        ("x.js", "#! /usr/bin/python3.13", "python", "python 0 a"),
        # and its options are honoured
        ("x.py", "#!/usr/bin/python3 -O", "python", "python 1 a"),
        ("x.sh", "#!/bin/bash -eu", "bash", "bash ehuB a"),
        ("x.py", "#!/usr/bin/env -S python3 -O -B", "python", "python 1 a"),
        ("x.sh", "#!/usr/bin/env -S bash -e -u", "bash", "bash ehuB a"),
        ("x.js", "#!/usr/bin/env -S node --no-warnings", "node", "node --no-warnings a"),
        ("x.py", "#!/usr/bin/env -S MODE=fast python3 -OO", "python", "python 2 a"),
        ("x.py", "#!/usr/bin/env --split-string=python3 -O", "python", "python 1 a"),
        ("x.py", "#!/usr/bin/env -S 'python3' \"-O\"", "python", "python 1 a"),
        ("x.ps1", "#!/usr/bin/env -S pwsh -NoProfile", "pwsh", "pwsh a"),
        ("x.py", "#!/usr/bin/env python3\r", "python", "python 0 a"),
        # an unusable one leaves it to the suffix
        ("x.py", "#!/usr/bin/env ruby", "python", "python 0 a"),
        ("x.py", "#!/usr/bin/env -S uv run --script", "python", "python 0 a"),
        ("x.py", "#!", "python", "python 0 a"),
        ("x.sh", "#!/usr/bin/env", "bash", "bash hB a"),
        ("x.sh", "#!/usr/bin/env -S", "bash", "bash hB a"),
        ("x.py", "#!/usr/bin/env 'python3", "python", "python 0 a"),
        ("x.sh", "#!/bin/\xff\xfe", "bash", "bash hB a"),
        ("x.py", "#!/usr/bin/env python2", "python", "python 0 a"),
        # and without a suffix it is all there is
        ("x", "#!/usr/bin/env python3", "python", "python 0 a"),
        ("x", "#!/usr/bin/env node", "node", "node  a"),
        ("x", "#!/bin/sh", "bash", "bash hB a"),
        ("x", "#!/usr/bin/pwsh", "pwsh", "pwsh a"),
        ("x.1.2", "#!/usr/bin/env bash", "bash", "bash hB a"),
    ],
)
def test_shebang_then_suffix_choose_the_interpreter(
    client: skilljail.Client, make_skill: MakeSkill, path: str, shebang: str, interpreter: str, output: str
) -> None:
    """Case 14."""
    text = TELL[interpreter]
    if interpreter == "node" and path.endswith(".mjs"):
        text = "import process from 'node:process';\n" + text
    if shebang == "#!/bin/sh":
        text = 'echo bash hB "$@"'  # the options of a plain sh are its own
    if shebang:
        text = f"{shebang}\n{text}"
    skill = make_skill({f"scripts/{path}": text.encode("latin-1" if "\xff" in text else "utf-8")})
    result = client.run(skill, f"scripts/{path}", ["a"])
    assert Ending.of(result) == Ending(stdout=f"{output}\n".encode())
    assert result.started is not None
    assert result.started.policy.interpreter == interpreter


def test_a_file_without_a_suffix_runs_by_its_shebang_and_keeps_its_bit(
    client: skilljail.Client, make_skill: MakeSkill
) -> None:
    """Case 14: an executable as any shell would run it."""
    script = '#!/usr/bin/env bash\ntest -x "$0" && echo "$0"\n'
    skill = make_skill({"scripts/tool": script}, executable=("scripts/tool",))
    assert Ending.of(client.run(skill, "scripts/tool")) == Ending(stdout=b"/work/skill/scripts/tool\n")


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_caller_may_force_an_interpreter(client: skilljail.Client, make_skill: MakeSkill, interpreter: str) -> None:
    """Case 14: over shebang and suffix."""
    text = f"#!/usr/bin/env awk\n{TELL[interpreter]}"
    result = client.run(make_skill({"scripts/x.awk": text}), "scripts/x.awk", ["a"], interpreter=interpreter)
    expected = {"python": b"python 0 a\n", "node": b"node  a\n", "bash": b"bash hB a\n", "pwsh": b"pwsh a\n"}
    assert Ending.of(result) == Ending(stdout=expected[interpreter])


def test_a_program_that_the_image_lacks_is_named(make_skill: MakeSkill) -> None:
    """Case 15: the interpreter is known, the image that the operator gave for it has no such program."""
    skill = make_skill({"scripts/x.js": "console.log('ran')", "scripts/x.py": "print('ran')"})
    with running_daemon() as plain, skilljail.Client(plain.address) as client:
        images = {one.name: one.image for one in client.capabilities().interpreters}
    with running_daemon("--set", f"images.node={images['bash']}") as daemon, skilljail.Client(daemon.address) as client:
        result = client.run(skill, "scripts/x.js")
        assert Ending.of(result) == Ending(outcome=Outcome.START_FAILED, exit_code=None)
        assert result.message.startswith("node could not be started in the sandbox: ")
        assert "No such file or directory" in result.message
        assert not result.ok
        summary = client.get_run(result.run_id).result
        assert summary is not None
        assert (summary.outcome, summary.message) == (Outcome.START_FAILED, result.message)
        assert Ending.of(client.run(skill, "scripts/x.py")) == Ending(stdout=b"ran\n")


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_an_interpreter_that_the_path_does_not_lead_to_is_named(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 15: the same, made by a variable of the request."""
    suffix = {"python": ".py", "node": ".js", "bash": ".sh", "pwsh": ".ps1"}[interpreter]
    result = client.run(make_skill({f"x{suffix}": TELL[interpreter]}), f"x{suffix}", env={"PATH": "/nowhere"})
    assert Ending.of(result) == Ending(outcome=Outcome.START_FAILED, exit_code=None)
    program = {"python": "python3"}.get(interpreter, interpreter)
    assert result.message.startswith(f"{program} could not be started in the sandbox: ")


@pytest.mark.parametrize("interpreter", ["python", "node", "bash"])
def test_a_missing_program_of_a_script_is_its_own_failure(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 15: what a script cannot find is no business of ours; bash says 127."""
    path, text, code = {
        "python": ("x.py", "import subprocess; subprocess.run(['no-such-program'])", 1),
        "node": ("x.js", "require('child_process').execFileSync('no-such-program')", 1),
        "bash": ("x.sh", "no-such-program", 127),
    }[interpreter]
    result = client.run(make_skill({path: text}), path)
    assert Ending.of(result) == Ending(exit_code=code, stderr=result.stderr)
    assert b"no-such-program" in result.stderr


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("x.rb", "puts 1", ("'x.rb'", "no known suffix and no #! line")),
        ("x", "echo 1", ("'x'", "no known suffix and no #! line")),
        ("x.pl", "#!/usr/bin/perl -w\n", ("'x.pl'", "'perl'")),
        ("x", "#!/usr/bin/env -S deno run\n", ("'x'", "'deno'")),
        ("x", "#!/usr/bin/pythonista\n", ("'x'", "'pythonista'")),
        ("x", "#!\n", ("'x'", "no known suffix and no #! line")),
    ],
)
def test_an_unknown_interpreter_is_named_with_the_known_ones(
    client: skilljail.Client, make_skill: MakeSkill, path: str, text: str, words: tuple[str, ...]
) -> None:
    """Case 15: nothing is guessed."""
    with pytest.raises(skilljail.InterpreterUnknown) as caught:
        client.run(make_skill({path: text}), path)
    assert caught.value.reason == "INTERPRETER_UNKNOWN"
    assert [one.subject for one in caught.value.violations] == ["script_path"]
    for word in (*words, "python, node, bash, pwsh", ".py", ".ps1"):
        assert word in str(caught.value)
