"""Putting a skill's files into the skill root."""

# ruff: noqa: S101

import asyncio
import contextlib
import hashlib
import os
import pathlib
import stat
from collections.abc import AsyncIterator

import pytest
from skilljail_init import frames
from skilljail_init.errors import InitError
from skilljail_init.frames import FrameType
from skilljail_init.main import _make_directories
from skilljaild.runs.conversation import Conversation

from .driver import InitProcess

DIGEST = hashlib.sha256(b"abc").hexdigest()


def listing(root: pathlib.Path) -> dict[str, tuple[str, bytes | None]]:
    """Mode and content of all that is below a directory."""
    return {
        str(path.relative_to(root)): (
            stat.filemode(path.lstat().st_mode),
            path.read_bytes() if path.is_file() and not path.is_symlink() else None,
        )
        for path in sorted(root.rglob("*"))
    }


def entry(**changes: object) -> dict[str, object]:
    """A file's entry in a STAGE frame."""
    return {"path": "file", "size": 3, "executable": False, "sha256": DIGEST} | changes


def order(init: InitProcess, files: object, directories: object = ()) -> None:
    """Sends a STAGE frame as it is."""
    init.write(frames.encode_json(FrameType.STAGE, {"directories": directories, "files": files}))


def test_files_directories_and_exec_bits_arrive(init: InitProcess) -> None:
    big = os.urandom(300_000)
    init.stage(
        {
            "SKILL.md": b"# x\n",
            "scripts/run.sh": b"#!/bin/sh\n",
            "deep/er/big": big,
            "empty.txt": b"",
            "größe \n".strip(): b"1",
        },
        executable=("scripts/run.sh",),
        directories=("assets", "assets/empty", "scripts"),
    )
    assert listing(init.skill) == {
        "SKILL.md": ("-rw-r--r--", b"# x\n"),
        "assets": ("drwxr-xr-x", None),
        "assets/empty": ("drwxr-xr-x", None),
        "deep": ("drwxr-xr-x", None),
        "deep/er": ("drwxr-xr-x", None),
        "deep/er/big": ("-rw-r--r--", big),
        "empty.txt": ("-rw-r--r--", b""),
        "größe": ("-rw-r--r--", b"1"),
        "scripts": ("drwxr-xr-x", None),
        "scripts/run.sh": ("-rwxr-xr-x", b"#!/bin/sh\n"),
    }


def test_data_frames_may_be_cut_anywhere(init: InitProcess) -> None:
    order(init, [entry(path="a"), entry(path="b"), entry(path="c", size=0)])
    for piece in (b"", b"a", b"bca", b"bc"):
        init.send(FrameType.DATA, piece)
    init.expect(FrameType.STAGED)
    assert {name: content for name, (_, content) in listing(init.skill).items()} == {"a": b"abc", "b": b"abc", "c": b""}


def test_a_later_stage_adds(init: InitProcess) -> None:
    init.stage({"a/x": b"1"}, directories=("d",))
    init.stage({})
    init.run(["sh", "-c", "echo 2 >a/made"])
    init.stage({"a/y": b"3"}, directories=("d", "a"))
    assert {name: content for name, (_, content) in listing(init.skill).items()} == {
        "a": None, "a/made": b"2\n", "a/x": b"1", "a/y": b"3", "d": None,
    }  # fmt: skip


class Stream:
    """The daemon's `ByteStream` to a real init."""

    def __init__(self, init: InitProcess) -> None:
        self._init = init

    async def read(self) -> bytes:
        return await asyncio.to_thread(self._init.read)

    async def write(self, data: bytes) -> None:
        await asyncio.to_thread(self._init.write, data)

    async def close(self) -> None:
        self._init.close()


async def test_the_daemon_stages_the_largest_bundle(init: InitProcess) -> None:
    """10,000 paths of 1,000 bytes are more than one frame may hold."""
    parents = ["a" * 250, f"{'a' * 250}/{'b' * 250}", f"{'a' * 250}/{'b' * 250}/{'c' * 250}"]
    paths = [f"{parents[-1]}/{number:04}{'x' * 243}" for number in range(9_997)]
    assert {len(path) for path in paths} == {1_000}
    contents_of = {path: b"%d" % number * (number % 3) for number, path in enumerate(paths)}
    entries: list[dict[str, object]] = [
        entry(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for path, content in contents_of.items()
    ]

    async def contents() -> AsyncIterator[bytes]:
        for content in contents_of.values():
            yield content

    await Conversation(Stream(init)).stage(parents, entries, contents())
    made = {f"{parents[-1]}/{path.name}": path.read_bytes() for path in (init.skill / parents[-1]).iterdir()}
    assert made == contents_of
    # Each of them is known as staged, and none is taken for an artifact.
    result = init.run(["sh", "-c", "echo 1 >new"], artifact_patterns=["**"], artifact_count=20)
    assert result.ended == ("exited", 0, None)
    assert (result.artifacts, result.skipped) == ({"new": b"1\n"}, [])


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", ".", "a//b", "a\0b", "a\\b", "x" * 256])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_path_that_leads_elsewhere_is_refused(init: InitProcess, path: str, kind: str) -> None:
    order(init, *(([entry(path=path)], []) if kind == "file" else ([], [path])))
    message, status = init.end()
    assert status == 70
    assert message is not None
    assert "is not a safe path below the skill root" in message or "without NUL" in message
    assert listing(init.skill.parent) == {
        "home": ("drwx------", None), "skill": ("drwxr-xr-x", None), "tmp": ("drwx------", None),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "directories", "message"),
    [
        (None, [], "files: not a list"),
        ([], None, "directories: not a list"),
        ([1], [], "files: not an object"),
        ([], [1], "directories: not a string of UTF-8 without NUL"),
        ([entry(size=-1)], [], "size: not an integer from 0 to 9223372036854775807"),
        ([entry(size=True)], [], "size: not an integer from 0 to 9223372036854775807"),
        ([entry(size=1.5)], [], "size: not an integer from 0 to 9223372036854775807"),
        ([entry(sha256="sha256:" + DIGEST)], [], "STAGE: sha256 of 'file' is not 64 lower-case hex digits"),
        ([entry(path="\ud800")], [], "path: not a string of UTF-8 without NUL"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(
    init: InitProcess, files: object, directories: object, message: str
) -> None:
    order(init, files, directories)
    assert init.end() == (message, 70)


def test_more_content_than_announced_is_refused(init: InitProcess) -> None:
    order(init, [entry()])
    init.send(FrameType.DATA, b"abcd")
    assert init.end() == ("STAGE: 1 bytes more than the files have", 70)


def test_a_file_that_is_there_already_is_refused(init: InitProcess) -> None:
    init.stage({"a": b"1"})
    order(init, [entry(path="a")])
    assert init.end() == ("cannot make the file 'a': File exists", 70)


@pytest.mark.parametrize("target", ["/usr", "elsewhere"])
def test_no_link_that_a_script_left_is_followed(init: InitProcess, tmp_path: pathlib.Path, target: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    init.run(["ln", "-s", str(tmp_path / target), "link"])
    order(init, [entry(path="link/file")])
    message, status = init.end()
    assert (message, status) == ("cannot make the directory 'link': Not a directory", 70)
    assert listing(tmp_path / "elsewhere") == {}


def test_no_file_is_written_through_a_link(init: InitProcess, tmp_path: pathlib.Path) -> None:
    (tmp_path / "precious").write_text("old")
    init.run(["sh", "-c", f"ln -s {tmp_path}/precious a; ln -s {tmp_path}/new b"])
    order(init, [entry(path="b")])
    assert init.end() == ("cannot make the file 'b': File exists", 70)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "precious").read_text() == "old"


def test_a_fifo_does_not_hold_staging_up(init: InitProcess) -> None:
    init.run(["mkfifo", "file"])
    order(init, [entry()])
    assert init.end() == ("cannot make the file 'file': File exists", 70)


@pytest.mark.parametrize(
    ("options", "files", "message"),
    [
        ("size=64k", [entry(size=200_000)], "cannot write the file 'file': No space left on device"),
        (
            "nr_inodes=6",
            [entry(path=f"f{i}", size=0) for i in range(9)],
            "cannot make the file 'f2': No space left on device",
        ),
    ],
    ids=["bytes", "inodes"],
)
def test_a_work_directory_that_is_too_small_is_named(
    tmp_path: pathlib.Path, options: str, files: list[dict[str, object]], message: str
) -> None:
    with InitProcess(tmp_path, tmpfs=options) as init:
        order(init, files)
        with contextlib.suppress(BrokenPipeError):  # it may have given up before the last byte
            init.send_data(b"x" * sum(int(str(file["size"])) for file in files))
        assert init.end() == (message, 70)


def test_a_work_directory_that_is_a_link_is_refused(tmp_path: pathlib.Path) -> None:
    """An image may have one there; what is mounted on it would cover a folder of the image's choice."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "work").symlink_to("elsewhere")
    with pytest.raises(InitError, match="is a link in this image"):
        _make_directories(str(tmp_path / "work"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
