"""Bounded actions: `solve_constrained` and `ilqr` beside mpc.pytorch, OSQP, Clarabel and CasADi.

Two cases: linear systems, n = 12, m = 4, T = 20, whose actions are bounded by 0.3; and pendulums over 40 steps.
Solvers of one problem at a time solve them one after another, each set up anew, on the CPU, and take part up to 1,024
problems; all compute in float64. `both_ms` is a solve with the gradients of all matrices and h0, or of h0 for
pendulums, where the solver has gradients. `error_u` of linear systems is the largest difference from Clarabel at a
tolerance of 1e-12, over the largest action, in the first 64 problems. Minima of pendulums are local: there it is the
largest slope of the cost over a free action, over the largest slope at no action. `solved` is the number of problems
that the solver reports as solved; mpc.pytorch reports none, so problems with a slope below 1e-4 count.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ttcnet.bench.results import Row, stamp
from ttcnet.lqr import LQR, ilqr, solve_constrained

from .dense import FIELDS, doubled, draw, milliseconds
from .one_by_one import MOST, Answer, casadi, clarabel, judge, one_by_one, osqp

LIMIT, TORQUE = 0.3, 2.0
JUDGED = 64


def by_solve_constrained(problem: LQR) -> Answer:
    found = solve_constrained(problem, u_min=-LIMIT, u_max=LIMIT, tolerance=1e-8, check=False)
    return found.u, int(found.converged.sum())


LINEAR: dict[str, Callable[[LQR], Answer]] = {
    "solve_constrained": by_solve_constrained,
    "osqp": one_by_one(osqp, LIMIT),
    "clarabel": one_by_one(clarabel, LIMIT),
    "casadi": one_by_one(casadi, LIMIT),
}


def pendulum(h: Tensor, u: Tensor) -> Tensor:
    """Angle from upright and speed, a moment later."""
    speed = h[..., 1] + 0.05 * (15 * h[..., 0].sin() + 3 * u[..., 0])
    return torch.stack([h[..., 0] + 0.05 * speed, speed], -1)


WEIGHTS = torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)  # of angle, speed and torque


def by_ilqr(starts: Tensor, T: int = 40) -> Answer:
    weights = WEIGHTS.to(starts.device)
    found = ilqr(
        pendulum, lambda h, u: 0.5 * (weights * torch.cat([h, u]).square()).sum(), starts, T, action_size=1,
        terminal=lambda h: 0.5 * (weights[:2] * h.square()).sum(), u_min=-TORQUE, u_max=TORQUE, check=False,
    )  # fmt: skip
    return found.u, int(found.converged.sum())


def pendulums_by_mpc(starts: Tensor, T: int = 40) -> Answer:
    """Solve the pendulums by mpc.pytorch, whose last state has an action too, without effect."""
    from mpc import mpc

    class Pendulums(torch.nn.Module):
        def forward(self, h: Tensor, u: Tensor) -> Tensor:
            return pendulum(h, u)

    count = len(starts)
    C, c = torch.diag(WEIGHTS.to(starts.device)).expand(T + 1, count, 3, 3), starts.new_zeros(T + 1, count, 3)
    solver = mpc.MPC(
        2, 1, T + 1, u_lower=-TORQUE, u_upper=TORQUE, lqr_iter=200, eps=1e-7, verbose=-1, exit_unconverged=False,
        detach_unconverged=False, grad_method=mpc.GradMethods.AUTO_DIFF, u_init=starts.new_zeros(T + 1, count, 1),
    )  # fmt: skip
    u = solver(starts, mpc.QuadCost(C, c), Pendulums())[1][:T].transpose(0, 1)
    return u, int((slope(starts, u) < 1e-4).sum())


def pendulums_by_casadi(starts: Tensor, T: int = 40) -> Answer:
    import casadi as ca

    found = []
    for start in starts.tolist():
        x = ca.MX.sym("u", T)
        h, price, w = ca.DM(start), 0, WEIGHTS.tolist()
        for t in range(T):
            price += 0.5 * (w[0] * h[0] ** 2 + w[1] * h[1] ** 2 + w[2] * x[t] ** 2)
            speed = h[1] + 0.05 * (15 * ca.sin(h[0]) + 3 * x[t])
            h = ca.vertcat(h[0] + 0.05 * speed, speed)
        price += 0.5 * (w[0] * h[0] ** 2 + w[1] * h[1] ** 2)
        quiet = {"print_time": False, "ipopt": {"print_level": 0, "sb": "yes", "tol": 1e-8}}
        solver = ca.nlpsol("solver", "ipopt", {"x": x, "f": price}, quiet)
        answer = solver(x0=np.zeros(T), lbx=-TORQUE, ubx=TORQUE)
        found.append((np.array(answer["x"]).reshape(T, 1), bool(solver.stats()["success"])))
    return torch.tensor(np.stack([x for x, _ in found])), sum(good for _, good in found)


PENDULUMS: dict[str, Callable[[Tensor], Answer]] = {
    "ilqr": by_ilqr, "mpc.pytorch": pendulums_by_mpc, "casadi": pendulums_by_casadi,
}  # fmt: skip
PACKAGES = {"mpc.pytorch": "mpc", "osqp": "osqp", "clarabel": "clarabel", "casadi": "casadi"}


def slope(starts: Tensor, u: Tensor) -> Tensor:
    """The largest slope of the cost over an action that may move against it, over the largest at no action, (P,)."""

    weights = WEIGHTS.to(starts.device)

    def slopes(u: Tensor) -> Tensor:
        u = u.detach().requires_grad_()
        h, price = starts.detach(), u.new_zeros(())
        for action in u.unbind(1):
            price = price + 0.5 * (weights * torch.cat([h, action], -1).square()).sum()
            h = pendulum(h, action)
        price = price + 0.5 * (weights[:2] * h.square()).sum()
        return torch.autograd.grad(price, u)[0]

    with torch.enable_grad():
        free, nothing = slopes(u), slopes(0 * u)
    near = 1e-6 * TORQUE
    held = ((u >= TORQUE - near) & (free < 0)) | ((u <= near - TORQUE) & (free > 0))
    return torch.where(held, 0, free).abs().flatten(1).amax(-1) / nothing.abs().flatten(1).amax(-1)


DIFFERENTIABLE = ("solve_constrained", "ilqr", "mpc.pytorch")


def limited_rows(sizes: list[int], budget: float = 2.0, device: str = "cpu") -> Iterator[Row]:
    """A line for every case, solver and number of problems."""
    where = stamp()
    for problems in sizes:
        linear = doubled(draw(problems, 12, 4, 20, device))
        first = LQR(*(getattr(linear, name)[:JUDGED].cpu() for name in FIELDS))
        right = one_by_one(judge, LIMIT)(first)[0].to(device)
        torch.manual_seed(0)
        starts = torch.tensor([torch.pi, 0.0]).double() + 0.3 * torch.randn(problems, 2, dtype=torch.float64)
        starts = starts.to(device)

        def off_linear(u: Tensor, right: Tensor = right) -> float:
            return float((u[:JUDGED] - right).abs().max() / right.abs().max())

        def off_pendulum(u: Tensor, starts: Tensor = starts) -> float:
            return float(slope(starts, u).max())

        cases: list[tuple[str, dict[str, Any], Any, Callable[[Tensor], float]]] = [
            ("linear", LINEAR, linear, off_linear),
            ("pendulum", PENDULUMS, starts, off_pendulum),
        ]
        for case, solvers, given, off in cases:
            for name, solver in solvers.items():
                one = name not in DIFFERENTIABLE
                if importlib.util.find_spec(PACKAGES.get(name, "ttcnet")) and not (
                    one and (problems > MOST or device != "cpu")
                ):
                    told = {"case": case, "provider": name, "device": device, "problems": problems}
                    yield _row(told, solver, given, off, budget, both=not one) | where


def _row(
    told: dict[str, Any], solver: Callable[[Any], Answer], given: Any, off: Callable[[Tensor], float], budget: float,
    both: bool,
) -> Row:  # fmt: skip
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)

    def passes() -> None:
        leaves = [getattr(given, name) for name in FIELDS] if isinstance(given, LQR) else [given]
        leaves = [x.detach().requires_grad_() for x in leaves]
        u = solver(LQR(*leaves) if isinstance(given, LQR) else leaves[0])[0]
        torch.autograd.grad(u.square().sum(), leaves)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch to mpc.pytorch, of functions that have new names
        u, solved = solver(given)
        took = milliseconds(lambda: solver(given), budget)
        back = f"{milliseconds(passes, budget):.3g}" if both else ""
    told = told | {
        "threads": torch.get_num_threads(), "forward_ms": f"{took:.3g}", "both_ms": back, "error_u": f"{off(u):.1e}",
        "solved": solved, "busy": f"{busy:.2f}",
    }  # fmt: skip
    return {key: str(value) for key, value in told.items()}
