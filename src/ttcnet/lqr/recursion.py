"""The stable recursion behind `plan`, in plain PyTorch: the reference for every kernel.

Backward in time, from P = Qf, a step absorbs its actions and steps back through the dynamics. With the actions in
units of their cost, D_t = R^-1/2 exp(-t decay_B), so that r_inv = 0 is no special case:

    S = I + D_t B' P B D_t        P° = P - P B D_t S^-1 D_t B' P        P <- A_t P° A_t + Q_{t-1}

Forward in time, the loop is closed with the gain itself: with x = A_t h_{t-1},

    z = S^-1 D_t B' P x           u_t = -R^-1/2 z                       h_t = x + B_t u_t         λ_t = P h_t

λ_t = P° x is the same vector, but P° is a difference: where actions are cheap, its digits cancel, and the gradients
lose two to three more of them than these do. The adjoint problem of the backward pass is the same closed loop from
h~_0 = 0, with the incoming gradient g added once: at t = 1, z~ = S^-1 R^-1/2 g. Nothing is inverted but S, and P is
kept symmetric to the bit (an antisymmetric part would grow).

The backward pass needs P_t in forward order. The forward pass keeps one P in every √T; the backward pass recomputes
the others, one stretch of √T steps at a time, so that memory grows with √T.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .arithmetic import apply, exactly, fade, outer, symmetrise, with_heads
from .problem import Family


class Prepared(Family):
    """A family with Q and Qf symmetric to the bit, and B and Q with a head dimension."""

    def A_at(self, t: int) -> Tensor:
        return 1 + fade(self.decay_A, t) * self.a

    def Q_at(self, t: int) -> Tensor:
        scale = fade(self.decay_Q, t)
        return (scale.unsqueeze(-1) * scale.unsqueeze(-2)) * self.Q


class Step(NamedTuple):
    """What a step of the closed loop needs: P_t, B D_t, and the Cholesky factor of S."""

    P: Tensor
    BD: Tensor
    L: Tensor

    def respond(self, x: Tensor) -> Tensor:
        """S^-1 x."""
        return torch.cholesky_solve(x.unsqueeze(-1), self.L).squeeze(-1)


def prepare(family: Family) -> Prepared:
    Q, Qf = symmetrise(with_heads(family.Q)), symmetrise(family.Qf)
    return Prepared(*family._replace(B=with_heads(family.B), Q=Q, Qf=Qf))


def factorise(family: Prepared, P: Tensor, t: int) -> Step:
    """Step t, given its value matrix P."""
    D = family.r_inv.sqrt() * fade(family.decay_B, t)
    BD = family.B * D.unsqueeze(-2)
    one = torch.eye(D.shape[-1], dtype=D.dtype, device=D.device)
    L, failed = torch.linalg.cholesky_ex(one + symmetrise(BD.mT @ P @ BD))
    # a Q or Qf with a negative eigenvalue, or a NaN, in this problem alone
    return Step(P, BD, torch.where((failed == 0)[..., None, None], L, torch.nan))


def step_back(family: Prepared, step: Step, t: int) -> Tensor:
    """P at t - 1, given step t."""
    W = torch.linalg.solve_triangular(step.L, step.BD.mT @ step.P, upper=False)
    A = family.A_at(t)
    return (A.unsqueeze(-1) * A.unsqueeze(-2)) * symmetrise(step.P - W.mT @ W) + family.Q_at(t - 1)


def checkpoints(family: Family, horizon: int) -> tuple[int, ...]:
    """The shape of what `forward` keeps: P_t for t = T and for every multiple of about √T below."""
    return -(-horizon // stretch_length(horizon)), *family.Qf.shape


@torch.no_grad()
@exactly
def forward(problems: Family, horizon: int, keep: bool) -> tuple[Tensor, Tensor]:
    """The first action u_1, and the check-points for `backward`."""
    family, stretch = prepare(problems), stretch_length(horizon)
    P, kept = family.Qf, []
    for t in range(horizon, 0, -1):
        if keep and (t == horizon or t % stretch == 0):
            kept.append(P)
        step = factorise(family, P, t)
        if t > 1:
            P = step_back(family, step, t)
    x = family.A_at(1) * family.h0
    u = -family.r_inv.sqrt() * step.respond(apply(step.BD.mT, apply(step.P, x)))
    return u, torch.stack(kept) if keep else u.new_empty(0)


@torch.no_grad()
@exactly
def backward(problems: Family, horizon: int, checkpoints: Tensor, g: Tensor) -> list[Tensor]:
    """The gradients of all fields, those of B and Q for every head, given g, the gradient of u_1."""
    family = prepare(problems)
    a, B, _, _, r_inv, decay_A, decay_B, decay_Q, h0 = family
    unit = r_inv.sqrt()
    h, h_, first = h0, torch.zeros_like(h0), g  # g pulls at the first step only
    grad = Prepared(*(torch.zeros(h0.shape[:2] + x.shape[2:], dtype=x.dtype, device=x.device) for x in family))

    for t, step in _in_forward_order(family, horizon, checkpoints):
        A, fade_A, fade_B = family.A_at(t), fade(decay_A, t), fade(decay_B, t)
        before, before_ = h, h_
        x, x_ = A * h, A * h_
        z = step.respond(apply(step.BD.mT, apply(step.P, x)))
        z_ = step.respond(apply(step.BD.mT, apply(step.P, x_)) + unit * first)
        u, u_ = -unit * z, -unit * z_
        h, h_ = x + apply(B, fade_B * u), x_ + apply(B, fade_B * u_)
        lam, lam_ = apply(step.P, h), apply(step.P, h_)
        # B_t' λ = z / R^-1/2 and B_t' λ~ + g = z~ / R^-1/2, which keeps the digits that the sum would lose
        reach, reach_ = fade_B * apply(B.mT, lam), fade_B * apply(B.mT, lam_)
        exact, exact_ = (torch.where(unit > 0, y / unit, y2) for y, y2 in ((z, reach), (z_, reach_ + first)))

        through_A = fade_A * (lam * before_ + lam_ * before)
        grad.a.add_(through_A)
        through_decay = -t * a * through_A
        grad.decay_A.add_(through_decay.sum(-1, keepdim=True) if decay_A.shape[-1] == 1 else through_decay)
        grad.B.add_(outer(lam, fade_B * u_) + outer(lam_, fade_B * u))
        grad.decay_B.sub_(t * (exact * u_ + reach_ * u))
        grad.r_inv.sub_(exact * exact_)
        if t == 1:
            grad.h0.copy_(A * lam_)
            first = torch.zeros_like(g)
        if t == horizon:
            grad.Qf.copy_(symmetrise(outer(h, h_)))
        else:
            scale, Q = fade(decay_Q, t), family.Q_at(t)
            grad.Q.add_(symmetrise(outer(scale * h, scale * h_)))
            grad.decay_Q.sub_(t * (h * apply(Q, h_) + h_ * apply(Q, h)))
    return list(grad)


def stretch_length(horizon: int) -> int:
    """Steps between check-points: √T, rounded up to a power of two. Found by comparisons alone, so that torch.compile,
    for which the horizon may be a symbol, learns no more of it than that."""
    length = 1
    while length * length < horizon:
        length *= 2
    return length


def _in_forward_order(family: Prepared, horizon: int, checkpoints: Tensor) -> Iterator[tuple[int, Step]]:
    """Steps 1..T, recomputed from the check-points a stretch at a time."""
    stretch, kept = stretch_length(horizon), list(checkpoints.unbind())
    for first in range(1, horizon + 1, stretch):
        last = min(first + stretch - 1, horizon)
        steps, P = [], kept.pop()
        for t in range(last, first - 1, -1):
            steps.append(factorise(family, P, t))
            if t > first:
                P = step_back(family, steps[-1], t)
        for t in range(first, last + 1):
            yield t, steps.pop()
