"""backend="reference": the stable recursion behind `plan` in plain PyTorch, which every kernel is tested against.

Backward in time, from P = Qf, a step absorbs its actions (steps.py) and steps back through the dynamics. Actions are in
units of their cost, D_t = R^-1/2 exp(-t decay_B), so that r_inv = 0 is no special case:

    S = I + D_t B' P B D_t        P° = P - P B D_t S^-1 D_t B' P        P <- A_t P° A_t + Q_{t-1}

Forward in time, the loop is closed with the gain itself: with x = A_t h_{t-1},

    z = -S^-1 D_t B' P x          u_t = R^-1/2 z                        h_t = x + B D_t z         λ_t = P h_t

The adjoint problem of the backward pass is the same closed loop from h~_0 = 0, with the incoming gradient g added once:
at t = 1, z~ = -S^-1 R^-1/2 g. Only S is inverted, and P is kept symmetric to the bit (an antisymmetric part would
grow). All of it is computed in float64 (see steps.py for problems that are given in float64).

The backward pass needs P_t in forward order. The forward pass keeps one P in every √T; the backward pass recomputes
the others, one stretch of √T steps at a time, so that memory grows with √T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .arithmetic import apply, decayed, exactly, outer, symmetrise, with_heads
from .modulated import Family
from .steps import Descent, Step, descend, largest_pivot, wide_dtype


class Prepared(Family):
    """A family with Q and Qf symmetric to the bit, and B and Q with a head dimension."""

    def A_at(self, t: int) -> Tensor:
        return 1 + decayed(self.decay_A, t) * self.a

    def Q_at(self, t: int) -> Tensor:
        scale = decayed(self.decay_Q, t)
        return (scale.unsqueeze(-1) * scale.unsqueeze(-2)) * self.Q


def prepare(family: Family) -> Prepared:
    dtype = wide_dtype(family.a.dtype, family.a.device)
    family = Family(*(x.to(dtype) for x in family))
    Q, Qf = symmetrise(with_heads(family.Q)), symmetrise(family.Qf)
    return Prepared(*family._replace(B=with_heads(family.B), Q=Q, Qf=Qf))


def descent(family: Prepared, wanted: Callable[[int], bool]) -> Descent:
    unit = family.r_inv.sqrt()
    one = torch.eye(unit.shape[-1], dtype=unit.dtype, device=unit.device)

    def back(step: Step, t: int) -> Tensor:
        A = family.A_at(t)
        return (A.unsqueeze(-1) * A.unsqueeze(-2)) * step.value() + family.Q_at(t - 1)

    return Descent(lambda t: (family.B * (unit * decayed(family.decay_B, t)).unsqueeze(-2), one), back, wanted)


def checkpoints(family: Family, horizon: int) -> tuple[int, ...]:
    """The shape of the tensor that `forward` keeps: P_t for t = T and for every multiple of about √T below."""
    return -(-horizon // stretch_length(horizon)), *family.Qf.shape


@torch.no_grad()
@exactly
def forward(problems: Family, horizon: int, keep: bool) -> tuple[Tensor, Tensor]:
    """The first action u_1, and the check-points for `backward`."""
    family, stretch, asked = prepare(problems), stretch_length(horizon), problems.a.dtype
    points: dict[int, Tensor] = {}

    def note(step: Step, t: int) -> Tensor:
        P = way.back(step, t)
        if keep and (t - 1) % stretch == 0:
            points[t - 1] = P
        return P

    way = descent(family, lambda t: t == 1)
    steps = descend(way._replace(back=note), family.Qf, range(horizon, 0, -1), limit_of(problems))
    u = family.r_inv.sqrt() * steps[1].respond(family.A_at(1) * family.h0).u
    if not keep:
        return u.to(asked), u.new_empty(0)
    points[horizon] = family.Qf
    return u.to(asked), torch.stack([points[t] for t in sorted(points, reverse=True)])


@torch.no_grad()
@exactly
def backward(problems: Family, horizon: int, checkpoints: Tensor, g: Tensor) -> list[Tensor]:
    """The gradients of all fields, those of B and Q for every head, given g, the gradient of u_1."""
    family, asked = prepare(problems), problems.a.dtype
    a, B, _, _, r_inv, decay_A, decay_B, decay_Q, h0 = family
    unit, pull = r_inv.sqrt(), g.to(h0.dtype)
    h, h_ = h0, torch.zeros_like(h0)
    grad = Prepared(*(torch.zeros(h0.shape[:2] + x.shape[2:], dtype=x.dtype, device=x.device) for x in family))

    for t, step in _in_forward_order(family, horizon, checkpoints, limit_of(problems)):
        A, factor_A, factor_B = family.A_at(t), decayed(decay_A, t), decayed(decay_B, t)
        before, before_ = h, h_
        z, lam, h = step.respond(A * h)
        z_, lam_, h_ = step.respond(A * h_, r=unit * pull if t == 1 else None)  # g pulls at the first step only
        u, u_ = unit * z, unit * z_
        # B_t' λ = -z / R^-1/2 and B_t' λ~ + g = -z~ / R^-1/2, which keeps the digits that the sum would lose
        slope, slope_ = factor_B * apply(B.mT, lam), factor_B * apply(B.mT, lam_)
        forced = slope_ + pull if t == 1 else slope_
        exact, exact_ = (torch.where(unit > 0, -y / unit, y2) for y, y2 in ((z, slope), (z_, forced)))

        through_A = factor_A * (lam * before_ + lam_ * before)
        grad.a.add_(through_A)
        through_decay = -t * a * through_A
        grad.decay_A.add_(through_decay.sum(-1, keepdim=True) if decay_A.shape[-1] == 1 else through_decay)
        grad.B.add_(outer(lam, factor_B * u_) + outer(lam_, factor_B * u))
        grad.decay_B.sub_(t * (exact * u_ + (slope_ if t == 1 else exact_) * u))
        grad.r_inv.sub_(exact * exact_)
        if t == 1:
            grad.h0.copy_(A * lam_)
        if t == horizon:
            grad.Qf.copy_(symmetrise(outer(h, h_)))
        else:
            scale, Q = decayed(decay_Q, t), family.Q_at(t)
            grad.Q.add_(symmetrise(outer(scale * h, scale * h_)))
            grad.decay_Q.sub_(t * (h * apply(Q, h_) + h_ * apply(Q, h)))
    return [x.to(asked) for x in grad]


def limit_of(problems: Family) -> float:
    return largest_pivot(problems.a.dtype, wide_dtype(problems.a.dtype, problems.a.device))


def stretch_length(horizon: int) -> int:
    """Steps between check-points: √T, rounded up to a power of two. Found by comparisons alone, so that torch.compile,
    for which the horizon may be a symbol, learns no more of it than that."""
    length = 1
    while length * length < horizon:
        length *= 2
    return length


def _in_forward_order(family: Prepared, horizon: int, checkpoints: Tensor, limit: float) -> Iterator[tuple[int, Step]]:
    """Steps 1..T, recomputed from the check-points a stretch at a time."""
    stretch, points, way = stretch_length(horizon), list(checkpoints.unbind()), descent(family, lambda t: True)
    for first in range(1, horizon + 1, stretch):
        last = min(first + stretch - 1, horizon)
        steps = descend(way, points.pop(), range(last, first - 1, -1), limit)
        for t in range(first, last + 1):
            yield t, steps.pop(t)
