"""A skill as it will be staged: every file and directory, checked."""

import dataclasses

from google.protobuf import message as protobuf_message
from skilljail.v1 import bundle_store_pb2

from skilljaild.bundles.digest import digest_of, is_digest
from skilljaild.bundles.wire import WireError, count_fields
from skilljaild.errors import Reason, Refusal
from skilljaild.paths import path_fault, shown

__all__ = ["Bundle", "BundleFile", "parse_manifest"]

MANIFEST_BYTES_MAX = 16 * 1024 * 1024
FIELDS_COUNTED_MAX = 100_000
"""Where the count of a manifest's fields ends: twice what an operator can allow."""
_FIELDS = bundle_store_pb2.BundleManifest.DESCRIPTOR.fields_by_name
_FILES, _DIRECTORIES = _FIELDS["files"].number, _FIELDS["directories"].number


@dataclasses.dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle or one input of a request."""

    path: str
    digest: str
    size: int
    executable: bool
    content: bytes | None = None
    """The content when it came with the request; otherwise it is a blob of the store."""
    field: str = "bundle_digest"
    """The request's field that brought it, for errors."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bundle:
    """What goes into a skill root. Paths are good, unique, and no file is also a directory."""

    files: dict[str, BundleFile]
    directories: tuple[str, ...]
    """Every directory, parents before children."""

    @classmethod
    def of(cls, files: list[BundleFile], directories: list[str], *, bytes_max: int, entries_max: int) -> "Bundle":
        """Checks and joins. Raises Refusal PATH_INVALID or SKILL_INVALID."""
        by_path: dict[str, BundleFile] = {}
        for file in files:
            if file.path in by_path:
                raise Refusal(
                    Reason.SKILL_INVALID,
                    f"the skill names the file {shown(file.path)} twice; leave one out",
                    field=file.field,
                )
            by_path[file.path] = file
        _check_entries(len(by_path), entries_max)
        all_directories = _with_parents([*directories, *(_parent(path) for path in by_path)], len(by_path), entries_max)
        clash = next((path for path in all_directories if path in by_path), None)
        if clash is not None:
            both = [file for path, file in by_path.items() if path == clash or path.startswith(f"{clash}/")]
            raise Refusal(
                Reason.SKILL_INVALID,
                f"the skill has {shown(clash)} as a file and as a directory; rename one",
                field=max(file.field for file in both),  # `files` before `bundle_digest`: an input is changed easily
            )
        bundle = cls(by_path, all_directories)
        _check_size(bundle, bytes_max)
        return bundle


def parse_manifest(data: bytes, entries_max: int) -> tuple[list[BundleFile], list[str]]:
    """Reads the bytes of a BundleManifest. Hostile input; raises Refusal SKILL_INVALID or PATH_INVALID.

    `entries_max`: files and directories together. They are counted in the bytes, before the parser makes an object of
    each: two bytes of a hostile manifest make a file.
    """
    manifest = bundle_store_pb2.BundleManifest()
    try:
        _check_fields(data, entries_max)
        manifest.ParseFromString(data)
    except (WireError, protobuf_message.DecodeError):
        raise Refusal(
            Reason.SKILL_INVALID,
            f"bundle {digest_of(data)}: the blob is no BundleManifest",
            field="bundle_digest",
        ) from None
    files = [BundleFile(one.path, one.digest, one.size_bytes, one.executable) for one in manifest.files]
    for file in files:
        _check_bundle_path(file.path)
        if not is_digest(file.digest) or file.size < 0:
            raise Refusal(
                Reason.SKILL_INVALID,
                f"the manifest gives {shown(file.path)} a broken digest or size; digests are sha256: and 64 hex digits",
                field="bundle_digest",
            )
    directories = list(manifest.directories)
    for directory in directories:
        _check_bundle_path(directory)
    return files, directories


def _check_bundle_path(path: str) -> None:
    fault = path_fault(path)
    if fault is not None:
        raise Refusal(Reason.PATH_INVALID, f"the skill's path {shown(path)} {fault}; rename it", field="bundle_digest")


def _check_fields(data: bytes, entries_max: int) -> None:
    """Raises Refusal SKILL_INVALID for too many files and directories, WireError for what no manifest has."""
    counts = count_fields(data, FIELDS_COUNTED_MAX)
    counted_all = counts.total() < FIELDS_COUNTED_MAX
    _check_entries(counts[_FILES] + counts[_DIRECTORIES], entries_max, counted_all=counted_all)
    if not counted_all:
        raise WireError("too many fields of no manifest")


def _check_entries(entries: int, entries_max: int, *, counted_all: bool = True) -> None:
    if entries > entries_max:
        count = f"{entries:,}" if counted_all else f"at least {entries:,}"
        raise Refusal(
            Reason.SKILL_INVALID,
            f"the skill has {count} files and directories, at most {entries_max:,} are taken; leave out what its "
            "scripts do not need, or have the operator raise bundles.bundle_entries",
            field="bundle_digest",
        )


def _check_size(bundle: Bundle, bytes_max: int) -> None:
    size = sum(file.size for file in bundle.files.values())
    if size > bytes_max:
        raise Refusal(
            Reason.SKILL_INVALID,
            f"the skill has {size:,} bytes, at most {bytes_max:,} are taken; leave out what its scripts do not need, "
            "or have the operator raise bundles.bundle_bytes",
            field="bundle_digest",
        )
    if "SKILL.md" not in bundle.files:
        raise Refusal(
            Reason.SKILL_INVALID,
            "the skill has no SKILL.md in its root; name the folder that holds SKILL.md",
            field="bundle_digest",
        )


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _with_parents(directories: list[str], files: int, entries_max: int) -> tuple[str, ...]:
    """Every directory, parents first. Counted with the `files` as they are found: a path may bring 31 parents."""
    found: set[str] = set()
    for directory in directories:
        upwards = directory
        while upwards and upwards not in found:
            found.add(upwards)
            _check_entries(files + len(found), entries_max, counted_all=False)
            upwards = _parent(upwards)
    return tuple(sorted(found))
