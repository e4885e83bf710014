"""Four of Gymnasium's Pendulums, linked by springs, many such groups at once: a system of `where_planning_pays`.

Without springs a group is four times Gymnasium's Pendulum, its limits of torque and speed lifted. A torque is held for
HOLD of Gymnasium's steps, so that a step of the planner is 0.1 seconds. A state is four angles from upright and four
speeds; the actions are the torques.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.where_planning_pays import planner
from experiments.where_planning_pays.planner import Ranges, Systems

GRAVITY, TAU, HOLD, COUNT = 10.0, 0.05, 2, 4
PAIRS = [(i, j) for i in range(COUNT) for j in range(i)]  # with a spring between them
ANGLE = 0.8  # beyond it a pendulum has fallen and the episode is over
SPREAD = torch.tensor(COUNT * [0.15] + COUNT * [0.5], dtype=torch.float64)  # of states in demonstrations
RANGES: Ranges = {
    "mass": (COUNT, 0.5, 2.0), "length": (COUNT, 0.7, 1.4), "spring": (len(PAIRS), 0.5, 5.0),
    "q angle": (COUNT, 2.5, 40.0), "q speed": (COUNT, 0.25, 4.0), "r": (COUNT, 0.25, 4.0),
}  # fmt: skip
LONGER: Ranges = {**RANGES, "length": (COUNT, 1.4, 2.0)}
KINDS = {"seen": RANGES, "held out": LONGER}


def draw(count: int, seed: int, kind: str = "seen") -> tuple[Systems, Tensor]:
    """Systems and states; the same for a seed on every machine."""
    return planner.draw(KINDS[kind], SPREAD, count, seed)


def features(systems: Systems, states: Tensor) -> Tensor:
    """Tokens: all that the planner knows but its horizon."""
    return planner.features(RANGES, SPREAD, systems, states)


def _parts(systems: Systems) -> tuple[Tensor, Tensor, Tensor]:
    """Effects on a pendulum's speed: of its weight (N, 4), of a torque (N, 4); and the stiffness of the springs (N, 4,
    4)."""
    mass, length, spring = systems.physics.values()
    stiffness = spring.new_zeros(len(spring), COUNT, COUNT)
    for k, (i, j) in zip(spring.unbind(1), PAIRS, strict=True):
        stiffness[:, i, i] += k
        stiffness[:, j, j] += k
        stiffness[:, i, j] -= k
        stiffness[:, j, i] -= k
    return 3 * GRAVITY / (2 * length), 3 / (mass * length**2), stiffness


def step(systems: Systems, states: Tensor, u: Tensor) -> Tensor:
    """States (..., N, 8) after actions (..., N, 4)."""
    weight, ease, stiffness = _parts(systems)
    for _ in range(HOLD):
        angle, speed = states.chunk(2, -1)
        torque = u - (stiffness @ angle.unsqueeze(-1)).squeeze(-1)
        speed = speed + TAU * (weight * torch.sin(angle) + ease * torque)
        states = torch.cat([angle + TAU * speed, speed], -1)
    return states


def linear(systems: Systems, states: Tensor) -> tuple[Tensor, Tensor]:
    """A (N, 8, 8) and B (N, 8, 4), the same for all states: `step` near the upright pendulums at rest."""
    weight, ease, stiffness = _parts(systems)
    pull, push = TAU * (torch.diag_embed(weight) - ease.unsqueeze(-1) * stiffness), TAU * torch.diag_embed(ease)
    one = torch.eye(COUNT, dtype=pull.dtype).expand_as(pull)
    A = torch.cat([torch.cat([one + TAU * pull, TAU * one], 2), torch.cat([pull, one], 2)], 1)
    B = torch.cat([TAU * push, push], 1)
    powers = [torch.linalg.matrix_power(A, k) for k in range(HOLD + 1)]
    return powers[HOLD], torch.stack(powers[:HOLD]).sum(0) @ B


def over(states: Tensor) -> Tensor:
    """Whether one of the pendulums has fallen."""
    return (states[..., :COUNT].abs() > ANGLE).any(-1)
