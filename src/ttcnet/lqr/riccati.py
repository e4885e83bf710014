"""Dynamic programming: the Riccati recursion (Algorithms 1 and 2 of the paper), the plain reference.

The cost to go from h_t is 1/2 h' P_t h + p_t' h + const. `factorise` runs the recursion for P_t, `substitute` the one
for p_t and the roll-out. States follow by feedback and co-states as P_t h_t + p_t: never by a recursion of their own,
which would amplify rounding by every unstable direction of A.

Like every method, it solves the general linear system of optimality conditions, with a linear state cost q_t and an
offset c_t in the dynamics besides r_t, because the gradient of a solve is such a system again (see adjoint.py):

    minimise  sum_t 1/2 h_t' Q_t h_t + q_t' h_t + 1/2 u_t' R_t u_t + r_t' u_t,   h_t = A_t h_{t-1} + B_t u_t + c_t
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .arithmetic import apply, per_step, symmetrise


class Factors(NamedTuple):
    """Per step t = 1..T: A_t, B_t, the value matrix P_t and the Cholesky factor of R_t + B_t' P_t B_t."""

    A: tuple[Tensor, ...]
    B: tuple[Tensor, ...]
    P: list[Tensor]
    L: list[Tensor]


def factorise(A: Tensor, B: Tensor, Q: Tensor, R: Tensor) -> Factors:
    As, Bs, Qs, Rs = (matrix.unbind(-3) for matrix in (A, B, Q, R))
    P, values, cholesky = Qs[-1], [], []
    for t in reversed(range(len(As))):
        A_t, B_t = As[t], Bs[t]
        PB = P @ B_t
        L, failed = torch.linalg.cholesky_ex(symmetrise(Rs[t] + B_t.mT @ PB))
        L = torch.where((failed == 0)[..., None, None], L, torch.nan)  # no minimum: no answer, in this problem alone
        values.append(P)
        cholesky.append(L)
        if t > 0:
            W = torch.linalg.solve_triangular(L, PB.mT @ A_t, upper=False)
            P = symmetrise(Qs[t - 1] + A_t.mT @ P @ A_t - W.mT @ W)
    return Factors(As, Bs, values[::-1], cholesky[::-1])


def substitute(
    factors: Factors, h0: Tensor, r: Tensor | None = None, q: Tensor | None = None, c: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Actions (..., T, m), states and co-states (..., T+1, n). q is (..., T+1, n), for t = 0..T; c is (..., T, n)."""
    T, m = len(factors.A), factors.B[0].shape[-1]
    zero_state, zero_action = torch.zeros_like(h0), h0.new_zeros(*h0.shape[:-1], m)
    rs, qs, cs = per_step(r, T, zero_action), per_step(q, T + 1, zero_state), per_step(c, T, zero_state)

    linear = list(qs[1:])
    for t in reversed(range(1, T)):
        A_t, B_t, P, L = factors.A[t], factors.B[t], factors.P[t], factors.L[t]
        slope = apply(P, cs[t]) + linear[t]
        k = _solve(L, apply(B_t.mT, slope) + rs[t])
        linear[t - 1] = qs[t] + apply(A_t.mT, slope - apply(P, apply(B_t, k)))

    actions, states, costates = [], [h0], []
    for t in range(T):
        A_t, B_t, P, L = factors.A[t], factors.B[t], factors.P[t], factors.L[t]
        drift = apply(A_t, states[-1]) + cs[t]
        actions.append(-_solve(L, apply(B_t.mT, apply(P, drift) + linear[t]) + rs[t]))
        states.append(drift + apply(B_t, actions[-1]))
        costates.append(apply(P, states[-1]) + linear[t])
    first = qs[0] + apply(factors.A[0].mT, costates[0])
    return torch.stack(actions, -2), torch.stack(states, -2), torch.stack([first, *costates], -2)


def _solve(L: Tensor, vector: Tensor) -> Tensor:
    return torch.cholesky_solve(vector.unsqueeze(-1), L).squeeze(-1)
