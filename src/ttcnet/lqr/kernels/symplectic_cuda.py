"""backend="symplectic" on a CUDA device: the paper's iteration as symplectic.cu, compiled at run time.

Picks the shape of the kernels, and allocates and returns their outputs. `run` starts a kernel: nvrtc.run on a GPU;
tests pass one that emulates a GPU on the CPU.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from ..modulated import Family
from . import nvrtc
from .launch import Kind, Launch, Run, arguments, kind_of, launch, padded


def forward(family: Family, horizon: int, keep: bool, run: Run | None = None) -> tuple[Tensor, Tensor]:
    """The first actions, and the tensor that `backward` needs (empty if not `keep`)."""
    u = torch.empty_like(family.r_inv)
    points = u.new_empty(checkpoints(family, horizon) if keep else 0)
    if u.numel():
        target = points if points.numel() else None
        (run or nvrtc.run)(_launch("symplectic_forward", family), u.device, [*arguments(family, horizon), u, target])
    return u, points


def backward(family: Family, horizon: int, checkpoints: Tensor, g: Tensor, run: Run | None = None) -> list[Tensor]:
    """The gradients of all fields, those of B and Q for every head, given the gradient g of the first actions."""
    grads = [torch.empty_like(x) for x in family]
    for k, x in ((1, family.B), (2, family.Q)):
        if x.ndim == 3:  # shared by the heads of a token
            grads[k] = x.new_empty(x.shape[0], family.a.shape[1], *x.shape[1:])
    if g.numel():
        given = [*arguments(family, horizon), g, checkpoints, *grads]
        (run or nvrtc.run)(_launch("symplectic_backward", family), g.device, given)
    return grads


def checkpoints(family: Family, horizon: int) -> tuple[int, ...]:
    """The shape of the tensor that `forward` keeps for `backward`, at any horizon: K, n x m, and λ_0 of every
    problem."""
    tokens, heads, n = family.a.shape
    return (tokens * heads * n * (family.r_inv.shape[-1] + 1),)


def _lanes(problems: int, N: int, double: bool, backward: bool) -> tuple[int, int, int]:
    """Lanes that share a problem, threads in a block, and blocks that a multiprocessor must hold at once. Few lanes
    waste the least; many lanes answer soonest. Chosen so that the numbers of a lane stay in registers: all of them up
    to 32 states in float32 and 16 in float64, some of them beyond. For N = 16, the fastest on an H200."""
    if N == 64:
        return 32, 32, 1
    if problems < 16384:
        return (16, 128, 4) if N == 16 and not double else (N, 32, 1)
    if double:
        return {4: 2, 8: 4, 16: 16, 32: 32}[N], 64, 1
    if backward:
        return {4: (2, 128, 1), 8: (4, 128, 1), 16: (16, 128, 4), 32: (32, 64, 1)}[N]
    return {4: (1, 128, 1), 8: (2, 128, 1), 16: (8, 128, 4), 32: (16, 64, 1)}[N]


def _launch(kernel: str, family: Family) -> Launch:
    return _shaped(kernel, kind_of(family))


@cache
def _shaped(kernel: str, kind: Kind) -> Launch:
    backward = kernel == "symplectic_backward"
    N, M = padded(kind.n), padded(kind.m)
    lanes = _lanes(kind.problems, N, kind.dtype == torch.float64, backward)
    # EXCHANGE, ROOM, BT_SIZE, B_SIZE and Q_SIZE of symplectic.cuh
    widest = max(N, M)
    of_group = (2 * max(3 * N + M, 2 * widest) + 31) // 32 * 32 + 4 + N * widest + 16
    of_B = lanes[0] * math.ceil(M / lanes[0]) * N + 4 + (N * M + 4 if backward else 0)
    return launch("symplectic.cu", kernel, kind, lanes, of_group, of_B, N * N + 4)
