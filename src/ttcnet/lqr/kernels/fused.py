"""Launches the recursion's kernels: picks their shape, makes room, and hands out what they write.

`run` starts a kernel. On a GPU it is nvrtc.run; tests pass one that emulates a GPU on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ..problem import Family

SIZES = (4, 8, 16, 32, 64)
LARGEST = SIZES[-1]


@dataclass(frozen=True)
class Launch:
    """A kernel of a file beside this one and how to start it: `defines` go to the compiler, `shared_bytes` is dynamic
    shared memory."""

    source: str
    kernel: str
    defines: tuple[tuple[str, str], ...]
    blocks: int
    threads: int
    shared_bytes: int


Run = Callable[[Launch, torch.device, list[int | Tensor | None]], None]


def forward(family: Family, horizon: int, keep: bool, run: Run) -> tuple[Tensor, Tensor]:
    """The first actions, and the check-points for `backward` (none if not `keep`)."""
    rhythm = _rhythm(family, horizon)
    u = torch.empty_like(family.r_inv)
    kept = u.new_empty(checkpoints(family, horizon) if keep else 0)
    if u.numel():
        target = kept if kept.numel() else None
        run(_launch("plan_forward", family, rhythm), u.device, [*_arguments(family, rhythm), u, target])
    return u, kept


def backward(family: Family, horizon: int, checkpoints: Tensor, g: Tensor, run: Run) -> list[Tensor]:
    """The gradients of all fields, those of B and Q for every head, given the gradient g of the first actions."""
    rhythm = _rhythm(family, horizon)
    grads = [torch.empty_like(x) for x in family]
    for k, x in ((1, family.B), (2, family.Q)):
        if x.ndim == 3:  # shared by the heads of a token
            grads[k] = x.new_empty(x.shape[0], family.a.shape[1], *x.shape[1:])
    scratch = g.new_empty(_matrices(family, rhythm.in_scratch))
    if g.numel():
        arguments = [*_arguments(family, rhythm), g, checkpoints, scratch, *grads]
        run(_launch("plan_backward", family, rhythm), g.device, arguments)
    return grads


def checkpoints(family: Family, horizon: int) -> tuple[int, ...]:
    """The shape of what `forward` keeps for `backward`."""
    return _matrices(family, _rhythm(family, horizon).in_checkpoints)


@dataclass(frozen=True)
class Rhythm:
    """How often a value matrix is kept: `on_chip` steps are held in shared memory at a time, one in `inner` steps in
    the scratch memory of the backward pass, and one in `stride` steps between the passes."""

    horizon: int
    on_chip: int
    stride: int
    inner: int

    @property
    def in_checkpoints(self) -> int:
        """Matrices that the forward pass keeps for each problem."""
        return max(math.ceil(self.horizon / self.stride) - 1, 0)

    @property
    def in_scratch(self) -> int:
        """Matrices that the backward pass keeps for each problem while it runs."""
        return self.stride // self.inner - 1 + self.inner // self.on_chip - 1


@cache
def rhythm(horizon: int, on_chip: int) -> Rhythm:
    """Short horizons keep a matrix every `on_chip` steps, so that each step is recomputed once. Longer ones recompute
    twice, the longest three times, and keep about 3 (T / on_chip)^(1/3) matrices a problem."""
    stretches = math.ceil(horizon / on_chip)
    if stretches <= 16:
        return Rhythm(horizon, on_chip, on_chip, on_chip)
    if stretches <= 64:
        stride = on_chip * math.ceil(math.sqrt(stretches))
        return Rhythm(horizon, on_chip, stride, stride)
    factor = math.ceil(stretches ** (1 / 3))
    return Rhythm(horizon, on_chip, on_chip * factor * factor, on_chip * factor)


def _rhythm(family: Family, horizon: int) -> Rhythm:
    large = _padded(family.a.shape[-1]) == 64 or family.a.dtype == torch.float64
    return rhythm(horizon, 2 if large else 4)


def _padded(size: int) -> int:
    """The size that the kernels are compiled for."""
    return next(known for known in SIZES if known >= size)


def _matrices(family: Family, count: int) -> tuple[int, ...]:
    """The shape of `count` value matrices of every problem."""
    tokens, heads, n = family.a.shape
    return count, tokens * heads, _padded(n), _padded(n)


def _arguments(family: Family, rhythm: Rhythm) -> list[int | Tensor | None]:
    tokens, heads, n = family.a.shape
    return [*family, tokens * heads, heads, n, family.r_inv.shape[-1], rhythm.horizon, rhythm.stride, rhythm.inner]


def _lanes(problems: int, N: int, horizon: int, backward: bool) -> tuple[int, int, int]:
    """Lanes that share a problem, threads in a block, and blocks that a multiprocessor must hold at once. Few lanes
    waste the least; many lanes answer soonest. Measured on an H200 for N = 16: see docs/kernels.md."""
    if N == 64:
        return 32, 32, 1
    if problems < 16384:
        return {4: 4, 8: 8, 16: 16, 32: 32}[N], 32, 1
    if not backward:
        return {4: (1, 128, 1), 8: (2, 128, 1), 16: (4, 128, 3), 32: (16, 128, 1)}[N]
    if N == 16:
        return (16, 64, 6) if horizon < 32 else (8, 128, 1)
    return {4: 2, 8: 4, 32: 32}[N], 64, 1


def _launch(kernel: str, family: Family, rhythm: Rhythm) -> Launch:
    tokens, heads, n = family.a.shape
    shared = family.B.ndim == 3, family.Q.ndim == 3
    one_decay_A = family.decay_A.shape[-1] == 1
    sizes = tokens * heads, heads, n, family.r_inv.shape[-1], rhythm.horizon, rhythm.on_chip
    return _shaped(kernel, *sizes, *shared, one_decay_A, family.a.dtype)


@cache
def _shaped(
    kernel: str,
    problems: int,
    heads: int,
    n: int,
    m: int,
    horizon: int,
    on_chip: int,
    shared_B: bool,
    shared_Q: bool,
    one_decay_A: bool,
    dtype: torch.dtype,
) -> Launch:
    backward = kernel == "plan_backward"
    N, M = _padded(n), _padded(m)
    lanes, threads, resident = _lanes(problems, N, horizon, backward)
    groups = threads // lanes
    tokens = min(groups, (groups - 1) // heads + 2)
    widest = max(N, M)
    of_group = (4 * (widest + 4) + on_chip + 31) // 32 * 32 + 4  # EXCHANGE, and STRETCH or FIRST_STEP
    of_group += N * max((on_chip + 1) * N, M) if backward else N * widest + 16
    scalars = groups * of_group + (tokens if shared_B else groups) * N * M + (tokens if shared_Q else groups) * N * N
    defines = {
        "N": N,
        "M": M,
        "LANES": lanes,
        "THREADS": threads,
        "BLOCKS": resident,
        "KEEP": on_chip,
        "SHARED_B": int(shared_B),
        "SHARED_Q": int(shared_Q),
        "ONE_DECAY_A": int(one_decay_A),
        "real": "double" if dtype == torch.float64 else "float",
    }
    text = tuple((name, str(value)) for name, value in defines.items())
    return Launch("recursion.cu", kernel, text, math.ceil(problems / groups), threads, scalars * dtype.itemsize)
