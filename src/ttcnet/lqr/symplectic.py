"""The paper's symplectic iteration (Algorithm 3): one product of 2n x 2n matrices instead of a solve per step.

State and co-state obey [h_t; λ_t] = S_t [h_{t-1}; λ_{t-1}] + b_t with S_t symplectic. The reverse iteration multiplies
[Y1 Y2] = [I Q_T] Σ_T ... Σ_1, where Σ_t = S_t^-T, with rows kept at unit size, and finds λ_0 = Y1^-1 (Y2 h_0 + y3); the
forward iteration then rolls h and λ out of h_0 and λ_0.

It needs A_t invertible, and it loses digits by nature: S_t has eigenvalues in reciprocal pairs, so over a long or
strongly controlled horizon the rows of [Y1 Y2] turn towards one another and the roll-out amplifies what is lost. It is
here as the method of the paper and as a cross-check; use "riccati" or "kkt" for answers. Two slips of the paper are
mended: y3 is accumulated from the left like Y1 and Y2, and λ_0 = Y1^-1 (Y2 h_0 + y3), not Y1^-1 Y2 (h_0 + y3).
(See riccati.py for q and c.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .arithmetic import apply, per_step


class Factors(NamedTuple):
    """Per step: A_t, A_t^-T, B_t, Q_t (t = 0..T, with Q_0 = 0), R_t^-1 and G_t = B_t R_t^-1 B_t'."""

    A: tuple[Tensor, ...]
    A_inv_T: tuple[Tensor, ...]
    B: tuple[Tensor, ...]
    Q: tuple[Tensor, ...]
    R_inv: tuple[Tensor, ...]
    G: tuple[Tensor, ...]


def factorise(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, limit: float) -> Factors:
    """All inverses, which are independent of each other and so run in parallel."""
    A_inv, _ = torch.linalg.inv_ex(A)
    R_inv, _ = torch.linalg.inv_ex(R)
    Qs = Q.unbind(-3)
    Q0 = Q.new_zeros(*Q.shape[:-3], *Q.shape[-2:])
    G = B @ R_inv @ B.mT
    return Factors(A.unbind(-3), A_inv.mT.unbind(-3), B.unbind(-3), (Q0, *Qs), R_inv.unbind(-3), G.unbind(-3))


def substitute(
    factors: Factors, h0: Tensor, r: Tensor | None = None, q: Tensor | None = None, c: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Actions (..., T, m), states and co-states (..., T+1, n). q is (..., T+1, n), for t = 0..T; c is (..., T, n)."""
    T, n, m = len(factors.A), h0.shape[-1], factors.B[0].shape[-1]
    zero_state, zero_action = torch.zeros_like(h0), h0.new_zeros(*h0.shape[:-1], m)
    rs, qs, cs = per_step(r, T, zero_action), per_step(q, T + 1, zero_state), per_step(c, T, zero_state)
    # the affine part b_t = [to_state; to_costate] of the forward iteration
    to_costate = [-apply(factors.A_inv_T[t], qs[t]) for t in range(T)]
    to_state = [
        cs[t] - apply(factors.B[t], apply(factors.R_inv[t], rs[t])) - apply(factors.G[t], to_costate[t])
        for t in range(T)
    ]

    Y2 = factors.Q[T]
    Y1 = torch.eye(n, dtype=h0.dtype, device=h0.device).expand_as(Y2)
    y3 = qs[T]
    for t in reversed(range(T)):
        y3 = y3 + apply(Y2, to_state[t]) - apply(Y1, to_costate[t])
        Y1 = (Y1 + Y2 @ factors.G[t]) @ factors.A_inv_T[t]
        Y2 = Y2 @ factors.A[t] + Y1 @ factors.Q[t]
        size = torch.maximum(Y1.abs().sum(-1), Y2.abs().sum(-1))
        Y1, Y2, y3 = Y1 / size.unsqueeze(-1), Y2 / size.unsqueeze(-1), y3 / size
    costate, _ = torch.linalg.solve_ex(Y1, (apply(Y2, h0) + y3).unsqueeze(-1))

    state, costate = h0, costate.squeeze(-1)
    actions, states, costates = [], [state], [costate]
    for t in range(T):
        costate = apply(factors.A_inv_T[t], costate - apply(factors.Q[t], state)) + to_costate[t]
        actions.append(-apply(factors.R_inv[t], apply(factors.B[t].mT, costate) + rs[t]))
        state = apply(factors.A[t], state) + apply(factors.B[t], actions[-1]) + cs[t]
        states.append(state)
        costates.append(costate)
    return torch.stack(actions, -2), torch.stack(states, -2), torch.stack(costates, -2)
