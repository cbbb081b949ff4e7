"""Fetches pinned files into a cache. What has another hash than its pin is thrown away."""

import hashlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import IO

from skilljaild.images.error import ImageError
from skilljaild.images.pins import Pin

__all__ = ["cache_directory", "cached_file", "download", "file_sha256"]

CONNECT_SECONDS = 15
"""How long a server may stay silent before the download is given up."""
CHUNK_BYTES = 1 << 20
PACKAGE_SECONDS = 600


def cache_directory() -> pathlib.Path:
    """`$XDG_CACHE_HOME/skilljail`, made when it is not there."""
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    directory = pathlib.Path(root) / "skilljail"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def cached_file(sha256: str, name: str) -> pathlib.Path:
    """Where a file of this hash lies in the cache. An operator without internet puts it there by hand."""
    return cache_directory() / "downloads" / sha256 / name


def file_sha256(path: pathlib.Path) -> str:
    """The sha256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(pin: Pin) -> pathlib.Path:
    """The file of a pin, from the cache or from its URL. Its hash has been checked either way.

    Raises ImageError when the server does not answer, or sends something else than what is pinned.
    """
    target = cached_file(pin.sha256, pin.file_name)
    if target.is_file() and file_sha256(target) == pin.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as partial:
        path = pathlib.Path(partial.name)
        try:
            fetch = _fetch_package if pin.package else _fetch
            fetch(pin, partial)
            partial.flush()
            found = file_sha256(path)
            if found != pin.sha256:
                raise ImageError(
                    f"{pin.url} has sha256 {found}, but {pin.sha256} is pinned: "
                    "the file was changed on its way or at its source, and is not used"
                )
            path.rename(target)
        finally:
            path.unlink(missing_ok=True)
    return target


def _fetch(pin: Pin, target: IO[bytes]) -> None:
    """Writes what the pin's URL serves, never more than `max_bytes`."""
    try:
        with _https_only().open(pin.url, timeout=CONNECT_SECONDS) as response:
            received = 0
            while chunk := response.read(CHUNK_BYTES):
                received += len(chunk)
                if received > pin.max_bytes:
                    raise ImageError(f"{pin.url} is longer than {pin.max_bytes} bytes: it is not the pinned file")
                target.write(chunk)
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ImageError(
            f"cannot download {pin.name} {pin.version} from {pin.url}: {reason}. "
            f"On a machine without internet, put the file at {cached_file(pin.sha256, pin.file_name)}"
        ) from error


def _fetch_package(pin: Pin, target: IO[bytes]) -> None:
    """Has pip write the file of a package. It brings proxies, mirrors and certificates as the host is set up."""
    with tempfile.TemporaryDirectory(prefix="skilljail-download-") as directory:
        requirement = pathlib.Path(directory) / "requirement.txt"
        requirement.write_text(f"{pin.package} --hash=sha256:{pin.sha256}\n")
        platform = pin.file_name.removesuffix(".whl").rsplit("-", 1)[-1]
        options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check", "--quiet"]
        where = ["--platform", platform, "--dest", directory, "--requirement", str(requirement)]
        command = [*_pip(), "download", *options, *where]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PACKAGE_SECONDS, check=False)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise ImageError(f"pip did not download {pin.package} within {PACKAGE_SECONDS} s; try again") from error
        found = pathlib.Path(directory) / pin.file_name
        if done.returncode != 0 or not found.is_file():
            last_lines = "\n".join(done.stderr.strip().splitlines()[-4:])
            raise ImageError(
                f"pip cannot download {pin.name} {pin.version} ({pin.package}). On a machine without a package index, "
                f"put the file at {cached_file(pin.sha256, pin.file_name)}. pip said:\n{last_lines}"
            )
        with found.open("rb") as file:
            shutil.copyfileobj(file, target)


def _pip() -> list[str]:
    """The command that runs pip: this Python's own, or what is at hand. Raises ImageError."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    beside = pathlib.Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is not None:
        return [uv, "tool", "run", "--quiet", "pip"]
    pip = shutil.which("pip3") or shutil.which("pip")
    if pip is None:
        raise ImageError("pip is needed to download node and is not installed: `python3 -m ensurepip`")
    return [pip]


class _HttpsRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never down to plain HTTP."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        if not newurl.startswith("https://"):
            raise urllib.error.URLError(f"it redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _https_only() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_HttpsRedirects)
