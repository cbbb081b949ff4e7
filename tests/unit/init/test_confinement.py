"""What a script of the same user can do to init: nothing."""

# ruff: noqa: S101, S603

import json
import os
import pathlib
import subprocess
import sys

import pytest
from skilljail_init.children import Children, kill_everything
from skilljail_init.errors import InitError

from .driver import ENV, INIT, PYTHON, UID, InitProcess, python

LOOK_AT_INIT = """
import ctypes, json, os
def attempt(action):
    try: return repr(action())
    except OSError as error: return error.strerror
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "done"
found = {}
for name in ("mem", "environ", "maps", "auxv", "stack"):
    found[name] = attempt(lambda: open(f"/proc/1/{name}", "rb").read(1))
for name in ("mem", "oom_score_adj", "comm"):
    found[f"write {name}"] = attempt(lambda: open(f"/proc/1/{name}", "w").write("0"))
found |= {name: attempt(lambda: os.listdir(f"/proc/1/{name}")) for name in ("fd", "map_files")}
found |= {name: attempt(lambda: os.readlink(f"/proc/1/{name}")) for name in ("exe", "cwd", "root", "fd/0")}
found["ptrace attach"] = attempt(lambda: call("ptrace", 16, 1, None, None))
found["ptrace seize"] = attempt(lambda: call("ptrace", 0x4206, 1, None, None))
class Vector(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(8)
vectors = Vector(ctypes.addressof(buffer), 8), Vector(0x400000, 8)
for name in ("process_vm_readv", "process_vm_writev"):
    found[name] = attempt(lambda: call(name, 1, ctypes.byref(vectors[0]), 1, ctypes.byref(vectors[1]), 1, 0))
def take_descriptor():
    fd = os.pidfd_open(1)
    return call("syscall", 438, fd, 0, 0)
found["pidfd_getfd"] = attempt(take_descriptor)
print(json.dumps(found))
"""

SIGNAL_INIT = """
import os, time
for _ in range(20):
    for number in range(1, 65):
        try: os.kill(1, number)
        except (OSError, ValueError): pass
    time.sleep(0.005)
print("still here")
"""


def test_a_script_cannot_look_into_init(open_folder: pathlib.Path) -> None:
    with InitProcess(open_folder, uid=UID) as init:
        result = init.run([PYTHON, "-c", LOOK_AT_INIT])
        assert (result.stderr, result.ended) == (b"", ("exited", 0, None))
        found = json.loads(result.stdout)
        denied = {"Permission denied", "Operation not permitted"}
        assert {name: text for name, text in found.items() if text not in denied} == {}
        assert len(found) == 19


def test_a_script_can_look_into_its_own_children(open_folder: pathlib.Path) -> None:
    # What the test above finds closed is closed because of init, not because of the box.
    source = """
import os, time
pid = os.fork()
if not pid: time.sleep(60)
print(len(os.listdir(f"/proc/{pid}/fd")), open(f"/proc/{pid}/environ").read()[:4])
"""
    with InitProcess(open_folder, uid=UID) as init:
        assert init.run(python(source)).stdout == b"3 PATH\n"


def test_a_script_cannot_signal_init(open_folder: pathlib.Path) -> None:
    with InitProcess(open_folder, uid=UID) as init:
        result = init.run(python(SIGNAL_INIT))
        assert (result.stdout, result.ended) == (b"still here\n", ("exited", 0, None))
        result = init.run(["sh", "-c", "kill -9 -1; kill -STOP 1; kill -STOP $PPID; echo alive"])
        assert (result.stdout, result.ended) == (b"alive\n", ("exited", 0, None))
        handlers = init.run(["grep", "SigCgt", "/proc/1/status"]).stdout.split()[1]
        assert int(handlers, 16) == 1 << 17 - 1  # SIGCHLD


def test_the_kernel_prefers_the_script_to_init_when_memory_runs_out(open_folder: pathlib.Path) -> None:
    with InitProcess(open_folder, uid=UID) as init:
        result = init.run(["cat", "/proc/self/oom_score_adj", "/proc/1/oom_score_adj"])
        script, of_init = map(int, result.stdout.split())
        assert script == 1000 > of_init


def test_the_script_has_streams_of_its_own(open_folder: pathlib.Path) -> None:
    with InitProcess(open_folder, uid=UID) as init:
        source = "import os; print([os.readlink(f'/proc/self/fd/{n}')[:5] for n in range(3)])"
        assert init.run(python(source)).stdout == b"['/dev/', 'pipe:', 'pipe:']\n"


def test_every_control_of_a_sandbox_user_is_reported(open_folder: pathlib.Path) -> None:
    with InitProcess(open_folder, uid=UID) as init:
        facts = init.ready["isolation"]
    is_root = os.geteuid() == 0
    assert facts["pid"] == 1
    assert facts["uids"] == [UID if is_root else os.geteuid()] * 4
    assert facts["gids"] == [UID if is_root else os.getegid()] * 4
    if not is_root:  # the user namespace that stands in for root leaves the bounding set full
        assert facts["capabilities"].pop("bounding") > 0
    assert set(facts["capabilities"].values()) == {0}
    assert facts["no_new_privileges"] is is_root
    assert facts["interfaces"] == ["lo"]
    assert facts["dumpable"] is False


def test_the_work_directory_and_its_mount_are_reported(tmp_path: pathlib.Path) -> None:
    with InitProcess(tmp_path, tmpfs="size=4m,nr_inodes=100,nosuid") as init:
        facts = init.ready["isolation"]
    assert facts["work"] == {"bytes": 4 << 20, "inodes": 100}
    assert {"path": str(tmp_path), "type": "tmpfs", "options": ["rw", "nosuid", "relatime"]} in facts["mounts"]


def test_descriptors_that_an_engine_left_open_are_closed(tmp_path: pathlib.Path) -> None:
    read_fd, write_fd = os.pipe()
    with InitProcess(tmp_path, pass_fds=(write_fd,)) as init:
        source = "import os; print([os.readlink(f'/proc/1/fd/{n}') for n in os.listdir('/proc/1/fd')])"
        assert f"pipe:[{os.fstat(read_fd).st_ino}]".encode() not in init.run(python(source)).stdout
    os.close(write_fd)
    os.close(read_fd)


def test_init_runs_only_as_pid_1(tmp_path: pathlib.Path) -> None:
    process = subprocess.run(
        [sys.executable, "-I", "-S", str(INIT), str(tmp_path)], input=b"", capture_output=True, check=False, env=ENV
    )
    assert b"init must be PID 1 of a pid namespace of its own" in process.stdout
    assert (process.returncode, process.stderr) == (70, b"")


def test_nobody_but_pid_1_kills_everything() -> None:
    with pytest.raises(InitError, match="must be PID 1"):
        kill_everything()
    with pytest.raises(InitError, match="must be PID 1"):
        Children()


def test_a_work_directory_that_cannot_be_written_is_named(open_folder: pathlib.Path) -> None:
    open_folder.chmod(0o555)
    process = subprocess.run(
        InitProcess(open_folder, uid=UID).command, stdin=subprocess.PIPE, capture_output=True, check=False
    )
    expected = f"cannot make {open_folder}/skill: Permission denied; mount a writable tmpfs on {open_folder}"
    assert expected.encode() in process.stdout
    assert process.returncode == 70
