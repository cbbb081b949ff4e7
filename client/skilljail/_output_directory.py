"""A directory that files with hostile names are written to, and nothing is ever written outside of it."""

import contextlib
import os
import pathlib
import re
import secrets
import unicodedata
from collections.abc import Iterator

from skilljail._errors import ArtifactRefused
from skilljail._paths import path_fault, shown

__all__ = ["OutputDirectory"]

# Absent on Windows, where a directory cannot be held open; there the path is checked name by name instead.
_HAS_DIRECTORY_FDS = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")
_WINDOWS_SPECIAL = frozenset('<>:"|?*')
_WINDOWS_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in "0123456789")}
)
# With the short names that NTFS may give them.
_REPOSITORY = re.compile(r"\.(git|hg|svn|jj|bzr|sl)|(git|hg|svn|jj|bzr|sl)~[0-9]+|_svn|cvs|_darcs")
_HEAD = re.compile(rb"ref:|[0-9a-f]{40}", re.IGNORECASE)


class OutputDirectory:
    """Writes files below `directory`, which is made when it is not there. That path itself is trusted.

    Version control executes what the configuration of a repository says as soon as somebody looks at it, so nothing
    is written that makes one: no `.git`, `.hg`, `.svn` or their like, and no HEAD with which git, unless
    safe.bareRepository is `explicit`, takes a directory with `config`, `objects` and `refs` for a bare repository.
    Still look before you use what came out: other programs have other files that they obey.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._root = pathlib.Path(directory)

    def write(self, path: str, content: bytes, *, overwrite: bool) -> pathlib.Path:
        """Writes one file. `path` is hostile. Raises ArtifactRefused, naming it, and then leaves no part of it."""
        fault = path_fault(path) or _windows_fault(path) or _repository_fault(path, content)
        if fault is not None:
            raise ArtifactRefused(
                f"the artifact {shown(path)} was not saved: its path {fault}", metadata={"path": path}
            )
        *parents, name = path.split("/")
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if _HAS_DIRECTORY_FDS:
                with self._descend(parents) as parent:
                    _write_at(parent, name, content, overwrite=overwrite)
            else:
                self._write_by_path(parents, name, content, overwrite=overwrite)
        except FileExistsError as error:
            raise ArtifactRefused(
                f"the artifact {shown(path)} was not saved: '{self._root}' already has something of that name; "
                "choose an empty directory, or pass overwrite=True",
                reason="ARTIFACT_EXISTS",
                metadata={"path": path},
            ) from error
        except OSError as error:
            raise ArtifactRefused(
                f"the artifact {shown(path)} was not saved below '{self._root}': {error.strerror or error}; "
                "links below that directory are not followed",
                metadata={"path": path},
            ) from error
        return self._root.joinpath(*parents, name)

    @contextlib.contextmanager
    def _descend(self, parents: list[str]) -> Iterator[int]:
        """Opens the directory of a file, name by name, making what is missing and following no link."""
        current = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in parents:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                deeper = os.open(name, flags, dir_fd=current)
                os.close(current)
                current = deeper
            yield current
        finally:
            os.close(current)

    def _write_by_path(self, parents: list[str], name: str, content: bytes, *, overwrite: bool) -> None:
        current = self._root
        for parent in parents:
            current = current / parent
            current.mkdir(exist_ok=True)
            if current.is_symlink() or not current.is_dir():
                raise NotADirectoryError(0, f"'{current}' is no plain directory")
        target = current / name
        if overwrite and not target.is_dir():
            target.unlink(missing_ok=True)
        with target.open("xb") as file:
            file.write(content)


def _write_at(parent: int, name: str, content: bytes, *, overwrite: bool) -> None:
    """Writes under a name that nobody knows and gives it its own in one step, so that no half file is seen."""
    temporary = f".skilljail-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o644, dir_fd=parent)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  # a descriptor, not a path
            file.write(content)
        if overwrite:
            # Replaces a link as such, never what it points to.
            os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        else:
            _publish(parent, temporary, name)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        raise


def _publish(parent: int, temporary: str, name: str) -> None:
    """Gives the file its name unless that is taken. Unlike rename, link never replaces anything."""
    try:
        os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):
        # A file system or a system without hard links: taking the name first is the next best thing.
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=parent))
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        return
    os.unlink(temporary, dir_fd=parent)


def _windows_fault(path: str) -> str | None:
    if os.name != "nt":
        return None
    for name in path.split("/"):
        if _WINDOWS_SPECIAL & set(name) or name[-1] in ". " or name.split(".")[0].lower() in _WINDOWS_DEVICES:
            return "is not allowed on Windows"
    return None


def _repository_fault(path: str, content: bytes) -> str | None:
    names = [_as_found(name) for name in path.split("/")]
    mend = "have the script write it under another name, or pack it into an archive"
    if any(_REPOSITORY.fullmatch(name) for name in names):
        return f"is inside of a version control directory, whose configuration is executed; {mend}"
    if names[-1] == "head" and _HEAD.match(content):
        return f"and its content make a bare repository, whose configuration git executes; {mend}"
    return None


def _as_found(name: str) -> str:
    """The name under which some file system would find it.

    HFS+ passes over format characters, NTFS over dots and spaces at the end and over the name of a stream after a
    colon, and both over the case.
    """
    visible = "".join(character for character in name if unicodedata.category(character) != "Cf")
    return visible.partition(":")[0].rstrip(". ").casefold()
