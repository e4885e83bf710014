"""Linear-quadratic problems with linear inequalities, by an interior-point method (interior_point.py) around `solve`.

Gradients are those of one more problem at the solution, with the curvature of a step of that method: it holds the
active inequalities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import checks
from .adjoint import Terms, adjoint_terms, completed, products, refuse_second_derivatives, refuse_transforms
from .arithmetic import apply, full_precision
from .constraints import Constraints, read
from .interior_point import State, curvature, weighted
from .problem import LQR
from .solve import solve
from .status import Status, report

HOLD = 1e8  # weight of active inequalities in the gradients, over the curvature of the cost


@dataclass(frozen=True, eq=False)
class ConstrainedSolution:
    """The optimum of a problem with constraints, and how well each problem of the batch went.

    Numbers of a problem that did not converge are where its search ended: do not use them as actions. Its gradients
    are zero if it has no solution (INFEASIBLE, NO_MINIMUM, NOT_FINITE), so that a batch can train on the others, and
    otherwise as good as `residual`.

    Attributes:
        u: actions u_1..u_T, (..., T, m).
        h: states h_0..h_T, (..., T+1, n).
        costate: co-states λ_0..λ_T, (..., T+1, n).
        cost: the optimum of the objective, (...).
        multipliers: of the constraints that were given, by name, such as "u_max", each of the shape of its constraint:
            the fall of the cost, to first order, when the constraint is loosened by 1. Without gradients.
        status: how the search ended, (...), one of `Status` for every problem; 0 is converged.
        residual: the largest violation of an optimality condition, relative to its terms, (...).
        iterations: how many the search took, (...).
    """

    u: Tensor
    h: Tensor
    costate: Tensor
    cost: Tensor
    multipliers: dict[str, Tensor]
    status: Tensor
    residual: Tensor
    iterations: Tensor

    @property
    def converged(self) -> Tensor:
        """Whether each problem was solved to the tolerance, (...)."""
        return self.status == Status.CONVERGED


def solve_constrained(
    problem: LQR, *, u_min: Any = None, u_max: Any = None, h_min: Any = None, h_max: Any = None,
    C: Tensor | None = None, D: Tensor | None = None, d: Tensor | None = None,
    start: ConstrainedSolution | None = None, max_iterations: int = 60, tolerance: float = 1e-10, check: bool = True,
) -> ConstrainedSolution:  # fmt: skip
    """The optimum of `problem` within bounds and other linear inequalities, differentiable once with respect to all
    fields of the problem and all constraints.

    Args:
        problem: one LQR or a batch, with a horizon of 1 or more. Solved in float64, returned in its own dtype.
        u_min: lower bounds of u_1..u_T, a number or a tensor that broadcasts to (..., T, m); -inf for none.
        u_max: upper bounds of u_1..u_T, likewise; inf for none.
        h_min: lower bounds of h_1..h_T, likewise to (..., T, n).
        h_max: upper bounds of h_1..h_T.
        C: of the inequalities C_t h_t + D_{t+1} u_{t+1} <= d_t for t = 0..T; the last one has no action. It broadcasts
            to (..., T+1, k, n); None is zero.
        D: broadcasts to (..., T, k, m). None is zero; then the first inequality is left out, because h_0 alone decides
            it.
        d: broadcasts to (..., T+1, k).
        start: the solution of a similar problem with the same kinds of constraints, to start from.
        max_iterations: the most iterations; each is two solves.
        tolerance: of `ConstrainedSolution.residual`.
        check: whether to check values before, and to warn if a problem does not converge. Without it, read `status`.

    Raises:
        ValueError: for invalid arguments.

    Warns:
        RuntimeWarning: if a problem has not converged, which, and why: infeasible problems are named.

    Examples:
        >>> import torch
        >>> from ttcnet.lqr import LQR, solve_constrained
        >>> one = torch.ones(3, 1, 1, dtype=torch.float64)
        >>> problem = LQR(A=one, B=one, Q=one, R=one, h0=torch.ones(1, dtype=torch.float64))
        >>> solve_constrained(problem, u_min=-0.4).u.squeeze(-1)
        tensor([-0.4000, -0.3600, -0.1200], dtype=torch.float64)
    """
    refuse_transforms("solve_constrained")
    if not isinstance(problem, LQR):
        checks.fail("problem", "must be an LQR", type(problem).__name__, "Build one with LQR(...).", "type")
    if problem.horizon < 1:
        checks.fail(
            "horizon", "must be 1 or more", problem.horizon, "Pass a problem with at least one step.", "too-small"
        )
    if start is not None and not isinstance(start, ConstrainedSolution):
        remedy = "Pass the solution that solve_constrained returned for a similar problem."
        checks.fail("start", "must be a ConstrainedSolution", type(start).__name__, remedy, "type")
    if isinstance(max_iterations, bool) or not isinstance(max_iterations, int) or max_iterations < 1:
        checks.fail("max_iterations", "must be 1 or more", max_iterations, "Pass a positive integer.", "too-small")
    if not tolerance > 0:
        checks.fail("tolerance", "must be positive", tolerance, "Pass 1e-10, say.", "out-of-range")
    if check:
        problem.check()
    batch = problem.batch_shape
    limits = read(problem, u_min, u_max, h_min, h_max, C, D, d, check)
    dense = problem.standard_form(torch.float64)
    fields = [getattr(dense, name) for name in Terms._fields]
    flat = [None if x is None else x.reshape(-1, *x.shape[len(batch) :]) for x in fields]
    notes: dict[str, Any] = {}
    whole = LQR(**dict(zip(Terms._fields, flat, strict=True)))  # type: ignore[arg-type]
    with full_precision(problem.h0.device):
        u, h, costate = _Interior.apply((limits, start, max_iterations, tolerance, notes), *limits[:3], *flat)
        asked, state = problem.h0.dtype, notes["state"]
        none = without_solution(state.status)
        point = (torch.where(none[:, None, None], 0, x) for x in (u, h))
        cost = torch.where(none, whole.objective(u.detach(), h.detach()).detach(), whole.objective(*point))
    multipliers = Constraints(limits.b.detach(), limits.sizes, limits.C.detach(), limits.D.detach()).split(state.z)
    u, h, costate, cost = (x.reshape(batch + x.shape[1:]).to(asked) for x in (u, h, costate, cost))
    prices = {name: x.reshape(batch + x.shape[1:]).to(asked) for name, x in multipliers.items()}
    status, residual, iterations = (x.reshape(batch) for x in (state.status, state.residual, state.iterations))
    found = ConstrainedSolution(u, h, costate, cost, prices, status, residual, iterations)
    if check:
        report("solve_constrained", found.status, found.residual)
    return found


class _Interior(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: Any, b: Tensor, C: Tensor, D: Tensor, *fields: Any) -> Any:
        limits, start, max_iterations, tolerance, notes = how
        sizes = limits.sizes
        state = State(Terms(*fields), Constraints(b, sizes, C, D), start)
        state.status[limits.crossed] = int(Status.INFEASIBLE)
        state.status[limits.broken] = int(Status.NOT_FINITE)
        state.run(max_iterations, tolerance)
        notes["state"] = state
        ctx.sizes, ctx.none = sizes, without_solution(state.status)
        ctx.save_for_backward(b, C, D, state.u, state.h, state.costate, state.s, state.z, *fields)
        return state.u.clone(), state.h.clone(), state.costate.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        refuse_second_derivatives(
            "solve_constrained", "fix the active bounds and differentiate the remaining problem by hand"
        )
        b, C, D, u, h, costate, s, z, *fields = ctx.saved_tensors
        terms, limits = Terms(*fields), Constraints(b, ctx.sizes, C, D)
        grads = tuple(torch.where(ctx.none.reshape(-1, *[1] * (g.ndim - 1)), 0, g) for g in grads)
        with full_precision(u.device):
            w = _active(terms, limits, s, z)
            problem, Q0 = weighted(adjoint_terms(terms, *grads), limits, w)
            found = solve(problem, check=False)
            # h~_0 is not free: the term of its own curvature goes to λ~_0
            u_, h_, costate_ = completed((found.u, found.h, found.costate), grads[1])
            first = costate_[:, :1] + apply(Q0, h_[:, 0]).unsqueeze(1)
            costate_ = torch.cat([first, costate_[:, 1:]], 1)
            z_ = w * limits.values(u_, h_)
            dC, dD = limits.gradients(u, h, z, u_, h_, z_)
            of = products((u, h, costate), (u_, h_, costate_))
        found_all = (-z_, dC, dD, *(g if x is not None else None for x, g in zip(terms, of, strict=True)))
        none = ctx.none
        return None, *(
            None if g is None else torch.where(none.reshape(-1, *[1] * (g.ndim - 1)), 0, g) for g in found_all
        )


def without_solution(status: Tensor) -> Tensor:
    """Which problems have no solution, and so no gradients: those of the others must not suffer."""
    return (status != Status.CONVERGED) & (status != Status.ITERATION_LIMIT) & (status != Status.STALLED)


def _active(terms: Terms, limits: Constraints, s: Tensor, z: Tensor) -> Tensor:
    """Weights that hold the active inequalities, where z / s is above the curvature of the cost, and no others."""
    size = curvature(terms)
    return torch.where(limits.real & (z > size * s), HOLD * size, 0)
