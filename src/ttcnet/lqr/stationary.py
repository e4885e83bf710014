"""Problems whose matrices are the same at every step, with dense dynamics: horizons cost log T.

Three matrices describe several steps in a row: A carries the state from their begin to their end without actions, G
measures how far the actions reach, H is the cost of the state on the way,

    one step: A, G = B R^-1 B', H = Q        with  W = (I + G₁ H₂)^-1, first ₁ and then ₂:
    A = A₂ W A₁        G = G₂ + A₂ W G₁ A₂'        H = H₁ + A₁' H₂ W A₁

(Särkkä and García-Fernández, 2023, have this form.) One more product doubles the number of steps, so a horizon of T
takes about log₂ T products, and one more for every bit of T - 1. I + G H has no eigenvalue below 1. All of it is
computed in float64: at r_inv of 10,000 it loses four of its sixteen digits, and an answer in float32 loses none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from . import checks
from .adjoint import transformed
from .arithmetic import apply, full_precision, symmetrise, with_heads, working_dtype
from .problem import LQR
from .steps import wide_dtype

PIECE = 2**24  # problems times n³ that a CPU takes at once, so that Ctrl-C is answered


@dataclass(frozen=True, eq=False)
class StationaryLQR:
    """The problems of N tokens with H heads each, whose matrices are the same at every step.

        minimise   sum_t  1/2 h_t' Q h_t + 1/2 u_t' R u_t   over t = 1..T, with Qf in place of Q at the end
        subject to h_t = A h_{t-1} + B u_t                  R = diag(r_inv)^-1

    Nothing here depends on T: one family can be planned over any horizon.

    Args:
        A: (N, n, n), shared by the heads of a token, or (N, H, n, n). Any matrix; it may be singular.
        B: (N, n, m) or (N, H, n, m).
        Q: (N, n, n) or (N, H, n, n); symmetric positive semi-definite. If it is zero and the dynamics grow a hundred
            thousand times over the horizon, its own gradient loses its digits, and `plan` warns if it checks values.
        Qf: terminal cost, like Q; None is Q.
        r_inv: inverse action costs, (N, H, m), 0 or more. An action with r_inv = 0 costs too much ever to be taken.
        h0: initial state, (N, H, n).
    """

    A: Tensor
    B: Tensor
    Q: Tensor
    r_inv: Tensor
    h0: Tensor
    Qf: Tensor | None = None

    def __post_init__(self) -> None:
        given = self._given()
        checks.one_kind(given, anchor="A")
        for name, symbol in (("h0", "n"), ("r_inv", "m")):
            value = given[name]
            if value.ndim != 3:
                remedy = f"Flatten batch and sequence into tokens: {name}.flatten(0, -3)."
                checks.fail(name, f"must have shape (tokens, heads, {symbol})", tuple(value.shape), remedy, "shape")
        (N, H, n), m = self.h0.shape, self.r_inv.shape[-1]
        if n == 0 or m == 0:
            remedy = "Use n >= 1 and m >= 1."
            checks.fail("h0 and r_inv", "must have a state and an action", f"n = {n}, m = {m}", remedy, "shape")
        checks.shape("r_inv", self.r_inv, ("(N, H, m)", (N, H, m)))
        checks.shape("B", self.B, ("(N, n, m)", (N, n, m)), ("(N, H, n, m)", (N, H, n, m)))
        for name in ("A", "Q", "Qf"):
            if name in given:
                checks.shape(name, given[name], ("(N, n, n)", (N, n, n)), ("(N, H, n, n)", (N, H, n, n)))

    def _given(self) -> dict[str, Tensor]:
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if name != "Qf" or value is not None}

    @property
    def state_size(self) -> int:
        return self.h0.shape[-1]

    @property
    def action_size(self) -> int:
        return self.r_inv.shape[-1]

    @torch.no_grad()
    def check(self) -> None:
        """Raise a ValueError unless all values are finite, r_inv 0 or more, Q and Qf symmetric."""
        for name, value in self._given().items():
            checks.finite(name, value)
            if name.startswith("Q"):
                checks.symmetric(name, value)
        checks.non_negative("r_inv", self.r_inv, "Pass r_inv through a softplus.")

    def unroll(self, horizon: int) -> LQR:
        """The same problems over `horizon` steps with every matrix written out, batch shape (N, H). An action with
        r_inv = 0 (or next to it) is written as one without effect, which has the same optimum."""
        T, dtype = checks.horizon(horizon), working_dtype(self.A.dtype)
        N, H, _ = self.h0.shape
        taken = self.r_inv.to(dtype) > 4 / torch.finfo(dtype).max
        cost = torch.where(taken, self.r_inv.to(dtype), 1).reciprocal()

        def every_step(matrix: Tensor) -> Tensor:
            matrix = with_heads(matrix.to(dtype))
            return matrix.unsqueeze(2).expand(N, H, T, *matrix.shape[2:])

        last = every_step(self.Q if self.Qf is None else self.Qf)[:, :, -1:]
        Q = torch.cat([every_step(self.Q)[:, :, :-1], last], 2)
        B = with_heads(self.B.to(dtype)) * taken.unsqueeze(-2)
        R = cost.unsqueeze(-2).expand(N, H, T, -1)
        return LQR(A=every_step(self.A), B=every_step(B), Q=Q, R=R, h0=self.h0.to(dtype))


def first_actions(family: StationaryLQR, horizon: int | Tensor) -> Tensor:
    """u_1 over `horizon` steps, at least one, (N, H, m); of integers (N,), every token's own. Plain differentiable
    PyTorch on any device."""
    tokens, heads, n = family.h0.shape
    at_once = max(1, PIECE // (heads * n**3))
    if tokens <= at_once or family.h0.device.type != "cpu" or torch.compiler.is_compiling() or transformed():
        return _first_actions(family, horizon)
    found = []
    for first in range(0, tokens, at_once):
        some = slice(first, first + at_once)
        part = StationaryLQR(**{name: value[some] for name, value in family._given().items()})
        u = _first_actions(part, horizon[some] if isinstance(horizon, Tensor) else horizon)
        if u.requires_grad:
            u.register_hook(pause)
        found.append(u)
    return torch.cat(found)


def pause(g: Tensor) -> None:
    """A moment of Python in the backward pass, so that Ctrl-C is answered."""


def _first_actions(family: StationaryLQR, horizon: int | Tensor) -> Tensor:
    dtype = wide_dtype(family.A.dtype, family.A.device)
    A, B = with_heads(family.A.to(dtype)), with_heads(family.B.to(dtype))
    Q = symmetrise(with_heads(family.Q.to(dtype)))
    end = Q if family.Qf is None else symmetrise(with_heads(family.Qf.to(dtype)))
    unit, h0 = family.r_inv.to(dtype).sqrt(), family.h0.to(dtype)
    with full_precision(A.device):
        scaled_B = B * unit.unsqueeze(-2)  # actions in units of their cost, so that r_inv = 0 is no special case
        P = _cost_to_go(A, scaled_B @ scaled_B.mT, Q, end, horizon - 1)
        slope = scaled_B.mT @ P
        one = torch.eye(unit.shape[-1], dtype=dtype, device=A.device)
        z = _solve(one + symmetrise(slope @ scaled_B), apply(slope, apply(A, h0)).unsqueeze(-1))
        return (-unit * z.squeeze(-1)).to(family.A.dtype)


@torch.no_grad()
def loses_gradient_of_q(family: StationaryLQR, horizon: int) -> Tensor:
    """The problems, (N, H), whose gradient of Q loses its digits: Q is next to nothing, so all products but the last
    are those of an open loop, which grows. The gradients of Q from its far ends are large and cancel."""
    A, B, Q = (with_heads(x.double()) for x in (family.A, family.B, family.Q))
    held = family.r_inv.double().amax(-1) * (B.abs().amax((-2, -1)) ** 2 * Q.abs().amax((-2, -1))) > 1e-12
    steps, reached = horizon, A
    while steps > 1:
        steps, reached = steps // 2, (reached @ reached).clamp(-1e150, 1e150)
    return ~held & (reached.abs().amax((-2, -1)) > 1e5)


def _cost_to_go(A: Tensor, G: Tensor, Q: Tensor, end: Tensor, steps: int | Tensor) -> Tensor:
    """P of the optimal cost 1/2 h' P h of `steps` steps from h, Q of h itself included, and `end` behind them."""
    H, P = Q, end
    one = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    own = steps if isinstance(steps, Tensor) else None  # horizons, one per token
    most = steps if own is None else int(own.max())
    while most:
        if own is not None or most % 2:
            longer = symmetrise(H + A.mT @ (P @ _solve(one + G @ P, A)))
            P = longer if own is None else torch.where((own % 2 == 1).view(-1, 1, 1, 1), longer, P)
        most, own = most // 2, None if own is None else own // 2
        if most:
            W = _solve(one + G @ H, torch.cat(torch.broadcast_tensors(A, G @ A.mT), -1))
            through, reached = W.chunk(2, -1)
            H, G, A = symmetrise(H + A.mT @ (H @ through)), symmetrise(G + A @ reached), A @ through
    return P


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    """matrix^-1 right. NaN stays with the problem that has it."""
    return torch.linalg.solve_ex(matrix, right)[0]
