"""`python -m bench`: prints one table for each task, with the machine described."""

import argparse
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

import skilljail
from docker.constants import DEFAULT_UNIX_SOCKET

from bench.contenders import contenders, tasks
from bench.measure import Figures, measure

SKILLS = pathlib.Path(__file__).parent.parent / "examples" / "skills"


def main() -> int:
    """Starts a daemon, measures, stops it."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="counted runs of each contender and task")
    rounds = parser.parse_args().rounds
    docker_host = os.environ.get("DOCKER_HOST") or DEFAULT_UNIX_SOCKET.replace("http+unix://", "unix://")
    with tempfile.TemporaryDirectory(prefix="skilljail-bench-") as scratch:
        address = f"unix:{scratch}/sock"
        command = [sys.executable, "-m", "skilljaild", "serve", "--listen", address, "--state-dir", f"{scratch}/state"]
        daemon = subprocess.Popen([*command, "--log-level", "error"])
        try:
            with skilljail.Client(address) as client:
                engine = client.wait_ready().engine
                print(_machine(f"{engine.version}, {engine.runtime}"))
                for task in tasks(SKILLS, pathlib.Path(scratch)):
                    print(_table(task.name, measure(task, contenders(client, docker_host), rounds), rounds))
        finally:
            daemon.terminate()
            daemon.wait()
    return 0


def _machine(engine: str) -> str:
    """What the figures were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return (
        f"{os.cpu_count()} cores ({model}), Linux {platform.release()}, Python {platform.python_version()}, "
        f"{engine}, skilljail {skilljail.__version__}"
    )


def _table(name: str, figures: list[Figures], rounds: int) -> str:
    """A Markdown table; the ratios are to the bare subprocess."""
    base = figures[0].median
    lines = [
        "",
        f"**{name}**, {rounds} runs each, taking turns; throughput with all cores busy",
        "",
        "| | median | x bare | p95 | p99 | runs/s |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.contender} | {one.median * 1e3:.1f} ms | {one.median / base:.1f} | {one.p95 * 1e3:.1f} ms "
        f"| {one.p99 * 1e3:.1f} ms | {one.runs_per_second:.1f} |"
        for one in figures
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
