"""Runs the example skill once in every interpreter, each time in a sandbox of its own: `make demo`.

It starts a daemon on a socket and a state folder that are gone afterwards, asks it what it can run, and shows
for each interpreter what the script said, how it ended, where the time went and what its sandbox was denied.
It ends with 1 when an available interpreter failed, or, with --require-all, when one is not available.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator

import skilljail

SKILL = pathlib.Path(__file__).resolve().parents[1] / "examples" / "skills" / "unit-converter"
EXPECTED = 42.1647
START_SECONDS = 60.0
STOP_SECONDS = 30.0
WIDTH = 100

SCRIPTS = {
    "python": ("scripts/convert.py", "--value", "26.2", "--factor", "1.60934"),
    "node": ("scripts/convert.js", "--value", "26.2", "--factor", "1.60934"),
    "bash": ("scripts/convert.sh", "--value", "26.2", "--factor", "1.60934"),
    "pwsh": ("scripts/convert.ps1", "-Value", "26.2", "-Factor", "1.60934"),
}


class DemoError(Exception):
    """The demo cannot go on. The message names the thing and the mend."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """What became of one interpreter."""

    name: str
    available: bool
    right: bool
    verified: tuple[str, ...]
    """What its sandbox was denied; empty when there was none."""


def main() -> int:
    """Gives the exit code."""
    parser = argparse.ArgumentParser(description="Runs the example skill in every interpreter.")
    parser.add_argument("--require-all", action="store_true", help="an unavailable interpreter is a failure too")
    require_all: bool = parser.parse_args().require_all
    with tempfile.TemporaryDirectory(prefix="skilljail-demo-") as folder:
        with running_daemon(pathlib.Path(folder)) as (client, capabilities):
            engine = capabilities.engine
            say()
            version = capabilities.daemon_version
            say(f"skilljail {version} on {engine.version}, runtime {engine.runtime}")
            say("The skill unit-converter turns 26.2 miles into kilometres, once in each interpreter.")
            attempts = [attempt(client, capabilities, name) for name in SCRIPTS]
        show_denied(attempts)
    return conclude(attempts, require_all=require_all)


@contextlib.contextmanager
def running_daemon(folder: pathlib.Path) -> Iterator[tuple[skilljail.Client, skilljail.Capabilities]]:
    """Starts a daemon that has everything it writes in `folder`, and stops it at the end."""
    address = f"unix:{folder / 'daemon.sock'}"
    log_path = folder / "daemon.log"
    environment = {
        **os.environ,
        "SKILLJAILD_LISTEN": address,
        "SKILLJAILD_STATE_DIRECTORY": str(folder / "state"),
    }
    with log_path.open("wb") as log:
        daemon = subprocess.Popen(
            (sys.executable, "-m", "skilljaild", "serve"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,  # a Ctrl-C is for us; the daemon is stopped in order
        )
        try:
            with skilljail.Client(address) as client:
                yield client, wait_ready(client, daemon, log_path)
        finally:
            stop(daemon)


def wait_ready(
    client: skilljail.Client, daemon: subprocess.Popen[bytes], log_path: pathlib.Path
) -> skilljail.Capabilities:
    """Waits until the daemon answers. Raises DemoError with the end of its log."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return client.wait_ready(timeout_seconds=1.0)
        except skilljail.SkilljailError as error:
            if daemon.poll() is not None:
                what = f"The daemon ended with status {daemon.returncode}"
            elif time.monotonic() > deadline:
                what = f"The daemon is not ready after {START_SECONDS:.0f} s ({error})"
            else:
                continue
            lines = log_path.read_text(errors="replace").splitlines()[-30:]
            raise DemoError("\n".join([f"{what}. The end of its log:", *(f"  | {line}" for line in lines)])) from error


def stop(daemon: subprocess.Popen[bytes]) -> None:
    """Ends the daemon in order, or else by force."""
    daemon.terminate()
    try:
        daemon.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
        say(f"The daemon did not stop within {STOP_SECONDS:.0f} s and was killed.")


def attempt(client: skilljail.Client, capabilities: skilljail.Capabilities, name: str) -> Attempt:
    """Runs the script of one interpreter and shows what happened."""
    interpreter = capabilities.interpreter(name)
    if interpreter is None or not interpreter.available:
        say()
        say(f"{name}: not available")
        say(interpreter.unavailable_reason if interpreter else "The daemon does not know it.", indent=2)
        return Attempt(name, available=False, right=False, verified=())
    script, *argv = SCRIPTS[name]
    say()
    say(f"{name} {interpreter.version}: {script} {' '.join(argv)}")
    start = time.monotonic()
    try:
        result = client.run(SKILL, script, argv)
    except skilljail.SkilljailError as error:
        say(f"could not run: {error}", indent=2)
        return Attempt(name, available=True, right=False, verified=())
    show_result(result, time.monotonic() - start)
    verified = result.started.verified if result.started else ()
    return Attempt(name, available=True, right=is_right(result), verified=verified)


def is_right(result: skilljail.RunResult) -> bool:
    """Whether the script ended well and printed the right number."""
    try:
        return result.ok and bool(json.loads(result.stdout_text)["result"] == EXPECTED)
    except (ValueError, KeyError, TypeError):
        return False


def show_result(result: skilljail.RunResult, seconds: float) -> None:
    """Shows what the script said, how it ended and where the time went."""
    say(result.stdout_text.strip() if is_right(result) else f"stdout {result.stdout!r}", indent=2)
    if result.stderr:
        say(f"stderr {result.stderr!r}", indent=2)
    ending = str(result.outcome.name)
    if result.exit_code is not None:
        ending += f", exit code {result.exit_code}"
    if result.usage.peak_memory_bytes is not None:
        ending += f", {result.usage.peak_memory_bytes / 1e6:.0f} MB of memory"
    say(ending, indent=2)
    if not result.ok and result.message:
        say(result.message, indent=2)
    phases = dataclasses.asdict(result.phases).items()
    shown = [f"{name.removesuffix('_seconds')} {1000 * spent:.0f}" for name, spent in phases if spent is not None]
    say(f"{1000 * seconds:.0f} ms, of them {', '.join(shown)}", indent=2)


def show_denied(attempts: list[Attempt]) -> None:
    """Shows what the sandboxes were denied, once where it is the same for several."""
    ran = [one for one in attempts if one.verified]
    for verified in dict.fromkeys(one.verified for one in ran):
        names = [one.name for one in ran if one.verified == verified]
        whose = "every sandbox" if len(names) == len(ran) else f"the sandbox of {' and '.join(names)}"
        say()
        say(f"What held in {whose}, read back before the script started:")
        for control in verified:
            say(f"- {control}", indent=2)


def conclude(attempts: list[Attempt], *, require_all: bool) -> int:
    """Says how it went. Gives the exit code."""
    failed = [one.name for one in attempts if one.available and not one.right]
    missing = [one.name for one in attempts if not one.available]
    say()
    say(f"{sum(one.right for one in attempts)} of {len(attempts)} interpreters gave {EXPECTED}.")
    if missing:
        say(f"Not available: {', '.join(missing)}; above it says why and what helps.")
    if failed:
        say(f"Failed: {', '.join(failed)}.")
    return 1 if failed or len(missing) == len(attempts) or (missing and require_all) else 0


def say(text: str = "", *, indent: int = 0) -> None:
    """Prints a paragraph, wrapped."""
    prefix = " " * indent
    for line in text.splitlines() or [""]:
        print(textwrap.fill(line, WIDTH, initial_indent=prefix, subsequent_indent=f"{prefix}  "), flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DemoError as error:
        sys.exit(f"\ndemo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
