"""Blobs on disk."""

import collections
import contextlib
import hashlib
import os
import pathlib
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skilljaild.bundles import store as module
from skilljaild.bundles.digest import digest_of
from skilljaild.bundles.store import BLOCK_BYTES, WRITERS_MAX, BlobStore, BlobStores, BlobWriter
from skilljaild.errors import Reason, Refusal

from .orders import put

STORE_BYTES = 10 * BLOCK_BYTES


@pytest.fixture
def store(tmp_path: pathlib.Path) -> BlobStore:
    """An empty store with room for ten of the smallest blobs."""
    return BlobStore(tmp_path / "blobs", STORE_BYTES)


def counted(directory: pathlib.Path) -> int:
    """What the files of a store count for."""
    return sum(max(path.stat().st_size, BLOCK_BYTES) for path in directory.iterdir())


def blob(number: int, size: int = BLOCK_BYTES) -> bytes:
    """A content that no other number has."""
    return f"{number}-".encode() + b"x" * (size - len(f"{number}-"))


def path_of(store: BlobStore, digest: str) -> pathlib.Path:
    """Where a blob is on disk."""
    return store._directory / digest.removeprefix("sha256:")


def on_disk(store: BlobStore) -> set[str]:
    """Names of the files in a store's directory, as digests where they are some."""
    return {path.name if path.name.startswith("new-") else f"sha256:{path.name}" for path in store._directory.iterdir()}


def refused(action: Callable[[], object]) -> Refusal:
    """Why an action is refused."""
    with pytest.raises(Refusal) as caught:
        action()
    return caught.value


def test_a_blob_comes_back_as_it_was_stored(store: BlobStore) -> None:
    for content in (b"", b"hello", bytes(range(256))):
        digest = put(store, content)
        assert store.read(digest, len(content)) == content
        assert store.size(digest) == len(content)
    assert store.size(digest_of(b"never")) is None
    assert len(on_disk(store)) == 3


def test_only_the_daemon_can_read_what_is_stored(store: BlobStore) -> None:
    assert stat.S_IMODE(store._directory.stat().st_mode) == 0o700


def test_missing_names_each_blob_once_that_is_not_here(store: BlobStore) -> None:
    here, gone, other = put(store, b"here"), digest_of(b"gone"), digest_of(b"other")
    assert store.missing([gone, here, gone, other, here]) == [gone, other]
    assert store.missing([]) == []


def test_storing_again_what_is_here_changes_nothing(store: BlobStore) -> None:
    digest = put(store, b"twice")
    before = path_of(store, digest).stat().st_ino
    assert put(store, b"twice") == digest
    assert path_of(store, digest).stat().st_ino == before
    assert store._bytes == BLOCK_BYTES
    assert on_disk(store) == {digest}


def test_the_least_recently_used_goes_first(store: BlobStore) -> None:
    digests = [put(store, blob(number)) for number in range(10)]
    # Asking counts as using, in each of the ways that a caller can ask.
    assert store.missing([digests[0]]) == []
    with store.pinned([digests[1]]):
        pass
    put(store, blob(1))
    newest = put(store, blob(10, 3 * BLOCK_BYTES))
    assert store.missing(digests) == digests[2:5]
    assert on_disk(store) == {newest, *digests[:2], *digests[5:]}
    assert store._bytes == STORE_BYTES


def test_a_blob_larger_than_the_store_is_refused_before_anything_is_written(store: BlobStore) -> None:
    kept = put(store, b"kept")
    found = refused(lambda: store.writer(digest_of(b""), STORE_BYTES + 1))
    assert found.reason is Reason.STORE_FULL
    assert "40,961 bytes are more than this store takes (40,960)" in found.message
    assert "bundles.store_bytes" in found.message
    assert on_disk(store) == {kept}
    store.writer(digest_of(b""), STORE_BYTES).__exit__()


def test_blobs_in_use_are_never_dropped_and_idle_ones_not_for_nothing(store: BlobStore) -> None:
    used = [put(store, blob(number, 3 * BLOCK_BYTES)) for number in range(2)]
    idle = put(store, blob(2, 3 * BLOCK_BYTES))
    with store.pinned([*used, used[0]]) as missing:
        assert missing == []
        found = refused(lambda: put(store, blob(3, 5 * BLOCK_BYTES)))
        assert (found.reason, found.retry_seconds) == (Reason.STORE_FULL, 5)
        assert (
            "is full of blobs that runs are using or that are being uploaded; try again when they are over"
            in found.message
        )
        assert on_disk(store) == {*used, idle}
        put(store, blob(3, 4 * BLOCK_BYTES))
        assert store.missing([*used, idle]) == [idle]
    put(store, blob(4, STORE_BYTES))
    assert len(on_disk(store)) == 1


def test_pinning_tells_what_is_not_here(store: BlobStore) -> None:
    here, gone = put(store, b"here"), digest_of(b"gone")
    with store.pinned([gone, here, gone]) as missing:
        assert missing == [gone]


def test_two_runs_may_hold_the_same_blob(store: BlobStore) -> None:
    digest = put(store, blob(0))
    with store.pinned([digest]):
        with store.pinned([digest]):
            pass
        assert refused(lambda: put(store, blob(1, STORE_BYTES))).reason is Reason.STORE_FULL
    put(store, blob(1, STORE_BYTES))
    assert store.size(digest) is None


def test_a_blob_that_is_dropped_and_stored_again_while_it_was_pinned_can_be_dropped_later(store: BlobStore) -> None:
    digest = put(store, blob(0))
    with store.pinned([digest]):
        path_of(store, digest).write_bytes(b"spoilt")
        assert refused(lambda: store.read(digest, BLOCK_BYTES)).reason is Reason.BUNDLE_MISSING
        put(store, blob(0))
    put(store, blob(1, STORE_BYTES))
    assert store.size(digest) is None


@pytest.mark.parametrize(
    ("announced", "pieces", "message"),
    [
        (3, [b"ab", b"cd"], "more than the 3 bytes that its header announced"),
        (0, [b"a"], "more than the 0 bytes that its header announced"),
        (5, [b"abcd"], "4 bytes came, its header announced 5"),
        (4, [b"abcX"], "the bytes have another digest"),
        (4, [], "0 bytes came, its header announced 4"),
    ],
)
def test_bytes_that_are_not_what_was_announced_are_refused(
    store: BlobStore, announced: int, pieces: list[bytes], message: str
) -> None:
    digest = digest_of(b"abcd")

    def upload() -> None:
        with store.writer(digest, announced) as writer:
            for piece in pieces:
                writer.write(piece)
            writer.commit()

    found = refused(upload)
    assert (found.reason, found.message) == (Reason.BLOB_INVALID, f"blob {digest}: {message}")
    assert on_disk(store) == set()
    assert store.missing([digest]) == [digest]


def test_what_is_not_committed_leaves_nothing(store: BlobStore) -> None:
    with store.writer(digest_of(b"abc"), 3) as writer:
        writer.write(b"abc")
        assert len(on_disk(store)) == 1
    assert on_disk(store) == set()


def test_what_is_being_written_counts_from_its_announcement_on(store: BlobStore) -> None:
    kept = put(store, blob(0))
    with store.pinned([kept]), store.writer(digest_of(b"never comes"), 5 * BLOCK_BYTES):
        found = refused(lambda: store.writer(digest_of(b"x"), 4 * BLOCK_BYTES + 1))
        assert (found.reason, found.retry_seconds) == (Reason.STORE_FULL, 5)
        with store.writer(digest_of(b"x"), 4 * BLOCK_BYTES):
            assert store._bytes == STORE_BYTES
            assert refused(lambda: put(store, b"")).reason is Reason.STORE_FULL
        put(store, b"")
    assert store._bytes == counted(store._directory) == 2 * BLOCK_BYTES


def test_room_for_what_is_being_written_is_made_when_it_is_announced(store: BlobStore) -> None:
    digests = [put(store, blob(number)) for number in range(10)]
    with store.writer(digest_of(b"x"), 3 * BLOCK_BYTES):
        assert store.missing(digests) == digests[:3]
        assert on_disk(store) > set(digests[3:])


@pytest.mark.parametrize("end", ["committed", "there already", "left", "wrong"])
def test_a_writer_gives_its_room_back_however_it_ends(store: BlobStore, end: str) -> None:
    content = blob(0, 2 * BLOCK_BYTES)
    if end == "there already":
        put(store, content)
    with contextlib.suppress(Refusal), store.writer(digest_of(content), len(content)) as writer:
        writer.write(content if end != "wrong" else content[:-1])
        if end != "left":
            writer.commit()
    assert store._writers == 0
    assert (
        store._bytes == counted(store._directory) == (2 * BLOCK_BYTES if end in {"committed", "there already"} else 0)
    )


def test_a_writer_whose_file_cannot_be_made_holds_nothing(store: BlobStore) -> None:
    store._directory.rmdir()
    with pytest.raises(FileNotFoundError):
        store.writer(digest_of(b""), 0)
    assert (store._writers, store._bytes) == (0, 0)


def test_so_many_blobs_of_a_tenant_are_written_at_one_time(tmp_path: pathlib.Path) -> None:
    store = BlobStore(tmp_path, 1 << 20)
    with contextlib.ExitStack() as stack:
        writers: list[BlobWriter] = [
            stack.enter_context(store.writer(digest_of(b""), 0)) for number in range(WRITERS_MAX - 1)
        ]
        with store.writer(digest_of(b""), 0):
            found = refused(lambda: store.writer(digest_of(b""), 0))
            assert (found.reason, found.retry_seconds) == (Reason.STORE_FULL, 1)
            assert "16 uploads are under way, as many as are taken at one time; try again" in found.message
            assert len(writers) + 1 == len(on_disk(store)) == 16
        put(store, b"")
    assert (store._writers, store._bytes) == (0, BLOCK_BYTES)


def test_the_smallest_blobs_count_for_the_disk_that_they_take(store: BlobStore) -> None:
    digests = [put(store, b"%d" % number) for number in range(100)]
    assert store.missing(digests) == digests[:90]
    assert len(on_disk(store)) == 10


def test_what_a_full_store_holds_is_not_looked_through_for_each_blob(store: BlobStore) -> None:
    """Room is made from the least recently used on; how many blobs there are besides does not matter."""
    looked_at: list[str] = []

    class Watched(collections.OrderedDict[str, module._Blob]):
        def items(self) -> Any:
            for digest, one in super().items():
                looked_at.append(digest)
                yield digest, one

    for number in range(9):
        put(store, blob(number))
    store._blobs = Watched(store._blobs)
    put(store, blob(9))
    assert len(looked_at) <= 1
    put(store, blob(10))
    assert len(looked_at) <= 3


def test_mtimes_are_written_at_most_once_a_minute_and_never_under_the_lock(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def utime(path: pathlib.Path) -> None:
        assert not store._lock.locked()
        written.append(f"sha256:{path.name}")

    now = time.time()
    digests = [put(store, blob(number)) for number in range(3)]
    monkeypatch.setattr(os, "utime", utime)

    def use(seconds: float) -> list[str]:
        written.clear()
        monkeypatch.setattr(time, "time", lambda: now + seconds)
        assert store.missing(digests) == []
        with store.pinned(digests):
            pass
        put(store, blob(2))
        return list(written)

    assert use(50) == []
    assert use(100) == digests
    assert use(150) == []
    assert use(200) == digests
    assert use(100) == digests  # a clock that was set back


@pytest.mark.parametrize("spoil", ["other bytes", "longer", "shorter", "gone"])
def test_a_blob_that_the_disk_spoilt_is_never_given_out_and_can_be_stored_again(store: BlobStore, spoil: str) -> None:
    digest = put(store, b"content")
    path = path_of(store, digest)
    if spoil == "gone":
        path.unlink()
    else:
        path.write_bytes({"other bytes": b"CONTENT", "longer": b"content!", "shorter": b"conten"}[spoil])
    found = refused(lambda: store.read(digest, 7))
    assert found.reason is Reason.BUNDLE_MISSING
    assert found.message == f"blob {digest} is not on this daemon any more; upload it again"
    assert (on_disk(store), store._bytes) == (set(), 0)
    assert store.missing([digest]) == [digest]
    put(store, b"content")
    assert store.read(digest, 7) == b"content"


def test_reading_what_never_was_is_refused(store: BlobStore) -> None:
    assert refused(lambda: store.read(digest_of(b"x"), 10)).reason is Reason.BUNDLE_MISSING


def test_a_restart_keeps_blobs_and_their_age_and_removes_what_a_crash_left(tmp_path: pathlib.Path) -> None:
    first = BlobStore(tmp_path, STORE_BYTES)
    digests = [put(first, blob(number)) for number in range(4)]
    for age, digest in enumerate(reversed(digests)):
        os.utime(path_of(first, digest), (1_000 + age, 1_000 + age))
    first.writer(digest_of(b"half"), 100).write(b"ha")
    (tmp_path / "stranger").write_bytes(b"?")
    (tmp_path / ("A" * 64)).write_bytes(b"?")

    second = BlobStore(tmp_path, STORE_BYTES)
    assert on_disk(second) == set(digests)
    assert second.missing(digests) == []
    assert second._bytes == 4 * BLOCK_BYTES

    # A store that its operator made smaller drops the oldest at once.
    for kept in (digests[:2], digests[2:], digests[1:3]):
        for digest in digests:
            put(first, blob(digests.index(digest)))
            age = 2_000 if digest in kept else 1_000
            os.utime(path_of(first, digest), (age, age))
        third = BlobStore(tmp_path, 2 * BLOCK_BYTES + 1_000)
        assert on_disk(third) == set(kept)
        first = BlobStore(tmp_path, STORE_BYTES)


def test_tenants_do_not_see_each_other(tmp_path: pathlib.Path) -> None:
    stores = BlobStores(tmp_path, STORE_BYTES)
    digest = put(stores.of("cn:a"), b"secret")
    assert stores.of("cn:a").missing([digest]) == []
    assert stores.of("cn:b").missing([digest]) == [digest]
    assert refused(lambda: stores.of("cn:b").read(digest, 10)).reason is Reason.BUNDLE_MISSING
    assert stores.of("cn:a") is stores.of("cn:a")
    # A full store of one takes nothing from the other.
    put(stores.of("cn:b"), blob(0, STORE_BYTES))
    assert stores.of("cn:a").missing([digest]) == []


@pytest.mark.parametrize("tenant", ["../../etc", "/", "", ".", "a\0b", "x" * 5_000, "cn:Ünï"])
def test_a_tenants_name_may_hold_anything(tmp_path: pathlib.Path, tenant: str) -> None:
    stores = BlobStores(tmp_path / "blobs", STORE_BYTES)
    put(stores.of(tenant), b"x")
    (directory,) = (tmp_path / "blobs").iterdir()
    assert directory.name == hashlib.sha256(tenant.encode()).hexdigest()[:32]
    assert list(tmp_path.iterdir()) == [tmp_path / "blobs"]


def test_what_a_killed_daemon_had_half_written_is_removed_though_its_tenant_never_comes_back(
    tmp_path: pathlib.Path,
) -> None:
    stores = BlobStores(tmp_path, STORE_BYTES)
    digest = put(stores.of("cn:a"), b"whole")
    writer = stores.of("cn:a").writer(digest_of(b"half"), 4)
    writer.write(b"ha")
    (directory,) = tmp_path.iterdir()
    assert len(list(directory.iterdir())) == 2
    BlobStores(tmp_path, STORE_BYTES)
    assert [path.name for path in directory.iterdir()] == [digest.removeprefix("sha256:")]
    writer.__exit__()


def test_many_threads_keep_the_store_within_its_bounds_and_its_blobs_whole(tmp_path: pathlib.Path) -> None:
    store = BlobStore(tmp_path, STORE_BYTES)
    contents = [blob(number) for number in range(25)]
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for step in range(40):
                content = contents[(seed * 7 + step * 3) % len(contents)]
                digest = put(store, content)
                with store.pinned([digest]) as missing:
                    if not missing:
                        assert store.read(digest, BLOCK_BYTES) == content
                store.missing([digest])
        except Refusal as error:
            if error.reason is not Reason.STORE_FULL:
                faults.append(error)
        except BaseException as error:  # noqa: BLE001  a thread's fault must reach the test
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert store._bytes == counted(tmp_path) <= STORE_BYTES
    assert store._writers == 0
    assert on_disk(store) == set(store._blobs)
    assert all(one.pins == 0 for one in store._blobs.values())


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["put", "missing", "spoil", "reopen"]), st.integers(0, 14)), max_size=40))
def test_whatever_happens_the_account_is_the_disks(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    directory = tmp_path_factory.mktemp("store")
    store = BlobStore(directory, STORE_BYTES)
    for action, number in steps:
        content = blob(number, 700 * (number + 1))
        digest = digest_of(content)
        match action:
            case "put":
                put(store, content)
                assert store.read(digest, len(content)) == content
            case "missing":
                store.missing([digest])
            case "spoil" if store.size(digest) is not None:
                path_of(store, digest).write_bytes(b"")
                refused(lambda: store.read(digest, len(content)))  # noqa: B023  called at once
            case "reopen":
                store = BlobStore(directory, STORE_BYTES)
        assert on_disk(store) == set(store._blobs)
        assert store._bytes == counted(directory) <= STORE_BYTES
