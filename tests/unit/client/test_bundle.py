"""What of a skill folder is staged, and which folders are refused before anything is sent."""

import os
import pathlib
import socket
import stat

import pytest
import skilljail
from skilljail._bundle import Bounds, Bundle
from skilljail.v1 import bundle_store_pb2

from .fake_daemon import digest_of


def read(root: pathlib.Path, **bounds: int) -> tuple[dict[str, tuple[bytes, bool]], list[str]]:
    """The files (content, executable) and directories that a bundle of `root` holds, all digests checked."""
    bundle = Bundle.read(root, Bounds(**bounds))
    contents = {digest: b"".join(blob.source.pieces()) for digest, blob in bundle.blobs.items()}
    assert all(digest == digest_of(content) for digest, content in contents.items())
    assert all(bundle.blobs[digest].size_bytes == len(content) for digest, content in contents.items())
    manifest = bundle_store_pb2.BundleManifest.FromString(contents[bundle.digest])
    paths = [one.path for one in manifest.files]
    assert paths == sorted(set(paths))
    assert list(manifest.directories) == sorted(set(manifest.directories))
    return {one.path: (contents[one.digest], one.executable) for one in manifest.files}, list(manifest.directories)


def refusal(root: pathlib.Path, **bounds: int) -> str:
    with pytest.raises(skilljail.SkillInvalid) as caught:
        Bundle.read(root, Bounds(**bounds))
    assert caught.value.reason == "SKILL_INVALID"
    return str(caught.value)


def test_whole_folder_goes_along_with_exec_bits_and_empty_directories(skill: pathlib.Path) -> None:
    (skill / "assets" / "empty").mkdir(parents=True)
    (skill / "données.txt").write_bytes(b"\xff\x00")
    files, directories = read(skill)
    assert files == {
        "SKILL.md": (b"---\nname: demo\ndescription: Demo.\n---\n", False),
        "données.txt": (b"\xff\x00", False),
        "scripts/run.py": (b"print('hello')\n", True),
    }
    assert directories == ["assets", "assets/empty", "scripts"]


def test_same_content_has_the_same_digest_wherever_it_lies(skill: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first = Bundle.read(skill, Bounds()).digest
    moved = skill.rename(tmp_path / "elsewhere")
    os.utime(moved / "SKILL.md", (1, 1))
    assert Bundle.read(moved, Bounds()).digest == first


def test_content_decides_and_not_size_and_time(skill: pathlib.Path) -> None:
    script = skill / "scripts" / "run.py"
    before = script.stat()
    first = Bundle.read(skill, Bounds()).digest
    script.write_text("print('HELLO')\n")
    os.utime(script, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert script.stat().st_size == before.st_size
    assert Bundle.read(skill, Bounds()).digest != first


def test_exec_bit_is_a_part_of_the_content(skill: pathlib.Path) -> None:
    first = Bundle.read(skill, Bounds()).digest
    (skill / "scripts" / "run.py").chmod(0o644)
    assert Bundle.read(skill, Bounds()).digest != first


@pytest.mark.parametrize("name", [".git", ".hg", ".svn", "__pycache__", ".GIT"])
def test_histories_and_caches_are_left_out_also_through_links(skill: pathlib.Path, name: str) -> None:
    (skill / name).mkdir()
    (skill / name / "config").write_text("url = https://token@host")
    (skill / "scripts" / name).mkdir()
    (skill / "scripts" / name / "x").write_text("x")
    (skill / "link").symlink_to(name)
    (skill / "file-link").symlink_to(f"{name}/config")
    files, directories = read(skill)
    assert sorted(files) == ["SKILL.md", "scripts/run.py"]
    assert directories == ["scripts"]


def test_git_file_of_a_worktree_is_left_out(skill: pathlib.Path) -> None:
    (skill / ".git").write_text("gitdir: /home/me/secret")
    files, _ = read(skill)
    assert ".git" not in files


def test_links_inside_are_staged_as_copies(skill: pathlib.Path) -> None:
    (skill / "shared").mkdir()
    (skill / "shared" / "lib.py").write_text("x = 1\n")
    (skill / "scripts" / "lib.py").symlink_to("../shared/lib.py")
    (skill / "scripts" / "shared").symlink_to("../shared")
    (skill / "absolute").symlink_to(skill / "scripts" / "run.py")
    files, directories = read(skill)
    assert files["scripts/lib.py"] == files["scripts/shared/lib.py"] == files["shared/lib.py"] == (b"x = 1\n", False)
    assert files["absolute"] == (b"print('hello')\n", True)
    assert directories == ["scripts", "scripts/shared", "shared"]


def test_skill_folder_may_itself_be_a_link(skill: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to(skill)
    assert read(tmp_path / "link") == read(skill)


@pytest.mark.parametrize("target", [".", "..", "../scripts", "../.."])
def test_link_back_to_where_it_lies_is_refused(skill: pathlib.Path, target: str) -> None:
    (skill / "scripts" / "again").symlink_to(target)
    message = refusal(skill)
    expected = "leads out of the skill folder" if target == "../.." else "has no end"
    assert "'scripts/again'" in message
    assert expected in message


def test_links_that_lead_to_each_other_are_refused(skill: pathlib.Path) -> None:
    (skill / "a").mkdir()
    (skill / "b").mkdir()
    (skill / "a" / "to-b").symlink_to("../b")
    (skill / "b" / "to-a").symlink_to("../a")
    assert "has no end" in refusal(skill)


def test_links_that_multiply_are_counted(skill: pathlib.Path) -> None:
    for depth in range(20):
        (skill / f"d{depth}").mkdir()
        for name in "ab":
            (skill / f"d{depth}" / name).symlink_to(f"../d{depth + 1}")
    (skill / "d20").mkdir()
    assert "more than 10,000 files and directories" in refusal(skill)


def test_escaping_link_is_refused(skill: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (skill / "scripts" / "x").symlink_to(tmp_path / "secret")
    message = refusal(skill)
    assert "'scripts/x'" in message
    assert "leads out of the skill folder; put a copy of its target in its place" in message


def test_sibling_whose_name_begins_alike_is_outside(skill: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "demo-secret").mkdir()
    (skill / "x").symlink_to(tmp_path / "demo-secret")
    assert "leads out" in refusal(skill)


def test_dangling_link_is_refused(skill: pathlib.Path) -> None:
    (skill / "x").symlink_to("absent")
    assert "'x'" in refusal(skill)
    assert "leads nowhere; remove it or restore its target" in refusal(skill)


def test_link_to_itself_is_refused(skill: pathlib.Path) -> None:
    (skill / "x").symlink_to("x")
    assert "cannot be followed" in refusal(skill)


def test_named_pipe_is_refused_without_waiting_for_a_writer(skill: pathlib.Path) -> None:
    os.mkfifo(skill / "pipe")
    assert "'pipe'" in refusal(skill)
    assert "is a named pipe" in refusal(skill)


def test_socket_is_refused(skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(skill)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        assert "is a socket" in refusal(skill)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (b"bad\xff", "is not valid UTF-8"),
        (b"a\nb", "control character"),
        (b"a\x1bb", "control character"),
        ("a\x9bb".encode(), "control character"),
        (b"a\\b", "backslash"),
    ],
)
def test_names_that_cannot_be_carried_are_refused(skill: pathlib.Path, name: bytes, fault: str) -> None:
    (skill / os.fsdecode(name)).write_text("x")
    message = refusal(skill)
    assert fault in message
    assert message.isprintable()


def test_folder_without_skill_md_is_refused(skill: pathlib.Path) -> None:
    (skill / "SKILL.md").rename(skill / "Skill.md")
    assert "has no SKILL.md; rename 'Skill.md'" in refusal(skill)
    (skill / "Skill.md").unlink()
    assert "has no SKILL.md; name the folder that holds it" in refusal(skill)


def test_skill_md_must_be_a_file_of_the_folder(skill: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (skill / "SKILL.md").rename(tmp_path / "SKILL.md")
    (skill / "SKILL.md").symlink_to(tmp_path / "SKILL.md")
    assert "leads out" in refusal(skill)
    (skill / "SKILL.md").unlink()
    (skill / "SKILL.md").mkdir()
    assert "is no file" in refusal(skill)


def test_what_is_no_folder_is_refused(skill: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert "there is no skill folder" in refusal(tmp_path / "absent")
    assert "is a file; name the folder" in refusal(skill / "SKILL.md")


def test_bounds_are_exact(skill: pathlib.Path) -> None:
    size = sum(len(content) for content, _ in read(skill)[0].values())
    read(skill, entries=3, size_bytes=size)
    assert "more than 2 files and directories" in refusal(skill, entries=2)
    assert f"more than {size - 1} bytes" in refusal(skill, size_bytes=size - 1)


def test_unreadable_file_is_refused(skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def no_access(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "run.py":
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", no_access)
    message = refusal(skill)
    assert "'scripts/run.py'" in message
    assert "cannot be read (Permission denied); correct its permissions or remove it" in message


def test_file_that_becomes_a_link_while_it_is_looked_at_is_not_followed(
    skill: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    script = skill / "scripts" / "run.py"
    real_open = os.open

    def swap(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "run.py" and not script.is_symlink():
            script.unlink()
            script.symlink_to(tmp_path / "secret")
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    assert "'scripts/run.py'" in refusal(skill)


def test_directory_that_becomes_a_link_while_it_is_looked_at_is_not_followed(
    skill: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("secret")
    scripts = skill / "scripts"
    real_open = os.open

    def swap(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "scripts" and not scripts.is_symlink():
            scripts.rename(tmp_path / "gone")
            scripts.symlink_to(tmp_path / "secrets")
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    assert "'scripts'" in refusal(skill)


def test_no_descriptor_stays_open(skill: pathlib.Path) -> None:
    (skill / "scripts" / "run-again.py").symlink_to("run.py")
    before = sorted(one.name for one in pathlib.Path("/dev/fd").iterdir())
    read(skill)
    os.mkfifo(skill / "scripts" / "pipe")
    refusal(skill)
    assert sorted(one.name for one in pathlib.Path("/dev/fd").iterdir()) == before
    assert stat.S_ISFIFO((skill / "scripts" / "pipe").stat().st_mode)
