"""One measurement: time, spread, peak memory and error of one provider on one family.

On the CPU every measurement has a process of its own, so that its peak memory is its own too.
"""

from __future__ import annotations

import multiprocessing
import queue
import resource
import statistics
import time
from dataclasses import dataclass

import torch

from .errors import cast, differentiate, relative_errors, weights
from .providers import PROVIDERS
from .regimes import draw


@dataclass(frozen=True)
class Point:
    """What is measured."""

    provider: str
    regime: str
    problems: int
    horizon: int
    n: int = 16
    m: int = 16
    heads: int = 16


@dataclass(frozen=True)
class Outcome:
    """What came out. Times are of one forward and backward pass; status is "ok" or what went wrong."""

    status: str
    median_ms: float = float("nan")
    p20_ms: float = float("nan")
    p80_ms: float = float("nan")
    repeats: int = 0
    peak_mb: float = float("nan")
    error_u: float = float("nan")
    error_worst_gradient: float = float("nan")


def measure(point: Point, seconds: float = 1.0, limit: float = 300.0) -> Outcome:
    """Measure in a fresh process, for about `seconds` of repetitions, giving up after `limit` seconds."""
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[Outcome] = context.Queue()
    process = context.Process(target=_measure_into, args=(answers, point, seconds), daemon=True)
    process.start()
    deadline = time.monotonic() + limit
    try:
        while True:
            try:
                return answers.get(timeout=0.2)
            except queue.Empty:
                if time.monotonic() > deadline:
                    return Outcome(f"over {limit:.0f} s")
                if not process.is_alive() and answers.empty():
                    return Outcome("out of memory" if process.exitcode == -9 else f"exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _measure_into(answers: multiprocessing.Queue[Outcome], point: Point, seconds: float) -> None:
    try:
        answers.put(measure_here(point, seconds))
    except (RuntimeError, ValueError, MemoryError) as error:
        memory = isinstance(error, MemoryError) or "allocate" in str(error)
        answers.put(Outcome("out of memory" if memory else f"failed: {str(error).splitlines()[0][:200]}"))


def measure_here(point: Point, seconds: float) -> Outcome:
    """Measure in this process."""
    provider = PROVIDERS[point.provider]
    exact = draw(
        point.regime, max(1, point.problems // point.heads), min(point.heads, point.problems), point.n, point.m
    )
    family = cast(exact, torch.float32)
    g = weights(family).float()
    before = _resident_mb()
    found = differentiate(provider, family, point.horizon, g)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before

    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 200):
        start = time.perf_counter()
        differentiate(provider, family, point.horizon, g)
        times.append(time.perf_counter() - start)
    p20, median, p80 = _percentiles(times)

    truth = differentiate(PROVIDERS["reference"], cast(family, torch.float64), point.horizon, g)
    errors = relative_errors(found, truth)
    error_u = errors.pop("u")
    return Outcome("ok", median, p20, p80, len(times), peak, error_u, max(errors.values()))


def _percentiles(times: list[float]) -> tuple[float, float, float]:
    """20th, 50th and 80th percentile, in milliseconds."""
    cuts = statistics.quantiles(times, n=5, method="inclusive")
    return 1e3 * cuts[0], 1e3 * statistics.median(times), 1e3 * cuts[-1]


def _resident_mb() -> float:
    with open("/proc/self/statm") as statistics_of_memory:
        pages = int(statistics_of_memory.read().split()[1])
    return pages * resource.getpagesize() / 2**20
