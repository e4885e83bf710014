"""Solvers of one problem at a time, as sparse quadratic programs, one after another, each set up anew, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ttcnet.lqr import LQR

MOST = 1024  # problems; more take too long
Answer = tuple[Tensor, int]  # actions, and how many problems are solved
Solver = Callable[[Any, Any, Any, int, float], tuple[Any, bool]]


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


def one_by_one(solver: Solver, limit: float = np.inf) -> Callable[[LQR], Answer]:
    """The solver of a batch whose actions are at most `limit` in size."""

    def run(problem: LQR) -> Answer:
        found = [solver(*_program(problem, i), limit) for i in range(len(problem.h0))]
        u = torch.tensor(np.stack([x for x, _ in found])).reshape(len(found), problem.horizon, -1)
        return u, sum(good for _, good in found)

    return run


def osqp(P: Any, G: Any, b: Any, actions: int, limit: float) -> tuple[Any, bool]:
    import osqp as package
    from scipy import sparse

    bound = np.full(actions, limit)
    rows = sparse.vstack([G, sparse.eye(actions, P.shape[0])], format="csc")
    solver = package.OSQP()
    solver.setup(
        sparse.triu(P, format="csc"), np.zeros(P.shape[0]), rows, np.r_[b, -bound], np.r_[b, bound], verbose=False,
        eps_abs=1e-8, eps_rel=1e-8, max_iter=100000, polishing=True,
    )  # fmt: skip
    found = solver.solve(raise_error=False)
    return found.x[:actions], found.info.status == "solved"


def clarabel(P: Any, G: Any, b: Any, actions: int, limit: float, tolerance: float = 1e-8) -> tuple[Any, bool]:
    import clarabel as package
    from scipy import sparse

    settings = package.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
    pick, bound = sparse.eye(actions, P.shape[0]), np.full(actions, limit)
    rows = sparse.vstack([G, pick, -pick], format="csc")
    cones = [package.ZeroConeT(len(b)), package.NonnegativeConeT(2 * actions)]
    solver = package.DefaultSolver(
        sparse.triu(P, format="csc"), np.zeros(P.shape[0]), rows, np.r_[b, bound, bound], cones, settings
    )
    found = solver.solve()
    return np.array(found.x)[:actions], str(found.status) == "Solved"


def judge(P: Any, G: Any, b: Any, actions: int, limit: float) -> tuple[Any, bool]:
    return clarabel(P, G, b, actions, limit, tolerance=1e-12)


def casadi(P: Any, G: Any, b: Any, actions: int, limit: float) -> tuple[Any, bool]:
    import casadi as package

    shapes = {"h": package.DM(P).sparsity(), "a": package.DM(G).sparsity()}
    solver = package.conic("solver", "qrqp", shapes, {"print_iter": False, "print_header": False, "print_time": False})
    bound = np.r_[np.full(actions, limit), np.full(P.shape[0] - actions, np.inf)]
    found = solver(h=package.DM(P), a=package.DM(G), lba=b, uba=b, lbx=-bound, ubx=bound)
    return np.array(found["x"]).ravel()[:actions], bool(solver.stats()["success"])
