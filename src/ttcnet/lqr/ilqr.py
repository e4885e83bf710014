"""Nonlinear dynamics and other costs: solve a linear-quadratic problem around a trajectory, step, and repeat.

    minimise   sum_t cost(h_{t-1}, u_t) + terminal(h_T)
    subject to h_t = dynamics(h_{t-1}, u_t),  u_min <= u_t <= u_max

ilqr_search.py has an iteration. It rolls the feedback out through the dynamics, with steps shorter or longer than the
model's, until the cost falls enough. Every problem has its own step size, regularisation and number of iterations.

Gradients: the solution meets the optimality conditions, and also the solution for slightly different parameters does.
Their difference is one more linear-quadratic problem (adjoint.py), with the exact curvature and the same actions held.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from . import checks
from .adjoint import refuse_second_derivatives, refuse_transforms
from .arithmetic import apply, full_precision
from .expansion import Function, Functions
from .ilqr_search import Search, Setting
from .quadratic_step import held_problem
from .solve import solve
from .status import Status, report, unfinished
from .trajectory import Trajectory


def ilqr(
    dynamics: Function, cost: Function, h0: Tensor, horizon: int, *, terminal: Function | None = None,
    params: Any = None, u: Tensor | None = None, action_size: int | None = None,
    u_min: float | Tensor | None = None, u_max: float | Tensor | None = None,
    max_iterations: int = 200, tolerance: float | None = None, check: bool = True,
) -> Trajectory:  # fmt: skip
    """Locally optimal trajectories of a batch of nonlinear control problems, differentiable once with respect to h0,
    params, bounds, and every tensor that the functions close over.

    Args:
        dynamics: f(h, u) for one state (n,) and one action (m,), without batch dimensions; returns the next state (n,).
            With `params`, f(h, u, params). Made of torch functions that torch.func can differentiate twice.
        cost: l(h, u) of the state that an action starts from and the action, a tensor without dimensions; with
            `params`, l(h, u, params).
        h0: initial states, (..., n), float32 or float64.
        horizon: T, 1 or more.
        terminal: cost of the last state, l(h), or l(h, params). None means zero.
        params: a tensor, or a dict, list or tuple of tensors, each (..., 1, *) for a problem's own values, or
            (..., T+1, *) for one of every step, the last for `terminal`; leading dimensions as h0, or 1.
            Functions get them without these dimensions.
        u: actions to start from, (..., T, m); None starts from zero, moved into the bounds, and needs `action_size`.
            So do problems whose actions are not finite, as those of a search that failed may be.
        action_size: m, if `u` is not given.
        u_min: lower bounds of the actions, a number or a tensor that broadcasts to (..., T, m).
        u_max: upper bounds, likewise.
        max_iterations: the most iterations; each is one solve.
        tolerance: of `Trajectory.residual`. None means 1e-6 in float64 and 1e-3 in float32.
        check: whether to raise if the first trajectory is not finite, and to warn if a problem does not converge.
            Without it, read `status`.

    Raises:
        ValueError: for invalid arguments, functions that return another shape, and, if checked, NaN or infinity along
            the first trajectory, with the problem and the step.

    Warns:
        RuntimeWarning: if a problem has not converged, which, and why.

    Examples:
        >>> import torch
        >>> from ttcnet.lqr import ilqr
        >>> def pendulum(h, u):
        ...     return torch.stack([h[0] + 0.1 * h[1], h[1] + 0.1 * (h[0].sin() + u[0])])
        >>> def cost(h, u):
        ...     return h.square().sum() + 0.1 * u.square().sum()
        >>> found = ilqr(pendulum, cost, torch.tensor([1.0, 0.0]), horizon=20, action_size=1, u_min=-3, u_max=3)
        >>> found.converged, found.u[0]
        (tensor(True), tensor([-3.]))
    """
    refuse_transforms("ilqr")
    setting = _read(dynamics, cost, h0, horizon, terminal, params, u, action_size, u_min, u_max, max_iterations, check)
    if tolerance is None:
        tolerance = 1e-6 if h0.dtype == torch.float64 else 1e-3
    search = Search(setting, tolerance)
    with torch.no_grad(), full_precision(h0.device):
        search.start(check)
        for _ in range(max_iterations):
            if not search.iterate():
                break
        else:
            if len(unfinished(search.status)):
                search.measure(last=True)
    with full_precision(h0.device):
        u, h, costate, price = _differentiable(setting, search)
    batch = setting.batch
    parts = (u, h, costate, price, search.status, search.residual, search.iterations, search.K)
    found = Trajectory(*(x.reshape(batch + x.shape[1:]) for x in parts))
    if check:
        report("ilqr", found.status, found.residual)
    return found


def _read(
    dynamics: Any, cost: Any, h0: Tensor, horizon: int, terminal: Any, params: Any, u: Tensor | None,
    action_size: int | None, u_min: Any, u_max: Any, max_iterations: int, check: bool,
) -> Setting:  # fmt: skip
    for name, function in (("dynamics", dynamics), ("cost", cost), ("terminal", terminal)):
        if not callable(function) and not (name == "terminal" and function is None):
            checks.fail(name, "must be a function", type(function).__name__, "Pass a function of torch.", "type")
    T = checks.horizon(horizon)
    if T < 1:
        checks.fail("horizon", "must be 1 or more", T, "Pass the number of steps to plan.", "too-small")
    if isinstance(max_iterations, bool) or not isinstance(max_iterations, int) or max_iterations < 1:
        checks.fail("max_iterations", "must be 1 or more", max_iterations, "Pass a positive integer.", "too-small")
    checks.one_kind({"h0": h0} | ({} if u is None else {"u": u}), anchor="h0")
    if h0.dtype not in (torch.float32, torch.float64):
        checks.fail("h0", "must be float32 or float64", h0.dtype, "Convert it with h0.float().", "dtype")
    if h0.ndim < 1 or h0.shape[-1] == 0:
        checks.fail("h0", "must have shape (..., n)", tuple(h0.shape), "Pass a vector, even for n = 1.", "shape")
    lead = h0.ndim - 1
    m = u.shape[-1] if u is not None and u.ndim == lead + 2 else action_size
    if u is not None and (u.ndim != lead + 2 or u.shape[-2] != T or u.shape[-1] == 0):
        rule = f"must have shape (..., T, m) with T = {T} and the {lead} leading dimensions of h0"
        checks.fail("u", rule, tuple(u.shape), "Pass an action for every step.", "shape")
    if not isinstance(m, int) or m < 1 or (action_size is not None and action_size != m):
        remedy = "Pass u=, the actions to start from, or action_size=m."
        checks.fail("action_size", "must be the number of actions", action_size, remedy, "missing")
    leaves = _leaves(params, lead, T, h0)
    try:
        shapes = [x.shape[:lead] for x in (h0, *([] if u is None else [u]), *leaves)]
        batch = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        told = ", ".join(str(tuple(shape)) for shape in shapes)
        checks.fail(
            "leading dimensions", "must broadcast", told, "Make those of h0, u and params equal, or 1.", "shape"
        )
    functions = Functions.of(dynamics, cost, terminal, params, batch, T)
    low, high = (
        _bound(name, x, other, (*batch, T, m), h0, check)
        for name, x, other in (("u_min", u_min, -torch.inf), ("u_max", u_max, torch.inf))
    )
    broken = (low.detach().isnan() | high.detach().isnan()).flatten(-2).any(-1)
    crossed = (low.detach() > high.detach()).flatten(-2).any(-1)
    if check and crossed.any():
        which = f"problem {checks.first(crossed)} of the batch" if crossed.ndim else "the problem"
        checks.fail("u_min", "must be at most u_max", f"a larger one in {which}", "Swap or move them.", "out-of-range")
    bad = (crossed | broken)[..., None, None]
    if bad.any():
        low, high = torch.where(bad, -torch.inf, low), torch.where(bad, torch.inf, high)
    start = h0.new_zeros(())
    if u is not None:
        start = torch.where(u.detach().isfinite().all(-1).all(-1)[..., None, None], u.detach(), 0)
    start, low, high = (x.expand(*batch, T, m).reshape(-1, T, m) for x in (start, low, high))
    lost = crossed.reshape(-1), broken.reshape(-1)
    return Setting(functions, h0.expand(*batch, -1).reshape(-1, h0.shape[-1]), start, low, high, batch, *lost)


def _leaves(params: Any, lead: int, T: int, h0: Tensor) -> list[Tensor]:
    leaves = tree_flatten(params)[0] if params is not None else []
    for x in leaves:
        if not isinstance(x, Tensor):
            checks.fail("params", "must hold tensors", type(x).__name__, "Close over everything else.", "type")
        if x.device != h0.device:
            checks.fail("params", f"must be on the device of h0, {h0.device}", x.device, "Move them.", "device")
        if x.ndim <= lead or x.shape[lead] not in (1, T + 1):
            rule = f"must have shape (..., 1, *) or (..., {T + 1}, *) with the {lead} leading dimensions of h0"
            remedy = "Add a dimension of 1 for values that are the same at all steps: x.unsqueeze(h0.ndim - 1)."
            checks.fail("params", rule, tuple(x.shape), remedy, "shape")
    return leaves


def _bound(name: str, value: Any, otherwise: float, shape: tuple[int, ...], h0: Tensor, check: bool) -> Tensor:
    try:
        bound = torch.as_tensor(otherwise if value is None else value, dtype=h0.dtype, device=h0.device)
    except (TypeError, ValueError, RuntimeError):
        checks.fail(name, "must be a number or a tensor", type(value).__name__, "Pass numbers.", "type")
    try:
        bound = bound.expand(shape)
    except RuntimeError:
        rule = f"must be a number or broadcast to (..., T, m) = {tuple(shape)}"
        checks.fail(name, rule, tuple(bound.shape), "Pass one for every action, (m,).", "shape")
    if check and bound.isnan().any():
        checks.fail(name, "must not be NaN", f"NaN at index {checks.first(bound.isnan())}", "Use ±inf.", "not-finite")
    return bound


def _differentiable(setting: Setting, search: Search) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Actions, states, co-states and cost, with gradients if any input needs one."""
    functions, h0, u, h, costate = setting.functions, setting.h0, search.u, search.h, search.costate
    lower, upper = search.held_low, search.held_high
    if torch.is_grad_enabled():
        over_u, over_h, ahead = functions.conditions(h, u, costate)
        bounds = torch.where(lower, setting.u_min, torch.where(upper, setting.u_max, 0))
        live = (h0, over_u, over_h, ahead, bounds)
        if any(x.requires_grad for x in live):
            u, after, costate = _Implicit.apply((search, lower | upper), u, h[:, 1:], costate, *live)
            h = torch.cat([h0.unsqueeze(1), after], 1)
    first = functions.first_costate(h[:, 0], u[:, 0], costate[:, 0])
    return u, h, torch.cat([first.unsqueeze(1), costate], 1), functions.costs(h, u).sum(-1)


class _Implicit(torch.autograd.Function):
    """Actions u, states h_1..h_T and co-states λ_1..λ_T as functions of all inputs of the optimality conditions."""

    @staticmethod
    def forward(ctx: Any, known: Any, u: Tensor, after: Tensor, costate: Tensor, *live: Tensor) -> Any:
        ctx.known = known
        ctx.save_for_backward(u, after, costate)
        return u.clone(), after.clone(), costate.clone()

    @staticmethod
    def backward(ctx: Any, du: Tensor, dafter: Tensor, dcostate: Tensor) -> Any:
        refuse_second_derivatives("ilqr", "differentiate the dynamics and the costs, which are yours")
        search, held = ctx.known
        u, after, costate = ctx.saved_tensors
        with full_precision(u.device):
            h, n = torch.cat([search.h0.unsqueeze(1), after], 1), after.shape[-1]
            model = search.functions.expand(h, u, costate)
            r = torch.where(held, 0, du)
            problem = held_problem(model, held, h0=torch.zeros_like(after[:, 0]), r=r, q=dafter, c=dcostate)
            found = solve(problem, check=False)
            wanted = (torch.cat([du, dafter, dcostate], -1) != 0).flatten(1).any(-1)
            _check_minimum(search, found.u, wanted)
            over_h, after_h = found.h[:, :-1], found.h[:, 1:]
            lam, block = found.costate[:, 1:], model.curvature
            pushed = du + apply(block[..., n:, n:], found.u) + apply(block[..., :n, n:].mT, over_h) + apply(model.B.mT, lam)  # noqa: E501  # fmt: skip
            return None, None, None, None, found.costate[:, 0], found.u, after_h, lam, torch.where(held, pushed, 0)


def _check_minimum(search: Search, u: Tensor, wanted: Tensor) -> None:
    bad = ~u.flatten(1).isfinite().all(-1) & wanted & (search.status != Status.NOT_FINITE)
    if bad.any():
        which = f"problem {checks.first(bad.reshape(search.batch))} of the batch" if search.batch else "the problem"
        remedy = "Give every action a cost, solve it to a smaller tolerance, or leave this problem out."
        checks.fail("ilqr", "must have found a strict minimum to be differentiated", which, remedy, "no-derivative")
