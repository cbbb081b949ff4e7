"""Results: exit codes and output, whole."""

import pytest
import skilljail
from attack_table import Seen
from harness import INTERPRETERS, MakeSkill
from skilljail import Limits, Outcome

from conformance.ending import Ending
from conformance.scripts import BROKEN_TEXT, FAILURE, FLOOD

PIECE = 65_536


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_failing_script_is_a_result_with_both_streams(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 11: the number, standard output and standard error, and no exception."""
    result = client.run(make_skill(FAILURE.files(interpreter)), FAILURE.path(interpreter))
    assert Ending.of(result) == Ending(stdout=b"out\n", stderr=b"err\n", exit_code=7)
    assert not result.ok
    assert result.message == "The script exited with code 7."


@pytest.mark.parametrize("code", [1, 2, 124, 126, 127, 128, 137, 143, 255])
def test_an_exit_code_means_nothing_but_itself(client: skilljail.Client, make_skill: MakeSkill, code: int) -> None:
    """Case 11: not a timeout, not a signal, not a missing program."""
    result = client.run(make_skill({"scripts/run.sh": 'exit "$1"'}), "scripts/run.sh", [str(code)])
    assert Ending.of(result) == Ending(exit_code=code)


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_output_that_is_no_text_arrives_as_bytes(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 20: each bad byte is one U+FFFD in the text, and the bytes are still there."""
    raw = b"a\xff\xc3(\x80\xf0\x9f\x98z\0"
    result = client.run(make_skill(BROKEN_TEXT.files(interpreter)), BROKEN_TEXT.path(interpreter))
    assert Ending.of(result) == Ending(stdout=raw, stderr=raw)
    # The three bytes of the character that is cut short are one mistake, as Unicode recommends.
    assert result.stdout_text == result.stderr_text == "a\ufffd\ufffd(\ufffd\ufffdz\0"


@pytest.mark.attack(75, "a character cut between two pieces", expected="decoded as one")
def test_a_character_that_is_written_in_two_parts_is_one_character(
    client: skilljail.Client, make_skill: MakeSkill, seen: Seen
) -> None:
    """Case 20: where the pieces of the stream are cut shows neither in the text of the events nor in the result."""
    script = r"""
import os, time
for byte in "naïve 😀\n".encode():
    os.write(1, bytes([byte]))
    time.sleep(0.01)
"""
    with client.stream(make_skill({"scripts/run.py": script}), "scripts/run.py") as stream:
        text = "".join(event.text for event in stream if isinstance(event, skilljail.Output))
    assert text == "naïve 😀\n"
    assert Ending.of(stream.result) == Ending(stdout="naïve 😀\n".encode())
    seen(text.strip())


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_megabytes_on_both_streams_at_once_arrive_complete(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 21: no deadlock, and not a byte is lost."""
    result = client.run(make_skill(FLOOD.files(interpreter)), FLOOD.path(interpreter), ["56"])
    assert Ending.of(result) == Ending(stdout=b"o" * 56 * PIECE, stderr=b"e" * 56 * PIECE)


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_output_above_the_limit_is_cut_and_the_cut_is_told(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str
) -> None:
    """Case 21: never a success that lacks something."""
    skill = make_skill(FLOOD.files(interpreter))
    result = client.run(skill, FLOOD.path(interpreter), ["64"], limits=Limits(output_bytes=1_000_000))
    assert (result.outcome, result.usage.output_truncated, result.ok) == (Outcome.OUTPUT_LIMIT, True, False)
    assert len(result.stdout) + len(result.stderr) == 1_000_000
    assert set(result.stdout) <= set(b"o")
    assert set(result.stderr) <= set(b"e")
    assert "1,000,000 bytes (output_bytes)" in result.message


def test_output_of_exactly_the_limit_is_a_success(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 21: a limit is what is allowed, not what is forbidden."""
    skill = make_skill({"scripts/run.py": "import sys; sys.stdout.write('x' * 70_000)"})
    result = client.run(skill, "scripts/run.py", limits=Limits(output_bytes=70_000))
    assert Ending.of(result) == Ending(stdout=b"x" * 70_000)


def test_one_byte_above_the_limit_is_no_success_even_when_the_script_ends_well(
    client: skilljail.Client, make_skill: MakeSkill
) -> None:
    """Case 21: the script is gone before its last byte is read, and is told on all the same."""
    skill = make_skill({"scripts/run.py": "import sys; sys.stdout.write('x' * 1_001)"})
    result = client.run(skill, "scripts/run.py", limits=Limits(output_bytes=1_000))
    assert (result.outcome, result.stdout, result.stderr) == (Outcome.OUTPUT_LIMIT, b"x" * 1_000, b"")
    assert (result.usage.output_truncated, result.ok) == (True, False)
