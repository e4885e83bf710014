"""ModulatedLQR, a family of control problems for tokens and heads, whose matrices decay over the horizon."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from . import checks
from .arithmetic import decayed, with_heads, working_dtype
from .problem import LQR


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

        An action with r_inv = 0 (or next to it) has no finite cost. It is written as one without effect (no column in
        B, unit cost), which has the same optimum. The gradient of that r_inv is zero through `unroll`, exact through
        `plan`. Half precision becomes float32.
        """
        T = checks.horizon(horizon)
        dtype = working_dtype(self.a.dtype)
        a, B, Q, Qf, r_inv, decay_A, decay_B, decay_Q, h0 = (getattr(self, f.name).to(dtype) for f in fields(self))
        N, H = a.shape[:2]
        B, Q = with_heads(B), with_heads(Q)
        t = torch.arange(1, T + 1, dtype=dtype, device=a.device).unsqueeze(-1)

        def over_horizon(rate: Tensor) -> Tensor:
            return decayed(rate.unsqueeze(-2), t)

        taken = r_inv > 4 / torch.finfo(dtype).max  # below, its inverse has no finite value
        cost = torch.where(taken, r_inv, 1).reciprocal()
        scale = over_horizon(decay_Q)
        running = (scale.unsqueeze(-1) * scale.unsqueeze(-2)) * Q.unsqueeze(-3)
        return LQR(
            A=1 + over_horizon(decay_A) * a.unsqueeze(-2),
            B=B.unsqueeze(-3) * (over_horizon(decay_B) * taken.unsqueeze(-2)).unsqueeze(-2),
            Q=torch.cat([running[..., :-1, :, :], Qf.unsqueeze(-3)], -3) if T else running,
            R=cost.unsqueeze(-2).expand(N, H, T, -1),
            h0=h0,
        )


class Family(NamedTuple):
    """The input of a backend: the fields of a ModulatedLQR, already checked, contiguous and in working precision."""

    a: Tensor
    B: Tensor
    Q: Tensor
    Qf: Tensor
    r_inv: Tensor
    decay_A: Tensor
    decay_B: Tensor
    decay_Q: Tensor
    h0: Tensor
