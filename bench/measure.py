"""Times runs: one at a time for latency, as many as there are cores for throughput."""

import concurrent.futures
import dataclasses
import os
import statistics
import time
from collections.abc import Sequence

from bench.contenders import Contender, Task

__all__ = ["Figures", "measure"]


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one contender took for one task. Times in seconds."""

    contender: str
    median: float
    p95: float
    p99: float
    runs_per_second: float


def measure(task: Task, contenders: Sequence[Contender], rounds: int) -> list[Figures]:
    """Lets the contenders take turns for `rounds` rounds, then each show its throughput."""
    times: dict[str, list[float]] = {one.name: [] for one in contenders}
    for one in contenders:
        one.run(task)  # not counted: caches, and the first upload of the skill
    for _ in range(rounds):
        for one in contenders:
            started = time.perf_counter()
            one.run(task)
            times[one.name].append(time.perf_counter() - started)
    return [_figures(task, one, sorted(times[one.name]), rounds) for one in contenders]


def _figures(task: Task, contender: Contender, times: list[float], rounds: int) -> Figures:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    workers = os.cpu_count() or 1
    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for one in [pool.submit(contender.run, task) for _ in range(rounds)]:
            one.result()
    seconds = time.perf_counter() - started
    return Figures(contender.name, statistics.median(times), cuts[94], cuts[98], rounds / seconds)
