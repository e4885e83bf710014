"""One measurement: time, spread, peak memory and error of one provider on one family.

On the CPU every measurement has a process of its own, so that peak memory is that of the measurement. On a GPU, the
device takes times between events, and memory is the amount that torch allocated.
"""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import queue
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy
import torch
from torch import Tensor

from ttcnet.errors import fail
from ttcnet.testing.errors import cast, differentiate, fill, relative_errors, weights
from ttcnet.testing.regimes import draw

from .graphs import capture, worth_capturing
from .limits import both_work, forward_work, rates
from .providers import PROVIDERS

DRAWN = 64  # tokens; a larger batch repeats them, so that the right answer takes little time
MOST_REPEATS = 200
LONG = 5.0  # a pass that takes longer than this many times its budget is not repeated
Answer = dict[str, numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]]


@dataclass(frozen=True)
class Point:
    """One point of a measurement."""

    provider: str
    regime: str
    problems: int
    horizon: int
    n: int = 16
    m: int = 16
    heads: int = 16
    device: str = "cpu"
    sweep: str = "custom"

    def __post_init__(self) -> None:
        if self.problems < 1 or (self.problems > self.heads and self.problems % self.heads):
            rule = f"must be a multiple of {self.heads} heads, or 1 to {self.heads}"
            closest = self.heads * max(1, math.ceil(self.problems / self.heads))
            fail("problems", rule, self.problems, f"Use {closest}.", "out-of-range")

    @property
    def tokens(self) -> int:
        return max(1, self.problems // self.heads)


@dataclass(frozen=True)
class Outcome:
    """The result. Times are medians of one forward and backward pass, but for forward_ms and for graph_ms, the forward
    pass replayed as a CUDA graph; limits are those of limits.py; status is "ok" or the reason of a failure."""

    status: str
    forward_ms: float = math.nan
    median_ms: float = math.nan
    p20_ms: float = math.nan
    p80_ms: float = math.nan
    repeats: int = 0
    peak_mb: float = math.nan
    error_u: float = math.nan
    error_worst_gradient: float = math.nan
    graph_ms: float = math.nan
    limit_forward_ms: float = math.nan
    limit_ms: float = math.nan


def measure(point: Point, seconds: float = 1.0, limit: float = 300.0) -> Outcome:
    """Measure for about `seconds` of repetitions: on the CPU in a fresh process, giving up after `limit` seconds."""
    outcome, found = _safely(point, seconds) if point.device == "cuda" else _elsewhere(point, seconds, limit)
    return outcome if found is None else _judged(point, outcome, found)


def measure_here(point: Point, seconds: float) -> Outcome:
    """Measure in this process, errors and all."""
    return _judged(point, *_run(point, seconds))


def _judged(point: Point, outcome: Outcome, found: Answer) -> Outcome:
    """The outcome with its errors against float64, and the physical limits."""
    heads, tokens = min(point.heads, point.problems), min(point.tokens, DRAWN)
    truth = _truth(point.regime, tokens, heads, point.n, point.m, point.horizon, point.device)
    errors = relative_errors({name: torch.from_numpy(x) for name, x in found.items()}, truth)
    error_u = errors.pop("u")
    worst = float(numpy.max(list(errors.values())))  # NaN if any is
    size = (point.problems, heads, point.n, point.m, point.horizon)
    here = rates(point.device)
    limits = [1e3 * work(*size).seconds(here) for work in (forward_work, both_work)]
    outcome = replace(outcome, limit_forward_ms=limits[0], limit_ms=limits[1])
    return replace(outcome, error_u=error_u, error_worst_gradient=worst)


@lru_cache(maxsize=64)
def _truth(regime: str, tokens: int, heads: int, n: int, m: int, horizon: int, device: str) -> dict[str, Tensor]:
    """The right answer to the float32 numbers, by the reference in float64; the same for every provider."""
    few = draw(regime, tokens, heads, n, m)
    exact = cast(cast(few, torch.float32), torch.float64, device)
    found = differentiate(PROVIDERS["reference"], exact, horizon, weights(few).float())
    return {name: x.cpu() for name, x in found.items()}


def _elsewhere(point: Point, seconds: float, limit: float) -> tuple[Outcome, Answer | None]:
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[tuple[Outcome, Answer | None]] = context.Queue()
    process = context.Process(target=_run_into, args=(answers, point, seconds), daemon=True)
    process.start()
    deadline = time.monotonic() + limit
    try:
        while True:
            try:
                return answers.get(timeout=0.2)
            except queue.Empty:
                if time.monotonic() > deadline:
                    return Outcome(f"over {limit:.0f} s"), None
                if not process.is_alive() and answers.empty():
                    return Outcome("out of memory" if process.exitcode == -9 else f"exit code {process.exitcode}"), None
    finally:
        process.kill()
        process.join()


def _run_into(answers: multiprocessing.Queue[tuple[Outcome, Answer | None]], point: Point, seconds: float) -> None:
    answers.put(_safely(point, seconds))


def _safely(point: Point, seconds: float) -> tuple[Outcome, Answer | None]:
    try:
        return _run(point, seconds)
    except (RuntimeError, ValueError, MemoryError) as error:
        memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error)
        return Outcome("out of memory" if memory else f"failed: {str(error).splitlines()[0][:200]}"), None


def _run(point: Point, seconds: float) -> tuple[Outcome, Answer]:
    """Measure all but the errors. Returns them with the answer for the tokens that were drawn."""
    provider, on_gpu = PROVIDERS[point.provider], point.device == "cuda"
    if on_gpu:  # memory of the point before
        gc.collect()
        torch.cuda.empty_cache()
    few = draw(point.regime, min(point.tokens, DRAWN), min(point.heads, point.problems), point.n, point.m)
    family = cast(few, torch.float32, point.device, point.tokens)
    g = fill(weights(few).to(point.device, torch.float32), point.tokens)

    def both() -> dict[str, Tensor]:
        return differentiate(provider, family, point.horizon, g)

    def forward() -> None:
        with torch.no_grad():
            provider(family, point.horizon)

    small = cast(draw(point.regime, 1, 1, point.n, point.m), torch.float32, point.device)
    differentiate(provider, small, 2, weights(small).to(point.device))  # loads and compiles
    answer, first, peak = _first_run(both, point.device)
    found = {name: x[: len(few.a)].cpu().numpy() for name, x in answer.items()}
    del answer
    _, forward_ms, _ = _milliseconds(_times(forward, seconds, point.device))
    # the first run may have included compiling, but not if it is in proportion to the forward pass
    enough = LONG * seconds < first < 6e-3 * forward_ms
    p20, median, p80 = _milliseconds(times := [first] if enough else _times(both, seconds, point.device))
    graph_ms = math.nan
    if on_gpu and worth_capturing(point.provider, point.problems, point.horizon):
        with contextlib.suppress(RuntimeError):
            _, graph_ms, _ = _milliseconds(_times(capture(forward).replay, seconds, point.device))
    return Outcome("ok", forward_ms, median, p20, p80, len(times), peak, graph_ms=graph_ms), found


def _first_run(run: Callable[[], dict[str, Tensor]], device: str) -> tuple[dict[str, Tensor], float, float]:
    """Call `run` for the first time. Returns its value, its seconds, and its peak memory in MB above the start."""
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() / 2**20 if on_gpu else _resident_mb()
    begin = time.perf_counter()
    answer = run()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    highest = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else _highest_mb()
    return answer, seconds, max(0.0, highest - before)


def _times(run: Callable[[], object], seconds: float, device: str) -> list[float]:
    """Seconds of each of at least two runs, after one that warms up; if that one took long, its time alone."""
    begin = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    first = time.perf_counter() - begin
    if first > LONG * seconds > 0:
        return [first]
    if device != "cuda":
        times: list[float] = []
        while len(times) < 2 or (sum(times) < seconds and len(times) < MOST_REPEATS):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return times
    count = min(MOST_REPEATS, max(2, int(seconds / first)))
    # queued one behind the other, so that the GPU waits for the host as little as possible
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(marks)]


def _milliseconds(times: list[float]) -> tuple[float, float, float]:
    low, middle, high = percentiles(times)
    return 1e3 * low, 1e3 * middle, 1e3 * high


def percentiles(values: list[float]) -> tuple[float, float, float]:
    """The 20th, 50th and 80th percentile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    cuts = statistics.quantiles(values, n=5, method="inclusive")
    return cuts[0], statistics.median(values), cuts[-1]


def _resident_mb() -> float:
    with open("/proc/self/statm") as statistics_of_memory:
        pages = int(statistics_of_memory.read().split()[1])
    return pages * resource.getpagesize() / 2**20


def _highest_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
