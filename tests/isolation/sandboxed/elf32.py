"""A program for the 32-bit ABI of this processor that does nothing but exit with status 42."""

import pathlib
import platform
import struct

__all__ = ["STATUS", "write_program"]

STATUS = 42
_CODE = {
    # mov ebx, 42; mov eax, 1 (exit); int 0x80
    "x86_64": (3, bytes.fromhex("bb2a000000b801000000cd80")),
    # mov r0, #42; mov r7, #1 (exit); svc 0
    "aarch64": (40, bytes.fromhex("2a00a0e30170a0e3000000ef")),
}
_BASE = 0x10000
_HEADERS = 52 + 32


def write_program(path: pathlib.Path) -> None:
    """Writes it as an executable file."""
    machine, code = _CODE[platform.machine()]
    entry, size = _BASE + _HEADERS, _HEADERS + len(code)
    flags = 0x05000000 if machine == 40 else 0  # the version of ARM's ABI
    ident = b"\x7fELF" + bytes([1, 1, 1]) + bytes(9)
    header = ident + struct.pack("<HHIIIIIHHHHHH", 2, machine, 1, entry, 52, 0, flags, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("<IIIIIIII", 1, 0, _BASE, _BASE, size, size, 5, 0x1000)
    path.write_bytes(header + segment + code)
    path.chmod(0o755)
