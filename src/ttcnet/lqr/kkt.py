"""The optimality (KKT) conditions as one block-banded linear system, by block LU factorisation.

The unknowns of step t, eliminated together from the last step to the first, solve

    [ R_t  B_t'  0  ] [ u_t ]   [ -r_t               ]
    [ B_t   0   -I  ] [ λ_t ] = [ -A_t h_{t-1} - c_t ]
    [  0   -I   P_t ] [ h_t ]   [ -p_t               ]

where P_t and p_t carry what the later steps contribute. A step is factorised as it stands, with pivoting, so that
nothing but its regularity is asked: not that R_t + B_t' P_t B_t is positive definite. The factors serve for any
right-hand side; the gradient of a solve costs one more pair of substitutions. (See riccati.py for q and c.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .arithmetic import apply, per_step, symmetrise


class Factors(NamedTuple):
    """Per step: A_t, the LU factors of the system above, and the matrix that turns A_t h_{t-1} + c_t into its part of
    (u_t, λ_t, h_t)."""

    A: tuple[Tensor, ...]
    LU: list[tuple[Tensor, Tensor]]
    response: list[Tensor]
    action_size: int


def factorise(A: Tensor, B: Tensor, Q: Tensor, R: Tensor) -> Factors:
    As, Bs, Qs, Rs = (matrix.unbind(-3) for matrix in (A, B, Q, R))
    n, m = B.shape[-2:]
    one = torch.eye(n, dtype=B.dtype, device=B.device).expand(*B.shape[:-3], n, n)
    push = torch.cat([one.new_zeros(*one.shape[:-2], m, n), -one, torch.zeros_like(one)], -2)
    P, LU, response = Qs[-1], [], []
    for t in reversed(range(len(As))):
        B_t, corner, none = Bs[t], torch.zeros_like(one), torch.zeros_like(Bs[t])
        rows = [[Rs[t], B_t.mT, none.mT], [B_t, corner, -one], [none, -one, P]]
        system = torch.cat([torch.cat(row, -1) for row in rows], -2)
        factor, pivots, _ = torch.linalg.lu_factor_ex(system)
        LU.append((factor, pivots))
        response.append(torch.linalg.lu_solve(factor, pivots, push))
        if t > 0:
            P = symmetrise(Qs[t - 1] + As[t].mT @ response[-1][..., m : m + n, :] @ As[t])
    return Factors(As, LU[::-1], response[::-1], m)


def substitute(
    factors: Factors, h0: Tensor, r: Tensor | None = None, q: Tensor | None = None, c: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Actions (..., T, m), states and co-states (..., T+1, n). q is (..., T+1, n), for t = 0..T; c is (..., T, n)."""
    T, n, m = len(factors.A), h0.shape[-1], factors.action_size
    zero_state, zero_action = torch.zeros_like(h0), h0.new_zeros(*h0.shape[:-1], m)
    rs, qs, cs = per_step(r, T, zero_action), per_step(q, T + 1, zero_state), per_step(c, T, zero_state)

    own, p = [], qs[T]
    for t in reversed(range(T)):
        right = torch.cat([-rs[t], zero_state, -p], -1)
        own.append(torch.linalg.lu_solve(*factors.LU[t], right.unsqueeze(-1)).squeeze(-1))
        at_rest = own[-1] + apply(factors.response[t], cs[t])  # (u_t, λ_t, h_t) if h_{t-1} = 0
        p = qs[t] + apply(factors.A[t].mT, at_rest[..., m : m + n])

    steps, h = [], h0
    for t, forced in enumerate(reversed(own)):
        steps.append(forced + apply(factors.response[t], apply(factors.A[t], h) + cs[t]))
        h = steps[-1][..., m + n :]
    u, costates, states = torch.stack(steps, -2).split([m, n, n], -1)
    first = qs[0] + apply(factors.A[0].mT, costates[..., 0, :])
    return u, torch.cat([h0.unsqueeze(-2), states], -2), torch.cat([first.unsqueeze(-2), costates], -2)
