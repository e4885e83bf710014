"""backend="fused" on a CUDA device: the stable recursion, fused_forward.cu and fused_backward.cu, compiled at run time.

Picks the shape of the kernels, makes room, and hands out what they write. `run` starts a kernel: nvrtc.run on a GPU;
tests pass one that emulates a GPU on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ..modulated import Family
from . import nvrtc
from .launch import LARGEST, Kind, Launch, Run, arguments, kind_of, launch, padded
from .nvrtc import why_not

__all__ = ["LARGEST", "backward", "checkpoints", "forward", "why_not"]


def forward(family: Family, horizon: int, keep: bool, run: Run | None = None) -> tuple[Tensor, Tensor]:
    """The first actions, and what `backward` needs of the way there (nothing if not `keep`)."""
    run, steps = run or nvrtc.run, _kept_steps(family, horizon)
    u = torch.empty_like(family.r_inv)
    room = u.new_empty(checkpoints(family, horizon) if keep else 0)
    if u.numel():
        every, points, kept = 0, None, None
        if keep and steps.at_once:
            kept = room
        elif keep:
            every, points = steps.stride, room
        _absorb(family, horizon, 0, horizon, None, every, points, kept, u, run)
    return u, room


def backward(family: Family, horizon: int, checkpoints: Tensor, g: Tensor, run: Run | None = None) -> list[Tensor]:
    """The gradients of all fields, given the gradient g of the first actions. Those of a shared B or Q have a dimension
    more, after the tokens, and are still to be summed over it."""
    run, steps = run or nvrtc.run, _kept_steps(family, horizon)
    chosen = _launch("fused_backward", family)
    tokens, heads, n = family.a.shape
    grads = [torch.empty_like(x) for x in family]
    for k, x in ((1, family.B), (2, family.Q)):
        if x.ndim == 3:  # shared by the heads of a token
            grads[k] = x.new_empty(x.shape[0], heads // chosen.summed, *x.shape[1:])
    if not g.numel():
        return grads
    if steps.at_once:
        _advance(family, horizon, 0, horizon, None, checkpoints, g, None, grads, chosen, run)
        return grads

    problems, size = tokens * heads, padded(n) ** 2
    state = g.new_empty(problems * 4 * padded(n))
    kept = g.new_empty(steps.kept * problems * (size + 1))
    points = g.new_empty(steps.inner_points, 2, problems * size)  # a P, and its further digits: see careful.cuh
    outer = checkpoints.view(steps.points, 2, problems * size)
    for bottom in range(0, horizon, steps.stride):
        top = min(bottom + steps.stride, horizon)
        end = None if top == horizon else outer[top // steps.stride - 1]
        if top - bottom > steps.kept:
            _absorb(family, horizon, bottom, top, end, steps.kept, points, None, None, run, outer[0])
        for low in range(bottom, top, steps.kept):
            high = min(low + steps.kept, top)
            start = end if high == top else points[(high - bottom) // steps.kept - 1]
            _absorb(family, horizon, low, high, start, 0, None, kept, None, run, outer[0])
            _advance(family, horizon, low, high, start, kept, g, state, grads, chosen, run)
    return grads


def checkpoints(family: Family, horizon: int) -> tuple[int, ...]:
    """The shape of what `forward` keeps for `backward`: P° and its lost digits of every step, or some P, twice each."""
    tokens, heads, n = family.a.shape
    steps, size = _kept_steps(family, horizon), padded(n) ** 2
    return (tokens * heads * (horizon * (size + 1) if steps.at_once else 2 * steps.points * size),)


@dataclass(frozen=True)
class KeptSteps:
    """What is kept of the value matrices. The backward pass needs those of `kept` steps at a time, in forward order. If
    that is the whole horizon, the forward pass keeps them all. Otherwise it keeps one in `stride` steps, and the
    backward pass finds the others again: stretches of `stride` steps, if longer than `kept`, by way of one in `kept`.
    """

    horizon: int
    kept: int
    stride: int

    @property
    def at_once(self) -> bool:
        return self.horizon <= self.kept

    @property
    def points(self) -> int:
        """Matrices that the forward pass keeps for each problem, if not all."""
        return -(-self.horizon // self.stride) - 1

    @property
    def inner_points(self) -> int:
        """Matrices that the backward pass keeps for each problem while in a stretch."""
        return self.stride // self.kept - 1


def kept_steps(horizon: int, kept: int) -> KeptSteps:
    """Horizons up to `kept` are recomputed not at all, up to 16 `kept` once, and longer ones twice."""
    if horizon <= 16 * kept:  # asked so that torch.compile, for which the horizon is a symbol, need not know it
        return KeptSteps(horizon, kept, kept)
    return KeptSteps(horizon, kept, kept * math.ceil(math.sqrt(horizon / kept)))


def _kept_steps(family: Family, horizon: int) -> KeptSteps:
    return kept_steps(horizon, {64: 4, 32: 8}.get(padded(family.a.shape[-1]), 16))


def _absorb(
    family: Family,
    horizon: int,
    bottom: int,
    top: int,
    end: Tensor | None,
    every: int,
    points: Tensor | None,
    kept: Tensor | None,
    u: Tensor | None,
    run: Run,
    marks: Tensor | None = None,
) -> None:
    """Backward in time from P at step `top`. See fused_forward.cu."""
    where = [bottom, top, end, every, points, *_parts(family, kept, top - bottom), u, marks]
    run(_launch("fused_forward", family), family.a.device, [*arguments(family, horizon), *where])


def _advance(
    family: Family,
    horizon: int,
    bottom: int,
    top: int,
    end: Tensor | None,
    kept: Tensor,
    g: Tensor,
    state: Tensor | None,
    grads: list[Tensor],
    chosen: Launch,
    run: Run,
) -> None:
    """Forward in time from step `bottom`, gradients added up. See fused_backward.cu."""
    where = [bottom, top, end, *_parts(family, kept, top - bottom), g, state, *grads]
    for kernel in (chosen, _launch("fused_backward_carefully", family)):
        run(kernel, family.a.device, [*arguments(family, horizon), *where])


def _parts(family: Family, kept: Tensor | None, steps: int) -> tuple[Tensor | None, Tensor | None]:
    """What is kept of so many steps: the matrices P°, and the digits that each lost."""
    if kept is None:
        return None, None
    tokens, heads, n = family.a.shape
    return kept, kept[steps * tokens * heads * padded(n) ** 2 :]


def _lanes(problems: int, N: int, backward: bool) -> tuple[int, int, int]:
    """Lanes that share a problem, threads in a block, and blocks that a multiprocessor must hold at once. Few lanes
    waste the least; many lanes answer soonest. Measured on an H200 for N = 16."""
    if N == 64:
        return 32, 32, 1
    if backward and N == 16:
        return 16, 128, 4
    if problems < 16384:
        return {4: 4, 8: 8, 16: 16, 32: 32}[N], 32, 1
    if not backward:
        return {4: (1, 128, 1), 8: (2, 128, 1), 16: (4, 128, 3), 32: (16, 128, 1)}[N]
    return {4: (2, 64, 1), 8: (4, 64, 1), 32: (32, 64, 1)}[N]


def _launch(kernel: str, family: Family) -> Launch:
    return _shaped(kernel, kind_of(family))


@cache
def _shaped(kernel: str, kind: Kind) -> Launch:
    N, M = padded(kind.n), padded(kind.m)
    backward = kernel != "fused_forward"
    lanes = _lanes(kind.problems, N, backward)
    groups, widest = lanes[1] // lanes[0], max(N, M)
    of_group = (6 * (widest + 4) + 31) // 32 * 32 + 4 + N * widest + 16  # EXCHANGE and ROOM
    summed = groups if kind.heads % groups == 0 else 1
    source = "fused_backward.cu" if backward else "fused_forward.cu"
    return launch(source, kernel, kind, lanes, of_group, M * (N + 4), N * N, summed)
