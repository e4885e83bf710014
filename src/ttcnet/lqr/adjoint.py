"""Gradients as a second solve (the paper's theorem on differentiating TTC), for every method.

The optimality conditions are M x = b with M symmetric. For a loss on u, h and λ, the adjoint variables solve M x~ = -g
with the loss's gradients g on the right: a linear-quadratic problem with the same matrices, h~_0 = dλ_0, linear costs
r = du and q = dh, and an offset c = dλ in the dynamics. Products of x and x~ are then the gradients of all inputs:

    dA_t = λ_t h~_{t-1}' + λ~_t h_{t-1}'      dQ_t = sym(h~_t h_t')      dr_t = u~_t
    dB_t = λ_t u~_t' + λ~_t u_t'              dR_t = sym(u~_t u_t')      dh_0 = λ~_0
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import fail
from .arithmetic import full_precision, outer, symmetrise


class Method(Protocol):
    """What riccati.py, kkt.py and symplectic.py have in common: factorise once, substitute for any right-hand side."""

    def factorise(self, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, limit: float) -> Any: ...

    def substitute(
        self, factors: Any, h0: Tensor, r: Tensor | None = None, q: Tensor | None = None, c: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]: ...


def solve_implicitly(
    method: Method, factors: Any, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, h0: Tensor, r: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Actions, states and co-states by `method` and its factors, differentiated by a second solve with these."""
    return _ImplicitSolve.apply(method, factors, A, B, Q, R, h0, r)


TWICE = (
    'use solve(problem, method="riccati"), which autograd can differentiate any number of times (a ModulatedLQR turns '
    "into a problem with family.unroll(horizon))"
)


def refuse_second_derivatives(what: str, otherwise: str = TWICE) -> None:
    """Call in a backward pass: autograd has gradients enabled there only if the caller asked to differentiate it."""
    if torch.is_grad_enabled():
        remedy = f"Call backward without create_graph, or {otherwise}."
        fail(what, "has first derivatives only", "a backward pass with create_graph=True", remedy, "no-derivative")


class _ImplicitSolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, method: Method, factors: Any, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, h0: Tensor, r: Any
    ) -> Any:
        ctx.method, ctx.factors = method, factors
        solution = method.substitute(factors, h0, r)
        ctx.save_for_backward(*solution, A, B, Q, R)  # the factors refer to these: a change in place must not go unseen
        return solution

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        refuse_second_derivatives("solve with implicit gradients")
        du, dh, dcostate = grads
        u, h, costate, *_ = ctx.saved_tensors
        with full_precision(u.device):
            u_, h_, costate_ = ctx.method.substitute(
                ctx.factors, h0=dcostate[..., 0, :], r=du, q=dh, c=dcostate[..., 1:, :]
            )
        lam, lam_ = costate[..., 1:, :], costate_[..., 1:, :]
        dA = outer(lam, h_[..., :-1, :]) + outer(lam_, h[..., :-1, :])
        dB = outer(lam, u_) + outer(lam_, u)
        dQ, dR = symmetrise(outer(h[..., 1:, :], h_[..., 1:, :])), symmetrise(outer(u, u_))
        return None, None, dA, dB, dQ, dR, costate_[..., 0, :], u_ if ctx.needs_input_grad[7] else None
