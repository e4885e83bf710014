"""Solvers that others wrote, behind the signature of `plan`: (family, horizon) to the first actions.

Each is skipped where its package is not installed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ttcnet.lqr import ModulatedLQR


def mpc_pytorch(family: ModulatedLQR, horizon: int) -> Tensor:
    """mpc.pytorch (Amos et al. 2018), set up for an unconstrained linear-quadratic problem: one step, no line search.

    It has a control after the last state, which gets a cost of its own here and no effect.
    """
    from mpc import mpc

    p = family.unroll(horizon).standard_form()
    A, B, Q, R, h0 = (x.flatten(0, 1) for x in (p.A, p.B, p.Q, p.R, p.h0))
    count, T, n, m = *A.shape[:2], p.state_size, p.action_size
    C = A.new_zeros(T + 1, count, n + m, n + m)
    C[1:, :, :n, :n] = Q.transpose(0, 1)
    C[:-1, :, n:, n:] = R.transpose(0, 1)
    C[-1, :, n:, n:] = torch.eye(m, dtype=A.dtype)
    F = torch.cat([A, B], -1).transpose(0, 1)
    solver = mpc.MPC(
        n, m, T + 1, lqr_iter=1, grad_method=mpc.GradMethods.ANALYTIC, verbose=-1, exit_unconverged=False, eps=1e-12,
        detach_unconverged=False, backprop=True, max_linesearch_iter=1, u_init=A.new_zeros(T + 1, count, m),
    )  # fmt: skip
    _, u, _ = solver(h0, mpc.QuadCost(C, A.new_zeros(T + 1, count, n + m)), mpc.LinDx(F))
    return u[0].reshape(family.r_inv.shape)
