"""Gymnasium's CartPole with a force of any size, many at once: a system of `where_planning_pays`.

A force is held for HOLD of Gymnasium's steps, so that a step of the planner is 0.04 seconds. A state is place, speed,
angle and turning; the force is the action times the strength.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from experiments.where_planning_pays import planner
from experiments.where_planning_pays.planner import Ranges, Systems

GRAVITY, TAU, HOLD = 9.8, 0.02, 2
PLACE, ANGLE = 2.4, 12 * 2 * math.pi / 360  # beyond one of these an episode is over
SPREAD = torch.tensor([0.5, 0.5, 0.06, 0.25], dtype=torch.float64)  # of states in demonstrations
RANGES: Ranges = {
    "cart": (1, 0.5, 2.0), "pole": (1, 0.05, 0.5), "length": (1, 0.25, 1.0), "strength": (1, 5.0, 20.0),
    "q place": (1, 0.25, 4.0), "q speed": (1, 0.05, 0.8), "q angle": (1, 2.5, 40.0), "q turning": (1, 0.25, 4.0),
    "r": (1, 0.25, 4.0),
}  # fmt: skip
LONGER: Ranges = {**RANGES, "length": (1, 1.0, 2.0)}  # a length is half the pole's, as Gymnasium has it
KINDS = {"seen": RANGES, "held out": LONGER}


def draw(count: int, seed: int, kind: str = "seen") -> tuple[Systems, Tensor]:
    """Systems and states; the same for a seed on every machine."""
    return planner.draw(KINDS[kind], SPREAD, count, seed)


def features(systems: Systems, states: Tensor) -> Tensor:
    """Tokens: all that the planner knows but its horizon."""
    return planner.features(RANGES, SPREAD, systems, states)


def step(systems: Systems, states: Tensor, u: Tensor) -> Tensor:
    """States (..., N, 4) after actions (..., N, 1)."""
    cart, pole, length, strength = (x.squeeze(-1) for x in systems.physics.values())
    total, force = cart + pole, u.squeeze(-1) * strength
    for _ in range(HOLD):
        _, speed, angle, turning = states.unbind(-1)
        sin, cos = torch.sin(angle), torch.cos(angle)
        push = (force + pole * length * turning**2 * sin) / total
        turn = (GRAVITY * sin - cos * push) / (length * (4 / 3 - pole * cos**2 / total))
        states = states + TAU * torch.stack([speed, push - pole * length * turn * cos / total, turning, turn], -1)
    return states


def linear(systems: Systems, states: Tensor) -> tuple[Tensor, Tensor]:
    """A (N, 4, 4) and B (N, 4, 1), the same for all states: `step` near the upright pole at rest."""
    cart, pole, length, strength = (x.squeeze(-1) for x in systems.physics.values())
    total = cart + pole
    inertia, lever = length * (4 / 3 - pole / total), pole * length / total
    A, B = torch.eye(4, dtype=cart.dtype).repeat(len(cart), 1, 1), cart.new_zeros(len(cart), 4, 1)
    A[:, 0, 1] = A[:, 2, 3] = TAU
    A[:, 3, 2] = TAU * GRAVITY / inertia
    A[:, 1, 2] = -lever * A[:, 3, 2]
    B[:, 3, 0] = -TAU * strength / (total * inertia)
    B[:, 1, 0] = TAU * strength / total - lever * B[:, 3, 0]
    powers = [torch.linalg.matrix_power(A, k) for k in range(HOLD + 1)]
    return powers[HOLD], torch.stack(powers[:HOLD]).sum(0) @ B


def over(states: Tensor) -> Tensor:
    """Whether Gymnasium ends the episode here."""
    return (states[..., 0].abs() > PLACE) | (states[..., 2].abs() > ANGLE)
