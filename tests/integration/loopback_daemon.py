"""The daemon, with an Internet of the tests' own in place of the real one.

The product has no such setting: this script puts another dialler in, and then runs the product's own command.
"""

import asyncio
import collections
import json
import os
import sys

import skilljaild.daemon
from skilljaild.cli import main
from skilljaild.egress.dialler import SystemDialler

INTERNET = json.loads(os.environ["LOOPBACK_INTERNET"])
"""`names`: for each host what it resolves to, the first time, the second time …; the last answer stays.
`ports`: on loopback, for each port of `address`. `address`: where all of it is said to be."""


class LoopbackDialler(SystemDialler):
    """Names and addresses of the test; which addresses are public is decided by the product's own code."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: collections.Counter[str] = collections.Counter()

    async def resolve(self, host: str, port: int) -> list[str]:
        del port
        answers = INTERNET["names"].get(host)
        if not answers:
            raise OSError("no such host")
        self._asked[host] += 1
        return list(answers[min(self._asked[host], len(answers)) - 1])

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if address != INTERNET["address"] or str(port) not in INTERNET["ports"]:
            raise ConnectionRefusedError(f"nobody is at {address}:{port}")
        return await asyncio.open_connection("127.0.0.1", INTERNET["ports"][str(port)])


if __name__ == "__main__":
    skilljaild.daemon.SystemDialler = LoopbackDialler
    sys.exit(main(sys.argv[1:]))
