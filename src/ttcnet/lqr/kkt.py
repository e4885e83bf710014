"""The optimality (KKT) conditions as one block-banded linear system, by block LU factorisation.

The unknowns of a step (u_t, λ_t, h_t) are eliminated together, from the last step to the first: every step goes the
careful way of steps.py, factorised as it stands, with pivoting, so that nothing but its regularity is asked: not that
R_t + B_t' P_t B_t is positive definite. The factors serve for any right-hand side; the gradient of a solve costs one
more pair of substitutions.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from .riccati import Factors, by_step, descent, feedback, substitute
from .steps import careful

__all__ = ["factorise", "feedback", "substitute"]


def factorise(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, N: Tensor | None, limit: float) -> Factors:
    (As, Ns), way = by_step(A, N), partial(careful, convex=False)
    steps, _ = descent(As, Ns, B, Q, R).by(way, Q[..., -1, :, :], range(len(As) - 1, -1, -1))
    return Factors(As, Ns, [steps[t] for t in range(len(As))])
