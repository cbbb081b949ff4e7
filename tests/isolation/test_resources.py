"""Resources, beyond `tests/integration/test_outcomes.py`: bombs of every interpreter, and memory in disguise."""

import hashlib
import threading
import time

import docker
import pytest
import skilljail
from attack_table import Seen
from harness import Daemon, on, owned_containers
from skilljail import Limits, Outcome

from isolation.attacks import Attacks

MIB = 1024 * 1024
RESPONSIVE_SECONDS = 10.0
"""Within which the daemon answers, whatever its sandboxes do and whoever else is on the host."""

FORK_BOMBS = {
    "python": ("x.py", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"),
    "bash": ("x.sh", ":(){ :|:& };: 2>/dev/null; exec 2>/dev/null; while :; do (sleep 30 &); done"),
    "node": (
        "x.js",
        "const { spawn } = require('child_process');\n"
        "const bomb = () => { spawn(process.execPath, [__filename]).on('error', () => 0); setImmediate(bomb); };\n"
        "bomb();\n",
    ),
    "pwsh": (
        "x.ps1",
        "while ($true) { try { $null = Start-Process sleep 30 -PassThru -ErrorAction Stop } catch { } }\n",
    ),
}


@pytest.mark.attack(1, "a fork bomb", expected="PIDS_LIMIT or WALL_TIMEOUT; others served")
@pytest.mark.parametrize("interpreter", FORK_BOMBS)
def test_a_fork_bomb_ends_and_the_daemon_answers_meanwhile(
    attacks: Attacks, daemon: Daemon, engine_api: docker.APIClient, interpreter: str, seen: Seen
) -> None:
    """In each interpreter's way; another caller is served, and nothing is left."""
    name, script = FORK_BOMBS[interpreter]
    limits = Limits(pids=64, wall_seconds=4, cpu_seconds=20)
    ended: list[skilljail.RunResult] = []
    bomb = threading.Thread(target=lambda: ended.append(attacks.run(script, name, limits=limits)))
    bomb.start()
    slowest = 0.0
    while bomb.is_alive():
        started = time.monotonic()
        attacks.client.capabilities()
        slowest = max(slowest, time.monotonic() - started)
        time.sleep(0.05)
    assert slowest < RESPONSIVE_SECONDS
    (result,) = ended
    # One that waits between two tries, as bash does, ends at its time.
    assert result.outcome in {Outcome.PIDS_LIMIT, Outcome.WALL_TIMEOUT}
    assert result.exit_code is None
    slow = on(
        runc=False, gvisor=interpreter in {"node", "pwsh"}, why="too slow there to come near its limit in this time"
    )
    assert result.usage.pids_limit_hits or slow
    assert owned_containers(engine_api, daemon.owner) == []
    seen(result.outcome)


@pytest.mark.attack(2, "a chain of forks", expected="dead with the script")
def test_a_chain_of_processes_ends_with_its_script(attacks: Attacks, seen: Seen) -> None:
    """Each forks the next and ends, so that there is never more than one; none is there to be found."""
    chain = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        if os.fork(): os._exit(0)
"""
    result = attacks.run(chain + "time.sleep(0.3)\nprint('end')\n")
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXITED, 0, b"end\n")
    seen(result.outcome, result.exit_code)


@pytest.mark.attack(2, "a chain of forks that computes", expected="CPU_TIMEOUT")
def test_a_chain_of_processes_does_not_evade_the_cpu_time(attacks: Attacks, seen: Seen) -> None:
    """What the dead ones used counts."""
    chain = """
import os, time
if os.fork() == 0:
    while True:
        if os.fork(): os._exit(0)
        for _ in range(20000): pass
time.sleep(600)
"""
    result = attacks.run(chain, limits=Limits(cpu_seconds=1, wall_seconds=100))
    assert (result.outcome, result.exit_code) == (Outcome.CPU_TIMEOUT, None)
    seen(result.outcome)


@pytest.mark.attack(3, "threads beyond the pids limit", expected="refused, PIDS_LIMIT")
def test_threads_count_as_processes(attacks: Attacks, seen: Seen) -> None:
    script = """
import threading, time
try:
    for _ in range(64): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
except RuntimeError:
    print("refused")
    raise SystemExit(4)
"""
    result = attacks.run(script, limits=Limits(pids=16))
    told = on(
        runc={(Outcome.PIDS_LIMIT, 4, b"refused\n")},
        gvisor={(Outcome.PIDS_LIMIT, None, b""), (Outcome.EXITED, 4, b"refused\n")},
        why="init ends whom it sees to have too many; it looks 20 times a second, and nobody keeps a record",
    )
    assert (result.outcome, result.exit_code, result.stdout) in told
    seen(result.outcome, result.stdout_text.strip())


MEMORY = {
    "shared mapping": "held = mmap.mmap(-1, SIZE)\nfor at in range(0, SIZE, 4096): held[at] = 1",
    "memfd": "fd = os.memfd_create('x')\nfor _ in range(SIZE >> 20): os.write(fd, bytes(1 << 20))",
    "unlinked file": "fd = os.open('/dev/shm/x', os.O_CREAT | os.O_RDWR)\nos.unlink('/dev/shm/x')\n"
    "for _ in range(SIZE >> 20): os.write(fd, bytes(1 << 20))",
    "System V": "libc.shmat.restype = ctypes.c_void_p\nsegment = libc.shmget(0, ctypes.c_size_t(SIZE), 0o1600)\n"
    "ctypes.memset(libc.shmat(segment, None, 0), 1, SIZE)",
    "pipes": "held = []\nwhile True:\n    held.append(os.pipe())\n"
    "    fcntl.fcntl(held[-1][1], fcntl.F_SETPIPE_SZ, 1 << 20)\n    os.write(held[-1][1], bytes(1 << 20))",
}


@pytest.mark.attack(6, "memory in disguise", expected="OOM_KILLED")
@pytest.mark.parametrize("kind", MEMORY)
def test_memory_that_belongs_to_no_process_counts(attacks: Attacks, kind: str, seen: Seen) -> None:
    """Shared, anonymous, deleted, or of the kernel's own."""
    script = f"import ctypes, fcntl, mmap, os\nSIZE = 62 << 20\nlibc = ctypes.CDLL(None)\n{MEMORY[kind]}\nprint('held')"
    limits = Limits(memory_bytes=48 * MIB, disk_bytes=47 * MIB)
    result = attacks.run(script, limits=limits)
    assert b"held" not in result.stdout
    refused = b"OSError" in result.stderr  # pipes have a limit of their own for each user
    assert (result.outcome, result.exit_code) == (Outcome.OOM_KILLED, None) or (kind == "pipes" and refused)
    peak = result.usage.peak_memory_bytes
    assert peak is None or peak <= 48 * MIB
    seen(result.outcome)


MEMORY_BOMBS = {
    "python": ("x.py", "print('partial', flush=True)\nheld = []\nwhile True: held.append(bytearray(1 << 20))\n"),
    "node": (
        "x.js",
        "require('fs').writeSync(1, 'partial\\n');\nconst held = [];\n"
        "while (true) held.push(Buffer.alloc(1 << 20, 1));\n",
    ),
    "bash": ("x.sh", "echo partial\nheld=x\nwhile :; do held=$held$held; done\n"),
    "pwsh": (
        "x.ps1",
        "[Console]::Out.WriteLine('partial')\n$held = [Collections.Generic.List[byte[]]]::new()\n"
        "while ($true) { $block = [byte[]]::new(1MB); [Array]::Fill($block, [byte]1); $held.Add($block) }\n",
    ),
}


@pytest.mark.attack(4, "a memory bomb in each interpreter", expected="OOM_KILLED, or the runtime's own end")
@pytest.mark.parametrize("interpreter", MEMORY_BOMBS)
def test_a_memory_bomb_of_any_interpreter_ends_its_own_run(attacks: Attacks, interpreter: str, seen: Seen) -> None:
    """A runtime that knows the limit, as .NET does, may give up before the kernel has to."""
    name, script = MEMORY_BOMBS[interpreter]
    result = attacks.run(script, name, limits=Limits(memory_bytes=160 * MIB, wall_seconds=100, cpu_seconds=100))
    assert result.stdout.startswith(b"partial\n")
    by_itself = interpreter == "pwsh" and result.outcome in {Outcome.EXITED, Outcome.SIGNALED}
    assert result.outcome is Outcome.OOM_KILLED or by_itself, result
    assert result.exit_code != 0
    peak = result.usage.peak_memory_bytes
    assert peak is None or peak <= 160 * MIB
    seen(result.outcome, f"{result.usage.oom_kills} kills")


OPEN_FILES = {
    "python": ("x.py", "held = []\nwhile True: held.append(open('/dev/null'))\n", "Errno 24"),
    "node": ("x.js", "while (true) require('fs').openSync('/dev/null');\n", "EMFILE"),
    "bash": ("x.sh", "for ((n = 0; n < 500; n++)); do exec {fd}</dev/null || exit 9; done\n", "Too many open files"),
    "pwsh": ("x.ps1", "while ($true) { $null = [IO.File]::OpenRead('/dev/null'); }\n", "Too many open files"),
}


@pytest.mark.attack(17, "descriptors beyond the limit in each interpreter", expected="EMFILE inside")
@pytest.mark.parametrize("interpreter", OPEN_FILES)
def test_an_interpreter_that_runs_out_of_descriptors_says_so(attacks: Attacks, interpreter: str, seen: Seen) -> None:
    name, script, told = OPEN_FILES[interpreter]
    result = attacks.run(script, name, limits=Limits(open_files=200, wall_seconds=100, cpu_seconds=100))
    assert result.exit_code != 0
    assert result.outcome in {Outcome.EXITED, Outcome.SIGNALED}
    assert told in result.stderr_text, result.stderr_text
    seen(result.outcome, told)


@pytest.mark.attack(4, 42, "init offered to the OOM killer", expected="OOM_KILLED, no exit code")
def test_a_script_that_offers_init_to_the_kernel_gets_no_exit_code(attacks: Attacks, seen: Seen) -> None:
    """No process is larger than init, none may be killed before it, and memory runs out."""
    script = """
echo -17 >/proc/self/oom_score_adj 2>/dev/null && echo lowered below
echo 0 >/proc/self/oom_score_adj 2>/dev/null
echo 1000 >/proc/1/oom_score_adj 2>/dev/null && echo offered init
(while :; do echo $SECONDS; done >/dev/null) & (exec dd if=/dev/zero of=/dev/shm/fill bs=64k status=none) &
exec dd if=/dev/zero of=/work/tmp/fill bs=64k status=none
"""
    result = attacks.run(script, "x.sh", limits=Limits(memory_bytes=48 * MIB, disk_bytes=47 * MIB, wall_seconds=10))
    lowered = on(runc=b"", gvisor=b"lowered below\n", why="the number is kept and means nothing: gVisor kills nobody")
    assert (result.outcome, result.stdout) == (Outcome.OOM_KILLED, lowered)
    assert result.exit_code != 0
    seen(result.outcome)


@pytest.mark.attack(7, "swap", expected="none")
def test_there_is_no_swap_for_a_sandbox(
    attacks: Attacks, daemon: Daemon, engine_api: docker.APIClient, seen: Seen
) -> None:
    """As the engine was told, and as the kernel says where it counts swap."""
    script = """
import pathlib
top = pathlib.Path("/sys/fs/cgroup")
old, new = top / "memory/memory.memsw.limit_in_bytes", top / "memory.swap.max"
if old.exists(): swap = int(old.read_text()) - int((top / "memory/memory.limit_in_bytes").read_text())
else: swap = new.read_text().strip() if new.exists() else "not counted"
import sys, time
sys.stdout.write(f"{swap}\\n")
time.sleep(10)
"""
    with attacks.under_way(script) as stream:
        (container,) = owned_containers(engine_api, daemon.owner)
        host = engine_api.inspect_container(container)["HostConfig"]
        stream.cancel()
        result = stream.wait()
    assert host["Memory"] == host["MemorySwap"] == 512 * MIB
    assert result.stdout in {b"0\n", b"not counted\n"}
    seen(f"swap {result.stdout_text.strip()}")


@pytest.mark.attack(14, "50 MB without a newline", expected="pieces of 64 KiB at most")
def test_a_line_that_never_ends_comes_in_small_pieces(attacks: Attacks, seen: Seen) -> None:
    """Tens of megabytes without a newline, in order and whole."""
    block = bytes(range(32, 127)) * 700
    script = "import sys\nfor _ in range(750): sys.stdout.buffer.write(bytes(range(32, 127)) * 700)\n"
    digest, position, largest = hashlib.sha256(), 0, 0
    skill = attacks.make_skill({"x.py": script})
    with attacks.client.stream(skill, "x.py", limits=Limits(output_bytes=64 * MIB)) as stream:
        for event in stream:
            if isinstance(event, skilljail.Output):
                assert event.offset == position
                position += len(event.data)
                largest = max(largest, len(event.data))
                digest.update(event.data)
    expected = hashlib.sha256()
    for _ in range(750):
        expected.update(block)
    assert (position, digest.digest()) == (750 * len(block), expected.digest())
    assert largest <= 65_536
    assert stream.result is not None
    assert (stream.result.outcome, stream.result.exit_code) == (Outcome.EXITED, 0)
    seen(stream.result.outcome, f"largest {largest}")


@pytest.mark.attack(19, "a core file", expected="none")
def test_no_core_is_written(attacks: Attacks, seen: Seen) -> None:
    """Neither by default nor when a script asks for it."""
    script = """
import os, resource, signal
try: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
except ValueError: print(resource.getrlimit(resource.RLIMIT_CORE))
if os.fork() == 0: os.kill(os.getpid(), signal.SIGQUIT)
print(os.WCOREDUMP(os.wait()[1]), sorted(os.listdir()))
os.kill(os.getpid(), signal.SIGABRT)
"""
    result = attacks.run(script, artifacts=["**"])
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.SIGNALED, None, 6)
    assert result.stdout == b"(0, 0)\nFalse ['SKILL.md', 'scripts']\n"
    assert (result.artifacts, result.skipped_artifacts) == ((), ())
    seen(result.outcome, f"signal {result.signal}")


@pytest.mark.attack(10, "a sparse file of a terabyte", expected="EFBIG, SIZE_LIMIT")
def test_a_file_can_be_no_larger_than_the_work_directory_not_even_a_sparse_one(attacks: Attacks, seen: Seen) -> None:
    """A terabyte of holes; the largest that can be made is judged by its size, and not read."""
    script = """
import os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open("giant", "wb") as file:
    for size in (1 << 50, 1 << 40, 128 << 20):
        try: os.truncate(file.fileno(), size)
        except OSError as error: print(error.errno)
        else: print("made", size)
"""
    result = attacks.run(script, artifacts=["*"])
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert result.stdout == b"27\n27\nmade 134217728\n"
    assert [(one.path, one.reason) for one in result.skipped_artifacts] == [("giant", "SIZE_LIMIT")]
    assert result.artifacts == ()
    seen(result.outcome, {one.reason for one in result.skipped_artifacts})


@pytest.mark.attack(6, 9, "places to write without a cap", expected="none")
def test_every_place_that_can_be_written_has_the_caps_of_the_run(attacks: Attacks, seen: Seen) -> None:
    """One file system with one size and one number of files, and shared memory with a size of its own."""
    script = """
import json, os
def caps(path):
    facts = os.statvfs(path)
    return [facts.f_blocks * facts.f_frsize, facts.f_files]
folders = ("/work", "/work/skill", "/work/home", "/work/tmp", "/tmp", "/var/tmp")
print(json.dumps({
    "work": [caps(path) for path in folders],
    "file systems": len({os.stat(path).st_dev for path in folders}),
    "shared memory": caps("/dev/shm")[0],
}))
"""
    found = attacks.report(script, limits=Limits(disk_bytes=24 * MIB, disk_inodes=1_024))
    assert found["shared memory"] == 64 * MIB
    assert [one[0] for one in found["work"]] == [24 * MIB] * 6
    inodes = on(runc={1_024}, gvisor={0, 1_024}, why="older releases do not limit them; then init counts")
    assert {one[1] for one in found["work"]} <= inodes
    assert found["file systems"] == on(runc=1, gvisor=2, why="gVisor mounts a /tmp of its own, to which we give a cap")
    seen(f"{found['file systems']} file system")


@pytest.mark.attack(17, "all descriptors used up", expected="others have theirs")
def test_descriptors_that_one_run_uses_up_are_not_missing_in_another(attacks: Attacks, seen: Seen) -> None:
    """Many processes with all the descriptors that each may have."""
    script = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        try:
            while True: os.open("/dev/null", os.O_RDONLY)
        except OSError: time.sleep(30)
time.sleep(0.5)
print("exhausted")
time.sleep(30)
"""
    with attacks.under_way(script):
        found = attacks.report("import json; print(json.dumps(len([open('/dev/null') for _ in range(500)])))")
        assert found == 500
        seen(f"{found} opened")


@pytest.mark.attack(18, 85, "inotify, queues, pipes used up", expected="others have theirs")
def test_a_run_that_uses_up_what_its_user_may_have_does_not_stop_others(attacks: Attacks, seen: Seen) -> None:
    """The kernel counts some things by user, so each sandbox that is alive has one of its own."""
    greedy = """
import ctypes, fcntl, os, sys, time
libc = ctypes.CDLL(None)
while libc.inotify_init() >= 0: pass
number = 0
while libc.mq_open(b"/%d" % number, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0: number += 1
held = []
try:
    while True: held.append(os.pipe())
except OSError: pass
for _, end in held:
    try: fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)
    except OSError: break
sys.stdout.write("exhausted\\n")
time.sleep(30)
"""
    modest = """
import ctypes, fcntl, json, os, socket, subprocess, threading
libc = ctypes.CDLL(None)
if libc.inotify_init() < 0 or libc.mq_open(b"/mine", os.O_CREAT | os.O_RDWR, 0o600, None) < 0:
    raise SystemExit("somebody else has used up what is mine")
if fcntl.fcntl(os.pipe()[0], fcntl.F_GETPIPE_SZ) != 65536:
    raise SystemExit("somebody else has used up my pipes")
thread = threading.Thread(target=lambda: None)
thread.start(); thread.join()
near, far = socket.socketpair()
near.sendall(b"x" * 1000)
read, write = os.pipe()
os.write(write, b"y" * 4000)
words = subprocess.run("seq 20000 | tail -n 1", shell=True, capture_output=True, text=True).stdout
open("/dev/shm/file", "w").write("z" * 100_000)
print(json.dumps([len(far.recv(2000)), len(os.read(read, 5000)), words, os.path.getsize("/dev/shm/file")]))
"""
    with attacks.under_way(greedy, limits=Limits(open_files=1_024)):
        assert attacks.report(modest) == [1000, 4000, "20000\n", 100_000]
        large = attacks.run("import sys; sys.stdout.buffer.write(bytes(4 << 20)); sys.stderr.write('e' * 100_000)")
    assert (large.outcome, len(large.stdout), len(large.stderr)) == (Outcome.EXITED, 4 << 20, 100_000)
    seen(large.outcome)
