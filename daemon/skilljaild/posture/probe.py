"""Tries the walls of the sandbox that it runs in, as a script would, and prints what came of it as JSON.

The daemon stages this file into a fresh sandbox and has init start it, with init's own Python 3.11 or newer:
`python3 -I -S probe.py [--gvisor] PATH …`, where each PATH is one that the container floor hides. So it needs nothing
but the standard library, and every image gets the probe of the daemon that judges it. System calls that Python does
not wrap go through `syscall(2)`.

It prints {name: [holds, seen]} with every name of CONTROLS, with --gvisor without those of ON_LINUX. An attempt is
harmless where the wall is missing: it asks for little, or with arguments that the kernel refuses after it has checked
the privilege.
"""

import ctypes
import errno
import functools
import json
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator

__all__ = ["CONTROLS", "GVISOR", "INIT_STREAM", "LAST_FAMILY", "ON_LINUX", "OPEN_FAMILIES", "SEEN_LENGTH", "main"]

OPEN_FAMILIES = {1: "AF_UNIX", 2: "AF_INET", 10: "AF_INET6"}
LAST_FAMILY = 45
"""AF_MCTP, the newest that Linux has."""
SEEN_LENGTH = 120
_FAMILIES = {
    0: "AF_UNSPEC",
    3: "AF_AX25",
    4: "AF_IPX",
    5: "AF_APPLETALK",
    6: "AF_NETROM",
    7: "AF_BRIDGE",
    8: "AF_ATMPVC",
    9: "AF_X25",
    11: "AF_ROSE",
    12: "AF_DECNET",
    13: "AF_NETBEUI",
    14: "AF_SECURITY",
    15: "AF_KEY",
    16: "AF_NETLINK",
    17: "AF_PACKET",
    18: "AF_ASH",
    19: "AF_ECONET",
    20: "AF_ATMSVC",
    21: "AF_RDS",
    22: "AF_SNA",
    23: "AF_IRDA",
    24: "AF_PPPOX",
    25: "AF_WANPIPE",
    26: "AF_LLC",
    27: "AF_IB",
    28: "AF_MPLS",
    29: "AF_CAN",
    30: "AF_TIPC",
    31: "AF_BLUETOOTH",
    32: "AF_IUCV",
    33: "AF_RXRPC",
    34: "AF_ISDN",
    35: "AF_PHONET",
    36: "AF_IEEE802154",
    37: "AF_CAIF",
    38: "AF_ALG",
    39: "AF_NFC",
    40: "AF_VSOCK",
    41: "AF_KCM",
    42: "AF_QIPCRTR",
    43: "AF_SMC",
    44: "AF_XDP",
    45: "AF_MCTP",
}
_SOCKET_TYPES = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)

_NUMBERS = {
    # name: (x86_64, aarch64)
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clone": (56, 220),
    "clone3": (435, 435),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "prctl": (157, 167),
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
    "reboot": (169, 142),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "syslog": (103, 116),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_REFUSED = {errno.EPERM, errno.EACCES, errno.ENOSYS}
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
AT_FDCWD = -100
PTRACE_TRACEME, PTRACE_SEIZE = 0, 0x4206
PR_GET_NO_NEW_PRIVS = 39
UFFD_USER_MODE_ONLY = 1
SYSLOG_ACTION_READ_ALL = 3
KEYCTL_GET_KEYRING_ID = 0
KEY_SPEC_PROCESS_KEYRING = -2
INIT = 1
SUCCEEDED = 42
"""Exit status of a child whose attempt succeeded."""
REFUSED_FROM = 64
"""Exit status of one that met an error, less the error's number."""
FOUND_MAX = 3
FILES_MAX = 200_000
"""Files of an image that are looked at; what lies beyond is not vouched for."""

GVISOR = "--gvisor"
INIT_STREAM = "init's stream cannot be opened"

Attempt = Callable[[], object]
Look = Callable[[], list[str]]


# How things are tried


def attempt(action: Attempt) -> tuple[bool, str]:
    """Holds when `action` meets an error of the kernel, whichever."""
    try:
        answer = action()
    except OSError as error:
        return True, errno.errorcode.get(error.errno or 0, str(error.errno))
    except Exception as error:  # noqa: BLE001 - a probe that breaks must not pass
        return False, f"the attempt broke: {type(error).__name__}"
    return False, f"it worked ({answer!r})"


def look(action: Look) -> tuple[bool, str]:
    """Holds when `action` finds nothing that is wrong."""
    try:
        found = action()
    except Exception as error:  # noqa: BLE001
        return False, f"the look broke: {type(error).__name__}"
    more = f" and {len(found) - FOUND_MAX} more" if len(found) > FOUND_MAX else ""
    return not found, ", ".join(found[:FOUND_MAX]) + more if found else "none"


def call(name: str, *arguments: object) -> int:
    """A system call by its number. Raises OSError."""
    number = _NUMBERS[name][{"x86_64": 0, "aarch64": 1}[platform.machine()]]
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    words += [ctypes.c_long(0)] * (6 - len(words))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    answer: int = libc.syscall(ctypes.c_long(number), *words)
    if answer == -1:
        raise OSError(ctypes.get_errno(), name)
    return answer


def privileged(name: str, *arguments: object) -> object:
    """A call that must meet its privilege before its arguments, which are nonsense. Any other error is no refusal."""
    try:
        return call(name, *arguments)
    except OSError as error:
        if error.errno in _REFUSED:
            raise
        return f"past the privilege: {errno.errorcode.get(error.errno or 0)}"


def in_a_child(action: Attempt) -> int:
    """Tries in a process of its own what would change the caller. Raises OSError with the child's error."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except OSError as error:
            os._exit(REFUSED_FROM + (error.errno or 0) % 128)
        except BaseException:  # noqa: BLE001 - a copy of the probe must never go on as the probe
            os._exit(SUCCEEDED)
        os._exit(SUCCEEDED)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        raise OSError(errno.EPERM, f"killed by signal {os.WTERMSIG(status)}")
    code = os.WEXITSTATUS(status)
    if code < REFUSED_FROM:
        return code
    raise OSError(code - REFUSED_FROM, "refused in a child")


def cannot_write(*paths: str) -> Attempt:
    """An attempt that succeeds when any of the paths can be opened for writing."""

    def action() -> object:
        refusal = OSError(errno.ENOENT, "none of them is there")
        for path in paths:
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                refusal = error
            else:
                return path
        raise refusal

    return action


# What is tried


def open_socket(family: int) -> Attempt:
    """A socket of any type of a family."""

    def action() -> object:
        refusal = OSError(errno.EAFNOSUPPORT, "no type")
        for kind in _SOCKET_TYPES:
            try:
                socket.socket(family, kind).close()
            except OSError as error:
                refusal = error
            else:
                return kind
        raise refusal

    return action


def raw_socket() -> object:
    """Raw packets of both internet families; then what `ping` uses without privilege, and SCTP."""
    refusal = OSError(errno.EPERM, "none")
    for family, kind, protocol in (
        (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
        (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
        (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
        (socket.AF_INET, socket.SOCK_STREAM, 132),
    ):
        try:
            socket.socket(family, kind, protocol).close()
        except OSError as error:
            refusal = error
        else:
            return f"family {family}, protocol {protocol}"
    raise refusal


def reach() -> object:
    """A route to anywhere: addresses for documentation, a resolver, a metadata service. UDP, so nothing is sent."""
    refusal = OSError(errno.ENETUNREACH, "none")
    for family, address in (
        (socket.AF_INET, "192.0.2.1"),
        (socket.AF_INET, "8.8.8.8"),
        (socket.AF_INET, "169.254.169.254"),
        (socket.AF_INET, "172.17.0.1"),
        (socket.AF_INET6, "2001:db8::1"),
    ):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as one:
                one.connect((address, 53))
        except OSError as error:
            refusal = error
        else:
            return address
    raise refusal


def other_interfaces() -> list[str]:
    with open("/proc/net/dev") as file:  # noqa: PTH123
        names = [line.partition(":")[0].strip() for line in file.readlines()[2:]]
    return [name for name in names if name != "lo"]


def unshare_user() -> object:
    return in_a_child(lambda: call("unshare", CLONE_NEWUSER))


def clone_user() -> object:
    answer = call("clone", CLONE_NEWUSER | signal.SIGCHLD)
    if answer == 0:
        os._exit(0)
    os.waitpid(answer, 0)
    return answer


def clone3_user() -> object:
    arguments = ctypes.create_string_buffer(struct.pack("=8Q", CLONE_NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0))
    answer = call("clone3", arguments, 64)
    if answer == 0:
        os._exit(0)
    os.waitpid(answer, 0)
    return answer


def set_namespace() -> object:
    fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return in_a_child(lambda: call("setns", fd, CLONE_NEWNET))
    finally:
        os.close(fd)


def mount() -> object:
    return in_a_child(lambda: call("mount", b"none", b"/work/tmp", b"tmpfs", 0, b""))


def trace() -> object:
    return in_a_child(lambda: call("ptrace", PTRACE_TRACEME))


def trace_init() -> object:
    return in_a_child(lambda: call("ptrace", PTRACE_SEIZE, INIT))


def _read_memory(pid: int, address: int) -> int:
    here = ctypes.create_string_buffer(8)
    local = ctypes.create_string_buffer(struct.pack("=2Q", ctypes.addressof(here), 8))
    remote = ctypes.create_string_buffer(struct.pack("=2Q", address, 8))
    return call("process_vm_readv", pid, local, 1, remote, 1, 0)


def read_memory() -> object:
    """Of this process, which needs no privilege at all."""
    there = ctypes.create_string_buffer(b"x" * 8)
    return _read_memory(os.getpid(), ctypes.addressof(there))


def load_bpf() -> object:
    """A map of one element."""
    return call("bpf", 0, ctypes.create_string_buffer(struct.pack("=5I", 2, 4, 4, 1, 0).ljust(72, b"\0")), 72)


def open_perf_event() -> object:
    """A software counter of this process, without the kernel's part."""
    attributes = struct.pack("=2IQ2Q2Q", 1, 64, 9, 0, 0, 0, 1 << 5 | 1 << 6)  # dummy; exclude_kernel, exclude_hv
    return call("perf_event_open", ctypes.create_string_buffer(attributes.ljust(64, b"\0")), 0, -1, -1, 0)


def set_up_io_uring() -> object:
    return call("io_uring_setup", 1, ctypes.create_string_buffer(120))


def add_key() -> object:
    return call("add_key", b"user", b"skilljail", b"x", 1, KEY_SPEC_PROCESS_KEYRING)


def control_keys() -> object:
    return call("keyctl", KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1)


def open_by_handle() -> object:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128))
    mount_id = ctypes.create_string_buffer(4)
    call("name_to_handle_at", AT_FDCWD, b"/work", handle, mount_id, 0)
    return "a handle"


def open_handle() -> object:
    """The root of shm by a made-up handle: the privilege is checked before it is looked at."""
    handle = ctypes.create_string_buffer(struct.pack("=IiQ", 8, 1, 2))
    return privileged("open_by_handle_at", AT_FDCWD, handle, os.O_RDONLY)


def read_kernel_log() -> object:
    return call("syslog", SYSLOG_ACTION_READ_ALL, ctypes.create_string_buffer(64), 64)


def run_32_bit_program() -> object:
    """A program that exits with SUCCEEDED through the 32-bit entry."""
    path = f"/work/tmp/probe-{os.getpid()}"
    machine, code = {
        # mov ebx, 42; mov eax, 1 (exit); int 0x80
        "x86_64": (3, bytes.fromhex("bb2a000000b801000000cd80")),
        # mov r0, #42; mov r7, #1 (exit); svc 0
        "aarch64": (40, bytes.fromhex("2a00a0e30170a0e3000000ef")),
    }[platform.machine()]
    base, headers = 0x10000, 52 + 32
    size = headers + len(code)
    flags = 0x05000000 if machine == 40 else 0
    elf = b"\x7fELF" + bytes([1, 1, 1]) + bytes(9)
    elf += struct.pack("<HHIIIIIHHHHHH", 2, machine, 1, base + headers, 52, 0, flags, 52, 32, 1, 0, 0, 0)
    elf += struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 5, 0x1000) + code
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    os.write(fd, elf)
    os.close(fd)
    return in_a_child(lambda: os.execve(path, [path], {}))  # noqa: S606


def enter_32_bit_calls() -> object:
    """From a 64-bit program, by `int 0x80` and by x32's numbers; other processors have no such entry."""
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, "no such entry")
    answer: object = None
    for code in (
        bytes.fromhex("53b814000000cd805bc3"),  # push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
        bytes.fromhex("b8270000400f05c3"),  # mov eax, 0x40000000 | 39 (getpid of x32); syscall; ret
    ):
        memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write(code)
        function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))

        def try_it(function: Callable[[], int] = function) -> None:
            if function() != os.getpid():
                raise OSError(errno.ENOSYS, "no such entry")

        try:
            in_a_child(try_it)
        except OSError as error:
            refusal = error
        else:
            answer = code.hex()
    if answer is not None:
        return answer
    raise refusal


def write_root() -> object:
    refusal = OSError(errno.EROFS, "none")
    for folder in ("/", "/etc", "/usr/bin", "/opt/skilljail", "/var/lib", "/run"):
        try:
            os.close(os.open(f"{folder}/.probe", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            refusal = error
        else:
            return folder
    if not (os.statvfs("/").f_flag & os.ST_RDONLY or _is_mounted_read_only()):
        return "mounted for writing"
    raise refusal


def _is_mounted_read_only() -> bool:
    """Of the mount that was put on the root last. Not every kernel tells it of the file system, too."""
    with open("/proc/self/mountinfo") as file:  # noqa: PTH123
        roots = [words[5].split(",") for words in map(str.split, file) if words[4] == "/"]
    return bool(roots) and "ro" in roots[-1]


def become_root() -> object:
    return in_a_child(lambda: os.setresuid(0, 0, 0))


def no_new_privileges() -> list[str]:
    return [] if call("prctl", PR_GET_NO_NEW_PRIVS) == 1 else ["PR_GET_NO_NEW_PRIVS is 0"]


def capabilities() -> list[str]:
    with open("/proc/self/status") as file:  # noqa: PTH123
        lines = dict(line.rstrip().split(":\t", 1) for line in file if line.startswith("Cap"))
    wanted = {"CapInh", "CapPrm", "CapEff", "CapBnd"}  # the ambient ones are always among the permitted
    return [f"{name} {lines.get(name, 'is not told')}" for name in sorted(wanted) if int(lines.get(name, "1"), 16) != 0]


def _files() -> Iterator[os.DirEntry[str]]:
    """Every file of the image that this user can see."""
    pending, count = ["/"], 0
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                if entry.path in {"/proc", "/sys", "/dev", "/work"}:
                    continue
                count += 1
                if count > FILES_MAX:
                    raise OSError(errno.EOVERFLOW, "too many files")
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                yield entry


@functools.cache
def _looked_at_files() -> tuple[list[str], list[str]]:
    """Files with privilege, and sockets. Raises OSError when there are too many files to look at."""
    gaining, sockets = [], []
    for entry in _files():
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISSOCK(mode):
            sockets.append(entry.path)
        elif mode & (stat.S_ISUID | stat.S_ISGID) and not stat.S_ISLNK(mode):
            gaining.append(entry.path)
    return gaining, sockets


def gaining_files() -> list[str]:
    return _looked_at_files()[0]


_SOCKETS = (
    "docker.sock",
    "podman/podman.sock",
    "containerd/containerd.sock",
    "crio/crio.sock",
    "skilljail/skilljaild.sock",
)


def engine_sockets() -> list[str]:
    named = [f"{folder}/{name}" for folder in ("/run", "/var/run") for name in _SOCKETS]
    return [path for path in named if os.path.lexists(path)] + _looked_at_files()[1]  # noqa: PTH110


def visible_masked_paths() -> list[str]:
    """Of those that the floor hides."""
    found = []
    for path in sys.argv[1:]:
        try:
            status = os.stat(path)  # noqa: PTH116
            if stat.S_ISDIR(status.st_mode):
                shows = bool(os.listdir(path))  # noqa: PTH208
            elif stat.S_ISCHR(status.st_mode):  # reading another device might never end
                shows = status.st_rdev != os.makedev(1, 3)  # the null device hides it
            else:
                with open(path, "rb") as file:  # noqa: PTH123
                    shows = bool(file.read(1))
        except OSError:
            continue
        if shows:
            found.append(path)
    return found


def host_devices() -> list[str]:
    paths = ("/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/fuse", "/dev/kvm", "/dev/vsock", "/dev/net/tun")
    return [path for path in paths if os.path.lexists(path)]  # noqa: PTH110


def open_device() -> object:
    """The memory of the machine, by a file of one's own."""
    os.mknod("/work/tmp/device", 0o600 | stat.S_IFCHR, os.makedev(1, 1))
    os.close(os.open("/work/tmp/device", os.O_RDONLY | os.O_CLOEXEC))
    return "/work/tmp/device"


def lower_oom_score() -> object:
    """Below what the sandbox began with, so that the kernel would rather kill something of the host's."""
    refusal = OSError(errno.EACCES, "none")
    for path in ("/proc/self/oom_score_adj", f"/proc/{INIT}/oom_score_adj"):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            refusal = error
            continue
        try:
            os.write(fd, b"-1")
        except OSError as error:
            refusal = error
        else:
            return path
        finally:
            os.close(fd)
    raise refusal


_STREAMS = tuple(f"fd/{number}" for number in range(3, 12))
"""Of init, whose first three are /dev/null. A script that could open the daemon's stream would speak for init."""


def read_init(*names: str) -> Attempt:
    """An attempt that succeeds when any of these files, links and folders of init can be read."""

    def action() -> object:
        refusal = OSError(errno.ENOENT, "none of them is there")
        for name in names:
            path = f"/proc/{INIT}/{name}"
            try:
                if name in {"root", "cwd", "exe"}:
                    os.readlink(path)  # noqa: PTH115
                elif name in _STREAMS:
                    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
                else:
                    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                        file.read(1)
            except OSError as error:
                refusal = error
            else:
                return name
        raise refusal

    return action


def read_init_memory() -> object:
    return _read_memory(INIT, ctypes.addressof(ctypes.create_string_buffer(8)))


def limit_init() -> object:
    return resource.prlimit(INIT, resource.RLIMIT_NOFILE)


def killed_init() -> list[str]:
    """The kernel answers such a signal with success and throws it away. That this goes on is the proof."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(INIT, number)
        except OSError:
            continue
    return [] if os.getppid() == INIT else ["init is gone"]


_ATTEMPTS: dict[str, Attempt] = {
    **{
        f"no socket of family {name}": open_socket(family)
        for family, name in _FAMILIES.items()
        if family not in OPEN_FAMILIES
    },
    "no raw socket, no protocol but TCP and UDP": raw_socket,
    "no route out of the sandbox": reach,
    "no user namespace by unshare": unshare_user,
    "no user namespace by clone": clone_user,
    "no user namespace by clone3": clone3_user,
    "no other namespace by setns": set_namespace,
    "no mount": mount,
    "no ptrace": trace,
    "no process_vm_readv": read_memory,
    "no bpf": load_bpf,
    "no perf_event_open": open_perf_event,
    "no userfaultfd": lambda: call("userfaultfd", UFFD_USER_MODE_ONLY),
    "no io_uring": set_up_io_uring,
    "no add_key": add_key,
    "no keyctl": control_keys,
    "no name_to_handle_at": open_by_handle,
    "no open_by_handle_at": open_handle,
    "no kexec_load": lambda: privileged("kexec_load", 0, 0, 0, 0xFFFF),
    "no init_module": lambda: privileged("init_module", 0, 0, 0),
    "no reboot": lambda: privileged("reboot", 0, 0, 0, 0),
    "no clock can be set": lambda: privileged("settimeofday", 0, 0),
    "no kernel log": read_kernel_log,
    "no 32-bit program": run_32_bit_program,
    "no call of a 32-bit entry": enter_32_bit_calls,
    "the root is read-only": write_root,
    "no way to become root": become_root,
    "no device can be made and opened": open_device,
    "no write to /proc/sysrq-trigger": cannot_write("/proc/sysrq-trigger"),
    "no write to /proc/sys": cannot_write(
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory"
    ),
    "no write to /sys": cannot_write("/sys/kernel/uevent_helper", "/sys/power/state", "/sys/fs/cgroup/release_agent"),
    "no lower oom_score_adj": lower_oom_score,
    "init's environment and addresses cannot be read": read_init("environ", "auxv", "maps"),
    "init's memory and files cannot be read": read_init("mem", "root", "cwd", "exe"),
    INIT_STREAM: read_init(*_STREAMS),
    "init cannot be traced": trace_init,
    "init's memory cannot be read": read_init_memory,
    "init's limits cannot be touched": limit_init,
}
_LOOKS: dict[str, Look] = {
    "no interface but loopback": other_interfaces,
    "a script gains no new privileges": no_new_privileges,
    "no capability": capabilities,
    "no setuid or setgid file": gaining_files,
    "no socket of an engine": engine_sockets,
    "a hidden path shows nothing": visible_masked_paths,
    "no device of the host": host_devices,
    "init cannot be killed": killed_init,
}
CONTROLS = (*_ATTEMPTS, *_LOOKS)
"""The name of each, as a short sentence."""
ON_LINUX = frozenset(
    {
        "no lower oom_score_adj",
        "no device of the host",
        "a hidden path shows nothing",
        "init's environment and addresses cannot be read",
        "init cannot be killed",
    }
)
"""What says nothing about gVisor. Its scores, devices and /proc are its own. That a script may kill PID 1 there ends
its own sandbox and nothing else, and what can be read of init there is no secret."""


def main() -> None:
    """Tries everything and prints it."""
    if os.geteuid() == 0:
        # No sandbox is root. Somebody runs this by hand, and what it sends to PID 1 could stop their machine.
        sys.exit("the probe is for a sandbox, and not for root")
    left_out = ON_LINUX if GVISOR in sys.argv else frozenset()
    found = {name: attempt(action) for name, action in _ATTEMPTS.items() if name not in left_out}
    found |= {name: look(action) for name, action in _LOOKS.items() if name not in left_out}
    print(json.dumps({name: (holds, seen[:SEEN_LENGTH]) for name, (holds, seen) in found.items()}))


if __name__ == "__main__":
    main()
