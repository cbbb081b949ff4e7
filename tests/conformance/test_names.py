"""Names that lead nowhere, or out of the skill: a readable answer, and nothing is launched."""

import contextlib
import os
import pathlib
from collections.abc import Callable
from typing import Any, cast

import pytest
import skilljail
from agent_framework import FileSkill, FileSkillScript, FileSkillsSource, SkillsSourceContext
from harness import MakeSkill
from skilljail.adapters.maf import ScriptRunner

from conformance.framework import Framework

NothingLaunched = Callable[[], contextlib.AbstractContextManager[None]]
Skills = Callable[..., pathlib.Path]

RUNS = {"scripts/run.py": "print('ran')"}


@pytest.mark.parametrize(
    ("skill_name", "script_name", "answer"),
    [
        ("no-skill", "scripts/run.py", "Error: Skill 'no-skill' not found."),
        ("test-skill", "scripts/no.py", "Error: Script 'scripts/no.py' not found in skill 'test-skill'."),
        ("test-skill", "run.py", "Error: Script 'run.py' not found in skill 'test-skill'."),
        ("test-skill", "SKILL.md", "Error: Script 'SKILL.md' not found in skill 'test-skill'."),
        ("test-skill", "../other/run.py", "Error: Script '../other/run.py' not found in skill 'test-skill'."),
        ("test-skill", "/etc/passwd", "Error: Script '/etc/passwd' not found in skill 'test-skill'."),
        ("", "scripts/run.py", "Error: Skill name cannot be empty."),
        ("test-skill", "", "Error: Script name cannot be empty."),
        ("test-skill", "  ", "Error: Script name cannot be empty."),
    ],
)
async def test_a_model_reads_which_name_was_not_found(
    runner: ScriptRunner,
    skills: Skills,
    nothing_launched: NothingLaunched,
    skill_name: str,
    script_name: str,
    answer: str,
) -> None:
    """Case 5."""
    framework = await Framework.over(runner, skills(RUNS))
    with nothing_launched():
        assert await framework.run_skill_script(skill_name, script_name) == answer


async def test_a_script_that_vanished_after_its_discovery_is_not_found(
    runner: ScriptRunner, skills: Skills, nothing_launched: NothingLaunched
) -> None:
    """Case 5: the framework looks again before it asks the runner, and so does the runner."""
    folder = skills({**RUNS, "scripts/gone.py": "print('ran')"})
    framework = await Framework.over(runner, folder)
    script = await found_script(runner, folder, "scripts/gone.py")
    (folder / "test-skill/scripts/gone.py").unlink()
    with nothing_launched():
        with pytest.raises(ValueError, match=r"Script file 'scripts/gone.py' not found"):
            await framework.run_skill_script("test-skill", "scripts/gone.py")
        assert await runner(*script) == "Error: Script file not found: scripts/gone.py"


async def test_another_skill_of_the_same_name_does_not_help_out(
    runner: ScriptRunner, skills: Skills, nothing_launched: NothingLaunched
) -> None:
    """Case 6: the first skill owns the name, also for scripts that it lacks."""
    framework = await Framework.over(runner, skills(RUNS), skills({"scripts/more.py": "print('ran')"}, "others"))
    with nothing_launched():
        answer = await framework.run_skill_script("test-skill", "scripts/more.py")
    assert answer == "Error: Script 'scripts/more.py' not found in skill 'test-skill'."
    assert await framework.run_skill_script("test-skill", "scripts/run.py") == "ran"


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("../SKILL.md", "'..'"),
        ("scripts/../../x.py", "'..'"),
        ("scripts/../scripts/run.py", "'..'"),
        ("..", "'..'"),
        ("/etc/passwd", "absolute"),
        ("//scripts/run.py", "absolute"),
        ("C:\\scripts\\run.py", "backslash"),
        ("scripts\\run.py", "backslash"),
        ("..\\SKILL.md", "backslash"),
        ("scripts//run.py", "empty name"),
        ("./scripts/run.py", "'.'"),
        ("scripts/run.py/", "empty name"),
        ("", "empty"),
    ],
)
def test_a_path_that_is_not_below_the_skill_root_is_refused(
    client: skilljail.Client, make_skill: MakeSkill, nothing_launched: NothingLaunched, script: str, fault: str
) -> None:
    """Case 8."""
    skill = make_skill({**RUNS, "x.py": "print('ran')"})
    with nothing_launched(), pytest.raises(skilljail.InvalidRequest, match="script") as caught:
        client.run(skill, script)
    assert caught.value.reason == "PATH_INVALID"
    assert fault in str(caught.value)


def test_a_drive_letter_is_a_name_like_any_other(
    client: skilljail.Client, make_skill: MakeSkill, nothing_launched: NothingLaunched
) -> None:
    """Case 8: there are no drives in a skill, so there is no such file."""
    with nothing_launched(), pytest.raises(skilljail.ScriptNotFound, match=r"no file 'C:/scripts/run\.py'"):
        client.run(make_skill(RUNS), "C:/scripts/run.py")


ESCAPES = ["scripts/run.py", "references", "SKILL.md"]


@pytest.mark.parametrize("path", ESCAPES)
def test_a_link_out_of_the_skill_is_refused(
    client: skilljail.Client,
    make_skill: MakeSkill,
    tmp_path: pathlib.Path,
    nothing_launched: NothingLaunched,
    path: str,
) -> None:
    """Case 9: of a script, a directory, SKILL.md itself."""
    skill = make_skill(RUNS)
    plant(skill / path, tmp_path / "outside")
    with nothing_launched(), pytest.raises(skilljail.SkillInvalid) as caught:
        client.run(skill, "scripts/run.py")
    assert str(caught.value) == (
        f"'{path}' of the skill folder '{skill}' is a link that leads out of the skill folder; "
        "put a copy of its target in its place"
    )


@pytest.mark.parametrize("path", ["", *ESCAPES])
async def test_a_link_out_of_the_skill_is_not_discovered(
    runner: ScriptRunner, skills: Skills, tmp_path: pathlib.Path, nothing_launched: NothingLaunched, path: str
) -> None:
    """Case 9: neither a linked script nor a linked skill is there for a model; a linked directory is refused."""
    folder = skills(RUNS)
    plant(folder / "test-skill" / path, tmp_path / "outside")
    with nothing_launched():
        framework = await Framework.over(runner, folder)
        if path in {"", "SKILL.md"}:
            assert not framework.has_skills
        else:
            answer = await framework.run_skill_script("test-skill", "scripts/run.py")
            assert (
                answer
                == {
                    "scripts/run.py": "Error: Script 'scripts/run.py' not found in skill 'test-skill'.",
                    "references": LEADS_OUT.format("references"),
                }[path]
            )


LEADS_OUT = (
    "Error: Failed to execute script 'scripts/run.py': '{}' of the skill folder '<test-skill>' is a link that leads "
    "out of the skill folder; put a copy of its target in its place"
)


@pytest.mark.parametrize("path", ESCAPES)
async def test_a_link_that_is_planted_after_the_discovery_is_refused(
    runner: ScriptRunner, skills: Skills, tmp_path: pathlib.Path, nothing_launched: NothingLaunched, path: str
) -> None:
    """Case 9: what was good when it was discovered is looked at again when it runs."""
    folder = skills(RUNS)
    script = await found_script(runner, folder, "scripts/run.py")
    plant(folder / "test-skill" / path, tmp_path / "outside")
    with nothing_launched():
        assert await runner(*script) == LEADS_OUT.format(path)


async def test_a_skill_that_became_a_link_after_the_discovery_is_refused(
    runner: ScriptRunner, skills: Skills, tmp_path: pathlib.Path, nothing_launched: NothingLaunched
) -> None:
    """Case 9: the whole skill is exchanged for another one."""
    folder = skills(RUNS)
    framework = await Framework.over(runner, folder)
    plant(folder / "test-skill", tmp_path / "outside")
    with nothing_launched(), pytest.raises(ValueError, match="symbolic link"):
        await framework.run_skill_script("test-skill", "scripts/run.py")


def plant(path: pathlib.Path, outside: pathlib.Path) -> None:
    """Moves what is at `path` out of the skill and leaves a link in its place."""
    if path.exists():
        path.rename(outside)
    else:
        outside.mkdir()
    os.symlink(outside, path)  # noqa: PTH211  # pathlib turns the two around


async def found_script(runner: ScriptRunner, folder: pathlib.Path, name: str) -> tuple[FileSkill, FileSkillScript]:
    """What the framework hands to a runner."""
    source = FileSkillsSource(folder, script_runner=runner)
    (skill,) = await source.get_skills(SkillsSourceContext(agent=cast("Any", None)))
    script = await skill.get_script(name)
    assert isinstance(skill, FileSkill)
    assert isinstance(script, FileSkillScript)
    return skill, script
