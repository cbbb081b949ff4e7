"""Processes: init is out of a script's reach, and whatever a script starts ends with it."""

import re

import docker
import pytest
from attack_table import Seen
from conformance.processes import Sleeper
from harness import Daemon, on, owned_containers, wait_until
from skilljail import Limits, Outcome

from isolation.attacks import Attacks

ASKED = "(read|list|open|open for writing|link|information of descriptor)"
OPEN = re.compile(
    on(
        runc="(?!)",  # nothing
        gvisor=ASKED + r" ((task/1/)?(environ|maps|smaps|auxv|fd.*|ns(/.*)?)|\d)$",
        why="releases before /proc looked at prctl(2); memory, program, folder and root are closed there, too",
    )
)
NO_ACCESS = {"EACCES", "EPERM", "ENOSYS"}


@pytest.mark.attack(26, "every signal to init", expected="it goes on")
def test_no_signal_harms_init(attacks: Attacks, seen: Seen) -> None:
    """Every signal, by every call that sends one; SIGKILL and SIGSTOP among them."""
    script = """
import ctypes, errno, fcntl, os, signal, socket
from kernel import call
information = ctypes.create_string_buffer(128)
for number in range(1, signal.NSIG):
    ctypes.memmove(information, number.to_bytes(4, "little") + bytes(4) + (-1).to_bytes(4, "little", signed=True), 12)
    try:
        os.kill(1, number)
    except OSError as error:
        assert number in (32, 33) or error.errno == errno.EPERM, error  # the C library keeps these two for itself
    call("tkill", 1, number)
    call("tgkill", 1, 1, number)
    call("rt_sigqueueinfo", 1, number, information)
    call("rt_tgsigqueueinfo", 1, 1, number, information)
    try: call("pidfd_send_signal", os.pidfd_open(1), number, 0, 0)
    except PermissionError: pass
# The kernel itself sends these when there is something to read.
ours, theirs = socket.socketpair()
for number in (0, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
    try:
        fcntl.fcntl(ours, fcntl.F_SETOWN, 1)
        fcntl.fcntl(ours, 10, number)  # F_SETSIG
        fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    except OSError:
        continue
    theirs.send(b"x")
open("made", "w").write("still served")
print("still here")
raise SystemExit(3)
"""
    result = attacks.run(script, artifacts=["made"])
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.EXITED, 3, None)
    assert (result.stdout, result.stderr) == (b"still here\n", b"")
    assert [one.content for one in result.artifacts] == [b"still served"]
    seen(result.outcome, result.exit_code)


@pytest.mark.attack(25, "kill -9 -1", expected="only its own processes")
def test_killing_everybody_kills_nobody_but_its_own(attacks: Attacks, seen: Seen) -> None:
    """`kill -9 -1`; bash survives its own call, and init everything."""
    script = "sleep 600 & sleep 600 & kill -9 -1; wait; kill -9 1; echo survived; exit 5"
    result = attacks.run(script, "x.sh")
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXITED, 5, b"survived\n")
    seen(result.outcome, result.exit_code)


@pytest.mark.attack(23, 25, "stopped children that ignore signals", expected="the run ends")
def test_stopped_children_do_not_hold_up_the_end(attacks: Attacks, seen: Seen) -> None:
    """SIGSTOP to all siblings, whose own stopped children ignore everything."""
    script = """
import os, signal, time
for _ in range(20):
    if os.fork() == 0:
        for number in range(1, signal.NSIG):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: time.sleep(60)
time.sleep(0.2)
os.kill(-1, signal.SIGSTOP)
print("stopped")
"""
    result = attacks.run(script)
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXITED, 0, b"stopped\n")
    assert result.usage.wall_seconds < 20
    seen(result.outcome, result.exit_code)


DEAF = {
    "python": (
        "x.py",
        "import signal, time\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nprint('deaf', flush=True)\nwhile True: time.sleep(600)\n",
    ),
    "node": (
        "x.js",
        "for (const one of Object.keys(require('os').constants.signals)) {\n"
        "  try { process.on(one, () => 0); } catch { }\n}\n"
        "require('fs').writeSync(1, 'deaf\\n');\nsetInterval(() => 0, 1000);\n",
    ),
    "bash": ("x.sh", "trap '' $(seq 1 64)\necho deaf\nwhile :; do sleep 600; done\n"),
    "pwsh": (
        "x.ps1",
        "$held = foreach ($one in 'SIGTERM', 'SIGINT', 'SIGQUIT', 'SIGHUP') {\n"
        "  [Runtime.InteropServices.PosixSignalRegistration]::Create($one,\n"
        "    [Action[Runtime.InteropServices.PosixSignalContext]] { param($context) $context.Cancel = $true })\n}\n"
        "[Console]::Out.WriteLine('deaf')\nwhile ($true) { Start-Sleep -Seconds 600 }\n",
    ),
}


@pytest.mark.attack(16, 23, "ignored signals in each interpreter", expected="WALL_TIMEOUT, CANCELLED")
@pytest.mark.parametrize("interpreter", DEAF)
def test_a_script_that_hears_no_signal_ends_all_the_same(attacks: Attacks, interpreter: str, seen: Seen) -> None:
    """At its time, and when its caller wants."""
    name, script = DEAF[interpreter]
    result = attacks.run(script, name, limits=Limits(wall_seconds=6 if interpreter == "pwsh" else 2))
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.WALL_TIMEOUT, None, 9)
    assert (result.stdout, result.stderr) == (b"deaf\n", b"")
    with attacks.under_way(script, name) as stream:
        stream.cancel()
        cancelled = stream.wait()
    assert (cancelled.outcome, cancelled.exit_code, cancelled.stdout) == (Outcome.CANCELLED, None, b"deaf\n")
    seen(result.outcome, cancelled.outcome)


KILLERS = {
    "node": (
        "x.js",
        "for (const target of [1, -1]) for (const name of ['SIGKILL', 'SIGSTOP', 'SIGTERM'])\n"
        "  try { process.kill(target, target < 0 ? 0 : name); } catch { }\nconsole.log('survived');\n",
    ),
    "bash": ("x.sh", "for name in KILL STOP TERM INT HUP QUIT; do kill -$name 1; done\necho survived\n"),
    "pwsh": (
        "x.ps1",
        "try { Stop-Process -Id 1 -Force -ErrorAction Stop } catch { }\n"
        "try { [Diagnostics.Process]::GetProcessById(1).Kill($true) } catch { }\n"
        "/usr/bin/bash -c 'kill -9 1; kill -STOP 1'\n[Console]::Out.WriteLine('survived')\n",
    ),
}


@pytest.mark.attack(25, 26, "killing init in each interpreter's way", expected="it goes on")
@pytest.mark.parametrize("interpreter", KILLERS)
def test_an_interpreter_cannot_kill_init_either(attacks: Attacks, interpreter: str, seen: Seen) -> None:
    name, script = KILLERS[interpreter]
    result = attacks.run(script, name)
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXITED, 0, b"survived\n")
    seen(result.outcome, result.stdout_text.strip())


@pytest.mark.attack(26, 45, 76, 77, "reading and tracing init", expected="EACCES or EPERM")
def test_init_can_be_neither_read_nor_traced(attacks: Attacks, seen: Seen) -> None:
    """Memory, environment, descriptors, program, root, namespaces of PID 1."""
    found = attacks.report("""
import json, os
from attempt import attempt
from kernel import call
files = ("mem", "environ", "maps", "smaps", "pagemap", "auxv", "stack", "syscall", "personality", "io", "mountstats",
    "wchan", "task/1/mem", "task/1/environ", "task/1/maps")
links = ("exe", "cwd", "root", "fd/0", "fd/1", "fd/2", "fd/3", "fd/4", "ns/mnt", "ns/net", "ns/user", "ns/pid")
folders = ("fd", "map_files", "ns", "root", "cwd", "task/1/fd", "fdinfo")
def readable(path):
    with open(f"/proc/1/{path}", "rb") as file:
        return file.read(16)
def opened(path, flags):
    return os.open(f"/proc/1/{path}", flags)
found = {f"read {one}": attempt(lambda: readable(one)) for one in files}
found |= {f"write {one}": attempt(lambda: opened(one, os.O_WRONLY))
    for one in ("mem", "clear_refs", "oom_score_adj", "oom_adj", "comm", "coredump_filter", "uid_map", "setgroups",
        "autogroup", "loginuid", "sched", "timens_offsets")}
found |= {f"link {one}": attempt(lambda: os.readlink(f"/proc/1/{one}")) for one in links}
found |= {f"open {one}": attempt(lambda: opened(one, os.O_RDONLY)) for one in links}
found |= {f"open for writing {one}": attempt(lambda: opened(one, os.O_WRONLY)) for one in links[:7]}
found |= {f"list {one}": attempt(lambda: os.listdir(f"/proc/1/{one}")) for one in folders}
found |= {f"information of descriptor {one}": attempt(lambda: readable(f"fdinfo/{one}")) for one in range(8)}
try: pidfd = os.pidfd_open(1)
except PermissionError: pidfd = os.open("/proc/1", os.O_DIRECTORY)
found |= {f"descriptor {one}": call("pidfd_getfd", pidfd, one, 0) for one in range(8)}
found |= {f"ptrace {one}": call("ptrace", one, 1, 0, 0) for one in (16, 0x4206)}
vector = b"".join((id(found)).to_bytes(8, "little") for _ in range(2))
found["process_vm_readv"] = call("process_vm_readv", 1, vector, 1, vector, 1, 0)
found["process_vm_writev"] = call("process_vm_writev", 1, vector, 1, vector, 1, 0)
found["process_madvise"] = call("process_madvise", pidfd, vector, 1, 4, 0)
found["setns"] = call("setns", pidfd, 0x20000)
print(json.dumps(found))
""")
    # It has no such file, or no such descriptor to tell about: as good as closed.
    closed = NO_ACCESS | {"ENOENT"}
    assert len(found) > 80
    told = {name: answer for name, answer in found.items() if answer not in closed}
    # Names of descriptors, and whether it waits, say nothing.
    assert {name for name in told if name not in {"list fdinfo", "read wchan"} and not OPEN.match(name)} == set()
    seen({answer for answer in found.values() if answer in closed})


@pytest.mark.attack(26, "limits, priority, affinity of init", expected="EPERM or ENOSYS")
def test_no_call_reaches_init(attacks: Attacks, seen: Seen) -> None:
    """Calls that ask only for the same user, and steer another process: its limits, its turn to run."""
    found = attacks.report("""
import ctypes, json, os, resource
from attempt import attempt
from kernel import call
idle = ctypes.create_string_buffer((48).to_bytes(4, "little") + (5).to_bytes(4, "little") + bytes(40))
found = {
    "setpriority": attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 5)),
    "setpriority of its group": attempt(lambda: os.setpriority(os.PRIO_PGRP, 1, 5)),
    "setpriority of its user": attempt(lambda: os.setpriority(os.PRIO_USER, os.getuid(), 5)),
    "sched_setscheduler": attempt(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))),
    "sched_setparam": attempt(lambda: os.sched_setparam(1, os.sched_param(0))),
    "sched_setattr": call("sched_setattr", 1, idle, 0),
    "sched_setaffinity": attempt(lambda: os.sched_setaffinity(1, {min(os.sched_getaffinity(0))})),
    "ioprio_set": call("ioprio_set", 1, 1, 3 << 13),
    "ioprio_set of its user": call("ioprio_set", 3, os.getuid(), 3 << 13),
}
for name in ("NOFILE", "CPU", "AS", "FSIZE", "SIGPENDING"):
    which = getattr(resource, f"RLIMIT_{name}")
    found[f"prlimit {name}"] = attempt(lambda: resource.prlimit(1, which, resource.getrlimit(which)))
nice = int(open("/proc/1/stat").read().rpartition(")")[2].split()[16])
print(json.dumps({"refused": found, "nice": nice}))
""")
    assert {name: answer for name, answer in found["refused"].items() if answer not in NO_ACCESS} == {}
    assert found["nice"] == 0
    seen(found["refused"])


@pytest.mark.attack(26, "init's limits taken to nothing", expected="no false exit code")
def test_a_script_that_breaks_init_gets_no_exit_code(attacks: Attacks, seen: Seen) -> None:
    """If a script found a way, its caller must be told; here its limits are tried."""
    script = """
import resource, time
print("before")
for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU):
    try: resource.prlimit(1, which, (0, 0))
    except PermissionError: pass
time.sleep(1.5)
"""
    result = attacks.run(script, limits=Limits(wall_seconds=100))
    assert result.stdout == b"before\n"
    assert (result.outcome, result.exit_code) in {(Outcome.EXITED, 0), (Outcome.SANDBOX_ERROR, None)}
    assert result.usage.wall_seconds < 50
    seen(result.outcome, result.exit_code)


@pytest.mark.attack(52, 77, "inherited descriptors, a terminal", expected="0, 1, 2; ENXIO")
def test_a_script_has_its_three_descriptors_and_a_session_without_terminal(attacks: Attacks, seen: Seen) -> None:
    found = attacks.report("""
import fcntl, json, os
from attempt import attempt
from kernel import call
print(json.dumps({
    "descriptors": [fd for fd in range(1024) if attempt(lambda: fcntl.fcntl(fd, fcntl.F_GETFD)) != "EBADF"],
    "terminals": [fd for fd in (0, 1, 2) if os.isatty(fd)],
    "/dev/tty": attempt(lambda: os.open("/dev/tty", os.O_RDWR)),
    "/dev/console": attempt(lambda: os.open("/dev/console", os.O_RDWR)),
    "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "inject": [call("ioctl", fd, request, b"x") for fd in (0, 1, 2) for request in (0x5412, 0x541C)],
}))
""")
    assert found == {
        "descriptors": [0, 1, 2],
        "terminals": [],
        "/dev/tty": on(runc="ENXIO", gvisor="EIO", why="older releases answer so"),
        "/dev/console": "ENOENT",
        "session": True,
        "inject": ["EPERM"] * 6,
    }
    seen(found["descriptors"], found["/dev/tty"])


@pytest.mark.attack(52, "TIOCSTI on a terminal of one's own", expected="EPERM")
def test_a_terminal_of_ones_own_is_no_way_to_inject_either(attacks: Attacks, seen: Seen) -> None:
    """CVE-2017-5226. Where a pseudo-terminal can be made at all, nothing types into it but its master."""
    found = attacks.report("""
import json, os
from kernel import call
try: terminal = os.openpty()
except OSError: terminal = ()
print(json.dumps([call("ioctl", fd, request, b"x") for fd in (0, 1, 2, *terminal) for request in (0x5412, 0x541C)]))
""")
    assert found
    assert set(found) == {"EPERM"}
    seen(found)


@pytest.mark.attack(22, "double fork, setsid, no streams", expected="dead with the run")
def test_a_daemonized_child_is_dead_on_the_host_when_the_run_is_over(
    attacks: Attacks, daemon: Daemon, engine_api: docker.APIClient, seen: Seen
) -> None:
    """Double fork, a session of its own, every signal ignored, no stream kept; looked for from the host."""
    script = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, signal.NSIG):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        for fd in range(3): os.close(fd)
        os.execvp("sleep", ["sleep", sys.argv[1]])
    os._exit(0)
os.wait()
print("daemonized")
time.sleep(4)
"""
    sleeper = Sleeper()
    with attacks.under_way(script, argv=[sleeper.seconds]) as stream:
        wait_until(lambda: sleeper.sleeps)
        result = stream.wait()
    assert not sleeper.sleeps
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXITED, 0, b"daemonized\n")
    assert owned_containers(engine_api, daemon.owner) == []
    seen(result.outcome, "alive" if sleeper.sleeps else "dead")


@pytest.mark.attack(33, "CLONE_PARENT", expected="its end is not the script's")
def test_a_child_that_is_cloned_as_a_sibling_is_nobody_special(attacks: Attacks, seen: Seen) -> None:
    """CLONE_PARENT makes a child of init; neither its end nor its status is the script's."""
    script = """
import os, signal, time
from kernel import call
CLONE_PARENT = 0x00008000
for status in (99, None):
    if call("clone", CLONE_PARENT | signal.SIGCHLD) == "done 0":
        assert os.getppid() EXPECTED
        if status is not None: os._exit(status)
        while True: time.sleep(1)
# A thread group's end tells its parent by a signal of its choice: here one that would kill.
if call("clone", signal.SIGKILL) == "done 0":
    if os.fork() == 0: time.sleep(60)
    os._exit(0)
"""
    script = script.replace(
        "EXPECTED", on(runc="== 1", gvisor="> 0", why="older releases take no notice of CLONE_PARENT")
    )
    result = attacks.run(script + "time.sleep(0.3)\nprint('end')\nraise SystemExit(7)\n")
    # The script's own child told its end by SIGKILL: the script asked for it.
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.SIGNALED, None, 9)
    result = attacks.run(script.partition("# A thread")[0] + "time.sleep(0.3)\nprint('end')\nraise SystemExit(7)\n")
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == (Outcome.EXITED, 7, b"end\n", b"")
    seen(result.outcome, result.exit_code)


@pytest.mark.attack(33, 36, "tracing one's own child", expected="EPERM")
def test_a_child_may_be_traced_by_nobody(attacks: Attacks, seen: Seen) -> None:
    """Not even by its parent, and its memory is its own."""
    found = attacks.report("""
import ctypes, json, os, time
from attempt import attempt
from kernel import call
pid = os.fork()
if pid == 0:
    time.sleep(60)
try: pidfd = os.pidfd_open(pid)
except OSError: pidfd = 0  # not every gVisor has such descriptors
buffer = ctypes.create_string_buffer(16)
vector = ctypes.create_string_buffer(ctypes.addressof(buffer).to_bytes(8, "little") + (16).to_bytes(8, "little"))
print(json.dumps({
    "attach": call("ptrace", 16, pid, 0, 0),
    "seize": call("ptrace", 0x4206, pid, 0, 0),
    "be traced": call("ptrace", 0, 0, 0, 0),
    "read": call("process_vm_readv", pid, vector, 1, vector, 1, 0),
    "write": call("process_vm_writev", pid, vector, 1, vector, 1, 0),
    "descriptor": call("pidfd_getfd", pidfd, 0, 0),
}))
os.kill(pid, 9)
""")
    assert found.pop("descriptor") in on(
        runc={"EPERM"}, gvisor={"EPERM", "ENOSYS"}, why="older releases have no such call"
    )
    assert found == dict.fromkeys(("attach", "seize", "be traced", "read", "write"), "EPERM")
    seen(found)


@pytest.mark.attack(27, "five hundred orphans", expected="buried")
def test_orphans_are_buried(attacks: Attacks, seen: Seen) -> None:
    """And hundreds of them, more than may live at one time, leave nothing behind."""
    found = attacks.report(
        """
import json, os, time
for _ in range(500):
    if (pid := os.fork()) == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
deadline = time.monotonic() + 20
def others():
    return [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
while others() and time.monotonic() < deadline: time.sleep(0.01)
print(json.dumps(others()))
""",
        limits=Limits(pids=32),
    )
    assert found == []
    seen(f"{len(found)} left")


@pytest.mark.attack(1, 27, "thousands of short processes", expected="EXITED")
def test_thousands_of_short_lived_processes_are_no_bomb(attacks: Attacks, seen: Seen) -> None:
    """One after the other they stay within the limit."""
    script = """
for ((i = 0; i < $1; i++)); do (:); done
echo done
"""
    count = on(runc="3000", gvisor="500", why="a process takes some 10 ms to make")
    result = attacks.run(script, "x.sh", argv=[count], limits=Limits(pids=8))
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == (Outcome.EXITED, 0, b"done\n", b"")
    assert result.usage.pids_limit_hits == 0
    seen(result.outcome, result.exit_code)


@pytest.mark.attack(25, 36, "signals to a neighbour", expected="ESRCH")
def test_runs_at_the_same_time_see_nothing_of_each_other(attacks: Attacks, seen: Seen) -> None:
    """Neither a process nor a signal passes from one to the other."""
    victim = "import signal, sys, time\nprint('up')\ntime.sleep(2.5)\nprint('unharmed')\n"
    attack = """
import json, os, signal
from attempt import attempt
seen = {name: open(f"/proc/{name}/cmdline").read() for name in os.listdir("/proc") if name.isdigit()}
sent = {attempt(lambda: os.kill(pid, signal.SIGKILL)) for pid in range(2, 33000) if pid != os.getpid()}
print(json.dumps({"seen": len(seen), "sent": sorted(sent), "all": attempt(lambda: os.kill(-1, 9))}))
"""
    with attacks.under_way(victim) as stream:
        found = attacks.report(attack)
        result = stream.wait()
    assert found == {"seen": 2, "sent": ["ESRCH"], "all": "ESRCH"}
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXITED, 0, b"up\nunharmed\n")
    seen(found["sent"], result.outcome)
