"""Saving artifacts: whatever their names say, nothing outside the directory is touched."""

import contextlib
import hashlib
import os
import pathlib
import subprocess

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


@pytest.mark.parametrize(
    "name",
    [
        ".git",
        ".GIT",
        ".Hg",
        ".svn",
        "_svn",
        ".jj",
        ".bzr",
        "CVS",
        ".\u017fvn",
        ".git.",
        ".git . ",
        ".git::$INDEX_ALLOCATION",
        ".g\u200cit",
        "\ufeff.git",
        ".gi\u206ft",
        ".git\u200b",
        "git~1",
        "GIT~2 ",
        "hg~1",
        "svn~1",
    ],
)
def test_repository_is_never_written(tmp_path: pathlib.Path, name: str) -> None:
    target = tmp_path / "dir"
    target.mkdir()
    for path in (name, f"{name}/config", f"out/sub/{name}/hooks/x"):
        with pytest.raises(skilljail.ArtifactRefused, match=r"version control.* under another name") as caught:
            artifact(path).save(target)
        assert caught.value.reason == "ARTIFACT_REFUSED"
        assert str(caught.value).isprintable()
    assert tree(tmp_path) == {"dir": None}


@pytest.mark.parametrize("name", [".gitignore", ".github", "git", "hg", ".git-x", "x.git", "git~", "a~1"])
def test_names_that_only_look_like_a_repository_are_saved(tmp_path: pathlib.Path, name: str) -> None:
    artifact(f"{name}/{name}").save(tmp_path)
    assert tree(tmp_path) == {name: None, f"{name}/{name}": b"content"}


@pytest.mark.parametrize("name", ["HEAD", "head", "HEAD."])
@pytest.mark.parametrize("content", [b"ref: refs/heads/x\n", b"ref:\n refs/x", b"a" * 40, b"A" * 64 + b"\n"])
def test_directory_never_becomes_a_bare_repository(tmp_path: pathlib.Path, name: str, content: bytes) -> None:
    with pytest.raises(skilljail.ArtifactRefused, match="bare repository"):
        artifact(f"out/{name}", content).save(tmp_path / "dir")
    artifact("out/HEAD", b"a heading\n").save(tmp_path)
    artifact("out/other", content).save(tmp_path)
    assert tree(tmp_path) == {"out": None, "out/HEAD": b"a heading\n", "out/other": content}


GIT_CONFIG = (
    b'[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = "%s"\n\tfsmonitor = "touch PWNED; false"\n'
)


@pytest.mark.parametrize("prefix", ["out/sub/.git", "out/sub"])
def test_git_in_the_directory_executes_nothing(tmp_path: pathlib.Path, prefix: str) -> None:
    where = tmp_path / "dir" / "out" / "sub"
    contents = {
        "HEAD": b"ref: refs/heads/main\n",
        "config": GIT_CONFIG % str(where).encode(),
        "objects/x": b"",
        "refs/x": b"",
    }
    for name, content in {f"{prefix}/{name}": one for name, one in contents.items()}.items():
        with contextlib.suppress(skilljail.ArtifactRefused):
            artifact(name, content).save(tmp_path / "dir")
    artifact("out/sub/a.txt").save(tmp_path / "dir")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run(["git", "status"], cwd=where, env=environment, check=False, capture_output=True, timeout=60)
    assert not list(tmp_path.rglob("PWNED"))


def result_with(*artifacts: skilljail.Artifact) -> skilljail.RunResult:
    return skilljail.RunResult(
        run_id="run-1",
        outcome=skilljail.Outcome.EXITED,
        exit_code=0,
        signal=None,
        message="",
        usage=skilljail.Usage(0.1, None, None, 0, 0, False, None, None, False),
        phases=skilljail.Phases(None, None, None, None, None),
        artifacts=artifacts,
        skipped_artifacts=(),
        skipped_artifacts_omitted=0,
        stdout=b"",
        stderr=b"",
        started=None,
    )


def test_what_is_safe_is_saved_and_the_rest_is_told(tmp_path: pathlib.Path) -> None:
    result = result_with(artifact("a"), artifact(".git/config"), artifact("b"), artifact("../x"), artifact("c"))
    target = tmp_path / "dir"
    with pytest.raises(skilljail.ArtifactRefused) as caught:
        result.save_artifacts(target)
    assert tree(tmp_path) == {"dir": None, "dir/a": b"content", "dir/b": b"content", "dir/c": b"content"}
    assert caught.value.saved == (target / "a", target / "b", target / "c")
    assert [one.metadata["path"] for one in caught.value.refusals] == [".git/config", "../x"]
    assert str(caught.value) == f"{caught.value.refusals[0]} (and 1 more was not saved; 3 were)"


def test_a_single_refusal_is_raised_as_it_is(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(skilljail.ArtifactRefused, match="already has something of that name") as caught:
        result_with(artifact("a"), artifact("b")).save_artifacts(tmp_path)
    assert (caught.value.reason, caught.value.saved) == ("ARTIFACT_EXISTS", (tmp_path / "b",))
    assert [str(one) for one in caught.value.refusals] == [str(caught.value)]
    with pytest.raises(skilljail.ArtifactRefused) as alone:
        artifact("a").save(tmp_path)
    assert (alone.value.saved, alone.value.refusals) == ((), (alone.value,))


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
