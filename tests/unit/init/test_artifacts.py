"""Which files come back after a run, and that nothing else does."""

# ruff: noqa: S101

import os
import pathlib
import types
from typing import Any

import pytest
from skilljail_init import artifacts
from skilljail_init.frames import FrameType

from .driver import UID, InitProcess, Result, python

EVERYTHING = ["**"]


def make(init: InitProcess, source: str, **changes: Any) -> Result:
    """Runs Python source and collects everything."""
    result = init.run(python("import os, socket\n" + source), **({"artifact_patterns": EVERYTHING} | changes))
    assert (result.stderr, result.ended) == (b"", ("exited", 0, None))
    return result


def test_new_files_come_back_sorted_and_whole(init: InitProcess) -> None:
    source = """
os.makedirs("out/deep"); os.mkdir("empty")
for name, content in {"z": b"last", "out/deep/b": b"x" * 200_000, "out/a b": b"", "A": b"1", "\u00fc": b"2"}.items():
    open(name, "wb").write(content)
os.chmod("A", 0o755)
"""
    result = make(init, source)
    assert list(result.artifacts.items()) == [
        ("A", b"1"), ("out/a b", b""), ("out/deep/b", b"x" * 200_000), ("z", b"last"), ("\u00fc", b"2"),
    ]  # fmt: skip
    assert (result.executable, result.skipped, result.skipped_omitted) == ({"A"}, [], 0)


def test_only_what_matches_is_mentioned(init: InitProcess) -> None:
    source = """
os.makedirs("out/sub")
for name in ("out/a.csv", "out/sub/b.csv", "c.csv", "out/d.txt"): open(name, "w").close()
os.symlink("c.csv", "link.txt")
"""
    result = make(init, source, artifact_patterns=["out/**/*.csv"])
    assert (list(result.artifacts), result.skipped) == (["out/a.csv", "out/sub/b.csv"], [])


def test_without_patterns_nothing_comes_back(init: InitProcess) -> None:
    result = make(init, "open('a', 'w').close()", artifact_patterns=[])
    assert (result.artifacts, result.skipped) == ({}, [])


def test_content_decides_what_has_changed(init: InitProcess) -> None:
    init.stage(
        {"same": b"same", "touched": b"touched", "edited": b"edited", "longer": b"1", "gone": b"", "moved": b"m"}
    )
    source = """
stamp = os.stat("edited")
open("touched", "w").write("touched"); os.utime("touched", (1, 1)); os.chmod("touched", 0o755)
open("edited", "w").write("EDITED"); os.utime("edited", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
open("longer", "a").write("2")
os.remove("gone"); os.rename("moved", "here")
"""
    assert make(init, source).artifacts == {"edited": b"EDITED", "longer": b"12", "here": b"m"}


def test_files_of_an_earlier_run_are_still_new(init: InitProcess) -> None:
    make(init, "open('a', 'w').write('1')")
    assert make(init, "open('b', 'w').write('2')").artifacts == {"a": b"1", "b": b"2"}


def test_a_script_that_failed_gives_its_files_all_the_same(init: InitProcess) -> None:
    result = init.run(["sh", "-c", "echo 1 >a; kill -9 $$"], artifact_patterns=EVERYTHING)
    assert (result.ended, result.artifacts) == (("signaled", None, 9), {"a": b"1\n"})
    result = init.run(["sh", "-c", "echo 2 >b; sleep 60"], artifact_patterns=["b"], wall_seconds=0.3)
    assert (result.ended, result.artifacts) == (("wall_timeout", None, 9), {"b": b"2\n"})


def test_nothing_but_regular_files_comes_back_and_no_link_is_followed(
    init: InitProcess, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    source = f"""
os.symlink("/etc/passwd", "absolute"); os.symlink("../../../../etc/passwd", "relative"); os.symlink("gone", "dangling")
os.symlink({str(tmp_path / "outside")!r}, "directory"); os.symlink(".", "loop"); os.symlink("/proc/1/mem", "memory")
os.mkfifo("fifo"); socket.socket(socket.AF_UNIX).bind("socket")
open("file", "w").write("mine"); os.link("file", "hard")
"""
    result = make(init, source)
    assert result.artifacts == {"file": b"mine", "hard": b"mine"}
    links = ["absolute", "dangling", "directory", "fifo", "loop", "memory", "relative", "socket"]
    assert result.skipped == [(name, "not_a_regular_file") for name in links]


def test_a_sparse_giant_is_skipped_without_being_read(tmp_path: pathlib.Path) -> None:
    with InitProcess(tmp_path, tmpfs="size=10m") as init:
        result = make(
            init,
            "os.truncate(os.open('giant', os.O_CREAT | os.O_RDWR), 1 << 40); open('small', 'w').write('1')",
            disk_bytes=1 << 41,
        )
        assert (result.artifacts, result.skipped) == ({"small": b"1"}, [("giant", "size_limit")])
        assert result.seconds < 30


def test_what_no_longer_fits_is_skipped_and_what_fits_is_not(init: InitProcess) -> None:
    source = (
        "[open(name, 'w').write(name * size) for name, size in (('a', 60), ('b', 41), ('c', 40), ('d', 1), ('e', 0))]"
    )
    result = make(init, source, artifact_bytes=100)
    assert (list(result.artifacts), result.skipped) == (["a", "c", "e"], [("b", "size_limit"), ("d", "size_limit")])


def test_files_beyond_the_count_are_skipped(init: InitProcess) -> None:
    init.stage({"aa": b"staged files do not count"})
    source = "[open(name, 'w').close() for name in 'abcde']"
    result = make(init, source, artifact_count=3)
    assert (list(result.artifacts), result.skipped) == (["a", "b", "c"], [("d", "count_limit"), ("e", "count_limit")])
    result = make(init, source, artifact_count=0)
    assert (result.artifacts, len(result.skipped)) == ({}, 5)


def test_skipped_files_are_named_up_to_a_number_and_counted_beyond(init: InitProcess) -> None:
    result = make(init, "[open(f'{n:04}', 'w').close() for n in range(2500)]", artifact_count=10)
    assert list(result.artifacts) == [f"{n:04}" for n in range(10)]
    assert result.skipped == [(f"{n:04}", "count_limit") for n in range(10, 2010)]
    assert result.skipped_omitted == 490


def test_depth_is_bounded(init: InitProcess) -> None:
    source = """
for depth in range(500):
    open("file", "w").close(); os.mkdir("d"); os.chdir("d")
"""
    result = make(init, source)
    assert list(result.artifacts) == ["d/" * depth + "file" for depth in range(31, -1, -1)]
    assert result.skipped == [("/".join("d" * 32), "depth_limit")]


def test_names_that_could_deceive_are_skipped_and_escaped(init: InitProcess) -> None:
    source = r"""
for name in (b"new\nline", b"back\\slash", b"\xff\xfe", b"esc\x1b[2J", b"del\x7f", b"fine \xc3\xa4"):
    open(name, "w").close()
os.mkdir(b"dir\r"); open(b"dir\r/file", "w").close()
"""
    result = make(init, source)
    assert list(result.artifacts) == ["fine \u00e4"]
    names = ["back\\x5cslash", "del\\x7f", "dir\\x0d", "esc\\x1b[2J", "new\\x0aline", "\\xff\\xfe"]
    assert result.skipped == [(name, "unsafe_name") for name in names]


def test_a_path_that_is_too_long_is_skipped(init: InitProcess) -> None:
    source = """
for letter in "abcde":
    open("f", "w").close(); os.mkdir(letter * 250); os.chdir(letter * 250)
"""
    result = make(init, source)
    long = "/".join(letter * 250 for letter in "abcd")
    assert list(result.artifacts) == [f"{long}/f", *(f"{long[: 251 * n]}f" for n in (3, 2, 1, 0))]
    assert [(path[:1005], reason) for path, reason in result.skipped] == [(f"{long}/e", "unsafe_name")]
    assert result.skipped[0][0].endswith("e…")
    assert len(result.skipped[0][0]) == 1025


def test_a_crowded_directory_ends_the_search(init: InitProcess) -> None:
    # 100,001 entries: one more than are looked at. Links to one file are made fast.
    source = """
os.mkdir("crowd"); open("a", "w").write("1"); open("crowd/x", "w").close()
for number in range(100_001):
    if number % 30_000 == 0: open(f"crowd/_{number}", "w").close()
    os.link(f"crowd/_{number // 30_000 * 30_000}", f"crowd/{number}")
open("z", "w").close()
"""
    result = make(init, source)
    assert (result.artifacts, result.skipped) == ({"a": b"1"}, [(".", "count_limit")])


def test_collecting_has_a_time_limit(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Order:
        artifact_patterns = EVERYTHING
        artifact_count = artifact_bytes = 1000

    for name in "abc":
        (tmp_path / name).touch()
    clock = iter(range(0, 100, 4))
    monkeypatch.setattr(artifacts, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    root_fd = os.open(tmp_path, os.O_RDONLY)
    collection = artifacts.Collection(root_fd, Order(), {})  # type: ignore[arg-type]
    frames = []
    while (frame := collection.next_frame()) is not None:
        frames.append(frame)
    os.close(root_fd)
    assert frames[-1].endswith(b'{"path":".","reason":"time_limit"}')
    assert len([frame for frame in frames if frame[:1] == bytes([FrameType.ARTIFACT])]) < 3


def test_what_cannot_be_read_is_skipped(open_folder: pathlib.Path) -> None:
    with InitProcess(open_folder, uid=UID) as init:
        source = """
os.makedirs("locked/inner"); open("locked/file", "w").close(); os.chmod("locked", 0)
open("closed", "w").close(); os.chmod("closed", 0); open("open", "w").write("1")
"""
        result = make(init, source)
        assert result.artifacts == {"open": b"1"}
        assert result.skipped == [("closed", "unreadable"), ("locked", "unreadable")]


def test_a_daemon_that_reads_slowly_gets_everything(init: InitProcess) -> None:
    init.start(
        python("[open(f'{n}', 'wb').write(b'x' * 100_000) for n in range(30)]"),
        artifact_patterns=EVERYTHING, artifact_bytes=1 << 30,
    )  # fmt: skip
    init.expect(FrameType.STARTED)
    assert init.expect(FrameType.EXIT).json()["cause"] == "exited"
    init.send(FrameType.CANCEL)  # too late: it is collected already, and most of it waits for us
    result = Result()
    init.take_artifacts(result)
    assert sorted(result.artifacts) == sorted(str(n) for n in range(30))
    assert set(result.artifacts.values()) == {b"x" * 100_000}


def test_the_end_of_the_stream_ends_collecting(init: InitProcess) -> None:
    init.start(
        python("[open(f'{n}', 'wb').write(b'x' * 100_000) for n in range(30)]"),
        artifact_patterns=EVERYTHING, artifact_bytes=1 << 30,
    )  # fmt: skip
    init.expect(FrameType.STARTED)
    init.expect(FrameType.EXIT)
    init.close()
    assert init.process.wait(30) == 0


def test_a_skill_root_that_was_replaced_is_not_searched(init: InitProcess) -> None:
    source = "echo 1 >mine; cd ..; mv skill old; ln -s /etc skill"
    result = init.run(["sh", "-c", source], artifact_patterns=["**/mine", "passwd"])
    assert (result.artifacts, result.skipped) == ({"mine": b"1\n"}, [])
    assert init.run(["cat", "mine"]).stdout == b"1\n"


def test_a_skill_root_that_was_removed_has_no_files(init: InitProcess) -> None:
    result = init.run(["sh", "-c", "rmdir ../skill"], artifact_patterns=EVERYTHING)
    assert (result.ended, result.artifacts, result.skipped) == (("exited", 0, None), {}, [])


def test_a_skill_root_that_was_closed_is_skipped(open_folder: pathlib.Path) -> None:
    with InitProcess(open_folder, uid=UID) as init:
        result = init.run(["sh", "-c", "echo 1 >file; chmod 0 ."], artifact_patterns=EVERYTHING)
        assert (result.artifacts, result.skipped) == ({}, [(".", "unreadable")])
