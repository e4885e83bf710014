"""Tokens that spell out a control problem, and the first action of its optimum: the tasks of `lqr_in_a_token`.

    minimise sum_t 1/2 (h_t - z)' diag(q) (h_t - z) + 1/2 u_t' diag(r) u_t     over t = 1..32,  h_t = A h_{t-1} + B u_t

diagonal   A = diag(λ), λ uniform in 0.7 to 1.1, and z = 0
dense      A is a random orthogonal matrix times a number in 0.7 to 1.1, and z = 0
tracking   as dense, with a target z
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.shared.stacks import Tokens

TASKS = ("diagonal", "dense", "tracking")
STATES, STEPS = 4, 32  # and as many actions
NOISE = 0.5  # spread of B around the identity
SEEN, UNSTABLE = (0.7, 1.1), (1.1, 1.3)  # how much A stretches: in training, and held out
AT_ONCE = 65_536


class Problems(NamedTuple):
    """A batch of them, in float64: A (N, n, n), B (N, n, m), q, h0, z (N, n), r (N, m)."""

    A: Tensor
    B: Tensor
    q: Tensor
    r: Tensor
    h0: Tensor
    z: Tensor


def draw(task: str, count: int, seed: int, stretch: tuple[float, float] = SEEN) -> Problems:
    """Problems of a task; the same for a seed on every machine."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=random, dtype=torch.float64)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=random, dtype=torch.float64)

    B = torch.eye(STATES, dtype=torch.float64) + NOISE * normal(STATES, STATES)
    q, r, h0, z = 4 ** uniform(-1, 1, STATES), 4 ** uniform(0, 2, STATES), normal(STATES), normal(STATES)
    if task == "diagonal":
        A = torch.diag_embed(uniform(*stretch, STATES))
    else:
        turn, triangle = torch.linalg.qr(normal(STATES, STATES))
        turn = turn * torch.diagonal(triangle, dim1=-2, dim2=-1).sign().unsqueeze(-2)  # then no direction is preferred
        A = uniform(*stretch, 1, 1) * turn
    return Problems(A, B, q, r, h0, z if task == "tracking" else 0 * z)


def first_action(problems: Problems, steps: int = STEPS) -> Tensor:
    """u_1 of the optimum, (N, m). The cost to go after a step is 1/2 h' P h + p' h."""
    A, B, q, r, h0, z = problems
    P, p = torch.diag_embed(q), -q * z
    for left in range(steps, 0, -1):
        pull = B.mT @ torch.cat([P @ A, p.unsqueeze(-1)], -1)
        gain = torch.linalg.solve(torch.diag_embed(r) + B.mT @ P @ B, pull)  # columns for the state before, and for 1
        if left == 1:
            break
        closed, drift = A - B @ gain[..., :-1], (B @ gain[..., -1:]).squeeze(-1)
        p = (A.mT @ (p - (P @ drift.unsqueeze(-1)).squeeze(-1)).unsqueeze(-1)).squeeze(-1) - q * z
        P = A.mT @ P @ closed
        P = (P + P.mT) / 2 + torch.diag_embed(q)
    return -(gain @ torch.cat([h0, torch.ones_like(h0[..., :1])], -1).unsqueeze(-1)).squeeze(-1)


def features(task: str, problems: Problems) -> Tensor:
    """All numbers of a problem, (N, features), each scaled by its distribution."""
    A, B, q, r, h0, z = problems
    (low, high), spread = SEEN, 12**-0.5  # bounds, and the spread of a number that is uniform in 0 to 1
    if task == "diagonal":
        dynamics = (torch.diagonal(A, dim1=-2, dim2=-1) - (low + high) / 2) / ((high - low) * spread)
    else:
        dynamics = A.flatten(1) / ((low**2 + low * high + high**2) / 3 / STATES) ** 0.5
    actions = (B - torch.eye(STATES, dtype=B.dtype, device=B.device)).flatten(1) / NOISE
    costs = [(torch.log(cost) / math.log(16) - middle) / spread for cost, middle in ((q, 0.0), (r, 0.5))]
    parts = [dynamics, actions, *costs, h0] + ([z] if task == "tracking" else [])
    return torch.cat(parts, 1)


def tokens(
    task: str, count: int, seed: int, stretch: tuple[float, float] = SEEN, device: torch.device | str = "cpu"
) -> Tokens:
    """Tokens of a task on a device, solved there a part at a time."""
    found: list[Tokens] = []
    for part, begin in enumerate(range(0, count, AT_ONCE)):
        problems = draw(task, min(AT_ONCE, count - begin), seed + part, stretch)
        problems = Problems(*(each.to(device) for each in problems))
        found.append(Tokens(features(task, problems).float(), first_action(problems).float()))
    return Tokens(*(torch.cat(each) for each in zip(*found, strict=True)))
