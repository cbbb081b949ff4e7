"""Sets up what work on skilljail needs, and shows each step.

tools/setup                        Python environment, engine and images
tools/setup python                 only the Python environment
tools/setup run [--podman | --runtime runsc] COMMAND…
                                   everything, then COMMAND with DOCKER_HOST set; ends with its exit code. With
                                   --runtime also SKILLJAIL_RUNTIME: tests' daemons then use that runtime (gVisor)
tools/setup engine start|stop|discard|status|env
                                   an engine that stays until it is stopped; discard also removes its data
tools/setup clean                  removes the Python environment, the engine's data and the logs

An engine that was started for a command is stopped after it. Its data stay, so the next time is quick.

Variables: DOCKER_HOST names an engine to use; SKILLJAIL_PWSH_ARCHIVE a PowerShell archive for the pwsh image;
SKILLJAIL_STATE the folder for our own engine's data; PYTHON the Python to use.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Sequence
from typing import NoReturn

from devenv import debian, engine, gvisor, images, podman, python
from devenv.progress import SetupError, Step
from devenv.state import CHECKOUT, DATA, LOGS, remove

INTERRUPTED = 130
TEST_TOOLS = {
    "git": "git",  # what a saved artifact must not make it do
    "openssl": "openssl",  # certificates of the tests' own
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "/usr/share/containers/seccomp.json": "golang-github-containers-common",  # what our filter is made from
}
CACHES = (".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".state")


def main(words: Sequence[str]) -> int:
    """Does what the command line says. Gives the exit code."""
    match list(words):
        case []:
            return run([])
        case ["python"]:
            return prepare_python("1/1")
        case ["run", "--runtime", gvisor.RUNTIME, *rest] if rest:
            return run(rest, on_gvisor=True)
        case ["run", "--podman", *rest] if rest:
            return run(rest, on_podman=True)
        case ["run", first, *rest] if not first.startswith("--"):
            return run([first, *rest])
        case ["engine", "start" | "stop" | "discard" | "status" | "env" as verb]:
            return manage_engine(verb)
        case ["clean"]:
            return clean()
        case _:
            asked = list(words) in (["--help"], ["-h"])
            print(__doc__, file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2


def run(command: list[str], *, on_podman: bool = False, on_gvisor: bool = False) -> int:
    """Makes everything ready, runs the command and stops what was started for it."""
    steps = ["python", "engine", "images", *(["podman"] if on_podman else [])]
    position = {name: f"{number}/{len(steps)}" for number, name in enumerate(steps, start=1)}
    engine.foresee()
    prepare_python(position["python"])
    if _are_tests(command):
        debian.install(Step("python", position["python"], LOGS / "python.log"), TEST_TOOLS, "The tests need more")
    with contextlib.ExitStack() as stack:
        url = prepare_engine(position["engine"], stack, with_gvisor=on_gvisor)
        step = _step("images", position)
        with step.timed():
            has_pwsh = images.build(step, url)
        if on_podman:
            url = prepare_podman(_step("podman", position), url, stack)
        if not has_pwsh:
            warn_of_pwsh(command)
        variables = {"DOCKER_HOST": url, **({"SKILLJAIL_RUNTIME": gvisor.RUNTIME} if on_gvisor else {})}
        return execute(command, variables) if command else 0


def prepare_python(position: str) -> int:
    """The step `python`. Gives the exit code."""
    step = Step("python", position, LOGS / "python.log")
    with step.timed():
        python.prepare(step)
    return 0


def prepare_engine(position: str, stack: contextlib.ExitStack, *, with_gvisor: bool = False) -> str:
    """The step `engine`. Gives the engine's URL; one that had to be started is stopped by `stack`."""
    step = Step("engine", position, LOGS / "engine.log")
    with step.timed():
        found = engine.find()
        own = engine.OwnEngine()
        if found is None and not own.running:
            found = engine.install(step)
        if found is not None:
            url, answer = found
            step.note(f"{answer} answers at {url}")
            if with_gvisor:
                gvisor.refuse_unless_known(url)
            return url
        if with_gvisor:
            gvisor.install(step)
        url = stack.enter_context(own.used(step))
        if with_gvisor:
            own.offer_gvisor(step)
        return url


def prepare_podman(step: Step, url: str, stack: contextlib.ExitStack) -> str:
    """The step `podman`. Gives the URL of a Podman that has the images of the engine at `url`."""
    with step.timed():
        podman.install(step)
        target = stack.enter_context(podman.OwnPodman().used(step))
        with step.action("carrying the images to it"):
            images.carry(step, url, target)
        return target


def warn_of_pwsh(command: Sequence[str]) -> None:
    """Says what will not work without the image pwsh, as the last line before the command's own."""
    what = "the tests that need it will fail" if _are_tests(command) else "its scripts cannot run"
    print(f"\npwsh: no image, {what}; set SKILLJAIL_PWSH_ARCHIVE=/path/to/powershell-….tar.gz", flush=True)


def _are_tests(command: Sequence[str]) -> bool:
    return bool(command) and pathlib.Path(command[0]).name == "pytest"


def execute(command: list[str], variables: dict[str, str]) -> int:
    """Runs a command with these variables. Signals are left to it, so that it can clean up; we wait for its end."""
    process = subprocess.Popen(command, env={**os.environ, **variables}, cwd=CHECKOUT)

    def pass_on(number: int, _frame: types.FrameType | None) -> None:
        if number != signal.SIGINT:  # the terminal has sent that to the command as well
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def manage_engine(verb: str) -> int:
    """`tools/setup engine VERB`."""
    own = engine.OwnEngine()
    if verb in {"stop", "discard"}:
        stop_engines()
        if verb == "discard":
            remove()
        return 0
    if verb == "start":
        engine.foresee()
        prepare_python("1/2")
        with contextlib.ExitStack() as stack:
            if prepare_engine("2/2", stack) == engine.OWN_URL:
                own.keep()
    found = (engine.OWN_URL, engine.product(engine.OWN_URL)) if own.running else engine.find()
    if found is None:
        print("No engine runs. `tools/setup engine start` starts one.", file=sys.stderr)
        return 1
    print(f"export DOCKER_HOST={found[0]}" if verb == "env" else f"{found[1]} answers at {found[0]}")
    return 0


def stop_engines() -> None:
    """Stops the engines that were started here. Only root can have started any."""
    if os.geteuid() == 0:
        podman.OwnPodman().stop()
        engine.OwnEngine().stop()


def clean() -> int:
    """Removes what the set-up made. Debian packages stay."""
    stop_engines()
    remove()
    for name in (".venv", *CACHES):
        shutil.rmtree(CHECKOUT / name, ignore_errors=True)
    print(f"Removed .venv, the caches, the logs and {DATA}.")
    print("Debian packages and images on other engines stay.")
    return 0


def _step(name: str, position: dict[str, str]) -> Step:
    return Step(name, position[name], LOGS / f"{name}.log")


def _end(number: int, _frame: types.FrameType | None) -> NoReturn:
    """Lets a signal unwind the stack, so that what was started is stopped."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, _end)
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        print(f"\nsetup: {error}", file=sys.stderr)
        sys.exit(1)
    except PermissionError as error:
        print(f"\nsetup: {error}\nMend: be the user whose file that is, or remove it.", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\nsetup: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
