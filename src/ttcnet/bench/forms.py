"""The forms of the fused CUDA kernels (lqr/kernels/fused_forms.py) against each other, to choose one for each shape.

All take turns in one process, in random order, as CUDA graphs. The result is the ratio to "plain" within a round.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ttcnet.lqr.kernels import fused_cuda
from ttcnet.lqr.kernels.fused_forms import FORMS, forced
from ttcnet.lqr.kernels.launch import Run
from ttcnet.lqr.modulated import Family
from ttcnet.testing.errors import NAMES, cast, differentiate, fill, relative_errors, weights
from ttcnet.testing.regimes import draw

from .graphs import capture
from .limits import both_work, forward_work, rates
from .measure import DRAWN, percentiles
from .providers import PROVIDERS

SHAPES = [  # problems, horizon, n, m: targets, and shapes where a form may matter
    (65536, 8, 16, 16), (65536, 16, 16, 16), (65536, 32, 16, 16), (65536, 64, 16, 16), (262144, 8, 16, 16),
    (1024, 64, 16, 16), (1024, 2048, 16, 16), (16, 8, 16, 16), (16, 128, 16, 16),
    (16384, 8, 64, 64), (16384, 64, 64, 64), (5008, 48, 24, 24), (65536, 64, 16, 8), (65536, 64, 8, 8),
]  # fmt: skip
ROUND_SECONDS = 0.004  # seconds for which a pass is repeated within a round
PLAIN = "plain"


@dataclass(frozen=True)
class FormPoint:
    form: str
    problems: int
    horizon: int
    n: int
    m: int
    heads: int
    regime: str
    device: str


def measure_forms(
    shape: tuple[int, int, int, int], device: str, regime: str, rounds: int, run: Run | None = None
) -> Iterator[tuple[FormPoint, dict[str, Any]]]:
    """Every form on one shape. `run` starts a kernel; tests pass one that emulates a GPU."""
    problems, horizon, n, m = shape
    heads, tokens = min(16, problems), max(1, problems // 16)
    few = draw(regime, min(tokens, DRAWN), heads, n, m)
    whole = cast(few, torch.float32, device, tokens)
    family = Family(*(getattr(whole, name).detach() for name in NAMES))
    g = fill(weights(few).to(device, torch.float32), tokens)
    exact = cast(cast(few, torch.float32), torch.float64, device)
    truth = differentiate(PROVIDERS["reference"], exact, horizon, weights(few).float())

    found: dict[str, dict[str, Any]] = {}
    passes: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for name, form in FORMS.items():
        with forced(form):
            forward, both = _passes(family, horizon, g, run)
            try:
                answer, peak = _first(both, device)
                errors = relative_errors({name: x[: len(few.a)] for name, x in answer.items()}, truth)
                passes[name] = tuple(capture(each).replay if device == "cuda" else each for each in (forward, both))  # type: ignore[assignment]
            except torch.OutOfMemoryError:
                found[name] = {"status": "out of memory"}
                continue
        found[name] = {"status": "ok", "peak_mb": peak, "error_u": errors.pop("u")}
        found[name]["error_worst_gradient"] = max(errors.values())
    times = _in_turns(passes, device, rounds)
    size = (problems, heads, n, m, horizon)
    limits = [1e3 * work(*size).seconds(rates(device)) for work in (forward_work, both_work)]
    for name, outcome in found.items():
        if name in passes:
            outcome |= _summary(times, name, limits)
        yield FormPoint(name, problems, horizon, n, m, heads, regime, device), outcome


def _passes(family: Family, horizon: int, g: Tensor, run: Run | None) -> tuple[Callable[[], Any], Callable[[], Any]]:
    def forward() -> Tensor:
        return fused_cuda.forward(family, horizon, False, run)[0]

    def both() -> dict[str, Tensor]:
        u, points = fused_cuda.forward(family, horizon, True, run)
        grads = fused_cuda.backward(family, horizon, points, g, run)
        summed = [grad if grad.ndim == x.ndim else grad.sum(1) for grad, x in zip(grads, family, strict=True)]
        return {"u": u} | dict(zip(NAMES, summed, strict=True))

    return forward, both


def _first(both: Callable[[], dict[str, Tensor]], device: str) -> tuple[dict[str, Tensor], float]:
    """The answer, and its peak memory in MB; after a run in which everything is compiled."""
    both()
    if device != "cuda":
        return both(), float("nan")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    answer = both()
    torch.cuda.synchronize()
    return answer, (torch.cuda.max_memory_allocated() - before) / 2**20


Times = dict[str, tuple[list[float], list[float]]]  # times of the forward pass, and of both, by form, round by round


def _in_turns(passes: dict[str, tuple[Callable[[], Any], Callable[[], Any]]], device: str, rounds: int) -> Times:
    """Measure the calls in turns, so that all meet the same machine. Returns milliseconds."""
    times: Times = {name: ([], []) for name in passes}
    counts = {name: tuple(_repeats(each, device) for each in both) for name, both in passes.items()}
    for turn in range(rounds):
        for name in random.Random(turn).sample(list(passes), len(passes)):
            for kind, each in enumerate(passes[name]):
                times[name][kind].append(_milliseconds(each, counts[name][kind], device))
    return times


def _repeats(each: Callable[[], Any], device: str) -> int:
    return max(1, int(1e3 * ROUND_SECONDS / _milliseconds(each, 1, device)))


def _milliseconds(each: Callable[[], Any], count: int, device: str) -> float:
    if device != "cuda":
        begin = time.perf_counter()
        for _ in range(count):
            each()
        return 1e3 * (time.perf_counter() - begin) / count
    begin_mark, end_mark = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    each()  # memory of the form before it
    begin_mark.record()
    for _ in range(count):
        each()
    end_mark.record()
    torch.cuda.synchronize()
    return begin_mark.elapsed_time(end_mark) / count


def _summary(times: Times, name: str, limits: list[float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, word in enumerate(("forward", "both")):
        each, plain = times[name][kind], times.get(PLAIN, times[name])[kind]
        low, ratio, high = percentiles([x / y for x, y in zip(each, plain, strict=True)])
        middle = statistics.median(each)
        found |= {f"{word}_ms": middle, f"{word}_of_limit": limits[kind] / middle}
        found |= {f"{word}_ratio": ratio, f"{word}_ratio_p20": low, f"{word}_ratio_p80": high}
    return found
