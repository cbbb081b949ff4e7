"""Makes Debian's root file system from Debian's packages, where no registry serves `debian:trixie-slim`."""

import hashlib
import pathlib
import shutil
import subprocess
import tempfile

from skilljaild.images.error import ImageError
from skilljaild.images.progress import Progress
from skilljaild.images.store import ImageStore, StoredImage

__all__ = ["BOOTSTRAP_REFERENCE", "bootstrap", "bootstrapped"]

SUITE = "trixie"
BOOTSTRAP_REFERENCE = f"skilljail/bootstrap:{SUITE}"
# What the slim images leave out too. dpkg keeps these rules in the image, so they hold for later packages.
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
KEPT = ("/usr/share/doc/*/copyright", "/usr/share/locale/locale.alias")
OPTIONS = (
    "--variant=minbase",
    # mmdebstrap brings those of the host that builds; not every engine hides them in a sandbox.
    '--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname"',
    *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
    *(f"--dpkgopt=path-include={pattern}" for pattern in KEPT),
)
DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
SECONDS_MAX = 900
STOP_SECONDS = 30
"""How long mmdebstrap may take to remove its temporary files when it is told to end."""


def recipe() -> str:
    """The sha256 of all that decides what a bootstrap makes, except the state of Debian's archive."""
    return hashlib.sha256("\n".join((SUITE, *OPTIONS)).encode()).hexdigest()


def bootstrapped(store: ImageStore) -> StoredImage | None:
    """The image of an earlier bootstrap with the same recipe, if the engine has one."""
    image = store.find(BOOTSTRAP_REFERENCE)
    return image if image and image.labels.get("io.skilljail.recipe") == recipe() else None


def bootstrap(store: ImageStore, progress: Progress) -> StoredImage:
    """Makes a Debian root with mmdebstrap and imports it. Raises ImageError when mmdebstrap is missing or fails."""
    if shutil.which("mmdebstrap") is None:
        raise ImageError(
            "mmdebstrap is needed to make the base from Debian's packages and is not installed: "
            "`apt-get install mmdebstrap`, or name an image of Debian trixie with --base-image"
        )
    architecture = DEBIAN_ARCHITECTURES[store.architecture()]
    progress.step(f"mmdebstrap {SUITE} ({architecture}) from Debian's packages")
    with tempfile.TemporaryDirectory(prefix="skilljail-bootstrap-") as directory:
        root = pathlib.Path(directory) / "root.tar"
        _mmdebstrap(architecture, root)
        progress.step(f"import {root.stat().st_size / 1e6:.0f} MB as {BOOTSTRAP_REFERENCE}")
        labels = {
            "io.skilljail.recipe": recipe(),
            "org.opencontainers.image.title": f"Debian {SUITE}, minimal",
        }
        return store.import_root(root, BOOTSTRAP_REFERENCE, labels)


def _mmdebstrap(architecture: str, root: pathlib.Path) -> None:
    """Runs mmdebstrap. It needs root or user namespaces, and picks what there is by itself."""
    # To standard output: from inside a user namespace it could not write into our private directory.
    command = ["mmdebstrap", *OPTIONS, f"--architectures={architecture}", SUITE, "-"]
    with root.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE) as process:  # noqa: S603
        try:
            _, said = process.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            _stop(process)
            raise ImageError(f"mmdebstrap did not end within {SECONDS_MAX} s: is Debian's mirror reached?") from error
        except BaseException:
            _stop(process)
            raise
    if process.returncode != 0:
        last_lines = "\n".join(said.decode(errors="replace").strip().splitlines()[-8:])
        raise ImageError(
            "mmdebstrap failed. It needs Debian's mirror, its keys (`apt-get install debian-archive-keyring`), and "
            "root or user namespaces for your user (`apt-get install uidmap`, and a line for you in /etc/subuid and "
            f"/etc/subgid). It said:\n{last_lines}"
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends mmdebstrap in order: killed at once, it would leave its half of a root and its keyring in /tmp."""
    process.terminate()
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
