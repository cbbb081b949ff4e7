"""A skill folder as content: the manifest, and a blob for each file.

The folder is walked and every byte hashed for each run. Size and modification time decide nothing: they lie about
files that were restored, checked out or written twice within a tick of the clock.
"""

import dataclasses
import hashlib
import os
import pathlib
import stat
from collections.abc import Mapping

from skilljail._blob import READ_BYTES, Blob, BytesSource, FileSource, digest_of
from skilljail._errors import SkillInvalid
from skilljail._folder import Folder, open_folder
from skilljail._paths import path_fault, shown
from skilljail.v1 import bundle_store_pb2

__all__ = ["Bounds", "Bundle", "SkillTooLarge"]

# Histories hold clone URLs with tokens in them; caches hold code that nobody reviewed.
_LEFT_OUT = frozenset({".git", ".hg", ".svn", "__pycache__"})
_SKILL_FILE = "SKILL.md"


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """How large a bundle may be."""

    entries: int = 10_000
    """Files and directories together."""
    size_bytes: int = 64 * 1024 * 1024
    """All files together."""


class SkillTooLarge(SkillInvalid):
    """The skill folder is above the bounds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bundle:
    """The content of a skill folder as it was when it was read."""

    digest: str
    """Names the bundle: the digest of the manifest's bytes."""
    blobs: Mapping[str, Blob]
    """The manifest's own blob and those of all files, by digest."""
    files: frozenset[str]
    """The paths of its files."""
    directories: frozenset[str]
    """The paths of its directories."""

    @classmethod
    def read(cls, skill_dir: str | os.PathLike[str], bounds: Bounds) -> "Bundle":
        """Walks and hashes a skill folder. Blocks. Raises SkillInvalid, naming the file at fault and the mend."""
        walk = _Walk(_real_root(os.fspath(skill_dir)), bounds)
        walk.run()
        manifest = bundle_store_pb2.BundleManifest(
            files=[walk.files[path] for path in sorted(walk.files)], directories=sorted(walk.directories)
        ).SerializeToString()
        digest = digest_of(manifest)
        blobs = {**walk.blobs, digest: Blob(digest, len(manifest), BytesSource(manifest))}
        return cls(digest, blobs, frozenset(walk.files), frozenset(walk.directories))


def _real_root(skill_dir: str) -> str:
    try:
        root = os.path.realpath(skill_dir, strict=True)
        names = os.listdir(root)  # noqa: PTH208  # names, not paths
    except NotADirectoryError:
        raise SkillInvalid(f"{shown(skill_dir)} is a file; name the folder that holds {_SKILL_FILE}") from None
    except FileNotFoundError:
        raise SkillInvalid(f"there is no skill folder {shown(skill_dir)}; correct the path") from None
    except (OSError, ValueError) as error:
        raise SkillInvalid(f"the skill folder {shown(skill_dir)} cannot be read: {error}") from error
    if _SKILL_FILE not in names:
        alike = next((name for name in names if name.lower() == _SKILL_FILE.lower()), None)
        mend = f"rename {shown(alike)}" if alike else "name the folder that holds it"
        raise SkillInvalid(f"the skill folder {shown(skill_dir)} has no {_SKILL_FILE}; {mend}")
    return root


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """A directory of the bundle: where it is in the bundle, and where its content really is."""

    path: str
    """In the bundle; "" is the root."""
    parts: tuple[str, ...]
    """Below the real root, free of links."""
    above: frozenset[tuple[str, ...]]
    """The real places of the directories that it lies in, to tell a link that leads back to one of them."""

    def below(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name


class _Walk:
    """Reads a skill folder, directory by directory; one directory is open at a time."""

    def __init__(self, root: str, bounds: Bounds) -> None:
        self._root = root
        self._bounds = bounds
        self._size_bytes = 0
        self._pending = [_Place("", (), frozenset())]
        self.files: dict[str, bundle_store_pb2.BundleFile] = {}
        self.directories: list[str] = []
        self.blobs: dict[str, Blob] = {}

    def run(self) -> None:
        while self._pending:
            place = self._pending.pop()
            try:
                with open_folder(self._root, place.parts) as folder:
                    for name in folder.names():
                        self._take(folder, place, name)
            except OSError as error:
                raise self._unreadable(place.path or ".", error) from error
        if _SKILL_FILE not in self.files:
            raise SkillInvalid(f"{_SKILL_FILE} of the skill folder {shown(self._root)} is no file; make it one")

    def _take(self, folder: Folder, place: _Place, name: str) -> None:
        if name.lower() in _LEFT_OUT:
            return
        path = place.below(name)
        fault = path_fault(path)
        if fault is not None:
            raise self._invalid(path, fault)
        try:
            status = folder.lstat(name)
            if stat.S_ISLNK(status.st_mode):
                self._take_link(path, place, name)
            else:
                self._take_plain(folder, path, (*place.parts, name), place, status)
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _take_link(self, path: str, place: _Place, name: str) -> None:
        """Takes what a link leads to, as a copy, when that lies inside the skill folder."""
        parts = self._resolve(path, os.path.join(self._root, *place.parts, name))  # noqa: PTH118
        if any(part.lower() in _LEFT_OUT for part in parts):
            return
        if not parts:
            raise self._loop(path)
        with open_folder(self._root, parts[:-1]) as folder:
            self._take_plain(folder, path, parts, place, folder.lstat(parts[-1]))

    def _resolve(self, path: str, link: str) -> tuple[str, ...]:
        try:
            target = os.path.realpath(link, strict=True)
        except FileNotFoundError:
            raise self._invalid(path, "is a link that leads nowhere; remove it or restore its target") from None
        except OSError as error:
            raise self._invalid(path, f"is a link that cannot be followed ({error.strerror}); remove it") from error
        if target == self._root:
            return ()
        inside = self._root if self._root.endswith(os.sep) else self._root + os.sep
        if not target.startswith(inside):
            raise self._invalid(
                path, "is a link that leads out of the skill folder; put a copy of its target in its place"
            )
        return pathlib.PurePath(target.removeprefix(inside)).parts

    def _take_plain(
        self, folder: Folder, path: str, parts: tuple[str, ...], place: _Place, status: os.stat_result
    ) -> None:
        if stat.S_ISDIR(status.st_mode):
            if parts in place.above or parts == place.parts:
                raise self._loop(path)
            self.directories.append(path)
            self._pending.append(_Place(path, parts, place.above | {place.parts}))
        elif stat.S_ISREG(status.st_mode):
            self._take_file(folder, path, parts, executable=bool(status.st_mode & stat.S_IXUSR))
        else:
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "special file")
            raise self._invalid(path, f"is a {kind}; a skill holds files and directories only, so remove it")
        if len(self.files) + len(self.directories) > self._bounds.entries:
            raise SkillTooLarge(
                f"the skill folder {shown(self._root)} has more than {self._bounds.entries:,} files and directories; "
                "leave out what its scripts do not need, or have the operator raise the bound"
            )

    def _take_file(self, folder: Folder, path: str, parts: tuple[str, ...], *, executable: bool) -> None:
        sha256 = hashlib.sha256()
        size = 0
        with folder.open_file(parts[-1]) as file:
            while piece := file.read(READ_BYTES):
                sha256.update(piece)
                size += len(piece)
                if self._size_bytes + size > self._bounds.size_bytes:
                    raise SkillTooLarge(
                        f"the skill folder {shown(self._root)} has more than {self._bounds.size_bytes:,} bytes (at "
                        f"{shown(path)}); leave out what its scripts do not need, or have the operator raise the bound"
                    )
        self._size_bytes += size
        digest = f"sha256:{sha256.hexdigest()}"
        self.files[path] = bundle_store_pb2.BundleFile(path=path, digest=digest, size_bytes=size, executable=executable)
        self.blobs.setdefault(digest, Blob(digest, size, FileSource(self._root, parts)))

    def _invalid(self, path: str, fault: str) -> SkillInvalid:
        return SkillInvalid(f"{shown(path)} of the skill folder {shown(self._root)} {fault}")

    def _loop(self, path: str) -> SkillInvalid:
        return self._invalid(path, "is a link back to a directory that holds it, which has no end; remove it")

    def _unreadable(self, path: str, error: OSError) -> SkillInvalid:
        return self._invalid(path, f"cannot be read ({error.strerror or error}); correct its permissions or remove it")


_KINDS = {
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
