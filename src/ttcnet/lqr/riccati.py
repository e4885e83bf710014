"""Dynamic programming: the Riccati recursion (Algorithms 1 and 2 of the paper).

The cost to go from h_t is 1/2 h' P_t h + p_t' h + const. `factorise` runs the recursion for P_t (steps.py has a step),
`substitute` the one for p_t and the roll-out. States follow by feedback and co-states from the step itself: never by a
recursion of their own, which would amplify rounding by every unstable direction of A.

Like every method, it solves the general linear system of optimality conditions, with a linear state cost q_t and an
offset c_t in the dynamics besides r_t, because the gradient of a solve is such a system again (see adjoint.py):

    minimise  sum_t 1/2 h_t' Q_t h_t + q_t' h_t + 1/2 u_t' R_t u_t + r_t' u_t,   h_t = A_t h_{t-1} + B_t u_t + c_t
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .arithmetic import apply, per_step, symmetrise
from .steps import Descent, Step, descend


class Factors(NamedTuple):
    """A_t and the step itself, for t = 1..T."""

    A: tuple[Tensor, ...]
    steps: list[Step]


def factorise(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, limit: float) -> Factors:
    """`limit`: see steps.largest_pivot."""
    As = A.unbind(-3)
    steps = descend(descent(As, B, Q, R), Q[..., -1, :, :], range(len(As) - 1, -1, -1), limit)
    return Factors(As, [steps[t] for t in range(len(As))])


def descent(As: tuple[Tensor, ...], B: Tensor, Q: Tensor, R: Tensor) -> Descent:
    Bs, Qs, Rs = (matrix.unbind(-3) for matrix in (B, Q, R))
    return Descent(
        matrices=lambda t: (Bs[t], Rs[t]),
        back=lambda value, t: symmetrise(Qs[t - 1] + As[t].mT @ value @ As[t]),
        wanted=lambda t: True,
    )


def substitute(
    factors: Factors, h0: Tensor, r: Tensor | None = None, q: Tensor | None = None, c: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Actions (..., T, m), states and co-states (..., T+1, n). q is (..., T+1, n), for t = 0..T; c is (..., T, n)."""
    T, zero = len(factors.A), torch.zeros_like(h0)
    rs, qs, cs = per_step(r, T, None), per_step(q, T + 1, zero), per_step(c, T, zero)

    linear = list(qs[1:])
    for t in reversed(range(1, T)):
        linear[t - 1] = qs[t] + apply(factors.A[t].mT, factors.steps[t].respond(cs[t], linear[t], rs[t]).costate)

    h, responses = h0, []
    for A, step, c_t, p, r_t in zip(factors.A, factors.steps, cs, linear, rs, strict=True):
        responses.append(step.respond(apply(A, h) + c_t, p, r_t))
        h = responses[-1].h
    actions, costates, states = (torch.stack(x, -2) for x in zip(*responses, strict=True))
    first = qs[0] + apply(factors.A[0].mT, responses[0].costate)
    return actions, torch.cat([h0.unsqueeze(-2), states], -2), torch.cat([first.unsqueeze(-2), costates], -2)
