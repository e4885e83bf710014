"""The solution of a control problem, and its residual."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .arithmetic import apply, full_precision
from .problem import LQR

PIECE = 2**23  # numbers of problems whose residual a CPU finds at once


@dataclass(frozen=True, eq=False)
class Solution:
    """The optimum of an LQR.

    Attributes:
        u: actions u_1..u_T, (..., T, m).
        h: states h_0..h_T, (..., T+1, n).
        costate: co-states λ_0..λ_T, (..., T+1, n); λ_t is the gradient of the cost to go with respect to h_t.
        cost: the optimum of the objective, (...).
        K: feedback gains, (..., T, m, n): u_t = K_t h_{t-1} + k_t is optimal from any h_{t-1}. None, as the next three,
            unless `solve` was asked for gains.
        k: constant part of the feedback, (..., T, m).
        P: curvature of the cost to go, (..., T+1, n, n), t = 0..T: it is 1/2 h' P_t h + p_t' h + const, the cost of h_t
            itself included (P_T = Q_T), so that λ_t = P_t h_t + p_t.
        p: slope of the cost to go at h = 0, (..., T+1, n).
    """

    u: Tensor
    h: Tensor
    costate: Tensor
    cost: Tensor
    K: Tensor | None = None
    k: Tensor | None = None
    P: Tensor | None = None
    p: Tensor | None = None

    def residual(self, problem: LQR) -> Tensor:
        """How far the solution is from satisfying the optimality (KKT) conditions of `problem`, (...): the largest
        violation of any condition of any step, each over the largest of its own terms. A good solution has about the
        machine precision."""
        p = problem.standard_form()
        u, h, costate = (x.to(p.h0.dtype) for x in (self.u, self.h, self.costate))
        with full_precision(u.device):
            return _in_pieces(p, u, h, costate, torch.finfo(self.u.dtype))


def _in_pieces(p: LQR, u: Tensor, h: Tensor, costate: Tensor, info: torch.finfo) -> Tensor:
    """`_violation`, of some problems at a time on a CPU, so that Ctrl-C is answered between them."""
    batch, numbers = p.batch_shape, p.horizon * (p.state_size + p.action_size) ** 2
    alike = all(x.shape[:-2] == batch for x in (u, h, costate))
    if batch.numel() * numbers <= PIECE or max(batch, default=1) == 1 or u.device.type != "cpu" or not alike:
        return _violation(p, u, h, costate, info)
    dim = next(place for place, size in enumerate(batch) if size > 1)
    at_once = max(1, PIECE * batch[dim] // (batch.numel() * numbers))
    found = []
    for start in range(0, batch[dim], at_once):
        count = min(at_once, batch[dim] - start)
        fields = {name: value.narrow(dim, start, count) for name, value in p.given().items()}
        some = LQR(**fields, horizon=p.horizon)
        now, states, costates = (x.narrow(dim, start, count) for x in (u, h, costate))
        found.append(_in_pieces(some, now, states, costates, info))
    return torch.cat(found, dim)


def _violation(p: LQR, u: Tensor, h: Tensor, costate: Tensor, info: torch.finfo) -> Tensor:
    """The violations of the optimality conditions: h_0 is the given one, the dynamics hold, and the derivatives with
    respect to u and h are zero. Each is measured against its products of two numbers: it is the relative change of the
    problem that would make the solution exact."""
    before, after, lam = h[..., :-1, :], h[..., 1:, :], costate[..., 1:, :]
    conditions: list[list[tuple[Tensor | None, Tensor]]] = [
        [(None, h[..., :1, :]), (None, -p.h0.unsqueeze(-2))],
        [(p.A, before), (p.B, u), (None, -after)],
        [(p.R, u), (p.B.mT, lam)],
        [(p.Q, after), (_later(p.A.mT), _later(lam, -2)), (None, -lam)],
        [(p.A[..., :1, :, :].mT, lam[..., :1, :]), (None, -costate[..., :1, :])],
    ]
    if p.N is not None:
        conditions[2].append((p.N.mT, before))
        conditions[3].append((_later(p.N), _later(u, -2)))
        conditions[4].append((p.N[..., :1, :, :], u[..., :1, :]))
    for place, linear in ((1, p.c), (2, p.r), (3, p.q)):
        if linear is not None:
            conditions[place].append((None, linear))
    smallest = info.tiny / info.eps  # below, numbers have fewer digits
    worst = []
    for terms in conditions if p.horizon else conditions[:1]:
        violation = sum(x if matrix is None else apply(matrix, x) for matrix, x in terms)
        size = sum(x.abs() if matrix is None else apply(matrix.abs(), x.abs()) for matrix, x in terms)
        assert isinstance(violation, Tensor)
        assert isinstance(size, Tensor)
        worst.append((violation.abs().amax(-1) / size.amax(-1).clamp_min(smallest)).amax(-1))
    return torch.stack(torch.broadcast_tensors(*worst)).amax(0)


def _later(x: Tensor, dim: int = -3) -> Tensor:
    """The values of the step after each; zero after the last."""
    count = x.shape[dim]
    return torch.cat([x.narrow(dim, 1, count - 1), torch.zeros_like(x.narrow(dim, 0, 1))], dim) if count else x
