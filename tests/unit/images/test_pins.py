"""What the builder downloads is pinned, for both architectures."""

import re

import pytest
from skilljaild.images.definition import load_definitions
from skilljaild.images.error import ImageError
from skilljaild.images.pins import find_pin, load_pins


def test_every_download_of_an_image_is_pinned_for_both_architectures() -> None:
    downloads = {d.download for d in load_definitions().values() if d.download}
    assert downloads == {"node", "pwsh"}
    for name in downloads:
        by_arch = [find_pin(name, arch) for arch in ("x86_64", "aarch64")]
        assert by_arch[0].version == by_arch[1].version
        assert by_arch[0].sha256 != by_arch[1].sha256


def test_every_pin_is_a_whole_hash_of_an_https_url() -> None:
    for pin in load_pins():
        assert re.fullmatch(r"[0-9a-f]{64}", pin.sha256)
        assert pin.url.startswith(("https://", "pypi:"))
        assert (pin.package is not None) == pin.url.startswith("pypi:")
        assert pin.version in pin.url
        assert pin.licence == "MIT"
        assert pin.max_bytes > 0


def test_interpreters_are_the_long_term_releases() -> None:
    assert find_pin("node", "x86_64").version.startswith("24.")
    assert find_pin("pwsh", "x86_64").version.startswith("7.6.")


def test_an_architecture_without_a_pin_is_named() -> None:
    with pytest.raises(ImageError, match="no node is pinned for riscv64"):
        find_pin("node", "riscv64")
