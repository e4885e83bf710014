"""The minimum of the quadratic model around a trajectory, with bounds on the actions.

A primal-dual active set finds the actions that are at a bound at the minimum: solve with some held, hold those that
went too far, release those that the model pulls back, and repeat until nothing changes, a few times as a rule.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .arithmetic import apply, symmetrise
from .expansion import Quadratic, convex
from .problem import LQR
from .solve import solve

# the most changes of the active set; then actions are clipped, and more regularisation follows if that does not help
TURNS = 10


class Step(NamedTuple):
    """The step of the actions of each problem, and measures of their present place.

    All measures come from the closed loop: if the open loop is unstable, its slopes drown in rounding.
    """

    d: Tensor  # the way to the minimum
    K: Tensor  # and the feedback that leads there
    k: Tensor
    costate: Tensor  # slopes of the cost to go from h_1..h_T
    pull: Tensor  # the slope of the model at its minimum: zero but for held actions
    low: Tensor  # which actions are held at a bound
    high: Tensor
    scale: Tensor  # the largest curvature of the cost to go over an action, or `bend`
    promise: Tensor  # the slope of the cost along the way
    residual: Tensor  # see Trajectory


def held_problem(model: Quadratic, held: Tensor, **linear: Tensor) -> LQR:
    """The linear-quadratic problem of moving away from a trajectory, where `held` actions cannot move."""
    n = model.A.shape[-1]
    Q, N, R = model.curvature[..., :n, :n], model.curvature[..., :n, n:], model.curvature[..., n:, n:]
    fixed = held.to(R.dtype)
    free = 1 - fixed
    return LQR(
        A=model.A,
        B=model.B * free.unsqueeze(-2),
        Q=symmetrise(torch.cat([Q[:, 1:], model.final_curvature.unsqueeze(1)], 1)),
        R=symmetrise(R) * free.unsqueeze(-1) * free.unsqueeze(-2) + torch.diag_embed(fixed),
        N=N * free.unsqueeze(-2),
        **linear,  # type: ignore[arg-type]
    )


def regularised(model: Quadratic, extra: Tensor) -> Quadratic:
    """The model with `extra` curvature of the actions of each problem."""
    n, m = model.B.shape[-2:]
    weight = torch.cat([torch.zeros_like(extra)[:, None].expand(-1, n), extra[:, None].expand(-1, m)], -1)
    return model._replace(curvature=symmetrise(model.curvature) + torch.diag_embed(weight).unsqueeze(1))


def mended(model: Quadratic, extra: Tensor) -> Quadratic:
    """The model with `extra` curvature of the actions, and without negative curvature."""
    curvature = convex(regularised(model, extra).curvature)
    return model._replace(curvature=curvature, final_curvature=convex(symmetrise(model.final_curvature)))


def bend(model: Quadratic) -> Tensor:
    """The largest curvature of the cost of an action and of the state after it, over the action, whatever its sign."""
    n = model.A.shape[-1]
    Q = torch.cat([model.curvature[:, 1:, :n, :n], model.final_curvature.unsqueeze(1)], 1).abs()
    R = torch.diagonal(model.curvature[..., n:, n:], dim1=-2, dim2=-1).abs()
    return (R + (model.B.abs() * (Q @ model.B.abs())).sum(-2)).flatten(1).amax(-1)


def toward(model: Quadratic, low: Tensor, high: Tensor, moved: Tensor, slope: Tensor, u: Tensor) -> Step:
    """From the actions u to the minimum of the model where actions held `low` or `high` move by `moved`; NaN if there
    is none."""
    n, held = model.A.shape[-1], low | high
    Nu, Ru = model.curvature[..., :n, n:], model.curvature[..., n:, n:]
    moved = torch.where(held, moved, 0)
    over_h = model.slope[..., :n] + apply(Nu, moved)
    q = torch.cat([over_h[:, 1:], model.final_slope.unsqueeze(1)], 1)
    r = model.slope[..., n:] + apply(Ru, moved)
    problem = held_problem(
        model, held, h0=torch.zeros_like(q[:, 0]), q=q, r=torch.where(held, 0, r), c=apply(model.B, moved)
    )
    found = solve(problem, gains=True, check=False)
    assert found.K is not None
    assert found.k is not None
    assert found.P is not None
    assert found.p is not None
    d, k, B = torch.where(held, moved, found.u), torch.where(held, moved, found.k), model.B
    pull = model.slope[..., n:] + apply(Ru, d) + apply(Nu.mT, found.h[:, :-1]) + apply(B.mT, found.costate[:, 1:])
    S, ahead = Ru + B.mT @ found.P[:, 1:] @ B, found.p[:, 1:]
    force = apply(S, k)
    # an action on its way to a bound is not there yet: what pushes it counts, however little the cost curves
    pushed = torch.where(held & (k != 0), pull.abs(), 0) + force.abs()
    terms = model.slope[..., n:].abs() + apply(Ru.abs(), u.abs()) + apply(B.mT.abs(), ahead.abs())
    size = terms.flatten(1).amax(-1).clamp_min(torch.finfo(d.dtype).tiny)
    return Step(
        d, found.K, k, ahead, pull, low, high,
        scale=torch.diagonal(S, dim1=-2, dim2=-1).flatten(1).amax(-1),
        promise=(torch.where(held, slope, -force) * k).flatten(1).sum(-1),
        residual=pushed.flatten(1).amax(-1) / size,
    )  # fmt: skip


def towards_minimum(model: Quadratic, slope: Tensor, u: Tensor, low: Tensor, high: Tensor) -> Step:
    """The step from the actions u to the model's minimum within bounds; NaN if it has none. The slopes of the cost over
    the actions decide which actions are held at their bounds at first."""
    at_low, at_high = (u <= low) & (slope > 0), (u >= high) & (slope < 0)
    step = toward(model, at_low, at_high, torch.where(at_low, low - u, high - u), slope, u)
    if not bool((low > -torch.inf).any() | (high < torch.inf).any()):
        return step
    left = torch.arange(len(u), device=u.device)
    for _ in range(TURNS):
        now, d, pull, was_low, was_high = u[left], step.d[left], step.pull[left], step.low[left], step.high[left]
        free = ~(was_low | was_high)
        at_low = (was_low & (pull > 0)) | (free & (now + d < low[left]))
        at_high = (was_high & (pull < 0)) | (free & (now + d > high[left]))
        changed = ((at_low != was_low) | (at_high != was_high)).flatten(1).any(-1)
        left, at_low, at_high = left[changed], at_low[changed], at_high[changed]
        if not len(left):
            break
        some, to = Quadratic(*(x[left] for x in model)), torch.where(at_low, low[left], high[left]) - u[left]
        put(step, left, toward(some, at_low, at_high, to, slope[left], u[left]))
    return step


def put(step: Step, rows: Tensor, other: Step) -> None:
    """Puts another step into some rows."""
    for x, y in zip(step, other, strict=True):
        x[rows] = y
