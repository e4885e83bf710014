"""LQR, a linear-quadratic control problem: every matrix is given for every step, or shared by all of them.

The problem, for t = 1..T and a given h_0:

    minimise   sum_t  1/2 h_t' Q_t h_t + q_t' h_t + 1/2 u_t' R_t u_t + r_t' u_t + h_{t-1}' N_t u_t
    subject to h_t = A_t h_{t-1} + B_t u_t + c_t

Every field of a step has the index of its action u_t: Q_t and q_t are the cost of the state that u_t leads to, h_t; N_t
couples u_t with the state that it starts from, h_{t-1}; c_t is an offset of the step. h_0 has no cost but through N_1.
In tensors, where indices start from 0, `u[t]` leads from `h[t]` to `h[t + 1]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from . import checks
from .arithmetic import apply, full_precision, per_step, symmetrise, working_dtype

FORMS = {"A": ("Tnn", "Tn"), "B": ("Tnm",), "Q": ("Tnn",), "R": ("Tmm", "Tm"), "h0": ("n",), "r": ("Tm",),
         "q": ("Tn",), "c": ("Tn",), "N": ("Tnm",), "Qf": ("nn",)}  # fmt: skip


@dataclass(frozen=True, eq=False)
class LQR:
    """One problem, or a batch of them. T = horizon, n = state size, m = action size.

    Every field must have the same number of leading batch dimensions (`...`), which may be none.
    Dimensions of 1 broadcast, so that one system can be solved for many initial states. A T of 1
    broadcasts as well: such a field is shared by all steps, is read once, and has one gradient.

    Args:
        A: dynamics, (..., T, n, n), or their diagonal (..., T, n).
        B: effect of the actions, (..., T, n, m).
        Q: state cost, (..., T, n, n), symmetric positive semi-definite; Q[..., -1, :, :] is the terminal cost, unless
            Qf is given.
        R: action cost, (..., T, m, m), symmetric positive definite, or its diagonal (..., T, m).
        h0: initial state, (..., n).
        r: linear action cost, (..., T, m); None means zero, as for all that follow.
        q: linear state cost, (..., T, n).
        c: offset in the dynamics, (..., T, n).
        N: cost of an action together with the state it starts from, h_{t-1}' N_t u_t, (..., T, n, m). For a minimum to
            exist, [[Q_{t-1}, N_t], [N_t', R_t]] should be positive semi-definite.
        Qf: terminal cost, (..., n, n). Q is then given for t = 1..T-1, (..., T-1, n, n), or shared, (..., 1, n, n).
        horizon: T. None takes it from the fields that are not shared by all steps (1 if all are).
    """

    A: Tensor
    B: Tensor
    Q: Tensor
    R: Tensor
    h0: Tensor
    r: Tensor | None = None
    q: Tensor | None = None
    c: Tensor | None = None
    N: Tensor | None = None
    Qf: Tensor | None = None
    horizon: int = field(default=None, kw_only=True)  # type: ignore[assignment]  # an integer once it is built

    def __post_init__(self) -> None:
        given = self.given()
        checks.one_kind(given, anchor="A")
        lead = self.h0.ndim - 1
        if lead < 0:
            remedy = "Pass a vector, even for n = 1."
            checks.fail("h0", "must have shape (..., n)", tuple(self.h0.shape), remedy, "shape")
        if self.B.ndim != lead + 3:
            rule = f"must have shape (..., T, n, m) with the {lead} leading dimensions of h0"
            checks.fail("B", rule, tuple(self.B.shape), "Add leading dimensions of 1; they broadcast.", "shape")
        n, m = self.B.shape[-2:]
        if n == 0 or m == 0:
            checks.fail("B", "must have a state and an action", tuple(self.B.shape), "Use n >= 1 and m >= 1.", "shape")
        T = _longest(given, lead) if self.horizon is None else self.horizon
        if isinstance(T, bool) or not isinstance(T, checks.INTEGERS) or T < 0:
            checks.fail("horizon", "must be an integer of 0 or more", repr(T), "Pass the number of steps.", "too-small")
        if self.horizon is not None:  # else T is in the fields, whose memory bounds it
            checks.horizon(T)
        object.__setattr__(self, "horizon", T)
        sizes = {"T": T, "n": n, "m": m}
        for name, value in given.items():
            steps = max(T - 1, 0) if name == "Q" and self.Qf is not None else T
            _check_shape(name, tuple(value.shape), lead, sizes | {"T": steps})
        try:
            _ = self.batch_shape
        except RuntimeError:
            shapes = ", ".join(f"{name} {tuple(value.shape[:lead])}" for name, value in given.items())
            checks.fail("leading dimensions", "must broadcast", shapes, "Make them equal, or 1.", "shape")

    @classmethod
    def tracking(
        cls, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, h0: Tensor, states: Tensor, actions: Tensor | None = None,
        *, c: Tensor | None = None, Qf: Tensor | None = None,
    ) -> LQR:  # fmt: skip
        """The problem of staying close to a reference: sum_t 1/2 (h_t - states_t)' Q_t (h_t - states_t), and the same
        for actions and R_t.

        Args:
            states: where h_1..h_T should be, (..., T, n), or one place for all of them, (..., 1, n).
            actions: where u_1..u_T should be, (..., T, m) or (..., 1, m); None means zero.

        The cost of the solution lacks the constant 1/2 sum_t states_t' Q_t states_t (and that of the actions), which no
        action changes.
        """
        lead = h0.ndim - 1
        T = _longest({"A": A, "B": B, "Q": Q, "R": R, "q": states, "r": actions, "c": c}, lead, shorter=Qf is not None)
        for name, value, size in (("states", states, h0.shape[-1]), ("actions", actions, B.shape[-1])):
            if value is not None and tuple(value.shape[lead:]) not in ((T, size), (1, size)):
                rule = f"must have shape (..., {T}, {size}) or (..., 1, {size}) with {lead} leading dimensions"
                remedy = "Give a reference for every step after h0, or one."
                checks.fail(name, rule, tuple(value.shape), remedy, "shape")
        if Qf is None:
            q = -apply(Q, states)
        else:
            aims = states.expand(*states.shape[:-2], T, -1)
            parts = -apply(Q, aims[..., :-1, :]), -apply(Qf, aims[..., -1, :]).unsqueeze(-2)
            q = torch.cat(
                [x.expand(*torch.broadcast_shapes(*(y.shape[:lead] for y in parts)), -1, -1) for x in parts], -2
            )
        r = None
        if actions is not None:
            r = -(R * actions if R.ndim == h0.ndim + 1 else apply(R, actions))
        return cls(A=A, B=B, Q=Q, R=R, h0=h0, r=r, q=q, c=c, Qf=Qf, horizon=T)

    @property
    def state_size(self) -> int:
        return self.B.shape[-2]

    @property
    def action_size(self) -> int:
        return self.B.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        lead = self.h0.ndim - 1
        return torch.broadcast_shapes(*(value.shape[:lead] for value in self.given().values()))

    def given(self) -> dict[str, Tensor]:
        """The fields that are there, by name."""
        return {name: getattr(self, name) for name in FORMS if getattr(self, name) is not None}

    @torch.no_grad()
    def check(self) -> None:
        """Raise a ValueError unless all values are finite, Q and Qf symmetric and R positive definite."""
        for name, value in self.given().items():
            checks.finite(name, value)
        checks.symmetric("Q", self.Q)
        if self.Qf is not None:
            checks.symmetric("Qf", self.Qf)
        diagonal = self.R.ndim == self.h0.ndim + 1
        if not diagonal:
            checks.symmetric("R", self.R)
        checks.positive_definite("R", self.R, diagonal)

    def as_matrices(self) -> LQR:
        """The same problem with A and R as matrices, also if they were diagonals."""
        vector = self.h0.ndim + 1
        A, R = (torch.diag_embed(x) if x.ndim == vector else x for x in (self.A, self.R))
        return self if A is self.A and R is self.R else replace(self, A=A, R=R)

    def standard_form(self, dtype: torch.dtype | None = None) -> LQR:
        """The same problem as solvers take it: matrices for A and R, Q and R symmetric to the bit, Qf the last Q, batch
        dimensions and steps expanded, in `dtype` (None takes float64 for float64 and float32 for everything below)."""
        lead, dtype = self.h0.ndim - 1, dtype or working_dtype(self.h0.dtype)
        batch, T = self.batch_shape, self.horizon

        def ready(value: Tensor | None, steps: int = T) -> Tensor | None:
            if value is None:
                return None
            shape = value.shape[lead:] if value.ndim == lead + 1 else (steps, *value.shape[lead + 1 :])
            return value.to(dtype).expand(*batch, *shape)

        p = self.as_matrices()
        Q, R = symmetrise(p.Q), symmetrise(p.R)
        if p.Qf is not None and T:
            ends = symmetrise(p.Qf.to(dtype)).unsqueeze(lead).expand(*batch, 1, -1, -1)
            Q = torch.cat([ready(Q, T - 1), ends], lead)  # type: ignore[list-item]
        A, B, Q, R, h0 = (ready(x) for x in (p.A, p.B, Q, R, p.h0))  # type: ignore[assignment]
        return LQR(A, B, Q, R, h0, *(ready(x) for x in (p.r, p.q, p.c, p.N)), horizon=T)  # type: ignore[arg-type]

    def rollout(self, u: Tensor) -> Tensor:
        """States h_0..h_T, (..., T+1, n), under the actions u, (..., T, m)."""
        p, actions = self.standard_form(), self._actions(u)
        states = [p.h0]
        with full_precision(p.h0.device):
            for A, B, action, c in zip(
                p.A.unbind(-3), p.B.unbind(-3), actions.unbind(-2), per_step(p.c, p.horizon, 0), strict=True
            ):
                states.append(apply(A, states[-1]) + apply(B, action) + c)
        return torch.stack(torch.broadcast_tensors(*states), -2)

    def objective(self, u: Tensor, h: Tensor | None = None) -> Tensor:
        """The objective, (...), at the actions u and the states h that follow from them."""
        p, u = self.standard_form(), self._actions(u)
        states = (self.rollout(u) if h is None else h).to(u.dtype)
        before, after = states[..., :-1, :], states[..., 1:, :]
        with full_precision(u.device):
            cost = 0.5 * ((after * apply(p.Q, after)).sum((-2, -1)) + (u * apply(p.R, u)).sum((-2, -1)))
            for linear, x in ((p.r, u), (p.q, after)):
                cost = cost if linear is None else cost + (linear * x).sum((-2, -1))
            return cost if p.N is None else cost + (before * apply(p.N, u)).sum((-2, -1))

    def _actions(self, u: Tensor) -> Tensor:
        if u.shape[-2:] != (self.horizon, self.action_size):
            rule = f"must have shape (..., T, m) = (..., {self.horizon}, {self.action_size})"
            checks.fail("u", rule, tuple(u.shape), "Pass an action for every step.", "shape")
        return u.to(working_dtype(self.h0.dtype))


def _longest(given: Mapping[str, Tensor | None], lead: int, shorter: bool = False) -> int:
    """The number of steps of the first field that does not have exactly one; 1 if they all have one. Q has one less if
    there is a Qf (`shorter`, or among the fields)."""
    for name in ("B", "A", "R", "r", "q", "c", "N", "Q"):
        value = given.get(name)
        if value is not None and value.ndim > lead + 1 and value.shape[lead] != 1:
            return value.shape[lead] + (name == "Q" and (shorter or given.get("Qf") is not None))
    return 1


def _check_shape(name: str, shape: tuple[int, ...], lead: int, sizes: dict[str, int]) -> None:
    forms = [[sizes[s] for s in form] for form in FORMS[name]]
    shared = [[1 if s == "T" else sizes[s] for s in form] for form in FORMS[name]]
    if list(shape[lead:]) not in forms + shared:
        accepted = " or ".join(
            f"(..., {', '.join(form)}) = (..., {', '.join(str(size) for size in numbers)})"
            for form, numbers in zip(FORMS[name], forms, strict=True)
        )
        rule = f"must have shape {accepted} with {lead} leading dimensions, to match B and h0"
        checks.fail(name, rule, shape, "Reshape it, expand it along the horizon, or give it one step for all.", "shape")
