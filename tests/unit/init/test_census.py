"""Counting where the sandbox's kernel does not."""

# ruff: noqa: S101

import os
import pathlib
from collections.abc import Iterator

import pytest
from skilljail_init import census
from skilljail_init.census import FileCensus, count_tasks, is_apart


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How far each count went; a count takes no time."""
    found: list[int] = []
    real = census._count_down

    def noted(fd: int, left: int, depth: int) -> int:
        if depth == census.DEPTH_MAX:
            found.append(left)
        return real(fd, left, depth)

    monkeypatch.setattr(census, "_count_down", noted)
    monkeypatch.setattr(census, "REST_FACTOR", 0)
    return found


def number_inodes(monkeypatch: pytest.MonkeyPatch, numbers: Iterator[int | None]) -> None:
    """Lets new files have these numbers, as gVisor's tmpfs gives them."""
    monkeypatch.setattr(FileCensus, "_number_of_a_new_file", lambda _self: next(numbers))


def test_tasks_are_those_of_the_whole_kernel() -> None:
    running = int(pathlib.Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    assert abs(count_tasks() - running % 65_536) < 1_000


def test_a_folder_is_apart_when_another_file_system_is_mounted_there(tmp_path: pathlib.Path) -> None:
    assert is_apart("/proc", str(tmp_path))
    assert not is_apart(str(tmp_path), str(tmp_path))
    assert not is_apart(str(tmp_path / "gone"), str(tmp_path))


def test_files_directories_and_links_all_count(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    (tmp_path / "link").symlink_to("a")  # and is not followed
    os.mkfifo(tmp_path / "a" / "b" / "pipe")
    assert [FileCensus(str(tmp_path), files_max).is_above() for files_max in (5, 6)] == [True, False]


def test_the_new_file_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    one = FileCensus(str(tmp_path), 10)
    number = one._number_of_a_new_file()
    assert number is not None
    assert list(tmp_path.iterdir()) == []
    one.close()


def test_nothing_is_counted_while_too_few_files_were_made(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, counted: list[int]
) -> None:
    # The ninth and the tenth file are allowed, the eleventh may be one too many; then they are counted, and there are
    # only four with the folder, so that six more may be made before the next count.
    number_inodes(monkeypatch, iter([9, 10, 11, 16, 17, 18]))
    for name in "abc":
        (tmp_path / name).touch()
    one = FileCensus(str(tmp_path), 10)
    expected = [0, 0, 1, 1, 1, 2]
    for counts in expected:
        assert not one.is_above()
        assert len(counted) == counts


def test_a_count_ends_at_the_first_file_too_many(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, counted: list[int]
) -> None:
    number_inodes(monkeypatch, iter([100]))
    for number in range(30):
        (tmp_path / str(number)).touch()
    assert FileCensus(str(tmp_path), 10).is_above()
    assert counted == [9]


def test_a_script_that_locks_its_work_directory_is_counted_all_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, counted: list[int]
) -> None:
    number_inodes(monkeypatch, iter([None, None]))
    one = FileCensus(str(tmp_path), 3)
    assert not one.is_above()
    for name in "abc":
        (tmp_path / name).touch()
    assert one.is_above()
    assert len(counted) == 2


def test_what_cannot_be_looked_into_is_too_many(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number_inodes(monkeypatch, iter([100, 100]))
    monkeypatch.setattr(census, "DEPTH_MAX", 3)
    (tmp_path / "1" / "2" / "3").mkdir(parents=True)
    assert not FileCensus(str(tmp_path), 10).is_above()
    (tmp_path / "1" / "2" / "3" / "4").mkdir()
    assert FileCensus(str(tmp_path), 10).is_above()


def test_a_folder_that_vanishes_while_it_is_counted_is_too_many_and_leaks_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number_inodes(monkeypatch, iter([100]))
    (tmp_path / "a").mkdir()
    one = FileCensus(str(tmp_path), 10)
    real = os.open

    def gone(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if path == "a":
            raise PermissionError(13, "denied")
        return real(path, flags, *rest, dir_fd=dir_fd)

    before = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "open", gone)
    assert one.is_above()
    monkeypatch.undo()
    assert len(list(pathlib.Path("/proc/self/fd").iterdir())) == before
    one.close()


def test_a_count_is_not_repeated_at_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 19.9, 21.0, 21.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    number_inodes(monkeypatch, iter([100, 200]))
    one = FileCensus(str(tmp_path), 3)
    assert not one.is_above()  # from 0 to 1 s: the next not before 20 times that
    for name in "abc":
        (tmp_path / name).touch()
    assert [one.is_above(), one.is_above()] == [False, True]
