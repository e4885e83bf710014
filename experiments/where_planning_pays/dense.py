"""Random dense linear systems, told outright: a system of `where_planning_pays`.

Those of `dense` in LQR in a token: A is a random rotation, or reflection, times 0.7 to 1.1; four states, four actions.
The token spells out A and B. Held out are systems more unstable than all in training, 1.1 to 1.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.lqr_in_a_token import tokens as lqr_tokens
from experiments.lqr_in_a_token.tokens import SEEN, STATES, UNSTABLE, Problems
from experiments.where_planning_pays.planner import Systems

KINDS = {"seen": SEEN, "held out": UNSTABLE}
LOST = 10.0  # a number of the state beyond it ends an episode


def draw(count: int, seed: int, kind: str = "seen") -> tuple[Systems, Tensor]:
    """Systems and states; the same for a seed on every machine."""
    p = lqr_tokens.draw("dense", count, seed, KINDS[kind])
    return Systems(q=p.q, r=p.r, physics={"A": p.A, "B": p.B}), p.h0


def features(systems: Systems, states: Tensor) -> Tensor:
    """Tokens (..., 44): A, B, costs and, last, the state."""
    A, B = systems.physics.values()
    none = torch.zeros_like(systems.q)
    known = lqr_tokens.features("dense", Problems(A, B, systems.q, systems.r, none, none))
    return torch.cat([known[:, :-STATES].expand(*states.shape[:-1], -1), states], -1)


def step(systems: Systems, states: Tensor, u: Tensor) -> Tensor:
    """States (..., N, 4) after actions (..., N, 4)."""
    A, B = systems.physics.values()
    return (A @ states.unsqueeze(-1) + B @ u.unsqueeze(-1)).squeeze(-1)


def linear(systems: Systems, states: Tensor) -> tuple[Tensor, Tensor]:
    """A (N, 4, 4) and B (N, 4, 4), the same for all states."""
    A, B = systems.physics.values()
    return A, B


def over(states: Tensor) -> Tensor:
    """Whether the system is lost."""
    return (states.abs() > LOST).any(-1)
