"""The optimality (KKT) conditions as one block-banded linear system, by block LU factorisation.

The unknowns of a step (u_t, λ_t, h_t) are eliminated together, from the last step to the first, in the careful way of
steps.py: the equations of a step are factorised as one system, with pivoting. The system must be regular, no more:
R_t + B_t' P_t B_t need not be positive definite. The factors serve for any right-hand side; the gradient of a solve
costs one more pair of substitutions.
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
