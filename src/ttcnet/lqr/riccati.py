"""Dynamic programming: the Riccati recursion (Algorithms 1 and 2 of the paper).

The cost to go from h_t is 1/2 h' P_t h + p_t' h + const. `factorise` runs the recursion for P_t (steps.py has a step),
`substitute` the one for p_t and the roll-out. States follow by feedback and co-states from the step itself: never by a
recursion of their own, which would amplify rounding by every unstable direction of A.

Like every method, it takes a linear cost q_0 of the state h_0 besides the terms of an LQR, because the gradient of a
solve is such a system again (see adjoint.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .arithmetic import apply, per_step, symmetrise
from .steps import Descent, Response, Step, descend


class Factors(NamedTuple):
    """A_t, N_t and the factorised step, for t = 1..T."""

    A: tuple[Tensor, ...]
    N: tuple[Tensor | None, ...]
    steps: list[Step]


def factorise(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, N: Tensor | None, limit: float) -> Factors:
    """Factorise the matrices of the recursion at every step. `limit` is explained at steps.largest_pivot."""
    As, Ns = by_step(A, N)
    steps = descend(descent(As, Ns, B, Q, R), Q[..., -1, :, :], range(len(As) - 1, -1, -1), limit)
    return Factors(As, Ns, [steps[t] for t in range(len(As))])


def by_step(A: Tensor, N: Tensor | None) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    As = A.unbind(-3)
    return As, (None,) * len(As) if N is None else N.unbind(-3)


def descent(As: tuple[Tensor, ...], Ns: tuple[Tensor | None, ...], B: Tensor, Q: Tensor, R: Tensor) -> Descent:
    Bs, Qs, Rs = (matrix.unbind(-3) for matrix in (B, Q, R))
    return Descent(
        matrices=lambda t: (Bs[t], Rs[t]),
        back=lambda step, t: symmetrise(Qs[t - 1] + step.before(As[t], Ns[t])),
        wanted=lambda t: True,
    )


def substitute(
    factors: Factors, h0: Tensor, r: Tensor | None = None, q: Tensor | None = None, c: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Actions (..., T, m), states and co-states (..., T+1, n). q is (..., T+1, n), for t = 0..T; c is (..., T, n)."""
    T = len(factors.A)
    rs, cs = per_step(r, T, None), per_step(c, T, torch.zeros_like(h0))
    slopes, _ = _slopes(factors, h0, r, q, c)
    h, responses = h0, []
    for A, N, step, c_t, p, r_t in zip(*factors, cs, slopes[1:], rs, strict=True):
        responses.append(step.respond(apply(A, h) + c_t, p, _pull(r_t, N, h)))
        h = responses[-1].h
    actions, costates, states = (torch.stack(x, -2) for x in zip(*responses, strict=True))
    first = _before(factors, 0, responses[0])
    if q is not None:
        first = q[..., 0, :] + first
    return actions, torch.cat([h0.unsqueeze(-2), states], -2), torch.cat([first.unsqueeze(-2), costates], -2)


def feedback(
    factors: Factors, h0: Tensor, r: Tensor | None, q: Tensor | None, c: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """K and k for t = 1..T, P and p for t = 0..T (see Solution)."""
    p, k = _slopes(factors, h0, r, q, c)
    K = [step.gain(A, N) for A, N, step in zip(*factors, strict=True)]
    P0 = symmetrise(factors.steps[0].before(factors.A[0], factors.N[0]))
    P = [P0, *(step.P for step in factors.steps)]
    return torch.stack(K, -3), torch.stack(k, -2), torch.stack(P, -3), torch.stack(p, -2)


def _slopes(
    factors: Factors, h0: Tensor, r: Tensor | None, q: Tensor | None, c: Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """p_0..p_T, and the constant parts k_1..k_T of the feedback."""
    T, zero = len(factors.A), torch.zeros_like(h0)
    rs, cs, slopes, constants = per_step(r, T, None), per_step(c, T, zero), list(per_step(q, T + 1, zero)), []
    for t in reversed(range(T)):
        response = factors.steps[t].respond(cs[t], slopes[t + 1], rs[t])
        slopes[t] = slopes[t] + _before(factors, t, response)
        constants.append(response.u)
    return slopes, constants[::-1]


def _before(factors: Factors, t: int, response: Response) -> Tensor:
    """The co-state before step t + 1, without the linear cost of that state."""
    A, N = factors.A[t], factors.N[t]
    costate = apply(A.mT, response.costate)
    return costate if N is None else costate + apply(N, response.u)


def _pull(r: Tensor | None, N: Tensor | None, h: Tensor) -> Tensor | None:
    """The linear cost of the actions of a step that starts from h."""
    if N is None:
        return r
    return apply(N.mT, h) if r is None else r + apply(N.mT, h)
