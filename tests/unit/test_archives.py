"""Nothing of a run is ever unpacked: only the builder of the images reads archives, which are pinned by hash."""

import ast
import pathlib

import pytest
from attack_table import Seen
from named_tests import ROOT

READERS = {"tarfile", "zipfile", "zipimport", "gzip", "bz2", "lzma", "zlib", "shutil.unpack_archive"}
SOURCES = sorted(
    path for top in ("client", "daemon", "sandbox-images/init") for path in (ROOT / top).rglob("*.py") if path.is_file()
)
ARCHIVE_API = {"get_archive", "put_archive", "export", "diff"}


def imported(path: pathlib.Path) -> set[str]:
    """Top-level names of the modules that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names}


@pytest.mark.attack(67, "reading an archive of a caller or a script", expected="no code does")
def test_no_code_but_the_image_builder_reads_archives(seen: Seen) -> None:
    readers = {path.relative_to(ROOT).as_posix() for path in SOURCES if imported(path) & READERS}
    assert {one for one in readers if not one.startswith("daemon/skilljaild/images/")} == set()
    assert readers, "the builder does: the search works"
    seen({str(pathlib.PurePosixPath(one).parent) for one in readers})


@pytest.mark.attack(63, 68, "the engine's archive API on a sandbox", expected="no code uses it")
def test_no_code_uses_the_archive_api_of_an_engine_on_a_sandbox(seen: Seen) -> None:
    """CVE-2018-15664, CVE-2019-14271, CVE-2026-41567, CVE-2026-41568, CVE-2026-42306."""
    calls = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ARCHIVE_API
    }
    assert {one for one in calls if not one.startswith("daemon/skilljaild/images/")} == set()
    seen(calls)
