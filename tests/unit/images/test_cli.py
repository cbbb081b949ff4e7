"""The commands `images build` and `images list`: usage and exit status."""

import argparse

import pytest
from skilljaild.images.cli import add_parser

HASH = "0" * 64


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="skilljaild")
    add_parser(parser.add_subparsers(required=True))
    parsed = parser.parse_args(["images", *arguments])
    return int(parsed.run(parsed))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["build", "ruby"], "there is no image 'ruby': choose from base, python, node, bash, pwsh"),
        (["build", "--pwsh-sha256", HASH], "--pwsh-sha256 is the hash of --pwsh-archive, which is missing"),
        (["build", "--pwsh-archive", "x", "--pwsh-sha256", "12"], "--pwsh-sha256 takes 64 hex digits"),
        (["build", "--base-image", "x", "--bootstrap"], "not allowed with argument"),
        ([], "required"),
    ],
)
def test_a_wrong_call_exits_with_2(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("command", ["build", "list"])
def test_no_engine_exits_with_2_and_says_what_to_do(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--engine-url", "unix:///nonexistent/docker.sock") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("skilljail: no engine answers at unix:///nonexistent/docker.sock: start Docker")


def test_help_tells_exit_status_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("build", "--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for part in ("exit status:", "examples:", "--pwsh-archive FILE", "--base-image REF", "--refresh"):
        assert part in text
