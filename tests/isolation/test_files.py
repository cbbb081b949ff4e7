"""Files: what can be written, what stays behind, and what comes back as an artifact."""

import io
import json
import tarfile
import zipfile
from typing import Any

import grpc
import pytest
import skilljail
from attack_table import Seen
from harness import INTERPRETERS, Daemon, on
from skilljail import Limits, Outcome
from skilljail.v1 import script_runner_pb2, script_runner_pb2_grpc

from isolation.attacks import Attacks

MIB = 1024 * 1024


@pytest.mark.attack(71, "writing every file and folder of the image", expected="refused")
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_nothing_can_be_written_but_the_work_directory_and_shared_memory(
    attacks: Attacks, interpreter: str, seen: Seen
) -> None:
    """Every folder and every file of each image is tried."""
    script = """
import json
from walk import changeable_files, open_folders
folders = open_folders("/")
files = changeable_files("/")
print(json.dumps({
    "folders": sorted(one for one in folders if not one.startswith("/work/")),
    "below work": sorted(one for one in folders if one.startswith("/work/")),
    "files": [one for one in files if not one.startswith("/work/")],
}))
"""
    found = attacks.report(script, interpreter, limits=Limits(wall_seconds=60, cpu_seconds=60))
    expected = on(
        runc={"/dev/mqueue", "/dev/shm", "/work"},
        gvisor={"/dev/shm", "/tmp", "/work"},
        why="gVisor mounts a /tmp of its own, to which we give a cap; message queues only in newer releases",
    )
    assert set(found["folders"]) - on(runc=set(), gvisor={"/dev/mqueue"}, why="as above") == expected
    assert {"/work/home", "/work/skill", "/work/skill/scripts", "/work/tmp"} <= set(found["below work"])
    assert found["files"] == []
    seen(found["files"])


@pytest.mark.attack(71, "writing in the usual places", expected="EROFS or EACCES")
def test_the_work_directory_is_all_that_the_usual_places_lead_to(attacks: Attacks, seen: Seen) -> None:
    """/tmp, /var/tmp and HOME are in it; /run, /var, /etc, /root, /home are closed."""
    found = attacks.report("""
import json, os, pathlib, tempfile
from attempt import attempt
places = ("/tmp", "/var/tmp", "/run", "/run/lock", "/var/lib", "/var/cache", "/var/log", "/etc", "/root", "/home",
    "/usr/local/bin", "/usr/lib", "/opt", "/opt/skilljail/init", "/mnt", "/media", "/srv", "/boot", "/")
print(json.dumps({
    "leads to": {one: os.path.realpath(one) for one in ("/tmp", "/var/tmp", os.environ["HOME"], tempfile.gettempdir())},
    "open": [one for one in places if attempt(lambda: pathlib.Path(one, "x").write_text("x")).startswith("done")],
    "errors": sorted({attempt(lambda: pathlib.Path(one, "x").write_text("x")) for one in places[2:]}),
}))
""")
    assert found["leads to"] == {
        "/tmp": on(runc="/work/tmp", gvisor="/tmp", why="gVisor mounts a /tmp of its own, to which we give a cap"),
        "/var/tmp": "/work/tmp",
        "/work/home": "/work/home",
        "/work/tmp": "/work/tmp",
    }
    assert found["open"] == ["/tmp", "/var/tmp"]
    assert set(found["errors"]) <= {"EROFS", "EACCES"}
    seen(found["errors"])


@pytest.mark.attack(45, "overwriting /proc/self/exe, reaching /proc/1", expected="EROFS, ETXTBSY or EACCES")
def test_the_running_program_cannot_be_overwritten(attacks: Attacks, seen: Seen) -> None:
    """CVE-2019-5736 and CVE-2024-21626; by its link, a descriptor, or a mapping."""
    found = attacks.report("""
import json, mmap, os
from attempt import attempt
fd = os.open("/proc/self/exe", os.O_RDONLY)
found = {
    "link": attempt(lambda: os.open("/proc/self/exe", os.O_WRONLY)),
    "append": attempt(lambda: os.open("/proc/self/exe", os.O_RDWR | os.O_APPEND)),
    "truncate": attempt(lambda: os.truncate("/proc/self/exe", 0)),
    "descriptor": attempt(lambda: os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)),
    "mapping": attempt(lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)),
    "of init": attempt(lambda: os.open("/proc/1/exe", os.O_RDONLY)),
    "root of init": attempt(lambda: os.open("/proc/1/root/etc/passwd", os.O_RDONLY)),
    "above the root": attempt(lambda: os.open("/proc/self/root/../../../../etc/hostname", os.O_WRONLY)),
    "folders beyond": [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
        if attempt(lambda: os.open(f"/proc/self/fd/{name}/..", os.O_DIRECTORY)).startswith("done")],
}
print(json.dumps(found))
""")
    assert found.pop("folders beyond") == []
    assert found.pop("of init") == found.pop("root of init") == "EACCES"
    assert set(found.values()) <= {"EROFS", "EACCES", "ETXTBSY", "EPERM"}
    seen(found)


@pytest.mark.attack(49, "sockets of engines, tokens of clusters", expected="not there")
def test_no_socket_of_an_engine_or_token_of_a_cluster_is_there(attacks: Attacks, seen: Seen) -> None:
    """Neither in the usual places nor anywhere else."""
    found = attacks.report("""
import json, os, stat
from walk import everything
usual = ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock",
    "/run/crio/crio.sock", "/run/secrets", "/var/run/secrets/kubernetes.io/serviceaccount/token", "/run/host-services",
    "/run/skilljail", "/var/lib/skilljail", "/var/lib/docker", "/var/lib/kubelet", "/host", "/hostfs")
sockets = [str(path) for path in everything("/") if stat.S_ISSOCK(path.lstat().st_mode)]
print(json.dumps({"usual": [one for one in usual if os.path.lexists(one)], "sockets": sockets,
    "listed": open("/proc/net/unix").read().splitlines()[1:]}))
""")
    assert found == {"usual": [], "sockets": [], "listed": []}
    seen(found["usual"] + found["sockets"])


LEAVE_TRACES = """
import ctypes, fcntl, os, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
from kernel import call
for folder in ("/work", "/work/home", "/work/tmp", "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/work/home/.cache",
    "/work/home/.config", "/var/lib", "/etc", "/usr/local/lib", "/run", "/opt/skilljail/init"):
    try:
        os.makedirs(folder, exist_ok=True)
        with open(folder + "/trace-of-a-run", "w") as file: file.write("x")
    except OSError: pass
libc.mq_open(b"/trace-of-a-run", os.O_CREAT | os.O_RDWR, 0o666, None)
KEY = 0x5EC12E7
libc.shmget(KEY, ctypes.c_size_t(4096), 0o1666)
libc.semget(KEY, 1, 0o1666)
queue = libc.msgget(KEY, 0o1666)
libc.msgsnd(queue, ctypes.create_string_buffer((1).to_bytes(8, "little") + b"trace"), ctypes.c_size_t(5), 0)
call("add_key", b"user", b"trace-of-a-run", b"x", 1, -5)
server = socket.socket(socket.AF_UNIX)
server.bind("\\0trace-of-a-run")
server.listen()
port = socket.create_server(("127.0.0.1", 47113))
lock = open("/etc/passwd")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("everywhere")
sys.stdout.flush()
time.sleep(float(sys.argv[1]))
"""

FIND_TRACES = """
import ctypes, fcntl, json, os, socket
from attempt import attempt
from kernel import call
from walk import everything
libc = ctypes.CDLL(None, use_errno=True)
KEY = 0x5EC12E7
def listed(folder):
    return os.listdir(folder) if os.path.isdir(folder) else []  # not every gVisor has all of them
print(json.dumps({
    "files": [str(path) for path in everything("/") if path.name == "trace-of-a-run"],
    "shared memory": os.listdir("/dev/shm"),
    "queues": listed("/dev/mqueue"),
    "work": sorted(os.listdir("/work")),
    "home": os.listdir("/work/home"),
    "temporary": os.listdir("/tmp"),
    "System V": [line for kind in listed("/proc/sysvipc") for line in list(open(f"/proc/sysvipc/{kind}"))[1:]],
    "segments": [libc.shmget(KEY, ctypes.c_size_t(4096), 0), libc.semget(KEY, 1, 0), libc.msgget(KEY, 0)],
    "key": call("request_key", b"user", b"trace-of-a-run", 0, -5),
    "abstract socket": attempt(lambda: socket.socket(socket.AF_UNIX).connect("\\0trace-of-a-run")),
    "port": attempt(lambda: socket.create_connection(("127.0.0.1", 47113))),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "lock": attempt(lambda: fcntl.flock(os.open("/etc/passwd", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)),
}))
"""

NO_TRACES = {
    "files": [],
    "shared memory": [],
    "queues": [],
    "work": ["home", "skill", "tmp"],
    "home": [],
    "temporary": [],
    "System V": [],
    "segments": [-1, -1, -1],
    "key": "EPERM",
    "abstract socket": "ECONNREFUSED",
    "port": "ECONNREFUSED",
    "processes": 2,
    "lock": "done None",
}


@pytest.mark.attack(18, 72, "traces of a run in the next one", expected="nothing")
def test_nothing_of_a_run_is_left_for_the_next(attacks: Attacks, seen: Seen) -> None:
    """Files, shared memory, queues, keys, sockets, locks, processes."""
    result = attacks.run(LEAVE_TRACES, argv=["0"])
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == (Outcome.EXITED, 0, b"everywhere\n", b"")
    found = attacks.report(FIND_TRACES)
    assert found == NO_TRACES
    seen(found["files"], found["key"], found["abstract socket"])


@pytest.mark.attack(18, 61, "traces of a run in another at once", expected="nothing")
def test_nothing_of_a_run_is_there_for_one_at_the_same_time(attacks: Attacks, seen: Seen) -> None:
    """The same, while the first one still runs; the image's files are locked for itself alone."""
    with attacks.under_way(LEAVE_TRACES, argv=["30"]):
        found = attacks.report(FIND_TRACES)
    assert found == NO_TRACES
    seen(found["files"], found["key"], found["abstract socket"])


@pytest.mark.attack(35, "writing into the pages of the image's files", expected="equal hashes in the next sandbox")
def test_the_programs_of_an_image_are_the_same_after_an_attack_on_their_pages(attacks: Attacks, seen: Seen) -> None:
    """Every sandbox of an image shares its pages; no way to write into them without a right works."""
    hashes = """
import hashlib, json, pathlib
paths = [pathlib.Path(one) for one in ("/proc/self/exe", "/usr/bin/bash", "/etc/passwd")]
paths += pathlib.Path("/opt/skilljail/init").rglob("*.py*")
paths += pathlib.Path("/usr/lib").glob("*-linux-gnu/libc.so.6")
print(json.dumps({str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}))
"""
    attack = """
import ctypes, json, os, threading
from attempt import attempt, name_of
from kernel import call
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
READ, WRITE, SHARED, PRIVATE, DONTNEED = 1, 2, 1, 2, 4
opened = attempt(lambda: os.open("/proc/self/mem", os.O_RDWR))
memory = int(opened.split()[1]) if opened.startswith("done") else -1  # closed on gVisor
reading, writing = os.pipe()
found = {"AF_ALG": call("socket", 38, 5, 0), "vmsplice": call("vmsplice", writing, 0, 0, 0),
    "userfaultfd": call("userfaultfd", 0)}
for name in ("/proc/self/exe", "/opt/skilljail/init/__main__.py", "/opt/skilljail/init/skilljail_init/frames.py"):
    target = os.path.realpath(name)
    fd = os.open(target, os.O_RDONLY)
    found[f"open {name}"] = attempt(lambda: os.open(target, os.O_RDWR))
    found[f"truncate {name}"] = attempt(lambda: os.truncate(target, 0))
    found[f"copy into {name}"] = attempt(lambda: os.copy_file_range(memory, fd, 8))
    found[f"send into {name}"] = attempt(lambda: os.sendfile(fd, os.open("/etc/passwd", os.O_RDONLY), 0, 8))
    found[f"splice into {name}"] = attempt(lambda: (os.write(writing, b"attacked"), os.splice(reading, fd, 8)))
    # A shared mapping of a file that was opened for reading stays readable only, also by force.
    shared = libc.mmap(None, 4096, READ, SHARED, fd, 0)
    found[f"mprotect {name}"] = name_of(ctypes.get_errno()) if libc.mprotect(shared, 4096, READ | WRITE) else "done"
    found[f"force {name}"] = attempt(lambda: os.pwrite(memory, b"attacked", shared + 64))
    # Dirty Pipe (CVE-2022-0847): a pipe whose buffers may be merged, then the file's page, then ours.
    near, far = os.pipe()
    os.write(far, bytes(65536)); os.read(near, 65536)
    os.splice(fd, far, 1, offset_src=0)
    os.write(far, b"attacked" * 8)
    # Dirty COW (CVE-2016-5195): a private copy, thrown away while it is written through /proc/self/mem.
    page = libc.mmap(None, 4096, READ, PRIVATE, fd, 0)
    done = threading.Event()
    def discard():
        while not done.is_set(): libc.madvise(ctypes.c_void_p(page), 4096, DONTNEED)
    thread = threading.Thread(target=discard); thread.start()
    for _ in range(5000):
        try: os.pwrite(memory, b"attacked", page + 64)
        except OSError: break
    done.set(); thread.join()
print(json.dumps(found))
"""
    before = attacks.report(hashes)
    found = attacks.report(attack)
    assert len(before) > 10
    after = attacks.report(hashes)
    assert after == before
    seen("equal" if after == before else "different", set(found.values()))
    family = on(runc="EAFNOSUPPORT", gvisor="EPERM", why="it answers every call that a profile refuses with EPERM")
    assert [found.pop(one) for one in ("AF_ALG", "vmsplice", "userfaultfd")] == [family, "EPERM", "EPERM"]
    missing = on(runc=set(), gvisor={"ENOSYS"}, why="older releases have not all of these calls")
    assert set(found.values()) <= {"EROFS", "EACCES", "ETXTBSY", "EBADF", "EINVAL", "EIO", "EFAULT", "EXDEV"} | missing


ARCHIVES = {
    "tar that leads elsewhere": "tar",
    "zip that leads elsewhere": "zip",
    "bomb": "bomb",
    "truncated header": "broken",
}


@pytest.mark.attack(67, "archives among the files of a request", expected="they stay files")
@pytest.mark.parametrize("kind", ARCHIVES.values(), ids=ARCHIVES.keys())
def test_an_archive_among_the_files_is_a_file_and_nothing_unpacks_it(attacks: Attacks, kind: str, seen: Seen) -> None:
    """As input, as part of the skill, and as artifact."""
    content = _archive(kind)
    script = (
        "import json, os\nprint(json.dumps(sorted(os.path.join(f, n) for f, _, ns in os.walk('/work') for n in ns)))"
    )
    skill = attacks.make_skill({"x.py": script, "of-skill.tar": content})
    result = attacks.client.run(skill, "x.py", inputs={"given.tar.gz": content}, artifacts=["*.tar*"])
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    found = json.loads(result.stdout)
    assert found == [f"/work/skill/{name}" for name in ("SKILL.md", "given.tar.gz", "of-skill.tar", "x.py")]
    assert result.artifacts == ()  # both are unchanged
    copied = "import shutil; shutil.copy('of-skill.tar', 'out.tar')"
    skill = attacks.make_skill({"x.py": copied, "of-skill.tar": content})
    back = attacks.client.run(skill, "x.py", artifacts=["out.tar"])
    assert [(one.path, one.content) for one in back.artifacts] == [("out.tar", content)]
    seen(result.outcome, f"{len(found)} files")


def _archive(kind: str) -> bytes:
    """An archive that does harm where it is unpacked."""
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            for name in ("../../outside", "/absolute", "inside"):
                archive.writestr(name, "x")
        return file.getvalue()
    with tarfile.open(fileobj=file, mode="w:gz" if kind == "bomb" else "w") as tar:
        if kind == "bomb":
            member = tarfile.TarInfo("zeros")
            member.size = 64 * MIB
            tar.addfile(member, io.BytesIO(bytes(member.size)))
        for name, kind_of_member in (("../../outside", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind_of_member, "/etc"
            tar.addfile(member)
    content = file.getvalue()
    # A size below zero, which readers have followed backwards for ever (CVE-2025-8194).
    return content[:124] + b"\xff" * 12 + content[136:] if kind == "broken" else content


@pytest.mark.attack(20, "a thousand levels of folders", expected="DEPTH_LIMIT")
def test_a_folder_tree_of_a_thousand_levels_is_searched_no_deeper_than_allowed(attacks: Attacks, seen: Seen) -> None:
    """And what is beside it still comes."""
    script = """
import os
root = os.open(".", os.O_RDONLY)
for _ in range(1000):
    os.mkdir("d"); os.chdir("d")
open("deepest.txt", "w").close()
os.chdir(root)
open("z.txt", "w").write("shallow")
"""
    result = attacks.run(script, artifacts=["**/*.txt"])
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert {one.path: one.content for one in result.artifacts} == {"z.txt": b"shallow"}
    assert [(one.path, one.reason) for one in result.skipped_artifacts] == [("/".join(["d"] * 32), "DEPTH_LIMIT")]
    seen(result.outcome, {one.reason for one in result.skipped_artifacts})


@pytest.mark.attack(21, "slow patterns on ten thousand files", expected="collecting ends")
def test_collecting_is_bounded_whatever_there_is_to_look_at(attacks: Attacks, seen: Seen) -> None:
    """Ten thousand files, links to large ones among them, and patterns made to be slow."""
    script = """
import os
with open("large", "wb") as file: file.truncate(32 << 20)
for number in range(100): os.symlink("large", f"link{number}")
for number in range(100): os.link("large", f"hard{number}")
for number in range(10_000): open("a" * 60 + f"{number}b", "w").close()
"""
    patterns = [
        "*a" * 30 + "*c",
        "**/" * 20 + "*a*a*a*a*x",
        "link*",
        "hard*",
        *[f"{'?' * 40}*{number}*z" for number in range(40)],
    ]
    result = attacks.run(script, artifacts=patterns, limits=Limits(disk_inodes=16_000, wall_seconds=60))
    assert (result.outcome, result.exit_code, result.artifacts) == (Outcome.EXITED, 0, ())
    reasons = [str(one.reason) for one in result.skipped_artifacts]
    assert reasons.count("NOT_A_REGULAR_FILE") == 100 or "TIME_LIMIT" in reasons
    assert reasons.count("SIZE_LIMIT") == 100 or "TIME_LIMIT" in reasons
    seen(result.outcome, set(reasons))


@pytest.mark.attack(64, "hard links to files of the image", expected="EXDEV or EPERM")
def test_hard_links_are_files_like_any_other_and_reach_nothing_else(attacks: Attacks, seen: Seen) -> None:
    script = """
import os
from attempt import attempt
open("one", "w").write("same")
os.link("one", "two")
for path in ("/etc/passwd", "/proc/1/environ", "/proc/self/exe", "/dev/null", "/dev/shm"):
    print(attempt(lambda: os.link(path, "x")))
"""
    result = attacks.run(script, artifacts=["*"])
    assert set(result.stdout_text.split()) <= {"EXDEV", "EPERM"}
    assert {one.path: one.content for one in result.artifacts} == {"one": b"same", "two": b"same"}
    seen(result.outcome, result.stdout_text.split())


@pytest.mark.attack(63, 66, "files swapped for links while collected", expected="never followed")
def test_what_is_swapped_while_it_is_collected_gives_nothing_away(attacks: Attacks, seen: Seen) -> None:
    """Files that turn into links and back, by processes that would go on after the script's end."""
    script = """
import os, time
os.mkdir("out"); os.mkdir("other")
open("other/harmless", "w").write("harmless")
for number in range(6):
    if os.fork() == 0:
        os.setsid()
        name, spare = f"out/{number}", f"out/.{number}"
        while True:
            open(spare, "w").write("harmless"); os.rename(spare, name)
            os.symlink("/etc/passwd", spare); os.rename(spare, name)
            if number == 0:
                os.rename("out", "moved"); os.symlink("/etc", "out"); os.unlink("out"); os.rename("moved", "out")
time.sleep(0.3)
"""
    result = attacks.run(script, artifacts=["out/*", "moved/*", "out/**"])
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert {one.content for one in result.artifacts} <= {b"harmless", b""}
    assert {one.reason for one in result.skipped_artifacts} <= {"NOT_A_REGULAR_FILE"}
    assert result.artifacts or result.skipped_artifacts
    seen(result.outcome, {one.content.decode() or "empty" for one in result.artifacts})


@pytest.mark.attack(70, "setuid, closed and labelled artifacts", expected="bits stripped, UNREADABLE")
def test_an_artifact_keeps_no_bit_owner_or_attribute_of_the_sandbox(attacks: Attacks, seen: Seen) -> None:
    """Setuid, sticky, closed to its owner, with extended attributes."""
    script = """
import os
from attempt import attempt
capable = (0x02000000).to_bytes(4, "little") + b"\\xff" * 16
for name, mode in (("setuid", 0o6755), ("sticky", 0o1644), ("open", 0o666), ("closed", 0o000), ("write only", 0o200)):
    open(name, "w").write(name)
    attempt(lambda: os.setxattr(name, "user.x", b"y"))
    os.chmod(name, mode)
print(attempt(lambda: os.chown("open", 0, 0)), attempt(lambda: os.setxattr("open", "security.capability", capable)))
"""
    result = attacks.run(script, artifacts=["*"])
    assert result.stdout == on(
        runc=b"EPERM EPERM\n", gvisor=b"EPERM ENOTSUP\n", why="its tmpfs knows no file capabilities at all"
    )
    assert {(one.path, one.content, one.executable) for one in result.artifacts} == {
        ("setuid", b"setuid", True),
        ("sticky", b"sticky", False),
        ("open", b"open", False),
    }
    assert {(one.path, one.reason) for one in result.skipped_artifacts} == {
        ("closed", "UNREADABLE"),
        ("write only", "UNREADABLE"),
    }
    seen(result.stdout_text.split(), {one.reason for one in result.skipped_artifacts})


@pytest.mark.attack(68, "trojan programs and modules left for init", expected="never run")
def test_programs_and_modules_that_a_script_leaves_are_run_by_nobody(attacks: Attacks, seen: Seen) -> None:
    """CVE-2026-41567. What init needs after the script's end it takes from the image alone."""
    script = """
import os, pathlib
names = ("hashlib.py", "_hashlib.py", "stat.py", "json.py", "os.py", "sitecustomize.py", "usercustomize.py", "tar",
    "encodings/__init__.py", "skilljail_init/__init__.py", "skilljail_init/artifacts.py", "unpigz", "gzip", "xz", "sh",
    "python3", ".profile", ".bashrc", ".config/pip/pip.conf", ".local/lib/python3.13/site-packages/x.pth")
code = "import os; open('/work/skill/TROJAN', 'w').write('ran')\\n"
shell = "#!/bin/sh\\necho ran >/work/skill/TROJAN\\n"
for folder in ("/work", "/work/skill", "/work/skill/scripts", "/work/home", "/work/tmp"):
    for name in names:
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code if path.suffix in (".py", ".pth") else shell)
        path.chmod(0o755)
os.utime("data.txt")  # as it was staged: init compares its digest, for which it has to import a module
pathlib.Path("new.txt").write_text("new")
"""
    skill = attacks.make_skill({"x.py": script, "data.txt": "as staged"})
    result = attacks.client.run(skill, "x.py", artifacts=["*.txt", "TROJAN"])
    assert (result.outcome, result.exit_code, result.stderr) == (Outcome.EXITED, 0, b"")
    assert {one.path: one.content for one in result.artifacts} == {"new.txt": b"new"}
    seen(result.outcome, {one.path for one in result.artifacts})


HOSTILE_PATHS = {
    "parent": "../x",
    "absolute": "/abs",
    "parent inside": "a/../../x",
    "parent that stays": "a/../x",
    "dot": ".",
    "dot inside": "a/./x",
    "NUL": "a\0b",
    "double slash": "a//x",
    "trailing slash": "x/",
    "backslash": "..\\..\\x",
    "newline": "a\r\nb",
    "escape": "\x1b[2Jx",
    "long name": "x" * 300,
    "long path": "/".join(["x" * 100] * 50),
    "deep": "/".join(["x"] * 200),
    "descriptor of the process": "/proc/self/fd/7",
}


@pytest.mark.attack(46, 62, "hostile paths in a request", expected="INVALID_ARGUMENT")
@pytest.mark.parametrize("where", ["files", "script_path", "working_directory"])
@pytest.mark.parametrize("path", HOSTILE_PATHS.values(), ids=HOSTILE_PATHS.keys())
def test_a_hostile_path_of_a_request_is_refused_before_anything_starts(
    daemon: Daemon, where: str, path: str, seen: Seen
) -> None:
    """By the daemon itself, whatever client asks. CVE-2024-21626."""
    request = script_runner_pb2.RunScriptRequest(script_path="x.py")
    request.files.add(path="SKILL.md", content=b"---\nname: x\ndescription: x\n---\n")
    request.files.add(path="x.py", content=b"print(1)")
    if where == "files":
        request.files.add(path=path, content=b"x")
    else:
        setattr(request, where, path)
    error = _refusal(daemon, request)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    told = error.details() or ""
    assert 0 < len(told) < 2_000
    assert told.isprintable()
    seen(error.code().name)


@pytest.mark.attack(62, "odd but harmless names", expected="kept literally")
def test_names_that_are_only_odd_stay_as_they_are(attacks: Attacks, seen: Seen) -> None:
    """Options, spaces, quotes, Windows' reserved names; they are names and nothing else."""
    names = (
        "-rf",
        "--help",
        "CON",
        "aux.py",
        "$(id)",
        "`id`",
        "a b",
        "'\"",
        "*",
        "\u00e9\U0001f600",
        "...",
        "~",
        "%00",
    )
    script = "import json, os, sys\nprint(json.dumps(sorted(os.listdir('odd'))))"
    skill = attacks.make_skill({"x.py": script})
    result = attacks.client.run(skill, "x.py", inputs={f"odd/{name}": b"x" for name in names}, artifacts=["odd/*"])
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert result.artifacts == ()
    assert sorted(names) == json.loads(result.stdout)
    seen(result.outcome, f"{len(names)} names")


@pytest.mark.attack(62, 78, "a script named like an option", expected="it runs")
def test_a_script_whose_name_looks_like_an_option_is_a_script(attacks: Attacks, seen: Seen) -> None:
    for name in ("-c.py", "-rf.sh", "--eval.js", "-Command.ps1"):
        skill = attacks.make_skill({name: "" if name.endswith((".py", ".js")) else "exit 0\n"})
        result = attacks.client.run(skill, name)
        assert (result.outcome, result.exit_code, result.stdout, result.stderr) == (Outcome.EXITED, 0, b"", b""), name
        seen(result.outcome, result.exit_code)


@pytest.mark.attack(62, "a path that is not UTF-8", expected="refused")
def test_a_path_that_is_no_text_is_refused(daemon: Daemon, seen: Seen) -> None:
    """Bytes that are not UTF-8, as no client's library would send them."""
    field_3_script_path = b"\x1a\x04\xff\xfe.p"
    with grpc.insecure_channel(daemon.address) as channel:
        method: Any = channel.unary_stream("/skilljail.v1.ScriptRunnerService/RunScript")
        call = method(field_3_script_path)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert caught.value.code() in {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,  # what Python's gRPC makes of it
    }
    with skilljail.Client(daemon.address) as client:
        assert client.capabilities().daemon_version
    seen(caught.value.code().name)


def _refusal(daemon: Daemon, request: script_runner_pb2.RunScriptRequest) -> grpc.RpcError:
    """The error that a request meets; it must not be admitted."""
    with grpc.insecure_channel(daemon.address) as channel:
        stub = script_runner_pb2_grpc.ScriptRunnerServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.RunScript(request))
    return caught.value
