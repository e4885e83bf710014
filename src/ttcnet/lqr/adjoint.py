"""Gradients as a second solve (the paper's theorem on differentiating TTC), for every method.

The optimality conditions are M x = b with M symmetric. For a loss on u, h and λ, the adjoint variables solve M x~ = -g
with the loss's gradients g on the right: a linear-quadratic problem with the same matrices, h~_0 = dλ_0, linear costs
r = du and q = dh, and an offset c = dλ in the dynamics. Products of x and x~ are then the gradients of all inputs:

    dA_t = λ_t h~_{t-1}' + λ~_t h_{t-1}'      dQ_t = sym(h~_t h_t')      dr_t = u~_t      dh_0 = λ~_0
    dB_t = λ_t u~_t' + λ~_t u_t'              dR_t = sym(u~_t u_t')      dq_t = h~_t      dc_t = λ~_t
    dN_t = h_{t-1} u~_t' + h~_{t-1} u_t'

Forward mode is a third problem of that kind; its right-hand side is the change of the optimality conditions under the
tangents. Both are written in terms of the solve itself, so torch can differentiate them again, any number of times.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import fail
from .arithmetic import apply, full_precision, outer, symmetrise


class Terms(NamedTuple):
    """The fields of an LQR in standard form, or one value for each of them."""

    A: Any
    B: Any
    Q: Any
    R: Any
    h0: Any
    r: Any = None
    q: Any = None
    c: Any = None
    N: Any = None


class Method(Protocol):
    """The interface of riccati.py, kkt.py and symplectic.py: factorise once, substitute for any right-hand side."""

    def factorise(self, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, N: Tensor | None, limit: float) -> Any: ...

    def substitute(
        self, factors: Any, h0: Tensor, r: Tensor | None = None, q: Tensor | None = None, c: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]: ...


Point = tuple[Tensor, Tensor, Tensor]  # actions, states and co-states


def with_q0(q: Tensor | None) -> Tensor | None:
    """Put a zero cost of h_0 in front, as methods take it: (..., T, n) becomes (..., T+1, n)."""
    return None if q is None else torch.cat([torch.zeros_like(q[..., :1, :]), q], -2)


def solve_implicitly(method: Method, factors: Any, terms: Terms, limit: float) -> Point:
    """Actions, states and co-states by `method`, differentiated by a second solve with the factors of the first."""
    if transformed():
        return _TransformedSolve.apply(method, limit, *terms)
    return _ImplicitSolve.apply(method, factors, *terms)


def transformed() -> bool:
    """Whether torch.func (grad, vmap, jacrev, ...) or forward mode is at work. Not for compilers."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def refuse_transforms(what: str, otherwise: str = "Give it a batch, and differentiate by torch.autograd.") -> None:
    """Raise under torch.func and in forward mode, for a search that has no rules for them."""
    if transformed():
        rule = "has no rule for torch.func (grad, vmap, jacrev, jvp, ...), nor for forward mode"
        fail(what, rule, "a call inside of one", otherwise, "no-derivative")


TWICE = (
    "use solve(family.unroll(horizon)), which autograd can differentiate any number of times, in place of "
    "plan(family, horizon)"
)


def refuse_second_derivatives(what: str, otherwise: str = TWICE) -> None:
    """Call in a backward pass: autograd has gradients enabled there only if the caller asked to differentiate it."""
    if torch.is_grad_enabled():
        remedy = f"Call backward without create_graph, or {otherwise}."
        fail(what, "has first derivatives only", "a backward pass with create_graph=True", remedy, "no-derivative")


def adjoint_terms(terms: Terms, du: Tensor, dh: Tensor, dcostate: Tensor) -> Terms:
    """The adjoint problem; dh_0, a cost of h_0, is left to `completed`."""
    return terms._replace(h0=dcostate[..., 0, :], r=du, q=dh[..., 1:, :], c=dcostate[..., 1:, :])


def completed(point: Point, dh: Tensor) -> Point:
    """A solution of the adjoint problem, with dh_0 added."""
    u, h, costate = point
    return u, h, torch.cat([costate[..., :1, :] + dh[..., :1, :], costate[..., 1:, :]], -2)


def products(point: Point, adjoint: Point) -> Terms:
    """The gradients of all inputs, for every step."""
    (u, h, costate), (u_, h_, costate_) = point, adjoint
    before, before_, after, after_ = h[..., :-1, :], h_[..., :-1, :], h[..., 1:, :], h_[..., 1:, :]
    lam, lam_ = costate[..., 1:, :], costate_[..., 1:, :]
    return Terms(
        A=outer(lam, before_) + outer(lam_, before),
        B=outer(lam, u_) + outer(lam_, u),
        Q=symmetrise(outer(after, after_)),
        R=symmetrise(outer(u, u_)),
        h0=costate_[..., 0, :],
        r=u_,
        q=after_,
        c=lam_,
        N=outer(before, u_) + outer(before_, u),
    )


def tangent_terms(terms: Terms, point: Point, tangents: Terms) -> tuple[Terms, Tensor]:
    """The problem whose solution is the derivative of the solution, and a further term of the derivative of λ_0."""
    u, h, costate = point
    before, after, lam = h[..., :-1, :], h[..., 1:, :], costate[..., 1:, :]
    dA, dB, dQ, dR, dh0, dr, dq, dc, dN = tangents

    def total(*parts: Tensor | None, like: Tensor) -> Tensor:
        return sum((x for x in parts if x is not None), torch.zeros_like(like))

    def of(matrix: Tensor | None, x: Tensor, *, turned: bool = False, sym: bool = False) -> Tensor | None:
        if matrix is None:
            return None
        return apply(matrix.mT if turned else symmetrise(matrix) if sym else matrix, x)

    back = total(of(dA, lam, turned=True), of(dN, u), like=lam)  # to the state before each step
    later = torch.cat([back[..., 1:, :], torch.zeros_like(back[..., :1, :])], -2)
    right = terms._replace(
        h0=total(dh0, like=h[..., 0, :]),
        r=total(dr, of(dR, u, sym=True), of(dN, before, turned=True), of(dB, lam, turned=True), like=u),
        q=total(dq, of(dQ, after, sym=True), later, like=after),
        c=total(dc, of(dA, before), of(dB, u), like=after),
    )
    return right, back[..., :1, :]


def _grads(terms: Terms, wanted: Any, found: Terms) -> tuple[Any, ...]:
    """The gradients of the inputs that were given and need them."""
    return tuple(g if x is not None and want else None for x, want, g in zip(terms, wanted, found, strict=True))


class _ImplicitSolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, method: Method, factors: Any, *fields: Any) -> Any:
        terms = Terms(*fields)
        ctx.method, ctx.factors = method, factors
        solution = method.substitute(factors, terms.h0, terms.r, with_q0(terms.q), terms.c)
        ctx.save_for_backward(*solution, *fields)  # the factors refer to these: a change in place must not go unseen
        return solution

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        u, h, costate, *fields = ctx.saved_tensors
        terms = Terms(*fields)
        with full_precision(u.device):
            found = _ImplicitSolve.apply(ctx.method, ctx.factors, *adjoint_terms(terms, *grads))
            gradients = products((u, h, costate), completed(found, grads[1]))
        return None, None, *_grads(terms, ctx.needs_input_grad[2:], gradients)


class _TransformedSolve(torch.autograd.Function):
    """The solve under torch.func and in forward mode, where only tensors can be saved between the passes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(method: Method, limit: float, *fields: Any) -> Any:
        terms = Terms(*fields)
        factors = method.factorise(terms.A, terms.B, terms.Q, terms.R, terms.N, limit)
        return method.substitute(factors, terms.h0, terms.r, with_q0(terms.q), terms.c)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.method, ctx.limit, *fields = inputs
        ctx.save_for_backward(*output, *fields)
        ctx.save_for_forward(*output, *fields)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        u, h, costate, *fields = ctx.saved_tensors
        terms = Terms(*fields)
        found = _TransformedSolve.apply(ctx.method, ctx.limit, *adjoint_terms(terms, *grads))
        gradients = products((u, h, costate), completed(found, grads[1]))
        return None, None, *_grads(terms, ctx.needs_input_grad[2:], gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        u, h, costate, *fields = ctx.saved_tensors
        right, first = tangent_terms(Terms(*fields), (u, h, costate), Terms(*tangents[2:]))
        du, dh, dcostate = _TransformedSolve.apply(ctx.method, ctx.limit, *right)
        return du, dh, torch.cat([dcostate[..., :1, :] + first, dcostate[..., 1:, :]], -2)
