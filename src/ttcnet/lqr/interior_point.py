"""The search behind solve_constrained: an interior-point method, for all problems of a batch side by side.

With slacks s and multipliers z of the inequalities G x <= b, a step of Newton towards

    H x + f + G' z = 0        G x + s = b        s z = μ        s, z > 0

for the cost 1/2 x' H x + f' x is a linear-quadratic problem with the curvature H + G' diag(z / s) G, so that states
follow from actions as they should. Each iteration solves two of them for every problem that is not done; the first
predicts the correction of the second (Mehrotra 1992). feasibility.py tells infeasible problems.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from . import checks
from .adjoint import Terms
from .arithmetic import apply, symmetrise
from .constraints import Constraints
from .feasibility import cannot_hold, is_infeasible
from .problem import LQR
from .solve import solve
from .status import Status, unfinished

if TYPE_CHECKING:
    from .constrained import ConstrainedSolution

STIFFEST = 1e9  # weight of inequalities over the curvature of the cost, which loses its digits beside larger ones
NEAR = 1e-4  # below this residual that counts; above it, large weights identify infeasible problems
CAREFUL = 4  # turns of plain steps after two turns that came no nearer


def curvature(terms: Terms) -> Tensor:
    """The largest entry of the matrices of the cost, (P, 1)."""
    return torch.maximum(*(x.abs().flatten(1).amax(-1, keepdim=True) for x in (terms.Q, terms.R)))


def weighted(terms: Terms, limits: Constraints, w: Tensor) -> tuple[LQR, Tensor]:
    """The problem with the curvature G' diag(w) G added to its own, and the part of it that belongs to h_0."""
    R, Q, N = limits.weighted(w)
    N = N if terms.N is None else N + terms.N
    more = terms._replace(Q=symmetrise(terms.Q + Q[:, 1:]), R=symmetrise(terms.R + R), N=N)
    return LQR(**more._asdict()), Q[:, 0]


class Violation(NamedTuple):
    """Violations of the slopes of the Lagrangian over u and over h_1..h_T, of the inequalities (P, M), and of all
    conditions relative to their terms (P,)."""

    of_u: Tensor
    of_h: Tensor
    rows: Tensor
    worst: Tensor


class State:
    """The state of the search of every problem, (P, ...)."""

    def __init__(self, terms: Terms, limits: Constraints, start: ConstrainedSolution | None) -> None:
        self.terms, self.limits = terms, limits
        first = solve(LQR(**terms._asdict()), check=False)
        self.u, self.h, self.costate = first.u.clone(), first.h.clone(), first.costate.clone()
        count, device = len(self.u), self.u.device
        self.status = torch.full((count,), int(Status.ITERATION_LIMIT), device=device)
        self.iterations = torch.zeros_like(self.status)
        self.residual = torch.full((count,), torch.inf, dtype=self.u.dtype, device=device)
        self.stuck, self.slow = torch.zeros_like(self.status), torch.zeros_like(self.status)
        self.means = self.residual.new_full((2, count), torch.inf)  # of s z, one and two turns ago
        real, gap = limits.real, torch.where(limits.real, limits.b - limits.values(self.u, self.h), 1)
        # far enough from all bounds, and multipliers of the size of the slopes of the cost
        least = torch.maximum((-gap).amax(-1, keepdim=True), 0.1 * gap.abs().mean(-1, keepdim=True)).clamp_min(1e-6)
        self.s = torch.maximum(gap, least)
        size = self.costate.abs().flatten(1).mean(-1, keepdim=True).clamp_min(1e-6)
        self.z = torch.where(real, size.expand_as(gap), 0)
        if start is not None:
            self._warm(start)
        self.unit = self.z.amax(-1)
        broken = ~self.h.flatten(1).isfinite().all(-1)
        known = torch.stack([x.flatten(1).isfinite().all(-1) for x in terms if x is not None]).all(0)
        self.status[broken] = torch.where(known[broken], int(Status.NO_MINIMUM), int(Status.NOT_FINITE))

    def _warm(self, start: ConstrainedSolution) -> None:
        """Start from the actions and multipliers of another solution, moved a little into the interior. Problems that
        were not solved start anew."""
        z = [x.detach().double().reshape(len(self.u), -1) for x in start.multipliers.values()]
        u = start.u.detach().double()
        if u.numel() != self.u.numel() or sum(x.shape[-1] for x in z) != self.z.shape[-1]:
            remedy = "Start from the solution of a problem of the same sizes with the same constraints."
            checks.fail("start", f"must have actions of shape {tuple(self.u.shape)}, and the same constraints", tuple(u.shape), remedy, "shape")  # noqa: E501  # fmt: skip
        u, before = u.reshape(self.u.shape), torch.cat(z, -1)
        h = LQR(**self.terms._asdict()).rollout(u)
        gap = torch.where(self.limits.real, self.limits.b - self.limits.values(u, h), 1)
        near = 1e-3 * self.s.abs().amax(-1, keepdim=True).clamp_min(1e-6)
        s = torch.maximum(gap, torch.maximum(near, (-gap).amax(-1, keepdim=True)))
        new = (u, h, s, torch.where(self.limits.real, torch.maximum(before, 1e-3 * self.z), 0))
        good = torch.stack([x.flatten(1).isfinite().all(-1) for x in new]).all(0)
        good &= start.status.reshape(-1) == Status.CONVERGED
        for name, value in zip(("u", "h", "s", "z"), new, strict=True):
            getattr(self, name)[good] = value[good]

    @torch.no_grad()
    def run(self, max_iterations: int, tolerance: float) -> None:
        self._search(max_iterations, tolerance)
        left = ((self.status == Status.STALLED) | (self.status == Status.ITERATION_LIMIT)).nonzero().squeeze(-1)
        if len(left):
            terms = Terms(*(None if x is None else x[left] for x in self.terms))
            none = is_infeasible(terms, self.limits.some(left), self.u[left])
            self.status[left[none]] = int(Status.INFEASIBLE)

    def _search(self, max_iterations: int, tolerance: float) -> None:
        for turn in range(max_iterations + 1):
            live = unfinished(self.status)
            if not len(live):
                return
            terms = Terms(*(None if x is None else x[live] for x in self.terms))
            limits, point = (
                self.limits.some(live),
                tuple(x[live] for x in (self.u, self.h, self.costate, self.s, self.z)),
            )
            violation = _violation(terms, limits, *point)
            self.residual[live] = violation.worst
            self.status[live[violation.worst <= tolerance]] = int(Status.CONVERGED)
            on = violation.worst > tolerance
            self._find_infeasible(live, terms, limits, point, on)
            on = self.status[live] == Status.ITERATION_LIMIT
            if turn == max_iterations or not on.any():
                continue
            live, rows = live[on], on.nonzero().squeeze(-1)
            some = Terms(*(None if x is None else x[on] for x in terms))
            new, length = _step(
                some,
                limits.some(rows),
                tuple(x[on] for x in point),
                Violation(*(x[on] for x in violation)),
                self._is_slow(live),
            )
            self.iterations[live] += 1
            broken = ~new[0].flatten(1).isfinite().all(-1)
            self.status[live[broken]] = int(Status.NOT_FINITE)
            self.stuck[live] = torch.where(length < 1e-6, self.stuck[live] + 1, 0)
            self.status[live[self.stuck[live] > 3]] = int(Status.STALLED)
            fine = ~broken
            for name, value in zip(("u", "h", "costate", "s", "z"), new, strict=True):
                getattr(self, name)[live[fine]] = value[fine]

    def _is_slow(self, live: Tensor) -> Tensor:
        """Which problems come no nearer: Mehrotra's steps may go round in circles."""
        mean = (self.s[live] * self.z[live]).mean(-1)
        self.slow[live] = torch.where(mean > 0.9 * self.means[1, live], CAREFUL, self.slow[live] - 1)
        self.means[:, live] = torch.stack([mean, self.means[0, live]])
        return self.slow[live] > 0

    def _find_infeasible(self, live: Tensor, terms: Terms, limits: Constraints, point: Any, on: Tensor) -> None:
        """End problems in which a combination of inequalities cannot hold: z'(G x - b) > 0 for all actions."""
        u, h, _, _, z = point
        large = on & (z.amax(-1) > 1e2 * self.unit[live])
        rows = large.nonzero().squeeze(-1)
        if not len(rows):
            return
        z = z[rows] / z[rows].amax(-1, keepdim=True)
        some = Terms(*(None if x is None else x[rows] for x in terms))
        none = cannot_hold(some, limits.some(rows), u[rows], h[rows], z)
        self.status[live[rows[none]]] = int(Status.INFEASIBLE)


def _violation(
    terms: Terms, limits: Constraints, u: Tensor, h: Tensor, costate: Tensor, s: Tensor, z: Tensor
) -> Violation:
    """The violation of the optimality conditions at a point whose states follow from its actions."""
    over_u, over_h = limits.transposed(z)
    before, after, lam = h[:, :-1], h[:, 1:], costate[:, 1:]
    coming = apply(terms.A[:, 1:].mT, lam[:, 1:])
    of_u = [apply(terms.R, u), apply(terms.B.mT, lam), over_u]
    of_h = [apply(terms.Q, after), over_h[:, 1:], -lam, torch.cat([coming, torch.zeros_like(lam[:, :1])], 1)]
    if terms.N is not None:
        of_u.append(apply(terms.N.mT, before))
        of_h.append(torch.cat([apply(terms.N[:, 1:], u[:, 1:]), torch.zeros_like(lam[:, :1])], 1))
    of_u += [] if terms.r is None else [terms.r]
    of_h += [] if terms.q is None else [terms.q]
    off_u, size_u = _sums(of_u)
    off_h, size_h = _sums(of_h)
    real = limits.real
    rows = torch.where(real, limits.values(u, h) + s - limits.b, 0)
    size = 1 + torch.where(real, limits.b, 0).abs().amax(-1)
    worst = (
        off_u.abs().flatten(1).amax(-1) / size_u.clamp_min(1e-300),
        off_h.abs().flatten(1).amax(-1) / size_h.clamp_min(1e-300),
        rows.abs().amax(-1) / size,
        (s * z).amax(-1) / (size * (1 + size_u)),
    )
    return Violation(off_u, off_h, rows, torch.stack(worst).amax(0))


def _sums(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The sum, and the largest sum of sizes in each problem."""
    whole, size = parts[0], parts[0].abs()
    for x in parts[1:]:
        whole, size = whole + x, size + x.abs()
    return whole, size.flatten(1).amax(-1)


def _step(
    terms: Terms, limits: Constraints, point: Any, violation: Violation, slow: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """A step of Newton with Mehrotra's correction: the new point, and the share of the way that was taken. `slow`
    problems take plain steps towards half of s z."""
    u, h, costate, s, z = point
    real = limits.real
    count = real.sum(-1).clamp_min(1)
    least = z / (STIFFEST * curvature(terms))
    soft = torch.where(violation.worst.unsqueeze(-1) < NEAR, torch.maximum(s, least), s)
    w, rows = torch.where(real, z / soft, 0), violation.rows

    def towards(right: Tensor) -> tuple[Tensor, ...]:
        """The whole step after which s z + s dz + z ds is s z - right. The unknown is the step, not the new point: so
        it has all digits of a small number."""
        over_u, over_h = limits.transposed(torch.where(real, (z * rows - right) / soft, 0))
        linear = terms._replace(
            h0=torch.zeros_like(terms.h0), c=None, r=violation.of_u + over_u, q=violation.of_h + over_h[:, 1:]
        )
        found = solve(weighted(linear, limits, w)[0], check=False)
        ds = torch.where(real, -rows - limits.values(found.u, found.h), 0)
        dz = torch.where(real, (-right - z * ds) / soft, 0)
        return found.u, found.h, found.costate, ds, dz

    def longest(ds: Tensor, dz: Tensor) -> Tensor:
        """The share of the way after which a slack or a multiplier would be zero, at most 1."""
        ahead = [torch.where(dx < 0, -x / dx, torch.inf).amin(-1) for x, dx in ((s, ds), (z, dz))]
        return torch.stack([*ahead, torch.ones_like(ahead[0])]).amin(0)

    foretold = towards(s * z)
    share = longest(*foretold[3:]).unsqueeze(-1)
    mean = torch.where(real, s * z, 0).sum(-1) / count
    after = torch.where(real, (s + share * foretold[3]) * (z + share * foretold[4]), 0).sum(-1) / count
    centre = torch.where(slow, 0.5, (after / mean.clamp_min(1e-300)) ** 3) * mean
    second = torch.where(slow.unsqueeze(-1), 0, foretold[3] * foretold[4])
    moves = towards(s * z + second - centre.unsqueeze(-1))
    length = (0.995 * longest(*moves[3:])).clamp_max(1)
    length = torch.where(length > 0.99, torch.ones_like(length).minimum(longest(*moves[3:]) * 0.9999), length)
    u, h, costate, s, z = (x + length.reshape(-1, *[1] * (x.ndim - 1)) * dx for x, dx in zip(point, moves, strict=True))
    return (u, h, _with_first(terms, limits, u, costate, z), s, z), length


def _with_first(terms: Terms, limits: Constraints, u: Tensor, costate: Tensor, z: Tensor) -> Tensor:
    """The co-states with λ_0, the slope of the cost over h_0, which follows from the others."""
    first = apply(terms.A[:, 0].mT, costate[:, 1]) + limits.transposed(z)[1][:, 0]
    first = first if terms.N is None else first + apply(terms.N[:, 0], u[:, 0])
    return torch.cat([first.unsqueeze(1), costate[:, 1:]], 1)
