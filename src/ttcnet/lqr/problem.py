"""What can be solved, and what a solution is.

    LQR            a linear-quadratic control problem, every matrix given for every step
    ModulatedLQR   a family of such problems, one for every token and head, whose matrices decay over the horizon
    Solution       actions, states, co-states and cost

The problem, for t = 1..T and a given h_0:

    minimise   sum_t  1/2 h_t' Q_t h_t + 1/2 u_t' R_t u_t + r_t' u_t
    subject to h_t = A_t h_{t-1} + B_t u_t
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from . import checks
from .arithmetic import apply, fade, full_precision, symmetrise, with_heads, working_dtype


@dataclass(frozen=True, eq=False)
class LQR:
    """One problem, or a batch of them. T = horizon, n = state size, m = action size.

    Leading batch dimensions (`...`, none at all included) must be as many in every field; where
    they are 1 they broadcast, so that one system can be solved for many initial states.

    Args:
        A: dynamics, (..., T, n, n), or their diagonal (..., T, n).
        B: effect of the actions, (..., T, n, m).
        Q: state cost, (..., T, n, n), symmetric positive semi-definite; Q[..., -1, :, :] is the terminal cost.
        R: action cost, (..., T, m, m), symmetric positive definite, or its diagonal (..., T, m).
        h0: initial state, (..., n).
        r: linear action cost, (..., T, m); None means zero.
    """

    A: Tensor
    B: Tensor
    Q: Tensor
    R: Tensor
    h0: Tensor
    r: Tensor | None = None

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.r is None:
            del given["r"]
        checks.one_kind(given, anchor="A")
        lead = self.h0.ndim - 1
        if lead < 0:
            remedy = "Pass a vector, even for n = 1."
            checks.fail("h0", "must have shape (..., n)", tuple(self.h0.shape), remedy, "shape")
        if self.B.ndim != lead + 3:
            rule = f"must have shape (..., T, n, m) with the {lead} leading dimensions of h0"
            checks.fail("B", rule, tuple(self.B.shape), "Add leading dimensions of 1; they broadcast.", "shape")
        T, n, m = self.B.shape[lead:]
        if n == 0 or m == 0:
            checks.fail("B", "must have a state and an action", tuple(self.B.shape), "Use n >= 1 and m >= 1.", "shape")
        sizes = {"T": T, "n": n, "m": m}
        for name, *forms in (("h0", "n"), ("A", "Tnn", "Tn"), ("Q", "Tnn"), ("R", "Tmm", "Tm"), ("r", "Tm")):
            value = given.get(name)
            if value is not None and list(value.shape[lead:]) not in [[sizes[s] for s in form] for form in forms]:
                accepted = " or ".join(
                    f"(..., {', '.join(form)}) = (..., {', '.join(str(sizes[s]) for s in form)})" for form in forms
                )
                rule = f"must have shape {accepted} with {lead} leading dimensions, as B and h0 say"
                checks.fail(name, rule, tuple(value.shape), "Reshape it, or expand it along the horizon.", "shape")
        try:
            _ = self.batch_shape
        except RuntimeError:
            shapes = ", ".join(f"{name} {tuple(value.shape[:lead])}" for name, value in given.items())
            checks.fail("leading dimensions", "must broadcast", shapes, "Make them equal, or 1.", "shape")

    @property
    def horizon(self) -> int:
        return self.B.shape[-3]

    @property
    def state_size(self) -> int:
        return self.B.shape[-2]

    @property
    def action_size(self) -> int:
        return self.B.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        lead = self.h0.ndim - 1
        given = (self.A, self.B, self.Q, self.R, self.h0, self.r)
        return torch.broadcast_shapes(*(value.shape[:lead] for value in given if value is not None))

    @torch.no_grad()
    def check(self) -> None:
        """Raise a ValueError unless all values are finite, Q is symmetric and R positive definite."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                checks.finite(field.name, value)
        checks.symmetric("Q", self.Q)
        diagonal = self.R.ndim == self.h0.ndim + 1
        if not diagonal:
            checks.symmetric("R", self.R)
        checks.positive_definite("R", self.R, diagonal)

    def standard_form(self, dtype: torch.dtype | None = None) -> LQR:
        """The same problem as solvers take it: matrices for A and R, Q and R symmetric to the bit, batch dimensions
        expanded, in `dtype` (None takes float64 for float64 and float32 for everything below)."""
        lead, vector = self.h0.ndim - 1, self.h0.ndim + 1
        A = torch.diag_embed(self.A) if self.A.ndim == vector else self.A
        R = torch.diag_embed(self.R) if self.R.ndim == vector else self.R
        dtype = dtype or working_dtype(self.h0.dtype)

        def ready(value: Tensor) -> Tensor:
            return value.to(dtype).expand(*self.batch_shape, *value.shape[lead:])

        r = None if self.r is None else ready(self.r)
        return LQR(ready(A), ready(self.B), symmetrise(ready(self.Q)), symmetrise(ready(R)), ready(self.h0), r)

    def rollout(self, u: Tensor) -> Tensor:
        """States h_0..h_T, (..., T+1, n), under the actions u, (..., T, m)."""
        problem, actions = self.standard_form(), self._actions(u)
        states = [problem.h0]
        with full_precision(problem.h0.device):
            for A, B, action in zip(problem.A.unbind(-3), problem.B.unbind(-3), actions.unbind(-2), strict=True):
                states.append(apply(A, states[-1]) + apply(B, action))
        return torch.stack(torch.broadcast_tensors(*states), -2)

    def objective(self, u: Tensor, h: Tensor | None = None) -> Tensor:
        """What the problem minimises, (...), at the actions u and the states h that follow from them."""
        problem, u = self.standard_form(), self._actions(u)
        states = (self.rollout(u) if h is None else h)[..., 1:, :].to(u.dtype)
        with full_precision(u.device):
            cost = 0.5 * ((states * apply(problem.Q, states)).sum((-2, -1)) + (u * apply(problem.R, u)).sum((-2, -1)))
            return cost if problem.r is None else cost + (problem.r * u).sum((-2, -1))

    def _actions(self, u: Tensor) -> Tensor:
        if u.shape[-2:] != (self.horizon, self.action_size):
            rule = f"must have shape (..., T, m) = (..., {self.horizon}, {self.action_size})"
            checks.fail("u", rule, tuple(u.shape), "Pass an action for every step.", "shape")
        return u.to(working_dtype(self.h0.dtype))


@dataclass(frozen=True, eq=False)
class Solution:
    """The optimum of an LQR.

    Attributes:
        u: actions u_1..u_T, (..., T, m).
        h: states h_0..h_T, (..., T+1, n).
        costate: co-states λ_0..λ_T, (..., T+1, n); λ_t is the gradient of the cost to go with respect to h_t.
        cost: the optimum of the objective, (...).
    """

    u: Tensor
    h: Tensor
    costate: Tensor
    cost: Tensor

    def residual(self, problem: LQR) -> Tensor:
        """How far the solution is from satisfying the optimality (KKT) conditions of `problem`, (...): the largest
        violation of any condition of any step, each over the largest of its own terms. About the machine precision when
        all is well."""
        p = problem.standard_form()
        u, h, costate = (x.to(p.h0.dtype) for x in (self.u, self.h, self.costate))
        with full_precision(u.device):
            return _violation(p, u, h, costate, torch.finfo(self.u.dtype))


def _violation(p: LQR, u: Tensor, h: Tensor, costate: Tensor, info: torch.finfo) -> Tensor:
    """Of the optimality conditions: h_0 given, the dynamics, and the derivatives with respect to u and h are zero. Each
    is measured against its products of two numbers: so much must the problem change for the solution to be exact."""
    before, after, lam = h[..., :-1, :], h[..., 1:, :], costate[..., 1:, :]
    A_next, lam_next = torch.zeros_like(p.A), torch.zeros_like(lam)
    A_next[..., :-1, :, :], lam_next[..., :-1, :] = p.A[..., 1:, :, :], lam[..., 1:, :]
    conditions: list[list[tuple[Tensor | None, Tensor]]] = [
        [(None, h[..., :1, :]), (None, -p.h0.unsqueeze(-2))],
        [(p.A, before), (p.B, u), (None, -after)],
        [(p.R, u), (p.B.mT, lam)] + ([] if p.r is None else [(None, p.r)]),
        [(p.Q, after), (A_next.mT, lam_next), (None, -lam)],
        [(p.A[..., :1, :, :].mT, lam[..., :1, :]), (None, -costate[..., :1, :])],
    ]
    smallest = info.tiny / info.eps  # below, numbers have fewer digits
    worst = []
    for terms in conditions if p.horizon else conditions[:1]:
        violation = sum(x if matrix is None else apply(matrix, x) for matrix, x in terms)
        size = sum(x.abs() if matrix is None else apply(matrix.abs(), x.abs()) for matrix, x in terms)
        assert isinstance(violation, Tensor)
        assert isinstance(size, Tensor)
        worst.append((violation.abs().amax(-1) / size.amax(-1).clamp_min(smallest)).amax(-1))
    return torch.stack(torch.broadcast_tensors(*worst)).amax(0)


@dataclass(frozen=True, eq=False)
class ModulatedLQR:
    """The problems of N tokens with H heads each, whose matrices are modulated over the horizon.

        A_t = diag(1 + exp(-t decay_A) a)             B_t = B diag(exp(-t decay_B))
        Q_t = diag(exp(-t decay_Q)) Q diag(exp(-t decay_Q)) for t < T,   Q_T = Qf
        R_t = diag(r_inv)^-1

    Nothing here depends on T: one family can be planned over any horizon.

    Args:
        a: (N, H, n).
        B: (N, n, m), shared by the heads of a token, or (N, H, n, m).
        Q: (N, n, n), shared by the heads of a token, or (N, H, n, n); symmetric positive semi-definite.
        Qf: terminal cost, (N, H, n, n); symmetric positive semi-definite.
        r_inv: inverse action costs, (N, H, m), 0 or more. An action with r_inv = 0 costs too much ever to be taken.
        decay_A: (N, H, n) or (N, H, 1), 0 or more.
        decay_B: (N, H, m), 0 or more.
        decay_Q: (N, H, n), 0 or more.
        h0: initial state, (N, H, n).
    """

    a: Tensor
    B: Tensor
    Q: Tensor
    Qf: Tensor
    r_inv: Tensor
    decay_A: Tensor
    decay_B: Tensor
    decay_Q: Tensor
    h0: Tensor

    def __post_init__(self) -> None:
        checks.one_kind({f.name: getattr(self, f.name) for f in fields(self)}, anchor="a")
        if self.a.ndim != 3:
            remedy = "Flatten batch and sequence into tokens: a.flatten(0, -3)."
            checks.fail("a", "must have shape (tokens, heads, n)", tuple(self.a.shape), remedy, "shape")
        if self.r_inv.ndim != 3:
            remedy = "Flatten batch and sequence into tokens: r_inv.flatten(0, -3)."
            checks.fail("r_inv", "must have shape (tokens, heads, m)", tuple(self.r_inv.shape), remedy, "shape")
        (N, H, n), m = self.a.shape, self.r_inv.shape[-1]
        if n == 0 or m == 0:
            remedy = "Use n >= 1 and m >= 1."
            checks.fail("a and r_inv", "must have a state and an action", f"n = {n}, m = {m}", remedy, "shape")
        vector, action = ("(N, H, n)", (N, H, n)), ("(N, H, m)", (N, H, m))
        checks.shape("r_inv", self.r_inv, action)
        checks.shape("B", self.B, ("(N, n, m)", (N, n, m)), ("(N, H, n, m)", (N, H, n, m)))
        checks.shape("Q", self.Q, ("(N, n, n)", (N, n, n)), ("(N, H, n, n)", (N, H, n, n)))
        checks.shape("Qf", self.Qf, ("(N, H, n, n)", (N, H, n, n)))
        checks.shape("decay_A", self.decay_A, vector, ("(N, H, 1)", (N, H, 1)))
        checks.shape("decay_B", self.decay_B, action)
        checks.shape("decay_Q", self.decay_Q, vector)
        checks.shape("h0", self.h0, vector)

    @property
    def state_size(self) -> int:
        return self.a.shape[-1]

    @property
    def action_size(self) -> int:
        return self.r_inv.shape[-1]

    @torch.no_grad()
    def check(self) -> None:
        """Raise a ValueError unless all values are finite, decays and r_inv 0 or more, Q and Qf symmetric."""
        for field in fields(self):
            checks.finite(field.name, getattr(self, field.name))
        for name in ("r_inv", "decay_A", "decay_B", "decay_Q"):
            checks.non_negative(name, getattr(self, name), f"Pass {name} through a softplus.")
        checks.symmetric("Q", self.Q)
        checks.symmetric("Qf", self.Qf)

    def unroll(self, horizon: int) -> LQR:
        """The same problems over `horizon` steps with every matrix written out, batch shape (N, H).

        An action with r_inv = 0 (or next to it) has no finite cost; it is written as one without effect (no column in
        B, unit cost), which has the same optimum. The gradient of that r_inv is zero through `unroll`, exact through
        `plan`. Half precision comes out as float32.
        """
        T = checks.horizon(horizon)
        dtype = working_dtype(self.a.dtype)
        a, B, Q, Qf, r_inv, decay_A, decay_B, decay_Q, h0 = (getattr(self, f.name).to(dtype) for f in fields(self))
        N, H = a.shape[:2]
        B, Q = with_heads(B), with_heads(Q)
        t = torch.arange(1, T + 1, dtype=dtype, device=a.device).unsqueeze(-1)

        def decayed(rate: Tensor) -> Tensor:
            return fade(rate.unsqueeze(-2), t)

        taken = r_inv > 4 / torch.finfo(dtype).max  # below, its inverse has no finite value
        cost = torch.where(taken, r_inv, 1).reciprocal()
        scale = decayed(decay_Q)
        running = (scale.unsqueeze(-1) * scale.unsqueeze(-2)) * Q.unsqueeze(-3)
        return LQR(
            A=1 + decayed(decay_A) * a.unsqueeze(-2),
            B=B.unsqueeze(-3) * (decayed(decay_B) * taken.unsqueeze(-2)).unsqueeze(-2),
            Q=torch.cat([running[..., :-1, :, :], Qf.unsqueeze(-3)], -3) if T else running,
            R=cost.unsqueeze(-2).expand(N, H, T, -1),
            h0=h0,
        )


class Family(NamedTuple):
    """The fields of a ModulatedLQR, already checked, contiguous and in working precision: what backends work on."""

    a: Tensor
    B: Tensor
    Q: Tensor
    Qf: Tensor
    r_inv: Tensor
    decay_A: Tensor
    decay_B: Tensor
    decay_Q: Tensor
    h0: Tensor
