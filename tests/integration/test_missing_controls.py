"""An engine that lacks what every run needs: the daemon does not start, and says what to do."""

import contextlib
import http.server
import json
import pathlib
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import docker
import pytest
from attack_table import Seen

LACKS: dict[str, tuple[dict[str, object], str]] = {
    "memory": ({"MemoryLimit": False}, "memory limits"),
    "pids": ({"PidsLimit": False}, "pids limits"),
    "processor": ({"CpuCfsQuota": False}, "CPU limits"),
    "swap": ({"SwapLimit": False}, "swap limits"),
    "seccomp": ({"SecurityOptions": ["name=apparmor"]}, "seccomp"),
    "seccomp, not a word about it": ({"SecurityOptions": None}, "seccomp"),
    "rootless without controllers": (
        {"MemoryLimit": False, "PidsLimit": False, "CpuCfsQuota": False, "SecurityOptions": ["name=rootless"]},
        "seccomp",
    ),
    "Linux": ({"OSType": "windows"}, "Linux containers"),
}


@contextlib.contextmanager
def engine_that_says(path: pathlib.Path, answers: dict[str, Any]) -> Iterator[list[str]]:
    """An engine's API that says what it is, and does nothing. Yields what it was asked to do beyond that."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802  as the library calls it
            name = self.path.partition("?")[0].rpartition("/")[2]
            self._answer(200 if name in answers else 404, answers.get(name, {"message": "no such thing"}))

        def do_POST(self) -> None:  # noqa: N802
            asked.append(self.path)
            self._answer(500, {"message": "nothing can be made here"})

        do_DELETE = do_PUT = do_POST  # noqa: N815

        def _answer(self, status: int, body: object) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.attack(88, "an engine that lacks a control", expected="the daemon does not start, with the mend")
@pytest.mark.parametrize("lack", LACKS)
def test_the_daemon_does_not_start_on_an_engine_that_lacks_a_control(
    engine_api: docker.APIClient, tmp_path: pathlib.Path, lack: str, seen: Seen
) -> None:
    """The engine here, but for one word of what it says about itself."""
    changes, told = LACKS[lack]
    answers = {
        "_ping": "OK",
        "version": engine_api.version(),
        "info": engine_api.info() | changes,
        "json": [],
    }
    with engine_that_says(tmp_path / "engine.sock", answers) as asked:
        command = [sys.executable, "-m", "skilljaild", "serve", "--listen", f"unix:{tmp_path}/sock"]
        done = subprocess.run(
            [*command, "--state-dir", f"{tmp_path}/state", "--engine-url", f"unix://{tmp_path}/engine.sock"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 3, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "sock").exists()
    assert asked == []
    seen(f"exit {done.returncode}")
