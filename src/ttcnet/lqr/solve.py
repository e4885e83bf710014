"""solve(): solves an LQR by one of several methods."""

from __future__ import annotations

import warnings

import torch

from . import checks, dense, feedback, kkt, riccati, symplectic
from .adjoint import Method, Terms, solve_implicitly, with_q0
from .arithmetic import full_precision
from .problem import LQR
from .solution import Solution
from .steps import largest_pivot, wide_dtype

METHODS: dict[str, Method] = {"riccati": riccati, "symplectic": symplectic, "kkt": kkt}


def solve(
    problem: LQR, method: str = "riccati", *, gains: bool = False, implicit: bool | None = None, check: bool = True
) -> Solution:
    """The optimal actions, states, co-states and cost of `problem`, differentiable with respect to all its fields.

    Args:
        problem: one LQR or a batch, returned in its own dtype. "riccati" runs as compiled passes on the CPU and on
            CUDA devices, up to 64 states and actions, unless `implicit` is False. These compute in float64 for float64
            and in float32 for other dtypes, and problems that lose digits are solved again in float64. Otherwise, and
            for "kkt", everything is solved in float64 ("symplectic": float64 for float64, float32 for other dtypes).
        method: "riccati" (dynamic programming; the default), "kkt" (block LU of the optimality conditions) or
            "symplectic" (the paper's; needs invertible A and loses digits over long horizons).
        gains: whether to find feedback gains K, k and values P, p too; "symplectic" cannot.
        implicit: how gradients are found. True: by one more solve with the factors of the first, which is faster and
            holds no graph. False: by autograd through the recursion in PyTorch; its backward pass runs under the
            caller's autocast, so call backward outside autocast. None takes True, but False for "riccati" if the
            compiled passes cannot run. Either can be differentiated again, and by torch.func.
        check: whether to check values before and after, at the price of a host synchronisation on a GPU. Under
            torch.func, which shows no values, pass False.

    Raises:
        ValueError: for an invalid problem or an unknown method, for a problem without a finite optimum, and if a
            method has lost all of its digits.

    Warns:
        RuntimeWarning: if a method has lost half of its digits or more.

    Examples:
        >>> import torch
        >>> from ttcnet.lqr import LQR, solve
        >>> one = torch.ones(3, 1, 1, dtype=torch.float64)
        >>> solution = solve(LQR(A=one, B=one, Q=one, R=one, h0=torch.ones(1, dtype=torch.float64)))
        >>> solution.u.squeeze(-1)
        tensor([-0.6154, -0.2308, -0.0769], dtype=torch.float64)
    """
    if not isinstance(problem, LQR):
        remedy = "Build one with LQR(...), or with family.unroll(horizon)."
        checks.fail("problem", "must be an LQR", type(problem).__name__, remedy, "type")
    if method not in METHODS:
        remedy = "See help(ttcnet.lqr.solve)."
        checks.fail("method", f"must be one of {', '.join(METHODS)}", repr(method), remedy, "unknown-name")
    if gains and method == "symplectic":
        remedy = 'The symplectic iteration has none: use method="riccati" or "kkt".'
        checks.fail("gains", 'must be False for method="symplectic"', gains, remedy, "conflict")
    if check:
        problem.check()
    compiled = method == "riccati" and implicit is not False
    why = dense.obstacle(problem) if compiled else None
    if compiled and why is None:
        found, asked = dense.solve(problem, gains), problem.h0.dtype
        solution, certain = Solution(*(x.to(asked) for x in (*found[:4], *found.feedback))), found.compiled
    else:
        if why is not None and problem.horizon and not torch.compiler.is_compiling():
            dense.tell(why)
        implicit = method != "riccati" if implicit is None else implicit
        solution, certain = _by_torch(problem, method, gains, implicit), False
    if check:
        _check_solution(problem, solution, method, certain)
    return solution


def _by_torch(problem: LQR, method: str, gains: bool, implicit: bool) -> Solution:
    way, asked = METHODS[method], problem.h0.dtype
    whole = problem.standard_form(None if method == "symplectic" else wide_dtype(asked, problem.h0.device))
    terms, limit = Terms(*(getattr(whole, name) for name in Terms._fields)), largest_pivot(asked, whole.h0.dtype)
    with full_precision(whole.h0.device):
        if whole.horizon == 0:
            return _of_nothing(whole, asked, gains)
        right = (terms.h0, terms.r, with_q0(terms.q), terms.c)
        found: tuple[torch.Tensor, ...] = ()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not implicit):
            factors = way.factorise(terms.A, terms.B, terms.Q, terms.R, terms.N, limit)
            if gains:
                found = riccati.feedback(factors, *right)
        u, h, costate = solve_implicitly(way, factors, terms, limit) if implicit else way.substitute(factors, *right)
        if gains and implicit:
            found = feedback.differentiable(terms, found)  # type: ignore[arg-type]
        cost = whole.objective(u, h)
    return Solution(*(x.to(asked) for x in (u, h, costate, cost, *found)))


def _of_nothing(whole: LQR, asked: torch.dtype, gains: bool) -> Solution:
    """The solution over no steps: nothing is decided, and h_0 costs nothing."""
    h, u = whole.h0.unsqueeze(-2), whole.B.sum(-2)
    zero = torch.zeros_like(h)
    parts = [u, h, zero, whole.objective(u, h)]
    if gains:
        parts += [whole.B.mT, u, torch.zeros_like(whole.h0[..., None, :, None] * zero.unsqueeze(-2)), zero]
    return Solution(*(x.to(asked) for x in parts))


@torch.no_grad()
def _check_solution(problem: LQR, solution: Solution, method: str, certain: bool) -> None:
    """Raise if the solution is not finite, with the reason; warn or raise if the method has lost its digits, unless the
    compiled passes have made sure of them (`certain`)."""
    parts = (solution.u.flatten(-2), solution.h.flatten(-2), solution.costate.flatten(-2), solution.cost.unsqueeze(-1))
    bad = ~torch.cat(parts, -1).isfinite().all(-1)
    if bad.any():
        _explain_failure(problem, bad, method)
    if bad.numel() and not certain:
        residual = solution.residual(problem)
        if bool((residual > 0.1).any()):
            rule, which = "must meet the optimality conditions", f"problem {checks.first(residual > 0.1)} of the batch"
            if method == "symplectic":
                _explain_failure(problem, residual > 0.1, method)
            value = f"no digit right in {which if bad.ndim else 'the problem'}"
            checks.fail("solution", rule, value, _remedy(method), "inaccurate")
        worst = float(residual.max())
        if worst > torch.finfo(solution.u.dtype).eps ** 0.5:
            told = f"method={method!r} has lost digits: it meets the optimality conditions to {worst:.1e} only."
            warnings.warn(f"{told} {_remedy(method)}", RuntimeWarning, stacklevel=4)


def _remedy(method: str) -> str:
    if method == "symplectic":
        return 'Use method="riccati" or "kkt".'
    return "The problem is beyond its dtype: scale it so that R, Q and B are closer in size, or use float64."


def _explain_failure(problem: LQR, bad: torch.Tensor, method: str) -> None:
    problem = problem.standard_form()
    which = f"problem {checks.first(bad)} of the batch" if bad.ndim else "the problem"
    if method == "symplectic" and (torch.linalg.det(problem.A) == 0).any():
        remedy = 'The symplectic method divides by A: use method="riccati" or "kkt".'
        rule = 'must be invertible at every step for method="symplectic"'
        checks.fail("A", rule, f"a singular A in {which}", remedy, "inaccurate")
    if method == "symplectic":
        remedy = 'The symplectic iteration broke down: use method="riccati" or "kkt".'
        checks.fail("solution", "must meet the optimality conditions", f"a failure in {which}", remedy, "inaccurate")
    if checks.has_negative_eigenvalue(problem.Q):
        remedy = "Q has a negative eigenvalue, so there may be no minimum: build Q as C @ C.mT."
        checks.fail("solution", "must be finite", f"NaN or infinity in {which}", remedy, "not-positive")
    remedy = "The numbers outgrew the dtype: use a wider one, a shorter horizon, or a smaller A or h0."
    checks.fail("solution", "must be finite", f"NaN or infinity in {which}", remedy, "overflow")
