"""Saving artifacts: whatever their names say, nothing outside the directory is touched."""

import hashlib
import pathlib

import pytest
import skilljail


def artifact(path: str, content: bytes = b"content", *, executable: bool = False) -> skilljail.Artifact:
    return skilljail.Artifact(
        path=path,
        size_bytes=len(content),
        digest=f"sha256:{hashlib.sha256(content).hexdigest()}",
        media_type="text/plain",
        executable=executable,
        content=content,
    )


def tree(root: pathlib.Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(root.rglob("*"))
    }


def test_artifact_is_saved_below_the_directory_that_is_made_for_it(tmp_path: pathlib.Path) -> None:
    saved = artifact("out/deep/a.txt", b"\x00\xff").save(tmp_path / "new" / "dir")
    assert saved == tmp_path / "new" / "dir" / "out" / "deep" / "a.txt"
    assert tree(tmp_path / "new") == {
        "dir": None,
        "dir/out": None,
        "dir/out/deep": None,
        "dir/out/deep/a.txt": b"\x00\xff",
    }


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "../x",
        "a/../../x",
        "/etc/x",
        "a//b",
        "./a",
        ".",
        "a\\..\\b",
        "a\0b",
        "a\nb",
        "\x1b[2J",
        "\ud800",
        "x" * 256,
        "a/" * 40 + "x",
    ],
)
def test_hostile_path_is_refused_and_nothing_is_written(tmp_path: pathlib.Path, path: str) -> None:
    target = tmp_path / "dir"
    target.mkdir()
    with pytest.raises(skilljail.ArtifactRefused) as caught:
        artifact(path).save(target)
    assert tree(tmp_path) == {"dir": None}
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("overwrite", [False, True])
def test_linked_directory_on_the_way_is_not_followed(tmp_path: pathlib.Path, overwrite: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "dir"
    target.mkdir()
    (target / "out").symlink_to(outside)
    with pytest.raises(skilljail.ArtifactRefused, match="links below that directory are not followed"):
        artifact("out/a.txt").save(target, overwrite=overwrite)
    assert tree(outside) == {}


def test_linked_file_is_neither_followed_nor_replaced(tmp_path: pathlib.Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    target = tmp_path / "dir"
    target.mkdir()
    (target / "a.txt").symlink_to(victim)
    (target / "dangling").symlink_to(tmp_path / "made")
    for name in ("a.txt", "dangling"):
        with pytest.raises(skilljail.ArtifactRefused, match="already has something of that name"):
            artifact(name).save(target)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "made").exists()


def test_overwriting_replaces_the_link_and_not_its_target(tmp_path: pathlib.Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    target = tmp_path / "dir"
    target.mkdir()
    (target / "a.txt").symlink_to(victim)
    artifact("a.txt", b"new").save(target, overwrite=True)
    assert victim.read_text() == "mine"
    assert tree(target) == {"a.txt": b"new"}
    assert not (target / "a.txt").is_symlink()


def test_existing_file_is_replaced_only_when_asked(tmp_path: pathlib.Path) -> None:
    artifact("a.txt", b"first").save(tmp_path)
    with pytest.raises(skilljail.ArtifactRefused, match="already has something of that name"):
        artifact("a.txt", b"second").save(tmp_path)
    assert tree(tmp_path) == {"a.txt": b"first"}
    artifact("a.txt", b"second").save(tmp_path, overwrite=True)
    assert tree(tmp_path) == {"a.txt": b"second"}


def test_directory_and_file_of_one_name_do_not_mix(tmp_path: pathlib.Path) -> None:
    artifact("a", b"file").save(tmp_path)
    with pytest.raises(skilljail.ArtifactRefused):
        artifact("a/b").save(tmp_path, overwrite=True)
    artifact("c/d").save(tmp_path)
    with pytest.raises(skilljail.ArtifactRefused):
        artifact("c").save(tmp_path, overwrite=True)
    assert tree(tmp_path) == {"a": b"file", "c": None, "c/d": b"content"}


def test_saved_file_is_never_executable(tmp_path: pathlib.Path) -> None:
    saved = artifact("tool.sh", executable=True).save(tmp_path)
    assert saved.stat().st_mode & 0o111 == 0
    assert saved.stat().st_mode & 0o600 == 0o600


def test_file_system_without_hard_links_is_good_enough(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_arguments: object, **_options: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    artifact("a.txt", b"first").save(tmp_path)
    with pytest.raises(skilljail.ArtifactRefused, match="already has something of that name"):
        artifact("a.txt", b"second").save(tmp_path)
    assert tree(tmp_path) == {"a.txt": b"first"}


def test_path_check_alone_holds_where_directories_cannot_be_held_open(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skilljail._output_directory._HAS_DIRECTORY_FDS", False)
    target = tmp_path / "dir"
    target.mkdir()
    (target / "link").symlink_to(tmp_path)
    artifact("out/a.txt").save(target)
    for path in ("link/x", "../x"):
        with pytest.raises(skilljail.ArtifactRefused):
            artifact(path).save(target)
    with pytest.raises(skilljail.ArtifactRefused):
        artifact("out/a.txt", b"second").save(target)
    artifact("out/a.txt", b"second").save(target, overwrite=True)
    assert tree(tmp_path) == {"dir": None, "dir/link": None, "dir/out": None, "dir/out/a.txt": b"second"}
