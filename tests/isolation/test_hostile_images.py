"""Images that an attacker had a hand in: what they bring is not followed, and what was checked is what runs."""

import io
import json
import pathlib
import secrets
import tarfile
from collections.abc import Iterator
from typing import Any

import docker
import pytest
import skilljail
from attack_table import Seen
from harness import MakeSkill, on, owned_containers, running_daemon, wait_until
from skilljail import Outcome
from skilljaild import images

from isolation.attacks import Attacks


@pytest.fixture
def repository(engine_api: docker.APIClient) -> Iterator[str]:
    """A name for images of a test, which are removed at its end."""
    name = f"skilljail-test/hostile-{secrets.token_hex(4)}"
    yield name
    for image in engine_api.images(name):
        for reference in image["RepoTags"]:
            engine_api.remove_image(reference, force=True)


@pytest.fixture(scope="module")
def root_folder(engine_api: docker.APIClient, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The bash image's files, as a tar archive."""
    path = tmp_path_factory.mktemp("image") / "root.tar"
    container = engine_api.create_container(images.reference("bash"))["Id"]
    try:
        with path.open("wb") as file:
            for piece in engine_api.export(container):
                file.write(piece)
    finally:
        engine_api.remove_container(container)
    return path


def image_with_links(api: docker.APIClient, root_folder: pathlib.Path, repository: str, links: dict[str, str]) -> None:
    """Makes `repository`:x of the bash image, with links in the place of some of its folders."""
    changed = root_folder.with_name("changed.tar")
    with tarfile.open(root_folder) as source, tarfile.open(changed, "w") as target:
        for member in source:
            if member.name.partition("/")[0] not in links:
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
        for name, to in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, to
            target.addfile(link, io.BytesIO())
    config = api.inspect_image(images.reference("bash"))["Config"]
    changes = [f"ENTRYPOINT {json.dumps(config['Entrypoint'])}", f"USER {config['User']}"]
    changes += [f"WORKDIR {config['WorkingDir']}", *(f"ENV {one}" for one in config["Env"])]
    changes += [f'LABEL {name}="{value}"' for name, value in config["Labels"].items()]
    api.import_image_from_file(str(changed), repository=repository, tag="x", changes=changes)


def is_known(client: skilljail.Client) -> bool:
    """Whether the daemon has found the image of bash by now."""
    bash = client.capabilities().interpreter("bash")
    return bash is not None and bash.image_digest != ""


LOOK = """
stat -c '%n %F %t:%T' /dev /dev/null /proc /sys
for masked in /proc/kcore /proc/keys /proc/interrupts /sys/firmware; do
    [ -e $masked ] && { head -c 10 $masked 2>/dev/null | wc -c; ls $masked | grep -v "^$masked$"; }
done
echo x >/dev/made 2>/dev/null && echo made
exit 0
"""
EXPECTED = """\
/dev directory 0:0
/dev/null character special file 1:3
/proc directory 0:0
/sys directory 0:0
"""


@pytest.mark.attack(47, "an image with links at /dev, /proc, /sys", expected="not followed, or nothing runs")
def test_links_of_an_image_in_the_place_of_the_kernels_folders_lead_nowhere(
    engine_api: docker.APIClient,
    root_folder: pathlib.Path,
    repository: str,
    make_skill: MakeSkill,
    tmp_path: pathlib.Path,
    seen: Seen,
) -> None:
    """CVE-2025-31133, CVE-2025-52565, CVE-2026-41579: what is masked and mounted there must not land on the host."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    links = dict.fromkeys(("dev", "proc", "sys"), "../" * 12 + str(outside).lstrip("/"))
    # It comes after the start, which it would prevent.
    flags = ("--set", f"images.bash={repository}:x")
    with running_daemon(*flags) as own, skilljail.Client(own.address) as client:
        image_with_links(engine_api, root_folder, repository, links)
        wait_until(lambda: is_known(client))
        try:
            result = client.run(make_skill({"x.sh": LOOK}), "x.sh")
        except skilljail.SkilljailError as error:
            assert error.reason in {"ISOLATION_POSTURE", "ENGINE_UNAVAILABLE"}  # noqa: PT017  either is a good end
            seen(error.reason)
        else:
            assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
            lines = [line for line in result.stdout_text.splitlines() if line != "0"]
            looked = on(runc=True, gvisor=lines != [], why="older releases have no stat for files of an image")
            assert not looked or lines == EXPECTED.splitlines()
            seen("not followed")
        assert owned_containers(engine_api, own.owner) == []
    assert list(outside.iterdir()) == []


@pytest.mark.attack(47, "an image with a link at /work", expected="ISOLATION_POSTURE")
def test_a_link_of_an_image_in_the_place_of_the_work_directory_is_refused(
    engine_api: docker.APIClient, root_folder: pathlib.Path, repository: str, make_skill: MakeSkill, seen: Seen
) -> None:
    """Else the one place that can be written would cover a folder of the image's choice."""
    flags = ("--set", f"images.bash={repository}:x")
    with running_daemon(*flags) as own, skilljail.Client(own.address) as client:
        image_with_links(engine_api, root_folder, repository, {"work": "/etc"})
        wait_until(lambda: is_known(client))
        try:
            result = client.run(
                make_skill({"x.sh": "while read -r line; do echo there; break; done </etc/passwd"}), "x.sh"
            )
        except skilljail.SkilljailError as error:
            assert error.reason == "ISOLATION_POSTURE"  # noqa: PT017  one of two good ends
            assert [run.result for run in client.list_runs() if run.result and run.result.exit_code is not None] == []
            seen(error.reason)
        else:
            assert on(runc=False, gvisor=True, why="it mounts in the place of the link, and covers nothing else")
            assert result.stdout == b"there\n"
            seen("not followed")
        assert owned_containers(engine_api, own.owner) == []


@pytest.mark.attack(47, 89, "an image that gets another content under its name", expected="what was checked runs")
def test_what_a_run_is_told_about_its_image_is_what_it_runs_in(
    engine_api: docker.APIClient, repository: str, make_skill: MakeSkill, seen: Seen
) -> None:
    """The name is looked up once, and everything after that goes by digest."""
    skill = make_skill({"x.sh": "echo up; sleep 600"})
    pairs: list[tuple[str, str]] = []
    engine_api.tag(images.reference("bash"), repository, "x")
    with (
        running_daemon("--set", f"images.bash={repository}:x") as own,
        skilljail.Client(own.address) as client,
    ):
        for name in ("bash", "python", "node"):
            engine_api.tag(images.reference(name), repository, "x")
            with client.stream(skill, "x.sh") as stream:
                started = next(event for event in stream if isinstance(event, skilljail.Started))
                next(event for event in stream if isinstance(event, skilljail.Output))
                (container,) = owned_containers(engine_api, own.owner)
                inspected: dict[str, Any] = engine_api.inspect_container(container)
                pairs.append((started.image_digest, inspected["Image"]))
                assert inspected["Config"]["Image"] == started.image_digest  # no name that could lead elsewhere
                stream.cancel()
                stream.wait()
    assert all(told == real for told, real in pairs)
    first = engine_api.inspect_image(images.reference("bash"))["Id"]
    assert pairs[0] == (first, first)
    seen(f"{len(pairs)} by digest")


@pytest.mark.attack(89, "an image that is removed under a run", expected="the run goes on, the next is refused")
def test_an_image_that_is_taken_away_is_told_and_nothing_else_is_taken_for_it(
    attacks: Attacks, engine_api: docker.APIClient, repository: str, make_skill: MakeSkill, seen: Seen
) -> None:
    engine_api.tag(images.reference("bash"), repository, "x")
    skill = make_skill({"x.sh": "echo ran"})
    with (
        running_daemon("--set", f"images.bash={repository}:x") as own,
        skilljail.Client(own.address) as client,
    ):
        assert client.run(skill, "x.sh").stdout == b"ran\n"
        engine_api.remove_image(f"{repository}:x")
        # For the moments in which the daemon believes what it saw, the digest still names the image that was checked.
        deadline = 60
        for _ in range(deadline):
            try:
                result = client.run(skill, "x.sh")
            except skilljail.InterpreterUnavailable as error:
                seen(error.reason)
                break
            assert result.stdout == b"ran\n"
        else:
            pytest.fail("an image that is gone is still used")
