"""Downloads: only what has the pinned hash is ever used."""

import hashlib
import http.server
import pathlib
import threading
import zipfile
from collections.abc import Iterator

import pytest
from skilljaild.images.download import cache_directory, cached_file, download, file_sha256
from skilljaild.images.error import ImageError
from skilljaild.images.pins import Pin

CONTENT = b"an interpreter" * 1000
REQUESTS: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT at /file, and a redirect at /moved."""

    def do_GET(self) -> None:
        REQUESTS.append(self.path)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/file")
            self.end_headers()
            return
        self.send_response(200 if self.path == "/file" else 404)
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *_: object) -> None:
        """Keeps the test's output clean."""


@pytest.fixture
def server(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A web server's URL; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    REQUESTS.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{one.server_port}"
        one.shutdown()


def pin(url: str, sha256: str = hashlib.sha256(CONTENT).hexdigest(), max_bytes: int = 1_000_000) -> Pin:
    return Pin("node", "1.0", "x86_64", url, sha256, max_bytes, "MIT", "nowhere")


def test_a_file_is_downloaded_once(server: str) -> None:
    first = download(pin(f"{server}/file"))
    assert first.read_bytes() == CONTENT
    assert download(pin(f"{server}/file")) == first
    assert REQUESTS == ["/file"]


def test_a_damaged_cache_is_not_used(server: str) -> None:
    path = download(pin(f"{server}/file"))
    path.write_bytes(b"damaged")
    assert download(pin(f"{server}/file")).read_bytes() == CONTENT
    assert REQUESTS == ["/file", "/file"]


def test_another_hash_is_refused_and_leaves_nothing(server: str) -> None:
    wrong = pin(f"{server}/file", sha256="0" * 64)
    with pytest.raises(ImageError, match=f"has sha256 {hashlib.sha256(CONTENT).hexdigest()}, but {'0' * 64} is pinned"):
        download(wrong)
    assert [path for path in cache_directory().rglob("*") if path.is_file()] == []


def test_a_file_that_is_too_long_is_cut_off(server: str) -> None:
    with pytest.raises(ImageError, match="is longer than 1000 bytes"):
        download(pin(f"{server}/file", max_bytes=1000))


def test_a_redirect_away_from_https_is_refused(server: str) -> None:
    with pytest.raises(ImageError, match="which is not https"):
        download(pin(f"{server}/moved"))
    assert REQUESTS == ["/moved"]


def test_a_missing_file_says_where_to_put_it_by_hand(server: str) -> None:
    missing = pin(f"{server}/missing")
    with pytest.raises(ImageError, match=r"cannot download node 1\.0") as caught:
        download(missing)
    by_hand = cached_file(missing.sha256, "missing")
    assert str(by_hand) in str(caught.value)
    by_hand.write_bytes(CONTENT)
    assert download(missing) == by_hand


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A package in an index of the test's own: the only one that pip then knows."""
    wheel = tmp_path / "tiny-1.0-py2.py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/bin/tiny", "tiny")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py2.py3-none-manylinux_2_28_x86_64\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return wheel


def test_a_package_is_fetched_by_pip_and_held_to_its_hash(package: pathlib.Path) -> None:
    url = f"pypi:tiny==1.0/{package.name}"
    path = download(pin(url, sha256=file_sha256(package)))
    assert path.read_bytes() == package.read_bytes()
    with pytest.raises(
        ImageError, match=r"(?s)pip cannot download node 1\.0 \(tiny==1\.0\)\. On a machine .* pip said:"
    ):
        download(pin(url, sha256="0" * 64))
