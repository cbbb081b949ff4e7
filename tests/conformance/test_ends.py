"""How runs end before their script would: timeouts, children left behind, cancellation; and input that ends."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import docker
import pytest
import skilljail
from agent_framework import FileSkill, FileSkillsSource, SkillsSourceContext
from attack_table import Seen
from harness import INTERPRETERS, Daemon, MakeSkill, owned_containers, wait_until
from skilljail import Limits, Outcome, RunState
from skilljail.adapters.maf import ScriptRunner

from conformance.ending import Ending
from conformance.processes import Sleeper
from conformance.scripts import HANG, INPUT, ORPHAN

PROMPTLY_SECONDS = 15.0
"""Within which a run that is ended is dead, whatever its script does."""


@pytest.fixture
def gone(daemon: Daemon, engine_api: docker.APIClient) -> Callable[[Sleeper], None]:
    """Asserts that a process and every sandbox is dead, promptly."""

    def check(sleeper: Sleeper) -> None:
        wait_until(lambda: not sleeper.sleeps, PROMPTLY_SECONDS)
        wait_until(lambda: owned_containers(engine_api, daemon.owner) == [])

    return check


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_timeout_is_told_as_such_with_the_output_so_far(
    client: skilljail.Client, make_skill: MakeSkill, gone: Callable[[Sleeper], None], interpreter: str
) -> None:
    """Case 16: and the background child is dead, too."""
    sleeper = Sleeper()
    wall_seconds = 10 if interpreter == "pwsh" else 3
    options: skilljail.RunOptions = {"limits": Limits(wall_seconds=wall_seconds)}
    skill = make_skill(HANG.files(interpreter))
    with client.stream(skill, HANG.path(interpreter), [sleeper.seconds], **options) as stream:
        wait_for_output(stream)
        wait_until(lambda: sleeper.sleeps)
        result = stream.wait()
    gone(sleeper)
    assert Ending.of(result) == Ending(
        stdout=b"partial\n", stderr=b"trouble\n", outcome=Outcome.WALL_TIMEOUT, exit_code=None, signal=9
    )
    assert result.message == f"The script ran longer than {wall_seconds} s (wall_time) and was killed."
    assert wall_seconds <= result.usage.wall_seconds < wall_seconds + 20
    assert not result.ok


@pytest.mark.attack(29, "a child that holds the output", expected="the run ends with its script")
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_child_that_holds_the_output_does_not_hold_up_its_script(
    client: skilljail.Client, make_skill: MakeSkill, gone: Callable[[Sleeper], None], interpreter: str, seen: Seen
) -> None:
    """Case 17: the run is over with its script, and the child does not outlive it."""
    sleeper = Sleeper()
    limits = Limits(wall_seconds=100)
    skill = make_skill(ORPHAN.files(interpreter))
    result = client.run(skill, ORPHAN.path(interpreter), [sleeper.seconds], limits=limits)
    gone(sleeper)
    assert Ending.of(result) == Ending(stdout=b"done\n")
    assert result.usage.wall_seconds < 50
    seen(result.outcome)


def test_what_a_child_wrote_before_its_script_ended_is_delivered(
    client: skilljail.Client, make_skill: MakeSkill
) -> None:
    """Case 17: nothing that was written is lost."""
    script = "(printf child; touch said; exec sleep 600) & until [ -e said ]; do sleep 0.01; done; echo ' parent'"
    assert Ending.of(client.run(make_skill({"x.sh": script}), "x.sh")) == Ending(stdout=b"child parent\n")


@pytest.mark.attack(30, "cancelling each interpreter's run", expected="CANCELLED, its children dead")
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_cancelled_run_is_dead_promptly(
    client: skilljail.Client, make_skill: MakeSkill, gone: Callable[[Sleeper], None], interpreter: str, seen: Seen
) -> None:
    """Case 18: with its children, and the caller still gets what there was."""
    sleeper = Sleeper()
    skill = make_skill(HANG.files(interpreter))
    with client.stream(skill, HANG.path(interpreter), [sleeper.seconds]) as stream:
        wait_for_output(stream)
        wait_until(lambda: sleeper.sleeps)
        stream.cancel()
        result = stream.wait()
    gone(sleeper)
    assert Ending.of(result) == Ending(
        stdout=b"partial\n", stderr=b"trouble\n", outcome=Outcome.CANCELLED, exit_code=None
    )
    assert result.message == "The run was cancelled."
    seen(result.outcome)


def test_leaving_the_block_ends_the_run(
    client: skilljail.Client, make_skill: MakeSkill, gone: Callable[[Sleeper], None]
) -> None:
    """Case 18: a caller that does not want to know any more."""
    sleeper = Sleeper()
    with client.stream(make_skill(HANG.files("bash")), HANG.path("bash"), [sleeper.seconds]) as stream:
        wait_for_output(stream)
        wait_until(lambda: sleeper.sleeps)
    gone(sleeper)
    assert_disconnected(client, stream.run_id)


def test_an_exception_of_the_caller_ends_the_run(
    client: skilljail.Client, make_skill: MakeSkill, gone: Callable[[Sleeper], None]
) -> None:
    """Case 18: Ctrl-C among them."""
    sleeper = Sleeper()
    stream = client.stream(make_skill(HANG.files("bash")), HANG.path("bash"), [sleeper.seconds])

    def be_interrupted() -> None:
        with stream:
            wait_for_output(stream)
            wait_until(lambda: sleeper.sleeps)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    gone(sleeper)
    assert_disconnected(client, stream.run_id)


async def test_a_cancelled_task_ends_the_run(
    client: skilljail.Client, daemon: Daemon, make_skill: MakeSkill, gone: Callable[[Sleeper], None]
) -> None:
    """Case 18: of the asynchronous client."""
    sleeper = Sleeper()
    skill = make_skill(HANG.files("bash"))
    async with skilljail.AsyncClient(daemon.address) as asynchronous:
        task = asyncio.ensure_future(asynchronous.run(skill, HANG.path("bash"), [sleeper.seconds]))
        await cancel_when_it_sleeps(task, sleeper)
    await asyncio.to_thread(gone, sleeper)
    assert_disconnected(client, next(client.list_runs()).run_id)


async def test_a_cancelled_agent_ends_the_run(
    client: skilljail.Client, runner: ScriptRunner, skills: Callable[..., Any], gone: Callable[[Sleeper], None]
) -> None:
    """Case 18: through the framework's runner; the cancellation goes on to whoever asked for it."""
    sleeper = Sleeper()
    folder = skills({HANG.path("bash"): HANG.bash})
    source = FileSkillsSource(folder, script_runner=runner, script_extensions=(".sh",))
    (skill,) = await source.get_skills(SkillsSourceContext(agent=cast("Any", None)))
    assert isinstance(skill, FileSkill)
    script = await skill.get_script(HANG.path("bash"))
    assert script is not None
    await cancel_when_it_sleeps(asyncio.ensure_future(script.run(skill, [sleeper.seconds])), sleeper)
    await asyncio.to_thread(gone, sleeper)
    assert_disconnected(client, next(client.list_runs()).run_id)


def test_a_client_that_is_closed_ends_its_runs(
    client: skilljail.Client, daemon: Daemon, make_skill: MakeSkill, gone: Callable[[Sleeper], None]
) -> None:
    """Case 18: the connection is what ties a run to its caller."""
    sleeper = Sleeper()
    other = skilljail.Client(daemon.address)
    stream = other.stream(make_skill(HANG.files("bash")), HANG.path("bash"), [sleeper.seconds])
    wait_for_output(stream)
    wait_until(lambda: sleeper.sleeps)
    other.close()
    gone(sleeper)
    assert_disconnected(client, stream.run_id)


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_standard_input_is_at_its_end(client: skilljail.Client, make_skill: MakeSkill, interpreter: str) -> None:
    """Case 19: a script that asks is answered with nothing, and does not wait."""
    result = client.run(make_skill(INPUT.files(interpreter)), INPUT.path(interpreter), limits=Limits(wall_seconds=60))
    assert Ending.of(result) == Ending(stdout=b"0 \n")


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_standard_input_is_what_the_caller_gives_and_then_ends(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 19: bytes, more than a pipe holds, to the last one."""
    data = b"\x00\xff\r\n\x1a\x04ab" * 50_000
    result = client.run(
        make_skill(INPUT.files(interpreter)), INPUT.path(interpreter), stdin=data, limits=Limits(wall_seconds=60)
    )
    assert Ending.of(result) == Ending(stdout=b"400000 00ff0d0a1a046162\n")


def test_a_script_that_reads_no_input_is_not_held_up_by_it(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 19: most scripts never look."""
    result = client.run(make_skill({"x.sh": "exec <&-; echo done"}), "x.sh", stdin=b"x" * 4_000_000)
    assert Ending.of(result) == Ending(stdout=b"done\n")


def test_a_prompt_is_not_waited_for(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 19: what would ask a person ends at once."""
    result = client.run(make_skill({"x.py": "input('Go on? ')"}), "x.py", limits=Limits(wall_seconds=60))
    assert Ending.of(result) == Ending(stdout=b"Go on? ", stderr=result.stderr, exit_code=1)
    assert result.stderr.endswith(b"EOFError: EOF when reading a line\n")


def wait_for_output(stream: skilljail.RunStream) -> None:
    """Reads until HANG has said all that it says."""
    left = len(b"partial\n" + b"trouble\n")
    for event in stream:
        if isinstance(event, skilljail.Output):
            left -= len(event.data)
        if not left:
            return
    raise AssertionError(f"the script ended before it had said everything: {stream.result}")


async def cancel_when_it_sleeps(task: asyncio.Future[Any], sleeper: Sleeper) -> None:
    """Waits for the script, cancels its caller, and asserts that the caller sees just that."""
    await asyncio.to_thread(wait_until, lambda: sleeper.sleeps)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def assert_disconnected(client: skilljail.Client, run_id: str) -> None:
    """Asserts what the daemon remembers of a run whose caller went away."""
    wait_until(lambda: client.get_run(run_id).state is RunState.FINISHED)
    result = client.get_run(run_id).result
    assert result is not None
    assert (result.outcome, result.exit_code) == (Outcome.CLIENT_DISCONNECTED, None)
