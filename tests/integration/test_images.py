"""The sandbox images as they come from the builder, on a real engine.

The archive that pwsh is made from is named by SKILLJAIL_PWSH_ARCHIVE; without it these tests fail.
"""

import contextlib
import dataclasses
import errno
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from typing import Any

import docker
import pytest
from docker.types import LogConfig, Ulimit
from skilljaild import images
from skilljaild.assets import sandbox_images_directory
from skilljaild.images import IMAGE_NAMES
from skilljaild.images.download import file_sha256

pytestmark = pytest.mark.timeout(900)

PROFILE = sandbox_images_directory() / "seccomp" / "profile.json"
HARDENED: dict[str, Any] = {
    "network_mode": "none",
    "read_only": True,
    "tmpfs": {"/work": "rw,nosuid,nodev,size=64m,uid=65532,gid=65532"},
    "cap_drop": ["ALL"],
    "mem_limit": "256m",
    "pids_limit": 64,
}
ENVIRONMENT = {"HOME": "/work", "TMPDIR": "/work"}

PRIVILEGED = """
import os, stat
for directory, names, files in os.walk("/"):
    names[:] = [n for n in names if os.path.join(directory, n) not in ("/proc", "/sys", "/dev")]
    for name in names + files:
        path = os.path.join(directory, name)
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            continue
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID) or "security.capability" in os.listxattr(path):
            print(path, oct(status.st_mode))
"""
NOT_COMPILED = """
import importlib.util, pathlib
for root in ("/opt/skilljail", "/usr/lib/python3.13", "/usr/lib/python3/dist-packages"):
    for source in pathlib.Path(root).rglob("*.py"):
        header = pathlib.Path(importlib.util.cache_from_source(str(source)))
        if not header.exists() or header.read_bytes()[:5] != importlib.util.MAGIC_NUMBER + b"\\1":
            print(source)
"""


@dataclasses.dataclass(frozen=True)
class Output:
    """What a program in a container left."""

    exit_code: int
    text: str


@pytest.fixture(scope="session")
def pwsh_archive() -> pathlib.Path:
    """The archive that pwsh is built from."""
    path = os.environ.get("SKILLJAIL_PWSH_ARCHIVE")
    assert path, "set SKILLJAIL_PWSH_ARCHIVE to a release archive of PowerShell for Linux"
    return pathlib.Path(path)


def images_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `skilljaild images …` as an operator does."""
    command = [sys.executable, "-m", "skilljaild", "images", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)


@pytest.fixture(scope="module", autouse=True)
def built(pwsh_archive: pathlib.Path) -> None:
    """All images are there, built with the archive."""
    done = images_command("build", "--pwsh-archive", str(pwsh_archive), "--pwsh-sha256", file_sha256(pwsh_archive))
    assert done.returncode == 0, done.stderr


def run(api: docker.APIClient, image: str, *command: str, user: str = "", **host: Any) -> Output:
    """Runs a program in a new container on the image, and removes the container."""
    host.setdefault("security_opt", ["no-new-privileges"])
    config = api.create_host_config(
        log_config=LogConfig(type="json-file"),
        ulimits=[Ulimit(name="nofile", soft=1024, hard=1024), Ulimit(name="nproc", soft=4096, hard=4096)],
        **host,
    )
    container = api.create_container(
        image,
        entrypoint=list(command[:1]),
        command=list(command[1:]),
        user=user,
        environment=ENVIRONMENT,
        host_config=config,
    )["Id"]
    try:
        api.start(container)
        status = api.wait(container, timeout=120)["StatusCode"]
        return Output(status, api.logs(container).decode())
    finally:
        api.remove_container(container, force=True, v=True)


def hardened(api: docker.APIClient, image: str, *command: str) -> Output:
    """Runs a program as a sandbox does: our seccomp profile, no capabilities, read-only root, no network."""
    options = ["no-new-privileges", f"seccomp={PROFILE.read_text()}"]
    return run(api, image, *command, security_opt=options, **HARDENED)


def configuration(api: docker.APIClient, image: str) -> dict[str, Any]:
    """The image's config, as the engine tells it."""
    answer: dict[str, Any] = api.inspect_image(image)  # type: ignore[no-untyped-call]
    config: dict[str, Any] = answer["Config"]
    return config | {"Id": answer["Id"]}


def labels(api: docker.APIClient, name: str) -> dict[str, str]:
    return dict(configuration(api, images.reference(name))["Labels"])


def identities(api: docker.APIClient) -> dict[str, str]:
    return {name: configuration(api, images.reference(name))["Id"] for name in IMAGE_NAMES}


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_no_file_is_setuid_or_has_capabilities(engine_api: docker.APIClient, name: str) -> None:
    found = run(engine_api, images.reference(name), "python3", "-c", PRIVILEGED, user="0", network_mode="none")
    assert found == Output(0, "")


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_all_bytecode_is_compiled_and_never_checked(engine_api: docker.APIClient, name: str) -> None:
    assert run(engine_api, images.reference(name), "python3", "-c", NOT_COMPILED, network_mode="none") == Output(0, "")


def test_python_starts_from_bytecode_alone(engine_api: docker.APIClient) -> None:
    script = "import json, argparse, asyncio; print('ready')"
    done = hardened(engine_api, images.reference("python"), "python3", "-v", "-c", script)
    assert done.exit_code == 0
    assert "ready" in done.text
    assert "/usr/lib/python3.13/__pycache__/argparse.cpython-313.pyc matches" in done.text
    assert re.findall(r"code object from '[^']*\.py'", done.text) == [], "a module was compiled from its source"
    assert "wrote '" not in done.text


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_images_start_init_as_the_sandbox_user(engine_api: docker.APIClient, name: str) -> None:
    config = configuration(engine_api, images.reference(name))
    assert config["Entrypoint"] == ["/usr/bin/python3", "-I", "-S", "/opt/skilljail/init/__main__.py"]
    assert not config.get("Cmd")
    assert (config["User"], config["WorkingDir"]) == ("65532:65532", "/work")
    assert not config.get("Volumes")
    assert not config.get("ExposedPorts")
    environment = set(config["Env"])
    assert environment >= {"LANG=C.UTF-8", "HOME=/work/home", "TMPDIR=/work/tmp", "NO_COLOR=1"}
    extra = {"POWERSHELL_TELEMETRY_OPTOUT=1", "POWERSHELL_UPDATECHECK=Off", "DOTNET_EnableDiagnostics=0"}
    assert {entry.partition("=")[0] for entry in environment} - {"PATH", "LANG", "HOME", "TMPDIR", "NO_COLOR"} == (
        {entry.partition("=")[0] for entry in extra} if name == "pwsh" else set()
    )


@pytest.mark.parametrize(
    ("name", "command", "version"),
    [
        ("python", ["python", "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))"], "3.13."),
        ("node", ["node", "-p", "process.versions.node"], "24."),
        ("bash", ["bash", "-c", "echo ${BASH_VERSION%%(*}"], "5."),
        ("pwsh", ["pwsh", "-NoLogo", "-NoProfile", "-Command", "$PSVersionTable.PSVersion.ToString()"], "7."),
    ],
)
def test_labels_tell_what_is_in_an_image(
    engine_api: docker.APIClient, name: str, command: list[str], version: str
) -> None:
    told = labels(engine_api, name)
    real = hardened(engine_api, images.reference(name), *command)
    assert real == Output(0, told["io.skilljail.interpreter-version"] + "\n")
    assert told["io.skilljail.interpreter-version"].startswith(version)
    assert told["io.skilljail.interpreter"] == told["io.skilljail.image"] == name
    assert told["io.skilljail.version"] == told["org.opencontainers.image.version"] == "0.1.0"
    assert len(told["io.skilljail.recipe"]) == 64
    assert told["org.opencontainers.image.revision"]
    assert told["org.opencontainers.image.licenses"]


def test_the_hash_of_the_powershell_archive_is_recorded(
    engine_api: docker.APIClient, pwsh_archive: pathlib.Path
) -> None:
    assert labels(engine_api, "pwsh")["io.skilljail.pwsh-sha256"] == file_sha256(pwsh_archive)
    assert labels(engine_api, "pwsh")["io.skilljail.pwsh-origin"] == "archive"


def test_a_second_build_does_nothing_and_is_fast(engine_api: docker.APIClient) -> None:
    before = identities(engine_api)
    started = time.monotonic()
    done = images_command("build")
    seconds = time.monotonic() - started
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[:4] for line in done.stdout.splitlines()] == [
        [name, "up", "to", "date"] for name in IMAGE_NAMES
    ]
    assert identities(engine_api) == before
    assert seconds < 60


def test_the_list_shows_every_image(engine_api: docker.APIClient) -> None:
    done = images_command("list")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [[name, images.reference(name)] for name in IMAGE_NAMES]
    assert labels(engine_api, "node")["io.skilljail.interpreter-version"] in done.stdout


def test_a_wrong_hash_for_the_powershell_archive_is_refused(
    engine_api: docker.APIClient, pwsh_archive: pathlib.Path
) -> None:
    before = identities(engine_api)
    done = images_command("build", "pwsh", "--pwsh-archive", str(pwsh_archive), "--pwsh-sha256", "0" * 64)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"has sha256 {file_sha256(pwsh_archive)}, but --pwsh-sha256 says {'0' * 64}: it is not used" in done.stderr
    assert identities(engine_api) == before


OTHER_VERSION = """
import sys, skilljaild
skilljaild.__version__ = sys.argv.pop(1)
from skilljaild.cli import main
sys.exit(main())
"""


@contextlib.contextmanager
def other_version(api: docker.APIClient, version: str) -> Iterator[str]:
    """A version of skilljail of which no image is there before, and none is left behind."""
    try:
        yield version
    finally:
        for name in reversed(IMAGE_NAMES):
            with contextlib.suppress(docker.errors.ImageNotFound):
                api.remove_image(f"skilljail/{name}:{version}")


def test_without_a_powershell_the_others_are_built(engine_api: docker.APIClient, tmp_path: pathlib.Path) -> None:
    environment = os.environ | {"https_proxy": "http://127.0.0.1:1"}  # node is in the cache of downloads
    with other_version(engine_api, "0.0.0-test-no-pwsh") as version:
        command = [sys.executable, "-c", OTHER_VERSION, version, "images", "build"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert done.returncode == 1
        assert [line.split()[:3] for line in done.stdout.splitlines()] == [
            [name, "built", f"skilljail/{name}:{version}"] for name in ("base", "python", "node", "bash")
        ]
        last = done.stderr.splitlines()[-1]
        assert last.startswith(
            "skilljail: pwsh failed: PowerShell has no source: cannot download pwsh 7.6.6 from https://"
        )
        assert "--pwsh-archive FILE" in last
        with pytest.raises(docker.errors.ImageNotFound):
            configuration(engine_api, f"skilljail/pwsh:{version}")


def test_an_archive_whose_pwsh_does_not_run_gives_no_image(
    engine_api: docker.APIClient, tmp_path: pathlib.Path
) -> None:
    archive = tmp_path / "powershell.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("pwsh")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"\x7fELF"))
    with other_version(engine_api, "0.0.0-test-broken-pwsh") as version:
        command = [
            sys.executable,
            "-c",
            OTHER_VERSION,
            version,
            "images",
            "build",
            "pwsh",
            "--pwsh-archive",
            str(archive),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)}, check=False
        )
        assert done.returncode == 1
        assert "skilljail: pwsh failed: " in done.stderr
        names = {tag for image in engine_api.images() for tag in image["RepoTags"] or ()}
        assert not {tag for tag in names if tag.startswith("skilljail/pwsh:") and ("building" in tag or version in tag)}


EXTENSION = f"""
FROM {images.reference("python")}
USER 0
RUN apt-get update \\
 && apt-get install --yes --no-install-recommends python3-yaml iputils-ping \\
 && /opt/skilljail/seal
USER 65532:65532
"""


def test_an_image_can_be_extended_with_a_package(engine_api: docker.APIClient) -> None:
    tag = "skilljail-test-extension:1"
    lines = engine_api.build(
        fileobj=io.BytesIO(EXTENSION.encode()), tag=tag, rm=True, forcerm=True, network_mode="host", decode=True
    )
    log = "".join(str(line.get("stream") or line.get("error") or "") for line in lines)
    try:
        done = hardened(engine_api, tag, "python", "-c", "import yaml; print(yaml.safe_load('a: [1, 2]'))")
        assert done == Output(0, "{'a': [1, 2]}\n"), log
        assert run(engine_api, tag, "python3", "-c", PRIVILEGED, user="0", network_mode="none") == Output(0, "")
        assert run(engine_api, tag, "python3", "-c", NOT_COMPILED, network_mode="none") == Output(0, "")
        extended, original = (configuration(engine_api, i) for i in (tag, images.reference("python")))
        for key in ("Entrypoint", "User", "WorkingDir", "Env"):
            assert extended[key] == original[key]
        assert extended["Labels"]["io.skilljail.interpreter"] == "python"
    finally:
        engine_api.remove_image(tag, force=True)


NODE = """
const { execFileSync } = require("child_process"), { Worker } = require("worker_threads");
new Worker("require('worker_threads').parentPort.postMessage(7)", { eval: true }).on("message", (n) => {
  require("crypto").pbkdf2("a", "b", 10, 4, "sha256", (error, key) => {
    console.log(n, key.length, execFileSync("echo", ["child"]).toString().trim());
  });
});
"""
PWSH = """
$day = [cultureinfo]::new('fr-FR').DateTimeFormat.DayNames[1]
$zone = [TimeZoneInfo]::FindSystemTimeZoneById('Europe/Paris').BaseUtcOffset.TotalHours
$job = 1..2 | ForEach-Object -Parallel { $_ * 10 } | Sort-Object
"$day $zone $job $(/bin/echo child)"
"""
PYTHON = """
import concurrent.futures, multiprocessing, sqlite3, ssl, subprocess, zoneinfo
with concurrent.futures.ThreadPoolExecutor() as threads:
    number = threads.submit(lambda: 7).result()
child = subprocess.run(["echo", "child"], capture_output=True, text=True).stdout.strip()
with multiprocessing.Pool(2) as pool:
    print(number, pool.map(abs, [-1, -2]), zoneinfo.ZoneInfo("Europe/Paris"), child)
"""


@pytest.mark.parametrize(
    ("name", "command", "output"),
    [
        ("python", ["python", "-c", PYTHON], "7 [1, 2] Europe/Paris child\n"),
        ("node", ["node", "-e", NODE], "7 4 child\n"),
        (
            "bash",
            ["bash", "-c", "seq 3 | awk '{s+=$1} END {print s}'; echo '{\"a\": 1}' | jq .a; sleep 0 & wait"],
            "6\n1\n",
        ),
        ("pwsh", ["pwsh", "-NoLogo", "-NoProfile", "-Command", PWSH], "lundi 1 10 20 child\n"),
    ],
)
def test_interpreters_work_in_a_hardened_container(
    engine_api: docker.APIClient, name: str, command: list[str], output: str
) -> None:
    assert hardened(engine_api, images.reference(name), *command) == Output(0, output)


CALLS = """
import ctypes, json, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(*(ctypes.c_ulong(a) for a in (number, *arguments)))
    return ctypes.get_errno() if result < 0 else 0
def make(*arguments):
    try:
        socket.socket(*arguments).close()
    except OSError as error:
        return error.errno
    return 0
X86 = platform.machine() == "x86_64"
NUMBERS = {
    "unshare": (272, 97), "setns": (308, 268), "ptrace": (101, 117), "mount": (165, 40), "chroot": (161, 51),
    "keyctl": (250, 219), "add_key": (248, 217), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "syslog": (103, 116),
    "process_vm_readv": (310, 270), "settimeofday": (170, 170), "adjtimex": (159, 171), "mbind": (237, 235),
    "clone3": (435, 435), "io_uring_setup": (425, 425), "open_tree": (428, 428), "fsopen": (430, 430),
}
answers = {name: call(numbers[0 if X86 else 1], 0, 0, 0, 0, 0) for name, numbers in NUMBERS.items()}
clone, ioctl = (56, 16) if X86 else (220, 29)
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    answers[f"clone {flag:#x}"] = call(clone, flag | 17, 0, 0, 0, 0)
for request in (0x5412, 0x541C, 1 << 32 | 0x5412, 1 << 63 | 0x541C):
    answers[f"ioctl {request:#x}"] = call(ioctl, 0, request, 0)
answers["ioctl 0x5401"] = call(ioctl, 0, 0x5401, 0)
for family in (1, 2, 10, 16, 17, 33, 38, 40):
    answers[f"socket {family}"] = make(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
answers["socket raw"] = make(2, socket.SOCK_RAW, 1)
socket.socketpair()
if X86:
    entries = {"i386": b"\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3", "x32": b"\\xb8\\x27\\0\\0\\x40\\x0f\\x05\\xc3"}
    for name, entry in entries.items():
        child = os.fork()
        if child == 0:
            import mmap
            memory = mmap.mmap(-1, 4096, prot=7)
            memory.write(entry)
            ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
            os._exit(0)
        answers[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
answers |= {name: status[name].strip() for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}
print(json.dumps(answers))
"""


def test_the_kernel_answers_as_the_profile_says(engine_api: docker.APIClient) -> None:
    done = hardened(engine_api, images.reference("python"), "python", "-c", CALLS)
    assert done.exit_code == 0, done.text
    answers: dict[str, int | str] = json.loads(done.text)
    expected: dict[str, int | str] = dict.fromkeys(answers, errno.EPERM)
    expected |= {"clone3": errno.ENOSYS, "io_uring_setup": errno.ENOSYS, "ioctl 0x5401": errno.ENOTTY}
    expected |= {f"socket {family}": errno.EAFNOSUPPORT for family in (16, 17, 33, 38, 40)}
    expected |= {f"socket {family}": 0 for family in (1, 2, 10)}
    expected |= {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    expected |= {name: -31 for name in ("i386", "x32") if name in answers}
    assert answers == expected
