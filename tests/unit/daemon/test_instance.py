"""A daemon's identity in its state directory."""

import os
import pathlib
import stat
import subprocess
import sys

import pytest
from skilljaild.instance import StateError, instance


def test_the_name_stays_the_same_over_restarts(tmp_path: pathlib.Path) -> None:
    state = tmp_path / "a" / "state"
    with instance(state) as first:
        assert len(first) == 32
        assert first.isalnum()
        assert (state / "instance").read_text() == first
    with instance(state) as second:
        assert second == first
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "instance").stat().st_mode) == 0o600


def test_two_state_directories_are_two_daemons(tmp_path: pathlib.Path) -> None:
    with instance(tmp_path / "a") as one, instance(tmp_path / "b") as other:
        assert one != other


@pytest.mark.parametrize("content", ["", "\n", "not a name\n", "a/b", "-", "ab,cd"])
def test_a_file_without_a_name_gets_one(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / "instance").write_text(content)
    with instance(tmp_path) as name:
        assert len(name) == 32
    assert (tmp_path / "instance").read_text() == name


def test_a_second_daemon_is_refused_until_the_first_is_gone(tmp_path: pathlib.Path) -> None:
    program = f"""
import pathlib, sys
from skilljaild.instance import instance
with instance(pathlib.Path({str(tmp_path)!r})) as name:
    print(name, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        with pytest.raises(StateError) as caught, instance(tmp_path):
            pass
        assert str(caught.value) == (
            f"{tmp_path}: another daemon uses it; stop that one, or name another with --state-dir"
        )
        # The kernel gives the lock back, whatever ended it.
        other.kill()
        other.wait()
    with instance(tmp_path) as again:
        assert again == name


def test_a_state_directory_that_cannot_be_used_is_named_with_the_mend(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for place, what in ((file, "File exists"), (file / "below", "Not a directory")):
        with pytest.raises(StateError) as caught, instance(place):
            pass
        assert str(caught.value) == (
            f"{place}: cannot be used as state directory ({what}); name another with --state-dir"
        )


def test_the_lock_is_not_handed_down_to_programs(tmp_path: pathlib.Path) -> None:
    with instance(tmp_path):
        held = [
            int(name)
            for name in os.listdir("/proc/self/fd")  # noqa: PTH208  numbers, not paths
            if os.path.exists(f"/proc/self/fd/{name}")  # noqa: PTH110
            and os.readlink(f"/proc/self/fd/{name}") == str(tmp_path / "instance")  # noqa: PTH115
        ]
        assert held
        assert not any(os.get_inheritable(descriptor) for descriptor in held)
