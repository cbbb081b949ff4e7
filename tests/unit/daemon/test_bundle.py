"""A skill as it will be staged."""

import collections
import posixpath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from skilljail.v1 import bundle_store_pb2
from skilljaild.bundles import bundle as module
from skilljaild.bundles.bundle import MANIFEST_BYTES_MAX, Bundle, BundleFile, parse_manifest
from skilljaild.bundles.digest import digest_of, is_digest
from skilljaild.bundles.wire import count_fields
from skilljaild.errors import Reason, Refusal
from skilljaild.paths import path_fault

from .attempt import attempt
from .orders import manifest

DIGEST = digest_of(b"")
EMPTY = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def file(path: str, size: int = 0) -> BundleFile:
    """A file of a bundle."""
    return BundleFile(path, DIGEST, size, executable=False)


def bundle(*paths: str, directories: tuple[str, ...] = (), bytes_max: int = 100, entries_max: int = 10) -> Bundle:
    """A bundle of empty files, SKILL.md among them."""
    files = [file(path) for path in ("SKILL.md", *paths)]
    return Bundle.of(files, list(directories), bytes_max=bytes_max, entries_max=entries_max)


def refused(data: bytes, entries_max: int = 10) -> Refusal:
    """Why a manifest is refused."""
    with pytest.raises(Refusal) as caught:
        parse_manifest(data, entries_max)
    return caught.value


def test_a_digest_is_sha256_in_lower_case_hex() -> None:
    assert digest_of(b"") == EMPTY
    assert is_digest(EMPTY)


@pytest.mark.parametrize(
    "text",
    ["", "sha256:", EMPTY[:-1], EMPTY + "0", EMPTY.upper(), EMPTY + "\n", " " + EMPTY, EMPTY[7:], "sha512" + EMPTY[6:]],
)
def test_nothing_else_is_a_digest(text: str) -> None:
    assert not is_digest(text)


def test_parents_are_added_and_come_before_their_children() -> None:
    found = bundle("a/b/c/run.py", "a/x", directories=("empty/deep", "a"))
    assert found.directories == ("a", "a/b", "a/b/c", "empty", "empty/deep")
    assert list(found.files) == ["SKILL.md", "a/b/c/run.py", "a/x"]


@pytest.mark.parametrize(
    ("paths", "directories", "message"),
    [
        (("a", "a"), (), "the skill names the file 'a' twice; leave one out"),
        (("a", "a/b"), (), "the skill has 'a' as a file and as a directory; rename one"),
        (("a/b/c", "a/b"), (), "the skill has 'a/b' as a file and as a directory; rename one"),
        (("a",), ("a",), "the skill has 'a' as a file and as a directory; rename one"),
        (("a",), ("a/b",), "the skill has 'a' as a file and as a directory; rename one"),
        (("SKILL.md/x",), (), "the skill has 'SKILL.md' as a file and as a directory; rename one"),
    ],
)
def test_a_path_is_one_thing_only(paths: tuple[str, ...], directories: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refusal) as caught:
        bundle(*paths, directories=directories)
    assert (caught.value.reason, caught.value.message) == (Reason.SKILL_INVALID, message)


def test_a_directory_that_is_named_twice_is_one() -> None:
    assert bundle(directories=("a", "a", "a/b", "a/b")).directories == ("a", "a/b")


@pytest.mark.parametrize("names", [(), ("skill.md",), ("a/SKILL.md",), ("SKILL.MD",)])
def test_a_skill_without_a_skill_md_in_its_root_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(Refusal, match=r"no SKILL\.md in its root; name the folder that holds SKILL\.md") as caught:
        Bundle.of([file(name) for name in names], [], bytes_max=100, entries_max=10)
    assert caught.value.reason is Reason.SKILL_INVALID


def test_a_skill_is_bounded_in_bytes_and_in_entries() -> None:
    Bundle.of([file("SKILL.md", 60), file("a", 40)], [], bytes_max=100, entries_max=2)
    with pytest.raises(Refusal, match=r"the skill has 101 bytes, at most 100 are taken; .*bundles\.bundle_bytes"):
        Bundle.of([file("SKILL.md", 60), file("a", 41)], [], bytes_max=100, entries_max=2)
    with pytest.raises(Refusal, match=r"the skill has 3 files and directories, at most 2 are taken"):
        bundle("a", "b", entries_max=2)
    # Parents count: they take an inode each.
    bundle("a/b/c", entries_max=4)
    with pytest.raises(
        Refusal, match=r"has at least 4 files and directories, at most 3 .*bundles\.bundle_entries"
    ) as caught:
        bundle("a/b/c", entries_max=3)
    assert caught.value.reason is Reason.SKILL_INVALID


def test_sizes_cannot_overflow() -> None:
    largest = 2**63 - 1
    with pytest.raises(Refusal, match="the skill has 18,446,744,073,709,551,614 bytes"):
        Bundle.of([file("SKILL.md", largest), file("a", largest)], [], bytes_max=100, entries_max=9)


def test_a_manifest_is_read_whole() -> None:
    message = bundle_store_pb2.BundleManifest(
        files=[
            bundle_store_pb2.BundleFile(path="SKILL.md", digest=DIGEST, size_bytes=5),
            bundle_store_pb2.BundleFile(path="run.sh", digest=DIGEST, size_bytes=0, executable=True),
        ],
        directories=["empty"],
    )
    assert parse_manifest(message.SerializeToString(), 3) == (
        [BundleFile("SKILL.md", DIGEST, 5, executable=False), BundleFile("run.sh", DIGEST, 0, executable=True)],
        ["empty"],
    )
    assert parse_manifest(b"", 10) == ([], [])


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"hello world", b"\x0a\x03\x0a\x01\xff"])
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    found = refused(data)
    assert (found.reason, found.field) == (Reason.SKILL_INVALID, "bundle_digest")
    assert found.message == f"bundle {digest_of(data)}: the blob is no BundleManifest"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a//b", "a\\b", "a\x1b[2J", "d/" * 40 + "x"])
def test_a_path_that_is_not_below_the_root_is_refused(path: str) -> None:
    for data in (manifest({path: b""}), manifest({}, directories=(path,))):
        found = refused(data)
        assert (found.reason, found.field) == (Reason.PATH_INVALID, "bundle_digest")
        assert found.message.isprintable()


@pytest.mark.parametrize(("digest", "size"), [("", 0), ("sha256:0", 0), (DIGEST.upper(), 0), (DIGEST, -1)])
def test_a_broken_digest_or_size_is_refused(digest: str, size: int) -> None:
    broken = bundle_store_pb2.BundleFile(path="a", digest=digest, size_bytes=size)
    found = refused(bundle_store_pb2.BundleManifest(files=[broken]).SerializeToString())
    assert found.reason is Reason.SKILL_INVALID
    assert found.message.startswith("the manifest gives 'a' a broken digest or size")


class Unparsed:
    """A message whose bytes nobody may parse."""

    DESCRIPTOR = bundle_store_pb2.BundleManifest.DESCRIPTOR

    def ParseFromString(self, data: bytes) -> None:  # noqa: N802
        """Fails."""
        raise AssertionError(f"{len(data):,} bytes were parsed")


@pytest.mark.parametrize("field", [b"\x0a\x00", b"\x12\x00"], ids=["files", "directories"])
def test_a_manifest_of_millions_of_empty_files_is_refused_before_it_is_unfolded(
    monkeypatch: pytest.MonkeyPatch, field: bytes
) -> None:
    """Two bytes make a file or a directory; each would become an object of the daemon."""
    monkeypatch.setattr(bundle_store_pb2, "BundleManifest", Unparsed)
    found = refused(field * (MANIFEST_BYTES_MAX // 2), entries_max=10_000)
    assert found.reason is Reason.SKILL_INVALID
    assert found.message.startswith("the skill has at least 100,000 files and directories, at most 10,000 are taken")
    found = refused(field * 10_001, entries_max=10_000)
    assert found.message.startswith("the skill has 10,001 files and directories, at most 10,000 are taken")


def test_a_manifest_of_millions_of_fields_that_it_does_not_have_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_store_pb2, "BundleManifest", Unparsed)
    data = b"\x18\x00" * (MANIFEST_BYTES_MAX // 2)
    assert refused(data).message == f"bundle {digest_of(data)}: the blob is no BundleManifest"


@pytest.mark.parametrize(
    "unknown", [b"\x18\x96\x01", b"\x19" + bytes(8), b"\x1a\x03abc", b"\x1d" + bytes(4), b"\x98\x80\x00\x05"]
)
def test_fields_of_a_later_version_are_passed_over(unknown: bytes) -> None:
    plain = manifest({"SKILL.md": b"x"}, directories=("d",))
    assert parse_manifest(unknown + plain + unknown, 2) == parse_manifest(plain, 2)


def test_parents_are_counted_while_they_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    parent = module._parent

    def watched(path: str) -> str:
        looked_at.append(path)
        return parent(path)

    monkeypatch.setattr(module, "_parent", watched)
    deep = [file("/".join([f"{number}"] * 32)) for number in range(5_000)]
    with pytest.raises(Refusal, match=r"at least 10,001 files and directories, at most 10,000 are taken") as caught:
        Bundle.of(deep, [], bytes_max=100, entries_max=10_000)
    assert caught.value.reason is Reason.SKILL_INVALID
    assert len(looked_at) <= 5_000 + 10_001


NAMES = st.sampled_from(["", ".", "..", "a", "b", "SKILL.md", "/", "\0", "é"])
PATHS = st.one_of(st.lists(NAMES, max_size=4).map("/".join), st.text(max_size=6))
MANIFESTS = st.builds(
    lambda files, directories: bundle_store_pb2.BundleManifest(
        files=[
            bundle_store_pb2.BundleFile(path=path, digest=digest, size_bytes=size, executable=executable)
            for path, digest, size, executable in files
        ],
        directories=directories,
    ).SerializeToString(),
    st.lists(
        st.tuples(
            PATHS,
            st.one_of(st.just(DIGEST), st.text(max_size=3)),
            st.one_of(st.integers(0, 50), st.integers(-(2**63), 2**63 - 1)),
            st.booleans(),
        ),
        max_size=6,
    ),
    st.lists(PATHS, max_size=4),
)


@given(st.one_of(st.binary(max_size=200), MANIFESTS, MANIFESTS.map(lambda data: data[:-1])))
@example(manifest({"SKILL.md": b"", "a/b": b""}, directories=("c",)))
@example(manifest({"a": b"", "a/b": b"", "SKILL.md": b""}))
def test_whatever_a_manifest_says_it_is_a_sound_bundle_or_refused(data: bytes) -> None:
    found = attempt(lambda: Bundle.of(*parse_manifest(data, 8), bytes_max=100, entries_max=8))
    if isinstance(found, Refusal):
        assert found.reason in {Reason.SKILL_INVALID, Reason.PATH_INVALID}
        return
    assert "SKILL.md" in found.files
    assert not set(found.files) & set(found.directories)
    assert all(path_fault(path) is None for path in (*found.files, *found.directories))
    assert all(path == one.path and is_digest(one.digest) for path, one in found.files.items())
    assert 0 <= sum(one.size for one in found.files.values()) <= 100
    assert len(found.files) + len(found.directories) <= 8
    made = {""}
    for directory in found.directories:
        assert posixpath.dirname(directory) in made
        made.add(directory)
    assert all(posixpath.dirname(path) in made for path in found.files)


@given(MANIFESTS)
def test_what_is_counted_in_the_bytes_is_what_the_parser_finds(data: bytes) -> None:
    message = bundle_store_pb2.BundleManifest.FromString(data)
    assert count_fields(data, 1_000) == collections.Counter({1: len(message.files), 2: len(message.directories)})
    assert count_fields(data, 3).total() == min(3, len(message.files) + len(message.directories))
