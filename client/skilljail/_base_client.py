"""What the blocking and the asynchronous client have in common: every decision, and no call."""

import time
from collections.abc import Mapping
from typing import Any

from skilljail._blob import Blob, Upload
from skilljail._bundle import Bounds, SkillTooLarge
from skilljail._capabilities import Capabilities
from skilljail._connection import Connection
from skilljail._errors import BundleMissing, DaemonUnavailable
from skilljail._request import PreparedRun
from skilljail._script import check_script
from skilljail._steps import Content, Open, Pause, Read, Send, Steps, Unary
from skilljail._tls import TLS
from skilljail.v1 import admin_pb2, bundle_store_pb2, script_runner_pb2

__all__ = ["BaseClient", "self_test_step"]

_OPEN_ATTEMPTS = 3
_FIND_DIGESTS_MAX = 10_000
_REMEMBERED_BUNDLES_MAX = 4_096
_PAUSE_SECONDS = 0.05
_SELF_TEST_SECONDS = 600.0
"""It waits for its turn among the runs, once for each image."""


def self_test_step() -> Unary:
    """Asks for a self-test."""
    return Unary("SelfTest", admin_pb2.SelfTestRequest(), timeout_seconds=_SELF_TEST_SECONDS)


class BaseClient:
    """An address, and what was learnt from the daemon there."""

    def __init__(self, address: str | None = None, *, tls: TLS | None = None, insecure: bool = False) -> None:
        """`address`: `unix:/path`, `/path` or `host:port`; None takes `SKILLJAIL_ADDRESS`, else the local socket.

        `tls`: for `host:port`; None takes `SKILLJAIL_TLS_CA`, `_CERT` and `_KEY`. `insecure`: no TLS, to a loopback
        address only. Raises InvalidAddress. Nothing is connected before the first call.
        """
        self._connection = Connection.of(address, tls=tls, insecure=insecure)
        self._staged: dict[str, None] = {}
        self._bounds: Bounds | None = None

    @property
    def address(self) -> str:
        """Where the daemon is: `unix:/absolute/path` or `host:port`."""
        return self._connection.address.target

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    def _opening(self, run: PreparedRun) -> Steps[Any]:
        """Stages what the daemon lacks and opens the stream. Returns the answer of Open."""
        content = yield from self._reading(run)
        request = run.request
        check_script(request.script_path, content.bundle.files | set(run.inputs), content.bundle.directories)
        request.bundle_digest = content.bundle.digest
        request.files.extend(content.files)
        blobs = {**content.bundle.blobs, **content.input_blobs}
        known_missing: frozenset[str] = frozenset()
        for attempt in range(1, _OPEN_ATTEMPTS + 1):
            # Inputs come and go with runs; of bundles this client remembers which ones the daemon had.
            if attempt > 1 or content.input_blobs or content.bundle.digest not in self._staged:
                yield from self._staging(blobs, known_missing)
                self._remember(content.bundle.digest)
            try:
                return (yield Open(request))
            except BundleMissing as error:
                # A store that is short of room drops what was not used for long, also between two of our calls.
                self._staged.pop(content.bundle.digest, None)
                known_missing = frozenset(violation.subject for violation in error.violations)
                last = error
        raise BundleMissing(
            f"the daemon at {self.address} dropped the skill's content {_OPEN_ATTEMPTS} times right after it was "
            f"uploaded ({last}); its bundle store is too small for what runs there at one time, have the operator "
            "make it larger",
            metadata=last.metadata,
            violations=last.violations,
        ) from last

    def _reading(self, run: PreparedRun) -> Steps[Content]:
        """Reads skill and inputs. The daemon is asked for its bounds only when the usual ones do not suffice."""
        try:
            content: Content = yield Read(run, self._bounds or Bounds())
        except SkillTooLarge:
            if self._bounds is not None:
                raise
            response = yield Unary("GetCapabilities", script_runner_pb2.GetCapabilitiesRequest())
            self._bounds = Bounds(response.bundle_entries_max, response.bundle_bytes_max)
            content = yield Read(run, self._bounds)
        return content

    def _staging(self, blobs: Mapping[str, Blob], known_missing: frozenset[str]) -> Steps[None]:
        """Uploads what the daemon does not have."""
        digests = list(blobs)
        missing = set(known_missing)
        for start in range(0, len(digests), _FIND_DIGESTS_MAX):
            response = yield Unary(
                "FindMissing",
                bundle_store_pb2.FindMissingRequest(digests=digests[start : start + _FIND_DIGESTS_MAX]),
            )
            missing.update(response.missing_digests)
        # What we do not have is left out: an answer cannot make us send anything but this skill.
        wanted = [blob for digest, blob in blobs.items() if digest in missing]
        if wanted:
            yield Send(Upload(wanted))

    def _remember(self, digest: str) -> None:
        if len(self._staged) >= _REMEMBERED_BUNDLES_MAX:
            self._staged.clear()
        self._staged[digest] = None

    def _waiting(self, timeout_seconds: float) -> Steps[Capabilities]:
        """Asks until the daemon answers."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = deadline - time.monotonic()
            try:
                response = yield Unary(
                    "GetCapabilities",
                    script_runner_pb2.GetCapabilitiesRequest(),
                    timeout_seconds=max(left, _PAUSE_SECONDS),
                    wait_for_ready=True,
                )
            except DaemonUnavailable as error:
                if time.monotonic() + _PAUSE_SECONDS >= deadline:
                    raise DaemonUnavailable(
                        self._connection.address.denial()
                        or f"no skilljail daemon answered at {self.address} within {timeout_seconds:g} seconds; start "
                        "it with `skilljaild serve`, or set SKILLJAIL_ADDRESS to where it listens"
                    ) from error
                yield Pause(_PAUSE_SECONDS)
            else:
                return Capabilities.from_wire(response)
