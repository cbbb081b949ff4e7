"""Staging: the whole skill arrives as it is, and what must not travel stays at home."""

import os

import pytest
import skilljail
from harness import INTERPRETERS, MakeSkill

from conformance.ending import Ending
from conformance.scripts import MODES, NEIGHBOURS

NEIGHBOUR = {
    "python": ("scripts/neighbour.py", 'WORD = " and neighbour"'),
    "node": ("scripts/neighbour.js", 'exports.WORD = " and neighbour";'),
    "bash": ("scripts/neighbour.sh", 'WORD=" and neighbour"'),
    "pwsh": ("scripts/neighbour.ps1", '$WORD = " and neighbour"'),
}


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_script_finds_the_whole_skill(client: skilljail.Client, make_skill: MakeSkill, interpreter: str) -> None:
    """Case 12: a reference, a module beside it, and a directory that is empty."""
    path, text = NEIGHBOUR[interpreter]
    skill = make_skill(
        {**NEIGHBOURS.files(interpreter), path: text, "references/note.txt": "note", "assets/empty": None}
    )
    result = client.run(skill, NEIGHBOURS.path(interpreter))
    assert Ending.of(result) == Ending(stdout=b"note and neighbour []\n")


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_script_may_start_beside_itself(client: skilljail.Client, make_skill: MakeSkill, interpreter: str) -> None:
    """Case 12: as half of the frameworks have it, `../references` leads to the skill's."""
    text = {
        "python": "print(open('../references/note.txt').read())",
        "node": "console.log(require('fs').readFileSync('../references/note.txt', 'utf8'))",
        "bash": "echo $(cat ../references/note.txt)",
        "pwsh": "[Console]::Out.WriteLine((Get-Content -Raw ../references/note.txt))",
    }[interpreter]
    path = NEIGHBOURS.path(interpreter)
    skill = make_skill({path: text, "references/note.txt": "note"})
    assert Ending.of(client.run(skill, path, working_directory="scripts")) == Ending(stdout=b"note\n")


def test_every_byte_name_and_directory_of_a_skill_arrives(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 12: listed from inside and compared with what was sent."""
    files: dict[str, str | bytes | None] = {
        "scripts/run.py": LISTING,
        "references/deep/er/and/deeper.md": "# Deep\n",
        "assets/all-bytes.bin": bytes(range(256)) * 300,
        "assets/nothing": b"",
        "assets/line\u2028 ends": b"\r\n\r\n",
        "assets/Żółw 😀 'quoted' $x;.txt": "zażółć".encode(),
        "assets/-rf": b"x",
        "a/b/c/d": None,
        ".hidden": b"seen",
        "LICENSE": b"MIT",
    }
    skill = make_skill(files)
    sent = {
        path.relative_to(skill).as_posix(): path.read_bytes() if path.is_file() else None for path in skill.rglob("*")
    }
    expected = "".join(f"{path!a} {None if data is None else data.hex()}\n" for path, data in sorted(sent.items()))
    assert Ending.of(client.run(skill, "scripts/run.py")) == Ending(stdout=expected.encode())


LISTING = """
import pathlib
root = pathlib.Path.cwd()
found = {one.relative_to(root).as_posix(): one for one in root.rglob("*")}
for path, one in sorted(found.items()):
    print(ascii(path), one.read_bytes().hex() if one.is_file() else None)
"""


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_the_execute_bit_survives(client: skilljail.Client, make_skill: MakeSkill, interpreter: str) -> None:
    """Case 14: of a file that has it, and of one that has not."""
    skill = make_skill(
        {**MODES.files(interpreter), "scripts/tool": "#!/bin/sh\n", "references/note.txt": "note"},
        executable=("scripts/tool",),
    )
    result = client.run(skill, MODES.path(interpreter))
    mode_tool, mode_note = result.stdout_text.split()
    assert Ending.of(result) == Ending(stdout=result.stdout)
    assert int(mode_tool, 8) & 0o100
    assert not int(mode_note, 8) & 0o100


def test_a_script_can_execute_its_own_program(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 14: with the bit set and a #! line."""
    skill = make_skill(
        {"scripts/run.sh": './scripts/tool "$@"', "scripts/tool": '#!/bin/sh\necho "tool $1"\n'},
        executable=("scripts/tool",),
    )
    assert Ending.of(client.run(skill, "scripts/run.sh", ["a b"])) == Ending(stdout=b"tool a b\n")


SECRETS = [".git/config", ".hg/hgrc", ".svn/entries", "scripts/__pycache__/x.pyc", "vendor/.git/config", ".GIT/config"]


def test_histories_and_caches_are_not_staged(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 13: also below other directories, and whatever the case of the name."""
    skill = make_skill({"scripts/run.py": LISTING, "references/note.txt": "note", **dict.fromkeys(SECRETS, "token")})
    lines = client.run(skill, "scripts/run.py").stdout_text.splitlines()
    assert [line.split()[0] for line in lines] == [
        "'SKILL.md'",
        "'references'",
        "'references/note.txt'",
        "'scripts'",
        "'scripts/run.py'",
        "'vendor'",
    ]


@pytest.mark.parametrize("target", [".git", ".git/config", "scripts/__pycache__/x.pyc"])
def test_a_link_to_what_is_left_out_is_left_out(client: skilljail.Client, make_skill: MakeSkill, target: str) -> None:
    """Case 13: another name does not make it travel."""
    skill = make_skill({"scripts/run.py": LISTING, ".git/config": "token", "scripts/__pycache__/x.pyc": "token"})
    (skill / "innocent").symlink_to(skill / target)
    result = client.run(skill, "scripts/run.py")
    assert b"token".hex() not in result.stdout_text
    assert "innocent" not in result.stdout_text
    assert result.ok


def test_a_link_inside_the_skill_is_staged_as_a_copy(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 12: skills that share a file among their directories work."""
    skill = make_skill({"scripts/run.py": "print(open('references/other.txt').read())", "assets/note.txt": "note"})
    (skill / "references").symlink_to("assets")
    (skill / "assets/other.txt").symlink_to("note.txt")
    assert Ending.of(client.run(skill, "scripts/run.py")) == Ending(stdout=b"note\n")


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_script_whose_source_is_not_ascii_says_what_it_says(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 20: skill files are UTF-8 in the sandbox, and so is what is printed."""
    path, text = {
        "python": ("scripts/żółw 😀.py", "print('zażółć 😀', open('références/é.txt').read())"),
        "node": (
            "scripts/żółw 😀.js",
            "console.log('zażółć 😀', require('fs').readFileSync('références/é.txt', 'utf8'))",
        ),
        "bash": ("scripts/żółw 😀.sh", "echo 'zażółć 😀' \"$(cat références/é.txt)\""),
        "pwsh": (
            "scripts/żółw 😀.ps1",
            "[Console]::Out.WriteLine('zażółć 😀 ' + (Get-Content -Raw 'références/é.txt'))",
        ),
    }[interpreter]
    skill = make_skill({path: text, "références/é.txt": "ñandú"})
    assert Ending.of(client.run(skill, path)) == Ending(stdout="zażółć 😀 ñandú\n".encode())


def test_a_file_that_changed_is_staged_anew_whatever_its_size_and_time(
    client: skilljail.Client, make_skill: MakeSkill
) -> None:
    """Case 12: content decides."""
    skill = make_skill({"scripts/run.py": "print(open('references/note.txt').read())", "references/note.txt": "old"})
    note = skill / "references/note.txt"
    assert client.run(skill, "scripts/run.py").stdout == b"old\n"
    status = note.stat()
    note.write_text("new")
    os.utime(note, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert Ending.of(client.run(skill, "scripts/run.py")) == Ending(stdout=b"new\n")


def test_nothing_of_a_run_is_there_in_the_next_one(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 12: each run finds the skill as it was staged."""
    script = """
shopt -s dotglob nullglob
for place in /work/skill /work/home /work/tmp /dev/shm; do
    for one in "$place"/*; do echo "${one##*/}"; done
    echo dirt > "$place/dirt"
done
"""
    skill = make_skill({"scripts/run.sh": script})
    first, second = (client.run(skill, "scripts/run.sh") for _ in range(2))
    assert Ending.of(first) == Ending.of(second) == Ending(stdout=b"SKILL.md\nscripts\n")
