"""The kernel's surface: privileges, system calls, and what /proc, /sys and /dev offer."""

import re

import pytest
from attack_table import Seen
from harness import INTERPRETERS, on
from skilljail import Outcome
from skilljaild.engines.floor import container_floor

from isolation.attacks import Attacks

READ_STATUS = {
    "python": ("x.py", "print(open('/proc/self/status').read(), end='')"),
    "node": ("x.js", "process.stdout.write(require('fs').readFileSync('/proc/self/status'))"),
    "bash": ("x.sh", "exec cat /proc/$$/status"),
    "pwsh": ("x.ps1", "[Console]::Out.Write([IO.File]::ReadAllText('/proc/self/status'))"),
}

REFUSED = {"EPERM", "ENOSYS"}
ONE_ERROR = "gVisor answers every call that a profile refuses with EPERM"


@pytest.mark.attack(41, "capabilities, no_new_privs, seccomp", expected="none, 1, 2")
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_script_has_no_privilege(attacks: Attacks, interpreter: str, seen: Seen) -> None:
    """In the interpreter's own process."""
    name, script = READ_STATUS[interpreter]
    result = attacks.run(script, name)
    assert (result.outcome, result.exit_code, result.stderr) == (Outcome.EXITED, 0, b"")
    lines = dict(line.split(":", 1) for line in result.stdout_text.splitlines())
    status = {name: " ".join(value.split()) for name, value in lines.items()}
    user = status["Uid"].split()[0]
    assert 60_100 <= int(user) < 60_612
    expected = {"Uid": " ".join([user] * 4), "Gid": " ".join([user] * 4), "TracerPid": "0"}
    expected |= dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd"), "0000000000000000")
    expected |= {"Seccomp": "2"}
    told_by_linux = {"CapAmb": "0000000000000000", "NoNewPrivs": "1"}
    expected |= on(
        runc=told_by_linux, gvisor={}, why="gVisor does not write these; init asks for the second by prctl(2)"
    )
    assert {name: status[name] for name in expected} == expected
    assert status["Groups"] in {"", user}
    seen("CapBnd " + status["CapBnd"], "Seccomp " + status["Seccomp"])


@pytest.mark.attack(40, 41, "becoming somebody else", expected="EPERM")
def test_no_identity_capability_or_priority_can_be_gained(attacks: Attacks, seen: Seen) -> None:
    """From inside one's own process."""
    found = attacks.report("""
import ctypes, json, os
from attempt import attempt
from kernel import call
version_3 = ctypes.create_string_buffer((0x20080522).to_bytes(4, "little") + bytes(4))
every = ctypes.create_string_buffer(b"\\xff" * 24)
print(json.dumps({
    "user": attempt(lambda: os.setresuid(0, 0, 0)),
    "group": attempt(lambda: os.setresgid(0, 0, 0)),
    "groups": attempt(lambda: os.setgroups([0])),
    "capabilities": call("capset", version_3, every),
    "ambient capability": call("prctl", 47, 2, 21),
    "securebits": call("prctl", 28, 1),
    "new privileges": call("prctl", 38, 0),
    "no address randomisation": call("personality", 0x0040000),
    "priority": attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, -1)),
    "real time": attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
}))
""")
    assert found.pop("no address randomisation") in REFUSED
    assert found == {
        **dict.fromkeys(("user", "group", "groups", "capabilities"), "EPERM"),
        "new privileges": "EINVAL",
        **on(
            runc={"ambient capability": "EPERM", "securebits": "EPERM", "priority": "EACCES", "real time": "EPERM"},
            gvisor={
                "ambient capability": "EINVAL",
                "securebits": "EINVAL",
                "priority": "done None",
                "real time": "EINVAL",
            },
            why="there are no ambient sets and no securebits; a priority is a number that nobody looks at",
        ),
    }
    seen(found)


@pytest.mark.attack(40, "setuid files and file capabilities", expected="none; nosuid")
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_no_file_of_an_image_gives_privilege(attacks: Attacks, interpreter: str, seen: Seen) -> None:
    """Nothing setuid, setgid or with capabilities, and a mount that ignores such bits."""
    script = """
import json, os, stat
from walk import everything
found = []
for path in everything("/"):
    mode = path.lstat().st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID) or (stat.S_ISREG(mode) and "security.capability" in os.listxattr(path)):
        found.append(str(path))
flags = os.statvfs("/work").f_flag
print(json.dumps({"found": found, "nosuid": bool(flags & os.ST_NOSUID), "nodev": bool(flags & os.ST_NODEV)}))
"""
    found = attacks.report(script, interpreter)
    assert found.pop("found") == []
    tells = on(
        runc=True, gvisor=False, why="statvfs does not tell; no program gains privilege there without --allow-suid"
    )
    assert not tells or found == {"nosuid": True, "nodev": True}
    seen(found or "none", "nosuid")


@pytest.mark.attack(34, "every socket family, type and protocol", expected="EAFNOSUPPORT but for local, TCP, UDP")
def test_only_local_tcp_and_udp_sockets_can_be_made(attacks: Attacks, seen: Seen) -> None:
    """AF_ALG, AF_VSOCK, AF_NETLINK, AF_PACKET, AF_RXRPC, AF_KEY and all others; raw sockets, ICMP, SCTP."""
    found = attacks.report("""
import errno, json, socket
opened, errors = [], set()
for family in range(256):
    for kind in range(12):
        try:
            socket.socket(family, kind).close()
        except OSError as error:
            errors.add(errno.errorcode[error.errno])
        else:
            opened.append((family, kind))
protocols = []
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        for protocol in range(264):
            try:
                socket.socket(family, kind, protocol).close()
            except OSError as error:
                errors.add(errno.errorcode[error.errno])
            else:
                protocols.append((family, kind, protocol))
print(json.dumps({"opened": opened, "protocols": protocols, "errors": sorted(errors)}))
""")
    # Linux takes a raw local socket for a datagram one.
    local = [[1, kind] for kind in (1, 2, 3, 5)]
    assert found["opened"] == [*local, [2, 1], [2, 2], [10, 1], [10, 2]]
    assert found["protocols"] == [
        [family, kind, protocol] for family in (2, 10) for kind in (1, 2) for protocol in (0, 6 if kind == 1 else 17)
    ]
    assert on(runc="EAFNOSUPPORT", gvisor="EPERM", why=ONE_ERROR) in found["errors"]
    assert "EMFILE" not in found["errors"]
    seen(found["errors"])


@pytest.mark.attack(34, 52, "a family hidden behind the upper 32 bits", expected="EAFNOSUPPORT, EPERM")
def test_the_upper_half_of_an_argument_does_not_hide_the_lower_one(attacks: Attacks, seen: Seen) -> None:
    """The kernel looks at 32 bits of a family or a request; so must the filter."""
    found = attacks.report("""
import json
from kernel import call
high = 1 << 32
print(json.dumps({
    "AF_ALG": call("socket", high | 38, 5, 0),
    "AF_NETLINK": call("socket", high | 16, 3, 0),
    "TIOCSTI": call("ioctl", 0, high | 0x5412, 0),
    "TIOCLINUX": call("ioctl", 0, high | 0x541C, 0),
}))
""")
    family = on(runc="EAFNOSUPPORT", gvisor="EPERM", why=ONE_ERROR)
    assert found == {"AF_ALG": family, "AF_NETLINK": family, "TIOCSTI": "EPERM", "TIOCLINUX": "EPERM"}
    seen(found)


@pytest.mark.attack(34, "int 0x80 and x32", expected="SIGSYS")
def test_no_call_of_the_32_bit_entry_is_answered(attacks: Attacks, seen: Seen) -> None:
    """On x86_64 a 64-bit program reaches the 32-bit calls, socketcall among them, through int 0x80."""
    found = attacks.report("""
import ctypes, json, mmap, os, platform, signal, sys
# push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
codes = {"int 0x80": bytes.fromhex("53b814000000cd805bc3")}
# mov eax, 0x40000000 | 39 (getpid of x32); syscall; ret
codes["x32"] = bytes.fromhex("b8270000400f05c3")
found = {}
for name, code in codes.items() if platform.machine() == "x86_64" else ():
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    pid = os.fork()
    if pid == 0:
        os._exit(42 if function() == os.getpid() else 43)
    status = os.waitpid(pid, 0)[1]
    killed = os.WIFSIGNALED(status) and signal.Signals(os.WTERMSIG(status)).name
    found[name] = killed or f"exited {os.WEXITSTATUS(status)}"
print(json.dumps(found))
""")
    # x32 is not in most kernels: then the call has no number, which is as good as being killed.
    unanswered = {"int 0x80": "exited 43", "x32": "exited 43"}
    assert found in ({}, {"int 0x80": "SIGSYS", "x32": "SIGSYS"}, {"int 0x80": "SIGSYS", "x32": "exited 43"}) or (
        found == on(runc=None, gvisor=unanswered, why="it has no 32-bit calls: the filter never sees one")
    )
    seen(found)


@pytest.mark.attack(34, "a 32-bit program", expected="SIGSYS")
def test_a_32_bit_program_does_not_run(attacks: Attacks, seen: Seen) -> None:
    """I386 on x86_64, ARM on aarch64."""
    found = attacks.report("""
import json, pathlib, signal, subprocess
from elf32 import STATUS, write_program
program = pathlib.Path("/work/tmp/program")
write_program(program)
try:
    status = subprocess.run([program]).returncode
except OSError as error:
    print(json.dumps(error.strerror))
else:
    print(json.dumps("it ran" if status == STATUS else signal.Signals(-status).name))
""")
    assert found in {"SIGSYS", "Exec format error"}
    seen(found)


FORBIDDEN = (
    # another process
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"),
    # keyrings
    *("add_key", "request_key", "keyctl"),
    # what exploits are made with
    *("userfaultfd", "bpf", "perf_event_open", "io_uring_setup", "io_uring_enter", "io_uring_register", "vmsplice"),
    *("io_setup", "io_submit", "io_getevents", "io_pgetevents", "io_cancel", "io_destroy"),
    # namespaces and mounts
    *("unshare", "setns", "clone3", "mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr"),
    *("move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "statmount", "listmount"),
    # files by number, and whole file systems
    *("name_to_handle_at", "open_by_handle_at", "fanotify_init", "fanotify_mark", "quotactl", "quotactl_fd", "ustat"),
    # the machine
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "syslog", "acct", "swapon"),
    *("swapoff", "reboot", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname"),
    *("setdomainname", "vhangup", "iopl", "ioperm", "modify_ldt", "lookup_dcookie", "uselib", "memfd_secret"),
    *("mbind", "get_mempolicy", "set_mempolicy", "migrate_pages", "move_pages", "lsm_list_modules"),
)


@pytest.mark.attack(36, 37, 38, 39, "calls that reach beyond a script", expected="EPERM or ENOSYS")
def test_calls_that_reach_beyond_a_script_are_refused(attacks: Attacks, seen: Seen) -> None:
    """Whatever their arguments; the kernel itself would complain about these first."""
    script = """
import json, sys
from kernel import call
print(json.dumps({name: call(name) for name in sys.argv[1:]}))
"""
    found = attacks.report(script, argv=FORBIDDEN)
    assert set(found) == set(FORBIDDEN)
    assert {name: answer for name, answer in found.items() if answer not in REFUSED | {"none"}} == {}
    seen(found)


@pytest.mark.attack(38, "unshare, setns and clone of each namespace", expected="EPERM")
def test_no_namespace_can_be_made_or_entered(attacks: Attacks, seen: Seen) -> None:
    """Each kind by itself, by every call that takes one."""
    found = attacks.report("""
import json, os, signal
from kernel import call
kinds = {
    "mnt": 0x00020000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000,
    "pid": 0x20000000, "net": 0x40000000, "time": 0x00000080,
}
found = {}
for kind, flag in kinds.items():
    found[f"unshare {kind}"] = call("unshare", flag)
    link = f"/proc/self/ns/{kind}" if os.path.exists(f"/proc/self/ns/{kind}") else "/proc/self/ns"
    found[f"setns {kind}"] = call("setns", os.open(link, os.O_RDONLY), flag)
    if kind != "time":  # its flag is a signal's number for clone
        answer = found[f"clone {kind}"] = call("clone", flag | signal.SIGCHLD)
        if answer == "done 0":
            os._exit(0)  # the child
found["clone user and mnt"] = call("clone", kinds["user"] | kinds["mnt"] | signal.SIGCHLD)
print(json.dumps(found))
""")
    assert len(found) == 24
    assert {name: answer for name, answer in found.items() if answer != "EPERM"} == {}
    seen(found)


@pytest.mark.attack(37, "mount, nsenter, chroot and the like", expected="each fails")
def test_nothing_can_be_mounted_by_a_program_either(attacks: Attacks, seen: Seen) -> None:
    """With the tools of the image."""
    script = """
for command in "mount -t tmpfs x /work/tmp" "mount --bind /work /mnt" "umount /work" "unshare -Ur true" \\
    "unshare -m true" "nsenter -t 1 -m true" "chroot /work true" "pivot_root /work /work/tmp" "dmesg" \\
    "mount -o remount,rw /"
do
    $command 2>/work/tmp/error && echo "it worked: $command"
done
exit 0
"""
    result = attacks.run(script, "x.sh")
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == (Outcome.EXITED, 0, b"", b"")
    seen(result.outcome, result.stdout_text or "none worked")


@pytest.mark.attack(48, "making and finding devices", expected="EPERM")
def test_no_device_can_be_made_or_opened_but_the_harmless_ones(attacks: Attacks, seen: Seen) -> None:
    """/dev/mem, /dev/kmsg, /dev/fuse, /dev/kvm, disks, and nodes of one's own."""
    found = attacks.report("""
import json, os, stat
from attempt import attempt
from walk import everything
made = {}
for name, kind in (("block", stat.S_IFBLK), ("character", stat.S_IFCHR)):
    for folder in ("/work/tmp", "/dev/shm", "/dev"):
        made[f"{name} in {folder}"] = attempt(lambda: os.mknod(f"{folder}/{name}", 0o600 | kind, os.makedev(1, 1)))
nodes = {}
for path in everything("/"):
    status = path.lstat()
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        nodes[str(path)] = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
print(json.dumps({"made": made, "nodes": nodes}))
""")
    # Making a file in /dev meets its permissions before the capability that is missing.
    assert {one for name, one in found["made"].items() if not name.endswith("in /dev")} == {"EPERM"}
    assert {one for name, one in found["made"].items() if name.endswith("in /dev")} <= {"EPERM", "EACCES", "EROFS"}
    assert found["nodes"] == {
        "/dev/null": "1:3",
        "/dev/zero": "1:5",
        "/dev/full": "1:7",
        "/dev/random": "1:8",
        "/dev/urandom": "1:9",
        "/dev/tty": "5:0",
        **on(
            runc={"/dev/pts/ptmx": "1:3"},  # hidden behind the null device
            gvisor={"/dev/pts/ptmx": "5:2", "/dev/fuse": "10:229", "/dev/net/tun": "10:200"},
            why="gVisor's own, not the host's; what they are for takes a mount or a capability",
        ),
    }
    seen(found["made"])


@pytest.mark.attack(42, 44, "writing /proc and /sys", expected="no file opens")
def test_what_the_kernel_offers_to_write_cannot_be_written(attacks: Attacks, seen: Seen) -> None:
    """Every file below /proc and /sys: sysctls, sysrq, uevent_helper and cgroups among them."""
    found = attacks.report("""
import json, os, re
opened, looked = [], set()
process = re.compile(r"/proc/(\\d+|self|thread-self)$")
for top in ("/proc", "/sys"):
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not process.match(f"{folder}/{name}")]
        for path in (f"{folder}/{name}" for name in files):
            looked.add(path)
            try:
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue
            if os.fstat(fd).st_rdev != os.makedev(1, 3):  # a masked file is /dev/null
                opened.append(path)
            os.close(fd)
print(json.dumps({"opened": opened, "dangerous": "/proc/sys/kernel/core_pattern" in looked, "looked": len(looked)}))
""")
    assert found["opened"] == []
    expected = on(runc=(True, 1_000), gvisor=(False, 20), why="it has few settings, and none of a host's")
    assert (found["dangerous"], found["looked"] > expected[1]) == (expected[0], True)
    seen(f"{len(found['opened'])} opened")


@pytest.mark.attack(43, "/proc/kcore, keys, firmware, powercap", expected="empty or closed")
def test_what_the_kernel_tells_of_the_host_is_masked(attacks: Attacks, seen: Seen) -> None:
    """What the floor names is empty; what is root's alone, and the memory's addresses, cannot be read."""
    script = """
import glob, json, os, stat, sys
def content(path):
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return os.listdir(path)
    if stat.S_ISCHR(status.st_mode):  # reading another device than the null device might never end
        return "" if status.st_rdev == os.makedev(1, 3) else "a device"
    with open(path, "rb") as file:
        return file.read(64).decode("latin-1")
found = {"masked": {}, "refused": [], "addresses": set()}
for path in sys.argv[1:]:
    if os.path.exists(path):
        found["masked"][path] = content(path)
for path in ("/proc/kcore", "/proc/kmsg", "/proc/kpagecount", "/proc/kpageflags", "/proc/vmallocinfo", "/proc/slabinfo",
    "/proc/1/stack", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security/lsm",
    *glob.glob("/sys/firmware/*"), *glob.glob("/sys/devices/virtual/powercap/*"),
    *glob.glob("/sys/devices/system/cpu/cpu*/thermal_throttle/*"), *glob.glob("/sys/class/powercap/*/energy_uj")):
    try:
        if content(path):
            found["refused"].append(path)
    except OSError:
        pass
if os.path.exists("/proc/iomem"):
    with open("/proc/iomem") as file:
        found["addresses"] |= {line.split()[0] for line in file}
found["addresses"] = sorted(found["addresses"])
print(json.dumps(found))
"""
    found = attacks.report(script, argv=container_floor().masked_paths)
    assert "/proc/kcore" in container_floor().masked_paths
    own = on(
        runc=set(),
        gvisor={"/proc/cmdline", "/dev/pts/ptmx"},
        why="gVisor masks nothing: what it tells is its own invention",
    )
    assert {path for path, content in found["masked"].items() if content} == own
    assert found["refused"] == []
    assert found["addresses"] == on(runc=["00000000-00000000"], gvisor=[], why="it has no such file")
    seen(found["refused"])


@pytest.mark.attack(44, "release_agent, mounting cgroups", expected="EROFS, EACCES, EPERM")
def test_cgroups_can_be_neither_written_nor_left(attacks: Attacks, seen: Seen) -> None:
    """CVE-2022-0492; and what is seen of them names nothing of the host."""
    found = attacks.report("""
import json, os
from attempt import attempt
from kernel import call
top = "/sys/fs/cgroup"
folders = [folder for folder, _, _ in os.walk(top)]
made = {attempt(lambda: os.mkdir(f"{folder}/x")) for folder in folders}
agents = {attempt(lambda: os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT))
    for folder in folders for name in ("release_agent", "notify_on_release", "cgroup.procs", "devices.allow")}
print(json.dumps({
    "folders": len(folders), "made": sorted(made), "agents": sorted(agents),
    "mounted": [call("mount", b"cgroup", b"/work/tmp", b"cgroup", 0, b"memory"),
        call("mount", b"cgroup2", b"/work/tmp", b"cgroup2", 0, None)],
    "own": sorted({line.rstrip().split(":", 2)[2] for line in open("/proc/self/cgroup")}),
}))
""")
    assert found["folders"] >= 1
    assert set(found["made"]) <= {"EROFS", "EACCES"}
    assert set(found["agents"]) <= {"EROFS", "EACCES"}
    assert found["mounted"] == ["EPERM", "EPERM"]
    # Podman has no cgroup namespace on cgroup v1: it shows a name that it gave itself.
    assert all(re.fullmatch(r"/|(/libpod_parent)?/libpod-[0-9a-f]{64}", path) for path in found["own"])
    seen(found["made"], found["agents"], found["mounted"])
