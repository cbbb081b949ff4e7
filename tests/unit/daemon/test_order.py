"""A request after every check."""

import dataclasses
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljaild.bundles.bundle import MANIFEST_BYTES_MAX, BundleFile
from skilljaild.bundles.digest import digest_of
from skilljaild.bundles.store import BlobStore
from skilljaild.config import BundleConfig, CeilingLimits
from skilljaild.egress.hosts import HostPattern
from skilljaild.errors import Reason, Refusal, Violation
from skilljaild.network import Network, NetworkCeiling
from skilljaild.policy import SANDBOX_ENVIRONMENT, AskedLimits
from skilljaild.runs.events import EffectivePolicy
from skilljaild.runs.order import InputFile, OrderDesk

from .attempt import attempt
from .facts import LIMITS
from .orders import SKILL_MD, inline, make_request, manifest, put

DESK = OrderDesk(
    LIMITS,
    CeilingLimits(cpus=4).limits(),
    BundleConfig(bundle_bytes=pydantic.ByteSize(1_000_000), bundle_entries=20),
    NetworkCeiling(Network.ALLOWLIST, (HostPattern.parse("*.example.com"),)),
)
FILES = {"SKILL.md": SKILL_MD, "scripts/run.py": b"print(1)\n", "data/x": b""}


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> BlobStore:
    """A store with room for everything."""
    return BlobStore(tmp_path_factory.mktemp("blobs"), 64 << 20)


def upload(store: BlobStore, files: dict[str, bytes] = FILES, directories: tuple[str, ...] = ("empty",)) -> str:
    """Uploads a skill and returns its digest."""
    for content in files.values():
        put(store, content)
    return put(store, manifest(files, directories))


def refused(store: BlobStore, **fields: Any) -> Refusal:
    """Why a request is refused."""
    with pytest.raises(Refusal) as caught:
        DESK.check(make_request(**fields), store)
    return caught.value


def test_an_inline_skill_becomes_an_order(store: BlobStore) -> None:
    request = make_request(
        argv=("--x", ""), env={"A": "1"}, limits=AskedLimits(pids=7), working_directory="scripts", request_id="r-1._X"
    )
    order = DESK.check(request, store)
    assert order.request is request
    assert order.env == SANDBOX_ENVIRONMENT | {"A": "1"}
    assert order.policy == EffectivePolicy(
        "python", ("python3", "/work/skill/scripts/run.py", "--x", ""), dataclasses.replace(LIMITS, pids=7)
    )
    assert order.bundle.directories == ("scripts",)
    assert order.bundle.files["scripts/run.py"] == BundleFile(
        "scripts/run.py", digest_of(b"print(1)\n"), 9, executable=False, content=b"print(1)\n", field="files"
    )
    assert order.digests == []


def test_an_uploaded_skill_with_inputs_becomes_an_order(store: BlobStore) -> None:
    digest = upload(store)
    big = put(store, b"big input")
    inputs = (inline("in/small", b"s", executable=True), InputFile("in/big", None, big, executable=False))
    order = DESK.check(make_request(bundle_digest=digest, files=inputs, working_directory="empty"), store)
    assert list(order.bundle.files) == [*FILES, "in/small", "in/big"]
    assert order.bundle.directories == ("data", "empty", "in", "scripts")
    assert order.bundle.files["in/big"] == BundleFile("in/big", big, 9, executable=False, field="files")
    assert order.bundle.files["in/small"].executable
    assert order.digests == [*(digest_of(content) for content in FILES.values()), big]


@pytest.mark.parametrize(
    ("content", "command"),
    [
        (b"#!/bin/sh -e\n", ("sh", "-e", "/work/skill/scripts/run.py")),
        (b"print(1)\n", ("python3", "/work/skill/scripts/run.py")),
    ],
)
def test_the_scripts_own_first_line_decides(store: BlobStore, content: bytes, command: tuple[str, ...]) -> None:
    digest = upload(store, {"SKILL.md": SKILL_MD, "scripts/run.py": content})
    assert DESK.check(make_request(bundle_digest=digest, files=()), store).policy.command == command
    assert DESK.check(make_request(files=(inline("SKILL.md"), inline("scripts/run.py", content))), store)


def test_every_blob_that_is_missing_is_named(store: BlobStore) -> None:
    digest = upload(store)
    assert refused(store, bundle_digest=digest_of(b"never"), files=()).missing == (
        Violation(digest_of(b"never"), "not on this daemon"),
    )
    for content in FILES.values():
        store._drop(digest_of(content))
    found = refused(store, bundle_digest=digest, files=())
    assert found.reason is Reason.BUNDLE_MISSING
    assert {one.subject for one in found.missing} == {digest_of(content) for content in FILES.values()}
    assert refused(
        store, files=(inline("SKILL.md"), InputFile("x", None, digest_of(b"?"), executable=False))
    ).missing == (Violation(digest_of(b"?"), "not on this daemon"),)


def test_at_most_a_thousand_missing_blobs_are_named(store: BlobStore) -> None:
    desk = OrderDesk(LIMITS, LIMITS, BundleConfig(bundle_entries=5_000), NetworkCeiling())
    digest = put(store, manifest({f"{number}": f"{number}".encode() for number in range(1_500)} | FILES))
    with pytest.raises(Refusal, match="1503 blobs of the skill are not on this daemon") as caught:
        desk.check(make_request(bundle_digest=digest, files=()), store)
    assert len(caught.value.missing) == 1_000


def test_a_manifest_that_lies_about_a_size_is_refused(store: BlobStore) -> None:
    for content in FILES.values():
        put(store, content)
    lying = manifest(FILES).replace(b"\x18\x09", b"\x18\x08")
    found = refused(store, bundle_digest=put(store, lying), files=())
    assert (found.reason, found.message) == (
        Reason.SKILL_INVALID,
        "the manifest gives 'scripts/run.py' a size that its blob has not",
    )


def test_a_manifest_larger_than_any_skill_needs_is_not_even_read(store: BlobStore) -> None:
    digest = put(store, bytes(MANIFEST_BYTES_MAX + 1))
    assert refused(store, bundle_digest=digest).message == f"bundle {digest}: a manifest has at most 16,777,216 bytes"


@pytest.mark.parametrize("digest", ["sha256:0", "x", digest_of(b"").upper(), "../../x"])
def test_a_bundle_is_named_by_a_digest(store: BlobStore, digest: str) -> None:
    found = refused(store, bundle_digest=digest)
    assert (found.reason, found.field) == (Reason.REQUEST_INVALID, "bundle_digest")


def test_an_input_never_replaces_a_file_of_the_skill(store: BlobStore) -> None:
    digest = upload(store)
    found = refused(store, bundle_digest=digest, files=(inline("scripts/run.py", b"evil"),))
    assert (found.reason, found.field) == (Reason.PATH_INVALID, "files")
    assert found.message == "files: the skill has 'scripts/run.py' already; choose another path for the input"
    # Nor does it make a directory of one.
    assert refused(store, bundle_digest=digest, files=(inline("SKILL.md/x"),)).reason is Reason.SKILL_INVALID
    assert refused(store, bundle_digest=digest, files=(inline("scripts"),)).reason is Reason.SKILL_INVALID


def test_an_input_without_a_source_is_refused(store: BlobStore) -> None:
    found = refused(store, files=(InputFile("x", None, "", executable=False),))
    assert (found.reason, found.field) == (Reason.REQUEST_INVALID, "files")
    assert found.message == "files: 'x' has neither content nor the digest of an uploaded blob"


@pytest.mark.parametrize("field", ["script_path", "working_directory"])
@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "scripts/../../x", "scripts//run.py", "a\\b", "a\0"])
def test_a_path_outside_is_refused_and_its_field_named(store: BlobStore, field: str, path: str) -> None:
    found = refused(store, **{field: path})
    assert (found.reason, found.field) == (Reason.PATH_INVALID, field)
    found = refused(store, files=(inline("SKILL.md"), inline(path)))
    assert (found.reason, found.field) == (Reason.PATH_INVALID, "files")


@pytest.mark.parametrize("path", ["nowhere", "scripts/run.py", "scripts/x"])
def test_a_working_directory_is_one_of_the_skills_directories(store: BlobStore, path: str) -> None:
    found = refused(store, working_directory=path)
    assert (found.reason, found.field) == (Reason.PATH_INVALID, "working_directory")
    assert f"the skill has no directory '{path}'; leave it empty for the skill's root" in found.message


@pytest.mark.parametrize(
    ("path", "names"),
    [("scripts/rnu.py", "scripts/run.py"), ("scripts", "SKILL.md"), ("x/y", "SKILL.md, scripts/run.py")],
)
def test_a_script_that_is_not_there_is_told_with_what_is(store: BlobStore, path: str, names: str) -> None:
    found = refused(store, script_path=path)
    assert (found.reason, found.field) == (Reason.SCRIPT_NOT_FOUND, "script_path")
    assert found.message == f"script_path: the skill has no file '{path}'. It has: {names}"


@pytest.mark.parametrize("request_id", ["", "a", "A-z.0_9", "x" * 128])
def test_a_request_id_may_be_any_name(store: BlobStore, request_id: str) -> None:
    DESK.check(make_request(request_id=request_id), store)


@pytest.mark.parametrize("request_id", ["x" * 129, "a b", "é", "a/b", "a\n", "\x1b"])
def test_another_request_id_is_refused(store: BlobStore, request_id: str) -> None:
    found = refused(store, request_id=request_id)
    assert (found.reason, found.field) == (Reason.REQUEST_INVALID, "request_id")
    assert found.message.isprintable()


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"stdin": bytes(4 * MIB + 1)}, "stdin"),
        ({"files": tuple(inline(f"{number}") for number in range(257))}, "files"),
        ({"files": (inline("SKILL.md", bytes(2 * MIB)), inline("x", bytes(2 * MIB + 1)))}, "files"),
        ({"artifact_patterns": ("*",) * 65}, "artifact_patterns"),
        ({"labels": {"x" * 64: ""}}, "labels"),
    ],
)
def test_a_request_is_bounded(store: BlobStore, fields: dict[str, Any], field: str) -> None:
    found = refused(store, **fields)
    assert (found.reason, found.field) == (Reason.REQUEST_INVALID, field)


@pytest.mark.parametrize(
    "pattern", ["", "/", "/etc/*", "../*", "out/../../*", "a//b", "./a", "out/", "a\0b", "x" * 1_025, "é" * 513]
)
def test_a_pattern_stays_below_the_root(store: BlobStore, pattern: str) -> None:
    found = refused(store, artifact_patterns=("ok/*", pattern))
    assert (found.reason, found.field) == (Reason.PATH_INVALID, "artifact_patterns")


@pytest.mark.parametrize("pattern", ["**", "out/*.csv", "**/*.png", "[a-z]?/x", "[z-a]", "[!]", "[", "a" * 1_024])
def test_a_glob_is_a_pattern(store: BlobStore, pattern: str) -> None:
    assert DESK.check(make_request(artifact_patterns=(pattern,)), store).request.artifact_patterns == (pattern,)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"argv": ("\0",)}, Reason.ARGUMENT_INVALID),
        ({"env": {"1": ""}}, Reason.ENVIRONMENT_INVALID),
        ({"limits": AskedLimits(pids=1)}, Reason.LIMIT_INVALID),
        ({"limits": AskedLimits(pids=10**6)}, Reason.LIMIT_ABOVE_CEILING),
        ({"interpreter": "ruby"}, Reason.INTERPRETER_UNKNOWN),
        ({"files": (inline("scripts/run.py"),)}, Reason.SKILL_INVALID),
    ],
)
def test_every_part_of_a_request_is_checked(store: BlobStore, fields: dict[str, Any], reason: Reason) -> None:
    assert refused(store, **fields).reason is reason


TEXT = st.one_of(st.text(max_size=10), st.sampled_from(["SKILL.md", "scripts/run.py", "..", "*", "[", "A", "python"]))
HOSTILE: dict[str, st.SearchStrategy[Any]] = {
    "request_id": TEXT,
    "bundle_digest": TEXT,
    "script_path": TEXT,
    "argv": st.lists(TEXT, max_size=3).map(tuple),
    "env": st.dictionaries(TEXT, TEXT, max_size=3),
    "stdin": st.binary(max_size=10),
    "working_directory": TEXT,
    "files": st.lists(
        st.builds(InputFile, TEXT, st.one_of(st.none(), st.binary(max_size=9)), TEXT, st.booleans()), max_size=4
    ).map(tuple),
    "artifact_patterns": st.lists(TEXT, max_size=4).map(tuple),
    "labels": st.dictionaries(TEXT, TEXT, max_size=3),
    "interpreter": TEXT,
}


@given(st.fixed_dictionaries({}, optional=HOSTILE))
def test_a_hostile_request_is_refused_or_a_sound_order(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]
) -> None:
    store = BlobStore(tmp_path_factory.mktemp("blobs"), 1_000)
    order = attempt(lambda: DESK.check(make_request(**fields), store))
    if isinstance(order, Refusal):
        assert order.message.isprintable()
        return
    assert order.policy.command[0] in {"python3", "node", "bash", "sh", "pwsh"}
    assert f"/work/skill/{order.request.script_path}" in order.policy.command
    assert order.request.script_path in order.bundle.files
    assert order.request.working_directory in {"", *order.bundle.directories}
