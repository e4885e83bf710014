"""Linear inequalities over actions and states, G x <= b, for every problem of a batch.

    u_t <= u_max    -u_t <= -u_min    h_t <= h_max    -h_t <= -h_min    C_t h_t + D_{t+1} u_{t+1} <= d_t

All of them lie side by side in one dimension, (P, M). An infinite bound is no inequality: it keeps its place, and
`real` is False there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import checks
from .arithmetic import apply, outer
from .problem import LQR

NAMES = ("u_max", "u_min", "h_max", "h_min", "d")


@dataclass(frozen=True)
class Constraints:
    """`b` is (P, M); `sizes` holds the number of inequalities of each of NAMES. C is (P, T+1, k, n) and D
    (P, T, k, m)."""

    b: Tensor
    sizes: tuple[int, ...]
    C: Tensor
    D: Tensor

    @property
    def real(self) -> Tensor:
        return self.b < torch.inf

    def some(self, index: Tensor) -> Constraints:
        return replace(self, b=self.b[index], C=self.C[index], D=self.D[index])

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """Split x (P, M) by name into parts (P, steps, size); constraints that were not given are left out."""
        T, m, n, k = self.D.shape[1], self.D.shape[-1], self.C.shape[-1], self.C.shape[-2]
        shapes = ((T, m), (T, m), (T, n), (T, n), (T + 1, k))
        parts = zip(NAMES, x.split(self.sizes, -1), shapes, strict=True)
        return {name: part.unflatten(-1, shape) for name, part, shape in parts if part.shape[-1]}

    def _zeros(self) -> tuple[Tensor, Tensor]:
        """Zeros with the shape of the actions, and zeros with that of h_1..h_T."""
        P, T, _, m = self.D.shape
        return self.D.new_zeros(P, T, m), self.C.new_zeros(P, T, self.C.shape[-1])

    def values(self, u: Tensor, h: Tensor) -> Tensor:
        """G x, the left sides of all constraints at actions u and states h."""
        after = h[:, 1:]
        rows = apply(self.C, h)
        rows = torch.cat([rows[:, :-1] + apply(self.D, u), rows[:, -1:]], 1)
        parts = (u, -u, after, -after, rows)
        return torch.cat([x.flatten(1) for x, size in zip(parts, self.sizes, strict=True) if size], -1)

    def transposed(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """G' z over the actions, (P, T, m), and the states, (P, T+1, n)."""
        part = self.split(z)
        zero_u, zero_h = self._zeros()
        over_u = part.get("u_max", zero_u) - part.get("u_min", zero_u)
        after = part.get("h_max", zero_h) - part.get("h_min", zero_h)
        over_h = torch.cat([torch.zeros_like(after[:, :1]), after], 1)
        if "d" in part:
            over_u = over_u + apply(self.D.mT, part["d"][:, :-1])
            over_h = over_h + apply(self.C.mT, part["d"])
        return over_u, over_h

    def weighted(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """G' diag(w) G: its addition to R, to the curvature of h_0..h_T, and to N."""
        part = self.split(w)
        zero_u, zero_h = self._zeros()
        R = torch.diag_embed(part.get("u_max", zero_u) + part.get("u_min", zero_u))
        after = torch.diag_embed(part.get("h_max", zero_h) + part.get("h_min", zero_h))
        Q = torch.cat([torch.zeros_like(after[:, :1]), after], 1)
        if "d" in part:
            weight = part["d"].unsqueeze(-1)
            R = R + self.D.mT @ (weight[:, :-1] * self.D)
            Q = Q + self.C.mT @ (weight * self.C)
            return R, Q, self.C[:, :-1].mT @ (weight[:, :-1] * self.D)
        return R, Q, torch.zeros_like(outer(zero_h, zero_u))

    def gradients(self, u: Tensor, h: Tensor, z: Tensor, u_: Tensor, h_: Tensor, z_: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of C and D, from the solution and the adjoint solution."""
        if not self.sizes[-1]:
            return torch.zeros_like(self.C), torch.zeros_like(self.D)
        rows, rows_ = self.split(z)["d"], self.split(z_)["d"]
        return (
            outer(rows, h_) + outer(rows_, h),
            outer(rows[:, :-1], u_) + outer(rows_[:, :-1], u),
        )


class Read(NamedTuple):
    """Constraints in float64, differentiable, the sizes of the parts of b, and which problems have bounds that cross or
    NaN in a constraint, (P,)."""

    b: Tensor
    C: Tensor
    D: Tensor
    sizes: tuple[int, ...]
    crossed: Tensor
    broken: Tensor


def read(
    problem: LQR, u_min: Any, u_max: Any, h_min: Any, h_max: Any, C: Any, D: Any, d: Any, check: bool = True
) -> Read:
    """The constraints of `problem`. If checked, bounds that cross and NaN are errors; otherwise the problems that have
    them are left without constraints."""
    batch, T, n, m = problem.batch_shape, problem.horizon, problem.state_size, problem.action_size
    if all(x is None for x in (u_min, u_max, h_min, h_max, C, D, d)):
        checks.fail("constraints", "must be given", "none", "Without any, use solve.", "missing")
    given: list[Tensor] = []
    for name, value, size in (("u_max", u_max, m), ("u_min", u_min, m), ("h_max", h_max, n), ("h_min", h_min, n)):
        if value is not None:
            bound = _ready(name, value, problem, (*batch, T, size), "(..., T, size)", check)
            given.append((bound if name.endswith("max") else -bound).reshape(batch.numel(), T * size))
        else:
            given.append(problem.h0.new_zeros(batch.numel(), 0, dtype=torch.float64))
    crossed = _crossed(given[0], given[1]) | _crossed(given[2], given[3])
    if check and crossed.any():
        which = f"problem {checks.first(crossed.reshape(batch))} of the batch" if batch else "the problem"
        checks.fail("bounds", "must have the lower below the upper", f"a larger lower bound in {which}", "Swap or move them.", "out-of-range")  # noqa: E501  # fmt: skip
    if (d is None) != (C is None and D is None):
        checks.fail(
            "d", "must be given together with C or D", "one without the other", "Pass C or D, and d.", "missing"
        )
    k = 0 if d is None else (C if C is not None else D).shape[-2]
    none_C, none_D = (problem.h0.new_zeros(*batch, steps, k, size).double() for steps, size in ((T + 1, n), (T, m)))
    full_C = none_C if C is None else _ready("C", C, problem, none_C.shape, "(..., T+1, k, n)", check)
    full_D = none_D if D is None else _ready("D", D, problem, none_D.shape, "(..., T, k, m)", check)
    rows = problem.h0.new_zeros(*batch, T + 1, 0).double()
    if d is not None:
        rows = _ready("d", d, problem, (*batch, T + 1, k), "(..., T+1, k)", check)
        if D is None:  # h_0 is given, and no action enters
            rows = torch.cat([torch.full_like(rows[..., :1, :], torch.inf), rows[..., 1:, :]], -2)
    given.append(rows.reshape(batch.numel(), -1))
    C, D = (x.reshape(batch.numel(), *x.shape[-3:]) for x in (full_C, full_D))
    b = torch.cat(given, -1)
    crossed = crossed | (b.detach() == -torch.inf).any(-1)
    broken = torch.cat([x.detach().isnan().flatten(1) for x in (b, C, D)], -1).any(-1)
    bad = crossed | broken
    if bad.any():
        b = torch.where(bad[:, None], torch.inf, b)
        C, D = (torch.where(bad[:, None, None, None], 0, x) for x in (C, D))
    return Read(b, C, D, tuple(x.shape[-1] for x in given), crossed, broken)


def _crossed(upper: Tensor, lower: Tensor) -> Tensor:
    """Which problems have a lower bound (negated) above the upper one."""
    if upper.shape != lower.shape:
        return torch.zeros(len(upper), dtype=torch.bool, device=upper.device)
    return (-lower.detach() > upper.detach()).any(-1)


def _ready(name: str, value: Any, problem: LQR, shape: tuple[int, ...], form: str, check: bool) -> Tensor:
    try:
        value = torch.as_tensor(value, device=problem.h0.device).double()
    except (TypeError, ValueError, RuntimeError):
        checks.fail(name, "must be a number or a tensor", type(value).__name__, "Pass numbers.", "type")
    try:
        full = value.expand(shape)
    except RuntimeError:
        rule = f"must broadcast to {form} = {tuple(shape)}"
        checks.fail(name, rule, tuple(value.shape), "Give it one for every step, or a 1 in its place.", "shape")
    if check and full.isnan().any():
        checks.fail(name, "must not be NaN", f"NaN at index {checks.first(full.isnan())}", "Use ±inf.", "not-finite")
    return full
