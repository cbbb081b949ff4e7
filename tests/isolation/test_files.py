"""Files: what can be written, what stays behind, and what comes back as an artifact."""

import threading
import time

import grpc
import pytest
import skilljail
from harness import INTERPRETERS, Daemon
from isolation.attacks import Attacks
from skilljail import Limits, Outcome
from skilljail.v1 import run_pb2, script_runner_pb2, script_runner_pb2_grpc

MIB = 1024 * 1024


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_nothing_can_be_written_but_the_work_directory_and_shared_memory(attacks: Attacks, interpreter: str) -> None:
    """Case 71: every folder and every file of each image is tried."""
    script = """
import json
from walk import writable_files, writable_folders
folders = writable_folders("/")
files = writable_files("/")
print(json.dumps({
    "folders": sorted(one for one in folders if not one.startswith("/work/")),
    "below work": sorted(one for one in folders if one.startswith("/work/")),
    "files": [one for one in files if not one.startswith("/work/")],
}))
"""
    found = attacks.report(script, interpreter, limits=Limits(wall_seconds=60, cpu_seconds=60))
    assert found["folders"] == ["/dev/mqueue", "/dev/shm", "/work"]
    assert {"/work/home", "/work/skill", "/work/skill/scripts", "/work/tmp"} <= set(found["below work"])
    assert found["files"] == []


def test_the_work_directory_is_all_that_the_usual_places_lead_to(attacks: Attacks) -> None:
    """Case 71: /tmp, /var/tmp and HOME are in it; /run, /var, /etc, /root, /home are closed."""
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
    assert found["leads to"] == {"/tmp": "/work/tmp", "/var/tmp": "/work/tmp", "/work/home": "/work/home", "/work/tmp": "/work/tmp"}
    assert found["open"] == ["/tmp", "/var/tmp"]
    assert set(found["errors"]) <= {"EROFS", "EACCES"}


def test_the_running_program_cannot_be_overwritten(attacks: Attacks) -> None:
    """Case 45: CVE-2019-5736 and CVE-2024-21626; by its link, a descriptor, or a mapping."""
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


def test_no_socket_of_an_engine_or_token_of_a_cluster_is_there(attacks: Attacks) -> None:
    """Case 49: neither in the usual places nor anywhere else."""
    found = attacks.report("""
import json, os, stat
usual = ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock",
    "/run/crio/crio.sock", "/run/secrets", "/var/run/secrets/kubernetes.io/serviceaccount/token", "/run/host-services",
    "/run/skilljail", "/var/lib/skilljail", "/var/lib/docker", "/var/lib/kubelet", "/host", "/hostfs")
sockets = []
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys")]
    sockets += [f"{folder}/{name}" for name in files if stat.S_ISSOCK(os.lstat(f"{folder}/{name}").st_mode)]
print(json.dumps({"usual": [one for one in usual if os.path.lexists(one)], "sockets": sockets,
    "listed": open("/proc/net/unix").read().splitlines()[1:]}))
""")
    assert found == {"usual": [], "sockets": [], "listed": []}


LEAVE_TRACES = """
import ctypes, fcntl, os, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
from kernel import call
for folder in ("/work", "/work/home", "/work/tmp", "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", os.environ["HOME"] + "/.cache",
    os.environ["HOME"] + "/.config", "/var/lib", "/etc", "/usr/local/lib", "/run", "/opt/skilljail/init"):
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
fcntl.fcntl(lock, 1024, fcntl.F_RDLCK) if False else None
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("everywhere")
sys.stdout.flush()
time.sleep(float(sys.argv[1]))
"""

FIND_TRACES = """
import ctypes, fcntl, json, os, socket
from attempt import attempt
from kernel import call
libc = ctypes.CDLL(None, use_errno=True)
KEY = 0x5EC12E7
found = []
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys")]
    found += [f"{folder}/{name}" for name in (*folders, *files) if "trace" in name and "/work/skill" not in folder]
print(json.dumps({
    "files": [one for one in found if one.endswith("trace-of-a-run")],
    "shared memory": os.listdir("/dev/shm"),
    "queues": os.listdir("/dev/mqueue"),
    "work": sorted(os.listdir("/work")),
    "home": os.listdir("/work/home"),
    "temporary": os.listdir("/tmp"),
    "System V": [line for kind in ("shm", "sem", "msg") for line in open(f"/proc/sysvipc/{kind}").read().splitlines()[1:]],
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


def test_nothing_of_a_run_is_left_for_the_next(attacks: Attacks) -> None:
    """Cases 18, 72: files, shared memory, queues, keys, sockets, locks, processes."""
    result = attacks.run(LEAVE_TRACES, argv=["0"])
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == (Outcome.EXITED, 0, b"everywhere\n", b"")
    assert attacks.report(FIND_TRACES) == NO_TRACES


def test_nothing_of_a_run_is_there_for_one_at_the_same_time(attacks: Attacks) -> None:
    """Cases 18, 61: the same, while the first one still runs; the image's files are locked for itself alone."""
    with attacks.under_way(LEAVE_TRACES, argv=["30"]):
        assert attacks.report(FIND_TRACES) == NO_TRACES
