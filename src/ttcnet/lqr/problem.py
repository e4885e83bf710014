"""Control problems: LQR and ModulatedLQR.

    LQR            a linear-quadratic control problem, every matrix given for every step or shared by all of them
    ModulatedLQR   a family of such problems, one for every token and head, whose matrices decay over the horizon

The problem, for t = 1..T and a given h_0:

    minimise   sum_t  1/2 h_t' Q_t h_t + q_t' h_t + 1/2 u_t' R_t u_t + r_t' u_t + h_{t-1}' N_t u_t
    subject to h_t = A_t h_{t-1} + B_t u_t + c_t

Every field of a step has the index of its action u_t: Q_t and q_t are the cost of the state that u_t leads to, h_t; N_t
couples u_t with the state that it starts from, h_{t-1}; c_t is added on the way from one to the other. h_0 costs
nothing but through N_1. In tensors, where indices start from 0, `u[t]` leads from `h[t]` to `h[t + 1]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from . import checks
from .arithmetic import apply, fade, full_precision, per_step, symmetrise, with_heads, working_dtype

FORMS = {"A": ("Tnn", "Tn"), "B": ("Tnm",), "Q": ("Tnn",), "R": ("Tmm", "Tm"), "h0": ("n",), "r": ("Tm",),
         "q": ("Tn",), "c": ("Tn",), "N": ("Tnm",), "Qf": ("nn",)}  # fmt: skip


@dataclass(frozen=True, eq=False)
class LQR:
    """One problem, or a batch of them. T = horizon, n = state size, m = action size.

    Leading batch dimensions (`...`, none at all included) must be as many in every field; where
    they are 1 they broadcast, so that one system can be solved for many initial states. A T of 1
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
            actions: what u_1..u_T should be, (..., T, m) or (..., 1, m); None means zero.

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
        """The same problem with matrices for A and R, where they may have been diagonals."""
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
        """What the problem minimises, (...), at the actions u and the states h that follow from them."""
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
    """The number of steps that the first field with more or less than one has; 1 if they all have one. Q has one less
    where there is a Qf (`shorter`, or among the fields)."""
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
        rule = f"must have shape {accepted} with {lead} leading dimensions, as B and h0 say"
        checks.fail(name, rule, shape, "Reshape it, expand it along the horizon, or give it one step for all.", "shape")


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
        for each in fields(self):
            checks.finite(each.name, getattr(self, each.name))
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
