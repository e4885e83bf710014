"""Whether the inequalities G x <= b of a linear-quadratic problem can hold.

They cannot if a combination z >= 0 of them that no action changes, G' z = 0 through the dynamics, has z' (G x - b) > 0.
The violations at the point where they are smallest, in the sum of their squares, are such a combination.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .adjoint import Terms
from .arithmetic import apply, symmetrise
from .constraints import Constraints
from .problem import LQR
from .solve import solve

FAR = 1e4  # a problem is infeasible if no point within this many times the size of its actions meets the constraints
NOT_SO_FAR = 1e2  # likewise, if the search for the point of least violation found none
LEAST = 1e-8  # violation that counts, over the largest bound or initial state
TURNS = 40  # of the search for the point of least violation
NEARBY = 1e-8  # weight of the distance from the last point beside the violations


def cannot_hold(
    terms: Terms, limits: Constraints, u: Tensor, h: Tensor, z: Tensor, far: float = FAR, size: Tensor | float = 1
) -> Tensor:
    """Whether z' (G x - b) > 0 at all actions within `far` times the size of the problem and of u, (P,)."""
    over_u, over_h = limits.transposed(z)
    ahead, slope = torch.zeros_like(over_h[:, 0]), []
    for t in reversed(range(terms.A.shape[1])):
        ahead = over_h[:, t + 1] + ahead
        slope.append(over_u[:, t] + apply(terms.B[:, t].mT, ahead))
        ahead = apply(terms.A[:, t].mT, ahead)
    steep = torch.stack(slope, 1).abs().flatten(1).amax(-1)
    excess = (z * _over(limits, u, h)).sum(-1)
    return excess > far * steep * (size + u.abs().flatten(1).sum(-1))


def is_infeasible(terms: Terms, limits: Constraints, u: Tensor) -> Tensor:
    """Whether no actions meet the inequalities, (P,), by a search for the point of least violation from the actions u:
    steps of Newton, which count the inequalities that are violated at the last point, and stay near that point."""
    size = torch.where(limits.real, limits.b, 0).abs().amax(-1).maximum(terms.h0.abs().amax(-1))
    weight = NEARBY * (1 + limits.C.abs().flatten(1).sum(-1) ** 2 + limits.D.abs().flatten(1).sum(-1) ** 2)
    one = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
    R = (weight[:, None, None, None] * one).expand(terms.R.shape)
    start = terms._replace(Q=torch.zeros_like(terms.Q), R=R, r=None, q=None, N=None)
    system, shares = LQR(**start._asdict()), 0.5 ** torch.arange(12, dtype=u.dtype, device=u.device)
    u = u.nan_to_num()
    h = system.rollout(u)
    for _ in range(TURNS):
        over = _over(limits, u, h)
        if not bool((over.amax(-1) > LEAST * size).any()):
            break
        w, z = (over > 0).to(u.dtype), over.clamp_min(0)
        R, Q, N = limits.weighted(w)
        over_u, over_h = limits.transposed(z)
        problem = start._replace(
            R=symmetrise(start.R + R), Q=symmetrise(Q[:, 1:]), N=N, r=over_u, q=over_h[:, 1:], c=None,
            h0=torch.zeros_like(terms.h0),
        )  # fmt: skip
        step = solve(LQR(**problem._asdict()), check=False)
        du, dh = step.u.nan_to_num(), step.h.nan_to_num()
        moved = limits.values(du, dh).unsqueeze(0) * shares[:, None, None]
        left = torch.where(limits.real, over + moved, 0).clamp_min(0).square().sum(-1)
        share = shares[left.argmin(0)]
        better = left.amin(0) < z.square().sum(-1)
        share = torch.where(better, share, 0)[:, None, None]
        u, h = u + share * du, h + share * dh
    violated = _over(limits, u, h).clamp_min(0)
    return (violated.amax(-1) > LEAST * size) & cannot_hold(terms, limits, u, h, violated, NOT_SO_FAR, size)


def _over(limits: Constraints, u: Tensor, h: Tensor) -> Tensor:
    """G x - b; negative for infinite bounds."""
    return torch.where(limits.real, limits.values(u, h) - torch.where(limits.real, limits.b, 0), -1)
