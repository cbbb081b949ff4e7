"""Blobs on disk."""

import hashlib
import os
import pathlib
import stat
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skilljaild.bundles.digest import digest_of
from skilljaild.bundles.store import BlobStore, BlobStores
from skilljaild.errors import Reason, Refusal

from .orders import put


def blob(number: int, size: int = 100) -> bytes:
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
    assert store._bytes == 5
    assert on_disk(store) == {digest}


def test_the_least_recently_used_goes_first(store: BlobStore) -> None:
    digests = [put(store, blob(number)) for number in range(10)]
    # Asking counts as using, in each of the ways that a caller can ask.
    assert store.missing([digests[0]]) == []
    with store.pinned([digests[1]]):
        pass
    put(store, blob(1))
    newest = put(store, blob(10, 300))
    assert store.missing(digests) == digests[2:5]
    assert on_disk(store) == {newest, *digests[:2], *digests[5:]}
    assert store._bytes == 1_000


def test_a_blob_larger_than_the_store_is_refused_before_anything_is_written(store: BlobStore) -> None:
    kept = put(store, b"kept")
    found = refused(lambda: store.writer(digest_of(b""), 1_001))
    assert found.reason is Reason.STORE_FULL
    assert "1,001 bytes are more than this store takes (1,000)" in found.message
    assert "bundles.store_bytes" in found.message
    assert on_disk(store) == {kept}
    store.writer(digest_of(b""), 1_000).__exit__()


def test_blobs_in_use_are_never_dropped_and_idle_ones_not_for_nothing(store: BlobStore) -> None:
    used = [put(store, blob(number, 300)) for number in range(2)]
    idle = put(store, blob(2, 300))
    with store.pinned([*used, used[0]]) as missing:
        assert missing == []
        found = refused(lambda: put(store, blob(3, 500)))
        assert (found.reason, found.retry_seconds) == (Reason.STORE_FULL, 5)
        assert "is full of blobs that runs are using; try again when they are over" in found.message
        assert on_disk(store) == {*used, idle}
        put(store, blob(3, 400))
        assert store.missing([*used, idle]) == [idle]
    put(store, blob(4, 1_000))
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
        assert refused(lambda: put(store, blob(1, 1_000))).reason is Reason.STORE_FULL
    put(store, blob(1, 1_000))
    assert store.size(digest) is None


def test_a_blob_that_is_dropped_and_stored_again_while_it_was_pinned_can_be_dropped_later(store: BlobStore) -> None:
    digest = put(store, blob(0))
    with store.pinned([digest]):
        path_of(store, digest).write_bytes(b"spoilt")
        assert refused(lambda: store.read(digest, 100)).reason is Reason.BUNDLE_MISSING
        put(store, blob(0))
    put(store, blob(1, 1_000))
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
    first = BlobStore(tmp_path, 1_000)
    digests = [put(first, blob(number)) for number in range(4)]
    for age, digest in enumerate(reversed(digests)):
        os.utime(path_of(first, digest), (1_000 + age, 1_000 + age))
    first.writer(digest_of(b"half"), 100).write(b"ha")
    (tmp_path / "stranger").write_bytes(b"?")
    (tmp_path / ("A" * 64)).write_bytes(b"?")

    second = BlobStore(tmp_path, 1_000)
    assert on_disk(second) == set(digests)
    assert second.missing(digests) == []
    assert second._bytes == 400

    # A store that its operator made smaller drops the oldest at once.
    for age, digest in enumerate(reversed(digests)):
        os.utime(path_of(first, digest), (1_000 + age, 1_000 + age))
    third = BlobStore(tmp_path, 250)
    assert on_disk(third) == set(digests[:2])


def test_tenants_do_not_see_each_other(tmp_path: pathlib.Path) -> None:
    stores = BlobStores(tmp_path, 1_000)
    digest = put(stores.of("cn:a"), b"secret")
    assert stores.of("cn:a").missing([digest]) == []
    assert stores.of("cn:b").missing([digest]) == [digest]
    assert refused(lambda: stores.of("cn:b").read(digest, 10)).reason is Reason.BUNDLE_MISSING
    assert stores.of("cn:a") is stores.of("cn:a")
    # A full store of one takes nothing from the other.
    put(stores.of("cn:b"), blob(0, 1_000))
    assert stores.of("cn:a").missing([digest]) == []


@pytest.mark.parametrize("tenant", ["../../etc", "/", "", ".", "a\0b", "x" * 5_000, "cn:Ünï"])
def test_a_tenants_name_may_hold_anything(tmp_path: pathlib.Path, tenant: str) -> None:
    stores = BlobStores(tmp_path / "blobs", 1_000)
    put(stores.of(tenant), b"x")
    (directory,) = (tmp_path / "blobs").iterdir()
    assert directory.name == hashlib.sha256(tenant.encode()).hexdigest()[:32]
    assert list(tmp_path.iterdir()) == [tmp_path / "blobs"]


def test_many_threads_keep_the_store_within_its_bounds_and_its_blobs_whole(tmp_path: pathlib.Path) -> None:
    store = BlobStore(tmp_path, 1_000)
    contents = [blob(number) for number in range(25)]
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for step in range(40):
                content = contents[(seed * 7 + step * 3) % len(contents)]
                digest = put(store, content)
                with store.pinned([digest]) as missing:
                    if not missing:
                        assert store.read(digest, 100) == content
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
    assert store._bytes == sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1_000
    assert on_disk(store) == set(store._blobs)
    assert all(one.pins == 0 for one in store._blobs.values())


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["put", "missing", "spoil", "reopen"]), st.integers(0, 14)), max_size=40))
def test_whatever_happens_the_account_is_the_disks(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    directory = tmp_path_factory.mktemp("store")
    store = BlobStore(directory, 1_000)
    for action, number in steps:
        content = blob(number, 20 * (number + 1))
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
                store = BlobStore(directory, 1_000)
        assert on_disk(store) == set(store._blobs)
        assert store._bytes == sum(path.stat().st_size for path in directory.iterdir()) <= 1_000
