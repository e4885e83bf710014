"""The physical limit: the time that a device needs for the arithmetic alone, or to move the inputs and outputs alone.

Both rates are measured in the same run: that of a large matrix product in float32, and that of a copy. Numbers that a
kernel keeps between its passes do not count, because it could compute them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

from ttcnet.machine.torch_settings import float32_products

REPEATS = 7
NUMBER = 4  # bytes


class Rates(NamedTuple):
    flops: float  # a second
    bytes: float  # bytes read and written in a second


class Work(NamedTuple):
    flops: float
    bytes: float

    def seconds(self, rates: Rates) -> float:
        return max(self.flops / rates.flops, self.bytes / rates.bytes)


@cache
def rates(device: str) -> Rates:
    """The rates that the device reaches in this process, the best of a few."""
    size, numbers = (8192, 2**29) if device == "cuda" else (1024, 2**26)
    with torch.no_grad():
        x, y = (torch.randn(size, size, device=device) for _ in range(2))
        with float32_products():
            product = _soonest(lambda: x @ y, device)
        source = torch.ones(numbers, device=device)
        target = torch.empty_like(source)
        copy = _soonest(lambda: target.copy_(source), device)
    return Rates(2 * size**3 / product, 2 * NUMBER * numbers / copy)


def _soonest(run: Callable[[], object], device: str) -> float:
    """The seconds of the fastest of some runs."""
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
    """The work of the recursion, and of reading a family and writing first actions."""
    steps = horizon * (4 * n * n * m + 4 * n * n)
    return Work(problems * steps, _family_bytes(problems, heads, n, m) + NUMBER * problems * m)


def both_work(problems: int, heads: int, n: int, m: int, horizon: int) -> Work:
    """The work of both passes: forward, then the closed loops of problem and adjoint with all gradients, which read
    the family again."""
    forward = forward_work(problems, heads, n, m, horizon)
    steps = horizon * (12 * n * n + 12 * n * m)
    moved = 2 * _family_bytes(problems, heads, n, m) + NUMBER * problems * m
    return Work(forward.flops + problems * steps, forward.bytes + moved)


def _family_bytes(problems: int, heads: int, n: int, m: int) -> float:
    """Numbers in a, h0, decay_Q, decay_A, r_inv, decay_B and Qf per head, B and Q per token."""
    return NUMBER * (problems * (3 * n + 1 + 2 * m + n * n) + max(1, problems // heads) * (n * m + n * n))
