"""What goes to the daemon, and what happens when its store and the disk change meanwhile."""

import pathlib
import threading

import grpc
import pytest
import skilljail

from .fake_daemon import FakeDaemon, Refusal


def test_only_what_the_daemon_lacks_is_uploaded(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    assert client.run(skill, "scripts/run.py").ok
    assert fake.calls == ["FindMissing", "Upload", "RunScript"]
    assert fake.staged() == {
        "SKILL.md": (skill / "SKILL.md").read_bytes(),
        "scripts/run.py": b"print('hello')\n",
    }
    before = dict(fake.blobs)
    (skill / "new.txt").write_text("new")
    fake.calls.clear()
    assert client.run(skill, "scripts/run.py").ok
    assert fake.calls == ["FindMissing", "Upload", "RunScript"]
    assert sorted(fake.blobs[one] for one in fake.blobs.keys() - before.keys() - {fake.requests[-1].bundle_digest}) == [
        b"new"
    ]


def test_known_bundle_is_not_asked_for_again(fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path) -> None:
    client.run(skill, "scripts/run.py")
    fake.calls.clear()
    client.run(skill, "scripts/run.py")
    assert fake.calls == ["RunScript"]


def test_second_client_uploads_nothing(fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path) -> None:
    client.run(skill, "scripts/run.py")
    fake.calls.clear()
    with skilljail.Client(fake.address) as other:
        other.run(skill, "scripts/run.py")
    assert fake.calls == ["FindMissing", "RunScript"]


def test_changed_skill_is_staged_anew(fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path) -> None:
    client.run(skill, "scripts/run.py")
    (skill / "scripts" / "run.py").write_text("print('HELLO')\n")
    client.run(skill, "scripts/run.py")
    assert fake.staged()["scripts/run.py"] == b"print('HELLO')\n"


def test_bundle_that_was_dropped_is_uploaded_again(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    client.run(skill, "scripts/run.py")
    fake.blobs.clear()
    fake.calls.clear()
    assert client.run(skill, "scripts/run.py").ok
    assert fake.calls == ["RunScript", "FindMissing", "Upload", "RunScript"]


def test_blob_that_is_dropped_between_upload_and_run_is_uploaded_again(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    fake.before_run = lambda attempt: fake.blobs.clear() if attempt == 1 else None
    assert client.run(skill, "scripts/run.py").ok
    assert fake.calls == ["FindMissing", "Upload", "RunScript", "FindMissing", "Upload", "RunScript"]


def test_store_that_drops_everything_ends_in_a_clear_error(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    fake.before_run = lambda _attempt: fake.blobs.clear()
    with pytest.raises(skilljail.BundleMissing, match="dropped the skill's content 3 times") as caught:
        client.run(skill, "scripts/run.py")
    assert fake.calls.count("RunScript") == 3
    assert caught.value.reason == "BUNDLE_MISSING"
    assert [(one.kind, one.subject) for one in caught.value.violations] == [
        ("MISSING", fake.requests[-1].bundle_digest)
    ]
    fake.before_run = lambda _attempt: None
    fake.calls.clear()
    assert client.run(skill, "scripts/run.py").ok
    assert fake.calls == ["FindMissing", "Upload", "RunScript"]


def test_missing_blob_that_is_not_ours_is_not_sent(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeDaemon, "_missing", lambda *_: ("sha256:" + "0" * 64,))
    with pytest.raises(skilljail.BundleMissing):
        client.run(skill, "scripts/run.py")
    assert fake.calls.count("Upload") == 1


def test_file_that_changes_between_hashing_and_upload_is_never_sent_whole(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    big = skill / "big.bin"
    big.write_bytes(b"a" * 3_000_000)
    _change_before_upload(fake, big, b"b" * 3_000_000)
    with pytest.raises(skilljail.SkillInvalid, match=r"'big\.bin' of .* changed while it was staged; try again"):
        client.run(skill, "scripts/run.py")
    assert b"b" * 3_000_000 not in fake.blobs.values()
    assert "RunScript" not in fake.calls
    assert caplog.records == []


async def test_file_that_changes_is_noticed_by_the_asynchronous_client_too(
    fake: FakeDaemon, skill: pathlib.Path
) -> None:
    big = skill / "big.bin"
    big.write_bytes(b"a" * 3_000_000)
    _change_before_upload(fake, big, b"b" * 3_000_001)
    async with skilljail.AsyncClient(fake.address) as client:
        with pytest.raises(skilljail.SkillInvalid, match="changed while it was staged"):
            await client.run(skill, "scripts/run.py")
    assert "RunScript" not in fake.calls


def test_file_that_vanishes_between_hashing_and_upload_is_named(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    _change_before_upload(fake, skill / "scripts" / "run.py", None)
    with pytest.raises(skilljail.SkillInvalid, match=r"'scripts/run\.py' of .* changed"):
        client.run(skill, "scripts/run.py")


def _change_before_upload(fake: FakeDaemon, path: pathlib.Path, content: bytes | None) -> None:
    find = fake.FindMissing

    def change_and_find(request: object, context: object) -> object:
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)
        return find(request, context)

    fake.stop()
    fake.FindMissing = change_and_find  # type: ignore[method-assign]
    fake.start()


def test_daemon_that_refuses_an_upload_is_heard(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    (skill / "big.bin").write_bytes(b"a" * 3_000_000)
    _refuse_uploads(fake)
    with pytest.raises(skilljail.StoreFull, match="the store is full") as caught:
        client.run(skill, "scripts/run.py")
    assert caught.value.reason == "STORE_FULL"


async def test_asynchronous_client_hears_a_refused_upload(fake: FakeDaemon, skill: pathlib.Path) -> None:
    (skill / "big.bin").write_bytes(b"a" * 30_000_000)
    _refuse_uploads(fake)
    async with skilljail.AsyncClient(fake.address) as client:
        with pytest.raises(skilljail.StoreFull, match="the store is full"):
            await client.run(skill, "scripts/run.py")


def _refuse_uploads(fake: FakeDaemon) -> None:
    def refuse(_requests: object, context: grpc.ServicerContext) -> None:
        Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "STORE_FULL", "the store is full").abort(context)

    fake.stop()
    fake.Upload = refuse  # type: ignore[method-assign, assignment]
    fake.start()


def test_bounds_of_the_daemon_are_asked_for_only_when_the_usual_ones_do_not_suffice(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skilljail._base_client.Bounds.__init__.__defaults__", (3, 1024))
    (skill / "more.txt").write_text("more")
    fake.bundle_entries_max = 4
    assert client.run(skill, "scripts/run.py").ok
    assert fake.calls == ["GetCapabilities", "FindMissing", "Upload", "RunScript"]
    (skill / "yet-more.txt").write_text("more")
    fake.calls.clear()
    with pytest.raises(skilljail.SkillInvalid, match="more than 4 files and directories"):
        client.run(skill, "scripts/run.py")
    assert fake.calls == []


def test_many_files_are_asked_for_in_lists_that_the_contract_allows(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    for number in range(9_997):
        (skill / f"{number}.txt").write_text(str(number))
    assert client.run(skill, "scripts/run.py").ok
    assert len(fake.staged()) == 9_999
    assert fake.calls == ["FindMissing", "Upload", "RunScript"]


def test_inputs_come_as_content_or_as_files(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    tool = tmp_path / "tool.sh"
    tool.write_text("echo")
    tool.chmod(0o755)
    client.run(skill, "scripts/run.py", inputs={"data/a.bin": b"\x00\xff", "tool": tool})
    assert [(one.path, one.content, one.executable) for one in fake.requests[-1].files] == [
        ("data/a.bin", b"\x00\xff", False),
        ("tool", b"echo", True),
    ]


def test_inputs_that_have_no_room_in_the_request_are_uploaded(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    large = b"x" * (4 * 1024 * 1024)
    client.run(skill, "scripts/run.py", inputs={"large": large, "small": b"s"})
    assert [(one.path, one.WhichOneof("source")) for one in fake.requests[-1].files] == [
        ("small", "content"),
        ("large", "digest"),
    ]
    assert fake.staged()["large"] == large


def test_input_file_that_cannot_be_read_is_named(
    client: skilljail.Client, skill: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(skilljail.InvalidRequest, match="absent' cannot be read: No such file"):
        client.run(skill, "scripts/run.py", inputs={"a": tmp_path / "absent"})
    with pytest.raises(skilljail.InvalidRequest, match="is no regular file"):
        client.run(skill, "scripts/run.py", inputs={"a": tmp_path})


def test_threads_may_share_a_client(client: skilljail.Client, skill: pathlib.Path) -> None:
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(client.run(skill, "scripts/run.py").ok)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
