"""Gradients of feedback gains and values, for every method that finds them.

With M = B' P A + N', S = R + B' P B, w = p + P c and F = A + B K, a step of dynamic programming is

    K = -S^-1 M                P_{t-1} = Q_{t-1} + A' P A + M' K
    k = -S^-1 (B' w + r)       p_{t-1} = q_{t-1} + A' w + M' k

K minimises P_{t-1}, so the derivative of P_{t-1} needs none of K. The adjoint runs forward in time: G and g below are
the gradients of P_{t-1} and p_{t-1}; through the closed loop F they become those of P_t and p_t.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import fail
from .adjoint import Terms
from .arithmetic import apply, outer, symmetrise

Feedback = tuple[Tensor, Tensor, Tensor, Tensor]  # K, k, P and p


def differentiable(terms: Terms, found: Feedback) -> Feedback:
    """Return `found` with gradients for the fields of `terms`, a problem in standard form."""
    A, B, Q, R, _, r, q, c, N = terms
    return _Differentiable.apply(A, B, Q, R, r, q, c, N, *found)


class _Differentiable(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return tuple(x.clone() for x in inputs[-4:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        A, B, _, R, _, _, c, *_ = inputs
        ctx.given = [x is not None for x in inputs]
        ctx.save_for_backward(A, B, R, c, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        A, B, R, c, K, k, P, p = ctx.saved_tensors
        found = _gradients(A, B, R, c, (K, k, P[..., 1:, :, :], p[..., 1:, :]), grads)
        return *(x if given else None for x, given in zip(found, ctx.given[:8], strict=True)), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        rule, remedy = "have no forward mode derivatives", "Use torch.func.grad, vjp or jacrev, or implicit=False."
        value = "torch.func.jvp, jacfwd or hessian"
        fail("gains and values", rule, value, remedy, "no-derivative", NotImplementedError)


def _gradients(
    A: Tensor, B: Tensor, R: Tensor, c: Tensor | None, found: Feedback, grads: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The gradients of A, B, Q, R, r, q, c and N, from `grads`, those of K, k, P and p. P and p of `found` are for
    t = 1..T."""
    K, k, P, p = found
    dK, dk, dP, dp = grads
    c = torch.zeros_like(p) if c is None else c
    w, F, PB = p + apply(P, c), A + B @ K, P @ B
    S = symmetrise(R + B.mT @ PB)
    Y, y = -torch.linalg.solve_ex(S, dK)[0], -torch.linalg.solve_ex(S, dk.unsqueeze(-1))[0].squeeze(-1)

    G, g = [symmetrise(dP[..., 0, :, :])], [dp[..., 0, :]]
    steps = (F, B, Y, y, k, c, dP[..., 1:, :, :], dp[..., 1:, :])
    dims = (-3, -3, -3, -2, -2, -2, -3, -2)
    for F_, B_, Y_, y_, k_, c_, dP_, dp_ in zip(*(x.unbind(d) for x, d in zip(steps, dims, strict=True)), strict=True):
        f = apply(F_, g[-1]) + apply(B_, y_)
        Z = Y_ + outer(k_, g[-1])
        pushed = apply(B_, k_)
        through = F_ @ G[-1] @ F_.mT + B_ @ Z @ F_.mT + outer(apply(B_, y_), pushed) + outer(f, c_)
        G.append(symmetrise(dP_ + through))
        g.append(dp_ + f)

    later, before, linear = torch.stack(G[1:], -3), torch.stack(G[:-1], -3), torch.stack(g[:-1], -2)
    Z, e = Y + outer(k, linear), apply(K, linear) + y
    f = apply(F, linear) + apply(B, y)
    PFG = 2 * P @ F @ before
    return (
        PFG + outer(w, linear) + PB @ Z,
        PFG @ K.mT + outer(w, e) + P @ F @ Z.mT + PB @ (Z @ K.mT + outer(k, y) + outer(y, k)),
        later,
        K @ before @ K.mT + symmetrise(Z @ K.mT + outer(y, k)),
        e,
        torch.stack(g[1:], -2),
        apply(P, f),
        2 * before @ K.mT + Z.mT,
    )
