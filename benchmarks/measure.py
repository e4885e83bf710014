"""One measurement: time, spread, peak memory and error of one provider on one family.

On the CPU every measurement has a process of its own, so that its peak memory is its own too. On a GPU, times are taken
by the device between events, and memory is what torch allocated.
"""

from __future__ import annotations

import multiprocessing
import queue
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

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
    device: str = "cpu"


@dataclass(frozen=True)
class Outcome:
    """What came out. Times are of one forward and backward pass, but for forward_ms; status is "ok" or what went
    wrong."""

    status: str
    forward_ms: float = float("nan")
    median_ms: float = float("nan")
    p20_ms: float = float("nan")
    p80_ms: float = float("nan")
    repeats: int = 0
    peak_mb: float = float("nan")
    error_u: float = float("nan")
    error_worst_gradient: float = float("nan")


def measure(point: Point, seconds: float = 1.0, limit: float = 300.0) -> Outcome:
    """Measure in a fresh process, for about `seconds` of repetitions, giving up after `limit` seconds."""
    if point.device == "cuda":
        return _measure_safely(point, seconds)
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
    answers.put(_measure_safely(point, seconds))


def _measure_safely(point: Point, seconds: float) -> Outcome:
    try:
        return measure_here(point, seconds)
    except (RuntimeError, ValueError, MemoryError) as error:
        memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error)
        return Outcome("out of memory" if memory else f"failed: {str(error).splitlines()[0][:200]}")


def measure_here(point: Point, seconds: float) -> Outcome:
    """Measure in this process."""
    provider = PROVIDERS[point.provider]
    heads = min(point.heads, point.problems)
    tokens = max(1, point.problems // heads)
    # a large batch repeats a small one, whose right answer is soon known
    few = draw(point.regime, min(tokens, 64), heads, point.n, point.m)
    family = cast(few, torch.float32, point.device, repeat=tokens // min(tokens, 64))
    g = weights(few).to(point.device, torch.float32).repeat(tokens // min(tokens, 64), 1, 1)

    def both() -> dict[str, Tensor]:
        return differentiate(provider, family, point.horizon, g)

    def forward() -> None:
        with torch.no_grad():
            provider(family, point.horizon)

    small = cast(draw(point.regime, 1, 1, point.n, point.m), torch.float32, point.device)
    differentiate(provider, small, 2, weights(small).to(point.device))  # loads and compiles what has to be
    peak = _peak_mb(both, point.device)
    found = {name: x[: len(getattr(few, name) if name != "u" else few.a)] for name, x in both().items()}
    p20, median, p80 = _percentiles(times := _times(both, seconds, point.device))
    _, forward_ms, _ = _percentiles(_times(forward, seconds, point.device))
    exact = cast(cast(few, torch.float32, point.device), torch.float64, point.device)
    truth = differentiate(PROVIDERS["reference"], exact, point.horizon, g[: len(few.a)])
    errors = relative_errors(found, truth)
    error_u = errors.pop("u")
    return Outcome("ok", forward_ms, median, p20, p80, len(times), peak, error_u, max(errors.values()))


def _times(run: Callable[[], object], seconds: float, device: str) -> list[float]:
    """Seconds of each of at least three runs, after one that does not count."""
    begin = time.perf_counter()
    run()
    if device != "cuda":
        times: list[float] = []
        while len(times) < 3 or (sum(times) < seconds and len(times) < 200):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return times
    torch.cuda.synchronize()
    count = min(200, max(3, int(seconds / (time.perf_counter() - begin))))
    # queued one behind the other, so that the GPU does not wait for the host where it need not
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(second) / 1e3 for first, second in pairwise(marks)]


def _peak_mb(run: Callable[[], object], device: str) -> float:
    """Memory at its highest during the first run, above what was there before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    resident = _resident_mb()
    run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - resident


def _percentiles(times: list[float]) -> tuple[float, float, float]:
    """20th, 50th and 80th percentile, in milliseconds."""
    cuts = statistics.quantiles(times, n=5, method="inclusive")
    return 1e3 * cuts[0], 1e3 * statistics.median(times), 1e3 * cuts[-1]


def _resident_mb() -> float:
    with open("/proc/self/statm") as statistics_of_memory:
        pages = int(statistics_of_memory.read().split()[1])
    return pages * resource.getpagesize() / 2**20
