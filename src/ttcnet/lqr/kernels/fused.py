"""Launches the recursion's kernels: picks their shape, makes room, and hands out what they write.

`run` starts a kernel. On a GPU it is nvrtc.run; tests pass one that emulates a GPU on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor

from ..problem import ModulatedLQR

SIZES = (4, 8, 16, 32, 64)
LARGEST = SIZES[-1]
FIELDS = tuple(field.name for field in fields(ModulatedLQR))


@dataclass(frozen=True)
class Launch:
    """A kernel and how to start it: `defines` go to the compiler, `shared_bytes` is dynamic shared memory."""

    kernel: str
    defines: tuple[tuple[str, str], ...]
    blocks: int
    threads: int
    shared_bytes: int


Run = Callable[[Launch, torch.device, list[int | Tensor | None]], None]


@dataclass(frozen=True)
class Stretches:
    """Steps between check-points: `keep` steps are held on chip, one in `inner` and one in `stride` in memory."""

    horizon: int
    keep: int
    stride: int
    inner: int

    @property
    def checkpoints(self) -> int:
        """Matrices that the forward pass keeps for each problem."""
        return max(math.ceil(self.horizon / self.stride) - 1, 0)

    @property
    def scratch(self) -> int:
        """Matrices that the backward pass keeps for each problem while it runs."""
        return self.stride // self.inner - 1 + self.inner // self.keep - 1


@cache
def stretches(horizon: int, keep: int) -> Stretches:
    """Short horizons keep a matrix every `keep` steps, so that each step is recomputed once. Longer ones recompute
    twice, the longest three times, and keep about 3 (T / keep)^(1/3) matrices a problem."""
    count = math.ceil(horizon / keep)
    if count <= 16:
        return Stretches(horizon, keep, keep, keep)
    if count <= 64:
        stride = keep * math.ceil(math.sqrt(count))
        return Stretches(horizon, keep, stride, stride)
    factor = math.ceil(count ** (1 / 3))
    return Stretches(horizon, keep, keep * factor * factor, keep * factor)


def padded(size: int) -> int:
    """The kernel size that holds `size`."""
    return next(known for known in SIZES if known >= size)


def _lanes(problems: int, N: int, backward: bool) -> tuple[int, int, int]:
    """Lanes that share a problem, threads in a block, and blocks that a multiprocessor must hold at once. Few lanes
    waste the least; many lanes answer soonest."""
    few = {4: 1, 8: 2, 16: 4, 32: 16, 64: 32}[N]
    many = {4: 4, 8: 8, 16: 16, 32: 32, 64: 32}[N]
    if backward:
        few = {4: 2, 8: 4, 16: 8, 32: 32, 64: 32}[N]
    lanes = few if problems >= 16384 else many
    threads = 128 if problems * lanes >= 2**16 else 32
    if N == 64:
        threads = 32
    return lanes, threads, 1


def _launch(kernel: str, family: ModulatedLQR, keep: int) -> Launch:
    backward = kernel == "plan_backward"
    N, M = padded(family.a.shape[-1]), padded(family.r_inv.shape[-1])
    problems, heads = family.a.shape[0] * family.a.shape[1], family.a.shape[1]
    lanes, threads, resident = _lanes(problems, N, backward)
    groups = threads // lanes
    shared_B, shared_Q = family.B.ndim == 3, family.Q.ndim == 3
    tokens = min(groups, (groups - 1) // heads + 2)
    widest = max(N, M)
    of_group = (4 * (widest + 4) + 31) // 32 * 32 + 4  # EXCHANGE, and STRETCH or FIRST_STEP
    of_group += N * max((keep + 1) * N, M) if backward else N * widest + 16
    scalars = groups * of_group + (tokens if shared_B else groups) * N * M + (tokens if shared_Q else groups) * N * N
    real = family.a.dtype
    defines = {
        "N": N,
        "M": M,
        "LANES": lanes,
        "THREADS": threads,
        "BLOCKS": resident,
        "KEEP": keep,
        "SHARED_B": int(shared_B),
        "SHARED_Q": int(shared_Q),
        "ONE_DECAY_A": int(family.decay_A.shape[-1] == 1),
        "real": "double" if real == torch.float64 else "float",
    }
    text = tuple((name, str(value)) for name, value in defines.items())
    return Launch(kernel, text, math.ceil(problems / groups), threads, scalars * real.itemsize)


def steps_on_chip(family: ModulatedLQR) -> int:
    """How many steps the backward pass holds in shared memory for each problem."""
    return (2 if padded(family.state_size) == 64 else 4) // (2 if family.a.dtype == torch.float64 else 1)


def _arguments(family: ModulatedLQR, plan: Stretches) -> list[int | Tensor | None]:
    (tokens, heads, n), m = family.a.shape, family.r_inv.shape[-1]
    tensors = [getattr(family, name) for name in FIELDS]
    return [*tensors, tokens * heads, heads, n, m, plan.horizon, plan.stride, plan.inner]


def checkpoints(family: ModulatedLQR, horizon: int) -> tuple[int, ...]:
    """The shape of what `forward` keeps."""
    plan = stretches(horizon, steps_on_chip(family))
    return _room(plan.checkpoints, family)


def _room(matrices: int, family: ModulatedLQR) -> tuple[int, ...]:
    """The shape of `matrices` value matrices of every problem."""
    tokens, heads, n = family.a.shape
    return matrices, tokens * heads, padded(n), padded(n)


def forward(family: ModulatedLQR, horizon: int, keep: bool, run: Run) -> tuple[Tensor, Tensor]:
    """The first actions, and the check-points for `backward` (none if not `keep`)."""
    plan = stretches(horizon, steps_on_chip(family))
    u = torch.empty_like(family.r_inv)
    kept = u.new_empty(_room(plan.checkpoints, family) if keep else 0)
    if u.numel():
        target = kept if kept.numel() else None
        run(_launch("plan_forward", family, plan.keep), u.device, [*_arguments(family, plan), u, target])
    return u, kept


def backward(family: ModulatedLQR, horizon: int, checkpoints: Tensor, g: Tensor, run: Run) -> list[Tensor]:
    """The gradients of all fields, given the gradient g of the first actions."""
    plan = stretches(horizon, steps_on_chip(family))
    launch = _launch("plan_backward", family, plan.keep)
    heads = family.a.shape[1]
    grads = {}
    for name in FIELDS:
        x = getattr(family, name)
        per_head = name in ("B", "Q") and x.ndim == 3
        grads[name] = x.new_empty(x.shape[0], heads, *x.shape[1:]) if per_head else torch.empty_like(x)
    scratch = g.new_empty(_room(plan.scratch, family))
    if g.numel():
        out = [grads[name] for name in FIELDS]
        run(launch, g.device, [*_arguments(family, plan), g, checkpoints, scratch, *out])
    # what the heads of a token share gets the sum of their gradients
    return [grad if grad.ndim == getattr(family, name).ndim else grad.sum(1) for name, grad in grads.items()]
