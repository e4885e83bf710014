"""The paper's symplectic iteration (Algorithm 3): one product of 2n x 2n matrices instead of a solve per step.

State and co-state obey [h_t; λ_t] = S_t [h_{t-1}; λ_{t-1}] + b_t with S_t symplectic. The reverse iteration multiplies
[Y1 Y2] = [I Q_T] Σ_T ... Σ_1, where Σ_t = S_t^-T, with rows kept at unit size, and finds λ_0 = Y1^-1 (Y2 h_0 + y3); the
forward iteration then rolls h and λ out of h_0 and λ_0.

It needs A_t invertible, and it loses digits by nature: S_t has eigenvalues in reciprocal pairs, so over a long or
strongly controlled horizon the rows of [Y1 Y2] turn towards one another, and the roll-out amplifies the error. It is
here as the method of the paper and as a cross-check; use "riccati" or "kkt" for answers. Two slips of the paper are
mended: y3 is accumulated from the left like Y1 and Y2, and λ_0 = Y1^-1 (Y2 h_0 + y3), not Y1^-1 Y2 (h_0 + y3).
A cross term N is eliminated first: with K = R^-1 N', the actions u + K h_{t-1} have none, and act on A - B K with the
state cost Q_{t-1} - N K and the linear one q_{t-1} - N R^-1 r. (See riccati.py for q_0.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .arithmetic import apply, per_step


class Factors(NamedTuple):
    """Per step: A_t, A_t^-T, B_t, Q_t (t = 0..T, with Q_0 = 0), R_t^-1, G_t = B_t R_t^-1 B_t' and N_t. A cross
    term N is eliminated from A and Q."""

    A: tuple[Tensor, ...]
    A_inv_T: tuple[Tensor, ...]
    B: tuple[Tensor, ...]
    Q: tuple[Tensor, ...]
    R_inv: tuple[Tensor, ...]
    G: tuple[Tensor, ...]
    N: tuple[Tensor | None, ...]


def factorise(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, N: Tensor | None, limit: float) -> Factors:
    """All inverses, which are independent of each other and so run in parallel."""
    R_inv, _ = torch.linalg.inv_ex(R)
    Q = torch.cat([torch.zeros_like(Q[..., :1, :, :]), Q], -3)
    if N is not None:
        A = A - B @ R_inv @ N.mT
        Q = torch.cat([Q[..., :-1, :, :] - N @ R_inv @ N.mT, Q[..., -1:, :, :]], -3)
    A_inv, _ = torch.linalg.inv_ex(A)
    G = B @ R_inv @ B.mT
    Ns = (None,) * B.shape[-3] if N is None else N.unbind(-3)
    parts = (x.unbind(-3) for x in (A, A_inv.mT, B, Q, R_inv, G))
    return Factors(*parts, Ns)  # type: ignore[call-arg]


def substitute(
    factors: Factors, h0: Tensor, r: Tensor | None = None, q: Tensor | None = None, c: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Actions (..., T, m), states and co-states (..., T+1, n). q is (..., T+1, n), for t = 0..T; c is (..., T, n)."""
    T, n, m = len(factors.A), h0.shape[-1], factors.B[0].shape[-1]
    zero_state, zero_action = torch.zeros_like(h0), h0.new_zeros(*h0.shape[:-1], m)
    rs, qs, cs = per_step(r, T, zero_action), list(per_step(q, T + 1, zero_state)), per_step(c, T, zero_state)
    for t, (N, R_inv) in enumerate(zip(factors.N, factors.R_inv, strict=True)):
        if N is not None:
            qs[t] = qs[t] - apply(N, apply(R_inv, rs[t]))
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
        action, N = -apply(factors.R_inv[t], apply(factors.B[t].mT, costate) + rs[t]), factors.N[t]
        actions.append(action if N is None else action - apply(factors.R_inv[t], apply(N.mT, state)))
        state = apply(factors.A[t], state) + apply(factors.B[t], action) + cs[t]
        states.append(state)
        costates.append(costate)
    return torch.stack(actions, -2), torch.stack(states, -2), torch.stack(costates, -2)
