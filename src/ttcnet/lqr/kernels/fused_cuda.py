"""backend="fused" on a CUDA device: the stable recursion, fused_forward.cu and fused_backward.cu, compiled at run time.

Allocates and returns their outputs; fused_forms.py picks the form of the kernels. `run` starts a kernel:
nvrtc.run on a GPU; tests pass one that emulates a GPU on the CPU.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from ..modulated import Family
from . import nvrtc
from .fused_forms import Form, KeptSteps, choose, kept_size, kept_steps, lanes, room
from .launch import LARGEST, Kind, Launch, Run, arguments, kind_of, launch, padded
from .nvrtc import why_not

__all__ = ["LARGEST", "backward", "checkpoints", "forward", "why_not"]


def forward(family: Family, horizon: int, keep: bool, run: Run | None = None) -> tuple[Tensor, Tensor]:
    """The first actions, and the tensors that `backward` needs (none if not `keep`)."""
    run, steps = run or nvrtc.run, _kept_steps(family, horizon)
    u = torch.empty_like(family.r_inv)
    kept = u.new_empty(checkpoints(family, horizon) if keep else 0)
    if u.numel():
        every, points, matrices = 0, None, None
        if keep and steps.at_once:
            matrices = kept
        elif keep:
            every, points = steps.stride, kept
        _absorb(family, horizon, 0, horizon, None, every, points, matrices, u, run)
    return u, kept


def backward(family: Family, horizon: int, checkpoints: Tensor, g: Tensor, run: Run | None = None) -> list[Tensor]:
    """The gradients of all fields, given the gradient g of the first actions. Those of a shared B or Q have a dimension
    more, after the tokens, and are still to be summed over it."""
    run, steps = run or nvrtc.run, _kept_steps(family, horizon)
    chosen = _launch("fused_backward", family)
    heads = family.a.shape[1]
    grads = [torch.empty_like(x) for x in family]
    for k, x in ((1, family.B), (2, family.Q)):
        if x.ndim == 3:  # shared by the heads of a token
            grads[k] = x.new_empty(x.shape[0], heads // chosen.summed, *x.shape[1:])
    if not g.numel():
        return grads
    if steps.at_once:
        _advance(family, horizon, 0, horizon, None, checkpoints, g, None, grads, chosen, run)
        return grads

    (problems, N), size = _size(family), _kept_size(family)
    state = g.new_empty(problems * 4 * N)
    matrices = g.new_empty(steps.kept * problems * (size + 1))
    slots = _slots(family)
    points = g.new_empty(steps.inner_points, slots, problems * size)
    outer = checkpoints.view(steps.points, slots, problems * size)
    for bottom in range(0, horizon, steps.stride):
        top = min(bottom + steps.stride, horizon)
        end = None if top == horizon else outer[top // steps.stride - 1]
        if top - bottom > steps.kept:
            _absorb(family, horizon, bottom, top, end, steps.kept, points, None, None, run, outer[0])
        for low in range(bottom, top, steps.kept):
            high = min(low + steps.kept, top)
            start = end if high == top else points[(high - bottom) // steps.kept - 1]
            _absorb(family, horizon, low, high, start, 0, None, matrices, None, run, outer[0])
            _advance(family, horizon, low, high, start, matrices, g, state, grads, chosen, run)
    return grads


def checkpoints(family: Family, horizon: int) -> tuple[int, ...]:
    """The shape of the tensor that `forward` keeps for `backward`: P° and its lost digits of every step, or some P
    with room for further digits."""
    steps, size, (problems, _) = _kept_steps(family, horizon), _kept_size(family), _size(family)
    return (problems * (horizon * (size + 1) if steps.at_once else _slots(family) * steps.points * size),)


def _kept_steps(family: Family, horizon: int) -> KeptSteps:
    problems, N = _size(family)
    return kept_steps(choose(), problems, N, horizon, family.a.dtype.itemsize, room(family.a.device))


def _kept_size(family: Family) -> int:
    return kept_size(padded(family.a.shape[-1]), choose().halves)


def _slots(family: Family) -> int:
    """The room of a P with further digits, in matrices without: SLOTS of careful.cuh."""
    return 3 if choose().halves and family.a.dtype == torch.float32 else 2


def _size(family: Family) -> tuple[int, int]:
    """Problems, and the size of their states that the kernels are compiled for."""
    tokens, heads, n = family.a.shape
    return tokens * heads, padded(n)


def _absorb(
    family: Family,
    horizon: int,
    bottom: int,
    top: int,
    end: Tensor | None,
    every: int,
    points: Tensor | None,
    matrices: Tensor | None,
    u: Tensor | None,
    run: Run,
    marks: Tensor | None = None,
) -> None:
    """Go backward in time from P at step `top`. See fused_forward.cu."""
    where = [bottom, top, end, every, points, *_parts(family, matrices, top - bottom), u, marks]
    run(_launch("fused_forward", family), family.a.device, [*arguments(family, horizon), *where])


def _advance(
    family: Family,
    horizon: int,
    bottom: int,
    top: int,
    end: Tensor | None,
    matrices: Tensor,
    g: Tensor,
    state: Tensor | None,
    grads: list[Tensor],
    chosen: Launch,
    run: Run,
) -> None:
    """Go forward in time from step `bottom` and add gradients up. See fused_backward.cu."""
    where = [bottom, top, end, *_parts(family, matrices, top - bottom), g, state, *grads]
    for kernel in (chosen, _launch("fused_backward_carefully", family)):
        run(kernel, family.a.device, [*arguments(family, horizon), *where])


def _parts(family: Family, matrices: Tensor | None, steps: int) -> tuple[Tensor | None, Tensor | None]:
    """Numbers kept of `steps` steps: the matrices P°, and the digits that each lost."""
    if matrices is None:
        return None, None
    return matrices, matrices[steps * _size(family)[0] * _kept_size(family) :]


def _launch(kernel: str, family: Family) -> Launch:
    return _shaped(kernel, kind_of(family), choose())


@cache
def _shaped(kernel: str, kind: Kind, form: Form) -> Launch:
    N, M = padded(kind.n), padded(kind.m)
    backward = kernel != "fused_forward"
    chosen = lanes(kind.problems, N, backward)
    groups, widest = chosen[1] // chosen[0], max(N, M)
    fours = form.fours and not backward and chosen[0] == N >= 16
    of_group = ((12 if fours else 6) * (widest + 4) + 31) // 32 * 32 + 4 + N * widest + 16  # EXCHANGE and ROOM
    summed = groups if kind.heads % groups == 0 else 1
    source = "fused_backward.cu" if backward else "fused_forward.cu"
    more = {"SUMMED": summed, "HALVES": int(form.halves), "FOURS": int(fours)}
    return launch(source, kernel, kind, chosen, of_group, M * (N + 4), N * N, summed, more)
