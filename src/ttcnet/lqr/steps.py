"""One step of dynamic programming, with all the digits that its inputs have.

Behind a step lies the cost to go 1/2 h' P h + p' h. The step has its actions u to choose, and h = x + B u follows:

    R u + B' λ = -r        B u - h = -x        P h - λ = -p

For p = r = 0, λ = P° x, where P° is the cost to go before the step. With x = A h, r = N' h for the state h before,
its cost to go has the curvature A' λ + N u: P_{t-1} - Q_{t-1}. There are two ways to solve these equations:

- Quick: a Cholesky factor of S = R + B' P B, with P° = P - P B S^-1 B' P and h = x + B u. Those are differences. If
  actions are cheap, a difference is smaller than its terms by a factor of d, a pivot of S over the same pivot of R, and
  loses as many digits. R in S loses the same digits, which matter if several actions have the same effect. Many small
  steps lose digits too: P is then smaller along an action b than elsewhere, by up to R / (|b|^2 max(P)), and a quarter
  of the inverse is counted as d too.
- Careful: the three equations as one system, factorised with pivoting and refined once. P° and h are then solutions,
  not differences, and no digits are lost. It takes five times as long.

`descend` takes the quick way, and repeats with the careful one if digits that matter were lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .arithmetic import apply, symmetrise


def wide_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of dynamic programming: float64, which has digits to lose, if the device has it."""
    return torch.float32 if device.type == "mps" and dtype != torch.float64 else torch.float64


def largest_pivot(asked: torch.dtype, used: torch.dtype) -> float:
    """The largest d for which the quick way is good enough, for an answer in `asked` that is computed in `used`."""
    return max(32.0, torch.finfo(asked).eps / torch.finfo(used).eps / 512)


class Response(NamedTuple):
    """The response of a step to a drift x: its actions, its co-state and its state."""

    u: Tensor
    costate: Tensor
    h: Tensor


class Quick(NamedTuple):
    """A step by the Cholesky factor L of S."""

    P: Tensor
    B: Tensor
    L: Tensor

    def respond(self, x: Tensor, p: Tensor | None = None, r: Tensor | None = None) -> Response:
        slope = apply(self.P, x) if p is None else apply(self.P, x) + p
        pull = apply(self.B.mT, slope) if r is None else apply(self.B.mT, slope) + r
        u = -torch.cholesky_solve(pull.unsqueeze(-1), self.L).squeeze(-1)
        h = x + apply(self.B, u)
        costate = apply(self.P, h)
        return Response(u, costate if p is None else costate + p, h)

    def value(self) -> Tensor:
        """P°, symmetric to the bit."""
        W = torch.linalg.solve_triangular(self.L, self.B.mT @ self.P, upper=False)
        return symmetrise(self.P - W.mT @ W)

    def before(self, A: Tensor, N: Tensor | None) -> Tensor:
        """The curvature of the cost to go from the state before the step, without that state's own cost."""
        if N is None:
            return A.mT @ self.value() @ A
        W = torch.linalg.solve_triangular(self.L, self.B.mT @ self.P @ A + N.mT, upper=False)
        return A.mT @ self.P @ A - W.mT @ W

    def gain(self, A: Tensor, N: Tensor | None) -> Tensor:
        """The actions over the state before the step, (..., m, n)."""
        pull = self.B.mT @ self.P @ A
        return -torch.cholesky_solve(pull if N is None else pull + N.mT, self.L)


class Careful(NamedTuple):
    """A step by the LU factors of its equations, rows and unknowns in the order of the head of this file."""

    system: Tensor
    LU: Tensor
    pivots: Tensor
    action_size: int

    def respond(self, x: Tensor, p: Tensor | None = None, r: Tensor | None = None) -> Response:
        none = x.new_zeros(*x.shape[:-1], self.action_size)
        right = torch.cat([none if r is None else -r, -x, torch.zeros_like(x) if p is None else -p], -1)
        return Response(*self._solve(right.unsqueeze(-1)).squeeze(-1).split(self._sizes(x.shape[-1]), -1))

    def value(self) -> Tensor:
        """P°, symmetric to the bit."""
        n = (self.system.shape[-1] - self.action_size) // 2
        right = torch.zeros_like(self.system[..., :n])
        right[..., self.action_size : self.action_size + n, :] = -torch.eye(n, dtype=right.dtype, device=right.device)
        return symmetrise(self._solve(right).split(self._sizes(n), -2)[1])

    @property
    def P(self) -> Tensor:
        n = (self.system.shape[-1] - self.action_size) // 2
        return self.system[..., -n:, -n:]

    def before(self, A: Tensor, N: Tensor | None) -> Tensor:
        """The curvature of the cost to go from the state before the step, without that state's own cost."""
        if N is None:
            return A.mT @ self.value() @ A
        u, costate, _ = self._from(A, N)
        return A.mT @ costate + N @ u

    def gain(self, A: Tensor, N: Tensor | None) -> Tensor:
        """The actions over the state before the step, (..., m, n)."""
        return self._from(A, N)[0]

    def _from(self, A: Tensor, N: Tensor | None) -> tuple[Tensor, ...]:
        """The response to x = A h and r = N' h, as matrices that h is multiplied with."""
        none = A.new_zeros(*A.shape[:-2], self.action_size, A.shape[-1])
        right = torch.cat([none if N is None else -N.mT.expand_as(none), -A, torch.zeros_like(A)], -2)
        return self._solve(right).split(self._sizes(A.shape[-1]), -2)

    def _sizes(self, n: int) -> list[int]:
        return [self.action_size, n, n]

    def _solve(self, right: Tensor) -> Tensor:
        """Solve with one step of refinement, after which every row holds as exactly as its own numbers allow."""
        first = torch.linalg.lu_solve(self.LU, self.pivots, right)
        return first + torch.linalg.lu_solve(self.LU, self.pivots, right - self.system @ first)


Step = Quick | Careful


def quick(P: Tensor, B: Tensor, R: Tensor) -> tuple[Quick, Tensor]:
    """The step, and its largest d: NaN if a problem has no minimum, and then that problem alone has no answer."""
    L, failed = torch.linalg.cholesky_ex(symmetrise(R + B.mT @ P @ B))
    L = torch.where((failed == 0)[..., None, None], L, torch.nan)
    with torch.no_grad():
        largest = torch.diagonal(P, dim1=-2, dim2=-1).amax(-1, keepdim=True)
        d = torch.maximum(_pivots(L), B.square().sum(-2) * largest / 4) / _pivots(torch.linalg.cholesky_ex(R)[0])
        return Quick(P, B, L), d.amax() if d.numel() else P.new_zeros(())


def careful(P: Tensor, B: Tensor, R: Tensor, convex: bool = True) -> tuple[Careful, Tensor]:
    """The step, NaN for a problem that has no minimum. If not `convex`, a saddle will do."""
    one = torch.eye(P.shape[-1], dtype=P.dtype, device=P.device).expand_as(P)
    none, corner = torch.zeros_like(B), torch.zeros_like(P)
    rows = [[R.expand(*B.shape[:-2], *R.shape[-2:]), B.mT, none.mT], [B, corner, -one], [none, -one, P]]
    system = torch.cat([torch.cat(row, -1) for row in rows], -2)
    if convex:
        with torch.no_grad():
            # rounding may leave S a hair short of positive definite: only beyond that there is no minimum
            S = symmetrise(R + B.mT @ P @ B)
            hair = 16 * torch.finfo(S.dtype).eps * torch.diagonal(S, dim1=-2, dim2=-1).abs().amax(-1, keepdim=True)
            failed = torch.linalg.cholesky_ex(S + torch.diag_embed(hair.expand(S.shape[:-1])))[1]
        system = torch.where((failed == 0)[..., None, None], system, torch.nan)
    LU, pivots, _ = torch.linalg.lu_factor_ex(system)
    return Careful(system, LU, pivots, B.shape[-1]), P.new_zeros(())


def _pivots(L: Tensor) -> Tensor:
    return torch.diagonal(L, dim1=-2, dim2=-1).square()


Way = Callable[[Tensor, Tensor, Tensor], tuple[Step, Tensor]]


class Descent(NamedTuple):
    """Everything that leads from the last step to the first: B and R of a step, P of the step before a step, and the
    wanted steps."""

    matrices: Callable[[int], tuple[Tensor, Tensor]]
    back: Callable[[Step, int], Tensor]
    wanted: Callable[[int], bool]

    def by(self, way: Way, P: Tensor, times: range) -> tuple[dict[int, Step], Tensor]:
        """The wanted steps of `times`, and the largest d. P is given for the first of `times`."""
        found: dict[int, Step] = {}
        largest, step, later = P.new_zeros(()), None, 0
        for t in times:
            if step is not None:
                P = self.back(step, later)
            step, d = way(P, *self.matrices(t))
            largest = torch.maximum(largest, d)
            if self.wanted(t):
                found[t] = step
            later = t
        return found, largest


def descend(descent: Descent, P: Tensor, times: range, limit: float) -> dict[int, Step]:
    """The quick way if no d is above `limit` (see largest_pivot), and the careful one if any is.

    If Python cannot read values (on a GPU it would wait, under a tracer there are none), problems in float64 take the
    careful way, and others the quick one, in float64.
    """
    if P.device.type != "cpu" or torch.compiler.is_compiling():
        return descent.by(careful if limit < 1000 else quick, P, times)[0]
    found, largest = descent.by(quick, P, times)
    try:
        enough = bool(largest <= limit)  # not if it is NaN
    except RuntimeError:  # torch.func.vmap
        enough = limit >= 1000
    return found if enough else descent.by(careful, P, times)[0]
