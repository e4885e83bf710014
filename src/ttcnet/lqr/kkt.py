"""The optimality (KKT) conditions as one block-banded linear system, by block LU factorisation.

The unknowns of a step (u_t, λ_t, h_t) are eliminated together, from the last step to the first: every step goes the
careful way of steps.py, factorised as it stands, with pivoting, so that nothing but its regularity is asked: not that
R_t + B_t' P_t B_t is positive definite. The factors serve for any right-hand side; the gradient of a solve costs one
more pair of substitutions.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from .riccati import Factors, descent, substitute
from .steps import careful

__all__ = ["factorise", "substitute"]


def factorise(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, limit: float) -> Factors:
    As = A.unbind(-3)
    steps, _ = descent(As, B, Q, R).by(partial(careful, convex=False), Q[..., -1, :, :], range(len(As) - 1, -1, -1))
    return Factors(As, [steps[t] for t in range(len(As))])
