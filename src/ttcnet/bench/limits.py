"""The physical limit: how long a device needs for the arithmetic alone, or to move alone what goes in and comes out.

Both rates are measured where and when the rest is: that of a large matrix product in float32, and that of a copy. What
a kernel keeps for itself on the way does not count, since it could be computed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

REPEATS = 7
NUMBER = 4  # bytes


class Rates(NamedTuple):
    flops: float  # a second
    bytes: float  # read and written, a second


class Work(NamedTuple):
    flops: float
    bytes: float

    def seconds(self, rates: Rates) -> float:
        return max(self.flops / rates.flops, self.bytes / rates.bytes)


@cache
def rates(device: str) -> Rates:
    """What the device reaches here and now, the best of a few."""
    size, numbers = (8192, 2**29) if device == "cuda" else (1024, 2**26)
    with torch.no_grad():
        x, y = (torch.randn(size, size, device=device) for _ in range(2))
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            product = _soonest(lambda: x @ y, device)
        finally:
            torch.set_float32_matmul_precision(before)
        source = torch.ones(numbers, device=device)
        target = torch.empty_like(source)
        copy = _soonest(lambda: target.copy_(source), device)
    return Rates(2 * size**3 / product, 2 * NUMBER * numbers / copy)


def _soonest(run: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of some runs."""
    times = []
    for _ in range(1 + REPEATS):
        _wait(device)
        begin = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def forward_work(problems: int, heads: int, n: int, m: int, horizon: int) -> Work:
    """Of the recursion, and of reading a family and writing first actions."""
    steps = horizon * (4 * n * n * m + 4 * n * n)
    return Work(problems * steps, _family_bytes(problems, heads, n, m) + NUMBER * problems * m)


def both_work(problems: int, heads: int, n: int, m: int, horizon: int) -> Work:
    """And of the closed loops of problem and adjoint with all gradients, which reads the family again."""
    forward = forward_work(problems, heads, n, m, horizon)
    steps = horizon * (12 * n * n + 12 * n * m)
    moved = 2 * _family_bytes(problems, heads, n, m) + NUMBER * problems * m
    return Work(forward.flops + problems * steps, forward.bytes + moved)


def _family_bytes(problems: int, heads: int, n: int, m: int) -> float:
    """Of a, h0, decay_Q, decay_A, r_inv, decay_B and Qf per head, B and Q per token."""
    return NUMBER * (problems * (3 * n + 1 + 2 * m + n * n) + max(1, problems // heads) * (n * m + n * n))
