"""Bounded actions: `solve_constrained` and `ilqr` beside mpc.pytorch, OSQP, Clarabel and CasADi, on the CPU.

Two cases: linear systems, n = 12, m = 4, T = 20, whose actions are bounded by 0.3; and pendulums over 40 steps. Solvers
of one problem at a time solve them one after another, each set up anew; all compute in float64. `error_u` of linear
systems is the largest difference from Clarabel at a tolerance of 1e-12, over the largest action. Minima of pendulums
are local: there it is the largest slope of the cost over a free action, over the largest slope at no action. `solved`
is the number of problems that the solver reports as solved; mpc.pytorch reports none, so problems with a slope below
1e-4 count.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ttcnet.bench.results import Row, stamp
from ttcnet.lqr import LQR, ilqr, solve_constrained

from .dense import doubled, draw, milliseconds

LIMIT, TORQUE = 0.3, 2.0
Answer = tuple[Tensor, int]  # actions, and how many problems are solved


def by_solve_constrained(problem: LQR) -> Answer:
    found = solve_constrained(problem, u_min=-LIMIT, u_max=LIMIT, tolerance=1e-8, check=False)
    return found.u, int(found.converged.sum())


def _program(problem: LQR, i: int) -> tuple[Any, Any, Any, Any]:
    """P, and equalities G x = b, of problem i over x = (u_1..u_T, h_1..h_T), sparse; and how many of x are actions."""
    from scipy import sparse

    T, n, m = problem.horizon, problem.state_size, problem.action_size
    A, B, Q, R, h0 = (x[i].numpy() for x in (problem.A, problem.B, problem.Q, problem.R, problem.h0))
    P = sparse.block_diag([*R, *Q], format="csc")
    after = sparse.eye(T * n).tolil()
    for t in range(1, T):
        after[t * n : (t + 1) * n, (t - 1) * n : t * n] = -A[t]
    G = sparse.hstack([-sparse.block_diag(list(B)), after], format="csc")
    return P, G, np.concatenate([A[0] @ h0, np.zeros((T - 1) * n)]), T * m


def one_by_one(solver: Callable[[Any, Any, Any, int], tuple[Any, bool]]) -> Callable[[LQR], Answer]:
    def run(problem: LQR) -> Answer:
        found = [solver(*_program(problem, i)) for i in range(len(problem.h0))]
        u = torch.tensor(np.stack([x for x, _ in found])).reshape(len(found), problem.horizon, -1)
        return u, sum(good for _, good in found)

    return run


def _osqp(P: Any, G: Any, b: Any, actions: int) -> tuple[Any, bool]:
    import osqp
    from scipy import sparse

    bound = np.full(actions, LIMIT)
    rows = sparse.vstack([G, sparse.eye(actions, P.shape[0])], format="csc")
    solver = osqp.OSQP()
    solver.setup(
        sparse.triu(P, format="csc"), np.zeros(P.shape[0]), rows, np.r_[b, -bound], np.r_[b, bound], verbose=False,
        eps_abs=1e-8, eps_rel=1e-8, max_iter=100000, polishing=True,
    )  # fmt: skip
    found = solver.solve()
    return found.x[:actions], found.info.status == "solved"


def _clarabel(P: Any, G: Any, b: Any, actions: int, tolerance: float = 1e-8) -> tuple[Any, bool]:
    import clarabel
    from scipy import sparse

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
    pick, bound = sparse.eye(actions, P.shape[0]), np.full(actions, LIMIT)
    rows = sparse.vstack([G, pick, -pick], format="csc")
    cones = [clarabel.ZeroConeT(len(b)), clarabel.NonnegativeConeT(2 * actions)]
    solver = clarabel.DefaultSolver(
        sparse.triu(P, format="csc"), np.zeros(P.shape[0]), rows, np.r_[b, bound, bound], cones, settings
    )
    found = solver.solve()
    return np.array(found.x)[:actions], str(found.status) == "Solved"


def _judge(P: Any, G: Any, b: Any, actions: int) -> tuple[Any, bool]:
    return _clarabel(P, G, b, actions, tolerance=1e-12)


def _casadi(P: Any, G: Any, b: Any, actions: int) -> tuple[Any, bool]:
    import casadi

    shapes = {"h": casadi.DM(P).sparsity(), "a": casadi.DM(G).sparsity()}
    solver = casadi.conic("solver", "qrqp", shapes, {"print_iter": False, "print_header": False, "print_time": False})
    bound = np.r_[np.full(actions, LIMIT), np.full(P.shape[0] - actions, np.inf)]
    found = solver(h=casadi.DM(P), a=casadi.DM(G), lba=b, uba=b, lbx=-bound, ubx=bound)
    return np.array(found["x"]).ravel()[:actions], bool(solver.stats()["success"])


LINEAR: dict[str, Callable[[LQR], Answer]] = {
    "solve_constrained": by_solve_constrained,
    "osqp": one_by_one(_osqp),
    "clarabel": one_by_one(_clarabel),
    "casadi": one_by_one(_casadi),
}


def pendulum(h: Tensor, u: Tensor) -> Tensor:
    """Angle from upright and speed, a moment later."""
    speed = h[..., 1] + 0.05 * (15 * h[..., 0].sin() + 3 * u[..., 0])
    return torch.stack([h[..., 0] + 0.05 * speed, speed], -1)


WEIGHTS = torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)  # of angle, speed and torque


def by_ilqr(starts: Tensor, T: int = 40) -> Answer:
    found = ilqr(
        pendulum, lambda h, u: 0.5 * (WEIGHTS * torch.cat([h, u]).square()).sum(), starts, T, action_size=1,
        terminal=lambda h: 0.5 * (WEIGHTS[:2] * h.square()).sum(), u_min=-TORQUE, u_max=TORQUE, check=False,
    )  # fmt: skip
    return found.u, int(found.converged.sum())


def pendulums_by_mpc(starts: Tensor, T: int = 40) -> Answer:
    """Solve the pendulums by mpc.pytorch, whose last state has an action too, without effect."""
    from mpc import mpc

    class Pendulums(torch.nn.Module):
        def forward(self, h: Tensor, u: Tensor) -> Tensor:
            return pendulum(h, u)

    count = len(starts)
    C, c = torch.diag(WEIGHTS).expand(T + 1, count, 3, 3), starts.new_zeros(T + 1, count, 3)
    solver = mpc.MPC(
        2, 1, T + 1, u_lower=-TORQUE, u_upper=TORQUE, lqr_iter=200, eps=1e-7, verbose=-1, exit_unconverged=False,
        detach_unconverged=False, grad_method=mpc.GradMethods.AUTO_DIFF, u_init=starts.new_zeros(T + 1, count, 1),
    )  # fmt: skip
    u = solver(starts, mpc.QuadCost(C, c), Pendulums())[1][:T].transpose(0, 1).detach()
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

    def slopes(u: Tensor) -> Tensor:
        u = u.detach().requires_grad_()
        h, price = starts, u.new_zeros(())
        for action in u.unbind(1):
            price = price + 0.5 * (WEIGHTS * torch.cat([h, action], -1).square()).sum()
            h = pendulum(h, action)
        price = price + 0.5 * (WEIGHTS[:2] * h.square()).sum()
        return torch.autograd.grad(price, u)[0]

    free = slopes(u)
    near = 1e-6 * TORQUE
    held = ((u >= TORQUE - near) & (free < 0)) | ((u <= near - TORQUE) & (free > 0))
    return torch.where(held, 0, free).abs().flatten(1).amax(-1) / slopes(0 * u).abs().flatten(1).amax(-1)


def limited_rows(sizes: list[int], budget: float = 2.0) -> list[Row]:
    """A line for every case, solver and number of problems."""
    rows, where = [], stamp()
    for problems in sizes:
        linear = doubled(draw(problems, 12, 4, 20))
        right = one_by_one(_judge)(linear)[0]
        torch.manual_seed(0)
        starts = torch.tensor([torch.pi, 0.0]).double() + 0.3 * torch.randn(problems, 2, dtype=torch.float64)

        def off_linear(u: Tensor, right: Tensor = right) -> float:
            return float((u - right).abs().max() / right.abs().max())

        def off_pendulum(u: Tensor, starts: Tensor = starts) -> float:
            return float(slope(starts, u).max())

        cases: list[tuple[str, dict[str, Any], Any, Callable[[Tensor], float]]] = [
            ("linear", LINEAR, linear, off_linear),
            ("pendulum", PENDULUMS, starts, off_pendulum),
        ]
        for case, solvers, given, off in cases:
            for name, solver in solvers.items():
                if importlib.util.find_spec(PACKAGES.get(name, "ttcnet")):
                    rows.append(_row(case, name, problems, lambda s=solver, g=given: s(g), off, budget) | where)  # type: ignore[misc]
    return rows


def _row(
    case: str, name: str, problems: int, run: Callable[[], Answer], off: Callable[[Tensor], float], budget: float
) -> Row:
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch to mpc.pytorch, of functions that have new names
        u, solved = run()
        took = milliseconds(run, budget)
    told = {
        "case": case, "provider": name, "problems": problems, "threads": torch.get_num_threads(),
        "forward_ms": f"{took:.3g}", "error_u": f"{off(u):.1e}", "solved": solved, "busy": f"{busy:.2f}",
    }  # fmt: skip
    return {key: str(value) for key, value in told.items()}
