"""No daemon: an error that says so, and the host is never used instead."""

import pathlib
import socket
from collections.abc import Callable

import pytest
import skilljail
from harness import INTERPRETERS, Daemon, MakeSkill, running_daemon
from skilljail.adapters.maf import ScriptRunner

from conformance.framework import Framework

Skills = Callable[..., pathlib.Path]

TOUCH = {
    "python": ("scripts/run.py", "import sys; open(sys.argv[1], 'w')"),
    "node": ("scripts/run.js", "require('fs').writeFileSync(process.argv[2], '')"),
    "bash": ("scripts/run.sh", ': > "$1"'),
    "pwsh": ("scripts/run.ps1", "Set-Content -Path $args[0] -Value x"),
}
"""Makes the file that its argument names: on the host it would be there."""

MEND = "start it with `skilljaild serve`, or set SKILLJAIL_ADDRESS to where it listens"


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_without_a_daemon_nothing_runs_on_the_host(
    make_skill: MakeSkill, tmp_path: pathlib.Path, interpreter: str
) -> None:
    """Case 7."""
    path, text = TOUCH[interpreter]
    skill, proof = make_skill({path: text}), tmp_path / "proof"
    with skilljail.Client("unix:/nowhere/sock") as client, pytest.raises(skilljail.DaemonUnavailable) as caught:
        client.run(skill, path, [str(proof)])
    assert not proof.exists()
    assert caught.value.reason == "DAEMON_UNAVAILABLE"
    assert str(caught.value).startswith("no skilljail daemon answers at unix:/nowhere/sock (")
    assert str(caught.value).endswith(MEND)


def test_a_socket_that_a_dead_daemon_left_is_no_daemon(make_skill: MakeSkill, tmp_path: pathlib.Path) -> None:
    """Case 7."""
    path, text = TOUCH["bash"]
    skill, proof = make_skill({path: text}), tmp_path / "proof"
    with running_daemon() as daemon:
        daemon.stop()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(daemon.address.removeprefix("unix:"))
            with skilljail.Client(daemon.address) as client, pytest.raises(skilljail.DaemonUnavailable) as caught:
                client.run(skill, path, [str(proof)])
    assert not proof.exists()
    assert str(caught.value).endswith(MEND)


def test_a_daemon_that_went_away_is_not_replaced(make_skill: MakeSkill, tmp_path: pathlib.Path) -> None:
    """Case 7: the same client, before and after."""
    path, text = TOUCH["bash"]
    skill, proof = make_skill({path: text}), tmp_path / "proof"
    with running_daemon() as daemon, skilljail.Client(daemon.address) as client:
        # /work is the sandbox's own: a path of the host cannot even be named there.
        assert client.run(skill, path, ["/work/tmp/x"]).ok
        daemon.stop()
        with pytest.raises(skilljail.DaemonUnavailable):
            client.run(skill, path, [str(proof)])
    assert not proof.exists()


def test_with_a_daemon_the_host_is_not_touched_either(
    client: skilljail.Client, make_skill: MakeSkill, tmp_path: pathlib.Path
) -> None:
    """Case 7: what the proof of the others rests on."""
    path, text = TOUCH["bash"]
    proof = tmp_path / "proof"
    result = client.run(make_skill({path: text}), path, [str(proof)])
    assert (result.exit_code, result.stdout) == (1, b"")
    assert b"No such file or directory" in result.stderr
    assert not proof.exists()


@pytest.mark.parametrize("interpreter", INTERPRETERS)
async def test_a_model_is_told_that_there_is_no_daemon(
    skills: Skills,
    tmp_path: pathlib.Path,
    interpreter: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Case 7: through the framework, with a runner that was given nothing at all. The operator's part is logged."""
    monkeypatch.setenv("SKILLJAIL_ADDRESS", "unix:/nowhere/sock")
    path, text = TOUCH[interpreter]
    proof = tmp_path / "proof"
    async with ScriptRunner() as runner:
        framework = await Framework.over(runner, skills({path: text}))
        answer = await framework.run_skill_script("test-skill", path, [str(proof)])
    assert not proof.exists()
    assert answer == "Error: The sandbox that runs scripts is not available right now. Do not retry; tell the user."
    (record,) = caplog.records
    assert record.name == "skilljail"
    assert record.getMessage().startswith(
        f"script '{path}' of skill 'test-skill' could not run: no skilljail daemon answers at unix:/nowhere/sock ("
    )
    assert record.getMessage().endswith(MEND)


async def test_a_host_may_ask_for_the_exception(skills: Skills, tmp_path: pathlib.Path) -> None:
    """Case 7: a model cannot mend it, an operator can."""
    path, text = TOUCH["bash"]
    proof = tmp_path / "proof"
    async with skilljail.AsyncClient("unix:/nowhere/sock") as client:
        framework = await Framework.over(ScriptRunner(client, raise_on_unavailable=True), skills({path: text}))
        with pytest.raises(skilljail.DaemonUnavailable, match="skilljaild serve"):
            await framework.run_skill_script("test-skill", path, [str(proof)])
    assert not proof.exists()


async def test_a_refused_request_stays_text_for_the_model(daemon: Daemon, skills: Skills) -> None:
    """Case 7: `raise_on_unavailable` is about the daemon, not about what the model asked for."""
    async with skilljail.AsyncClient(daemon.address) as client:
        runner = ScriptRunner(client, raise_on_unavailable=True)
        framework = await Framework.over(runner, skills({"scripts/run.py": "print('ran')"}))
        answer = await framework.run_skill_script("test-skill", "scripts/run.py", ["a\0b"])
    assert answer == (
        "Error: Failed to execute script 'scripts/run.py': argv[0] holds a NUL, which no program can take; remove it"
    )
