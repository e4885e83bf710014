"""The planner that `where_planning_pays` imitates, and code that its systems share: random numbers, tokens and costs.

It linearises a system near rest (A, B) and minimises over T steps, anew at each step,

    sum_t 1/2 s_t' diag(q) s_t + 1/2 u_t' diag(r) u_t        s_t = A s_{t-1} + B u_t
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ttcnet.lqr import LQR, solve

Ranges = Mapping[str, tuple[int, float, float]]  # of each quantity, its number and its range


class System(Protocol):
    """A kind of system. A state may hold more than the planner's, which comes first."""

    @property
    def KINDS(self) -> Mapping[str, Any]:
        """The kinds of systems: those of training, and held-out ones."""

    def draw(self, count: int, seed: int, kind: str = "seen") -> tuple[Systems, Tensor]: ...

    def features(self, systems: Systems, states: Tensor) -> Tensor: ...

    def linear(self, systems: Systems, states: Tensor) -> tuple[Tensor, Tensor]: ...

    def step(self, systems: Systems, states: Tensor, u: Tensor) -> Tensor: ...

    def over(self, states: Tensor) -> Tensor: ...


class Systems(NamedTuple):
    """Physical quantities by name, and costs: (N, ...) each in float64."""

    physics: dict[str, Tensor]
    q: Tensor
    r: Tensor


def draw(ranges: Ranges, spread: Tensor, count: int, seed: int) -> tuple[Systems, Tensor]:
    """Systems, log-uniform in these ranges, and normal states (N, n); the same for a seed on every machine."""
    random, found = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    for name, (many, low, high) in ranges.items():
        found[name] = low * (high / low) ** torch.rand(count, many, generator=random, dtype=torch.float64)
    q = torch.cat([found.pop(name) for name in ranges if name.startswith("q")], 1)
    states = spread * torch.randn(count, len(spread), generator=random, dtype=torch.float64)
    return Systems(r=found.pop("r"), q=q, physics=found), states


def features(ranges: Ranges, spread: Tensor, systems: Systems, states: Tensor) -> Tensor:
    """Tokens (..., features): all that the planner knows but its horizon, each of mean 0 and variance 1 in training."""
    known = torch.cat([*systems.physics.values(), systems.q, systems.r], 1).log()
    order = sorted(ranges, key=lambda name: (name == "r", name.startswith("q")))  # stable: in the order above
    ends = [ranges[name][1:] for name in order for _ in range(ranges[name][0])]
    low, high = torch.tensor(ends, dtype=torch.float64).log().unbind(1)
    told = (known - (low + high) / 2) / ((high - low) * 12**-0.5)
    return torch.cat([states / spread, told.expand(*states.shape[:-1], -1)], -1)


def actions(systems: Systems, A: Tensor, B: Tensor, states: Tensor, horizon: int) -> Tensor:
    """First actions (..., N, m) of the plans from states (..., N, n), or longer ones that begin with these."""
    lead, (n, m) = states.shape[:-1], B.shape[-2:]
    problem = LQR(
        A=A.unsqueeze(-3).expand(*lead, horizon, n, n),
        B=B.unsqueeze(-3).expand(*lead, horizon, n, m),
        Q=torch.diag_embed(systems.q).unsqueeze(1).expand(*lead, horizon, n, n),
        R=systems.r.unsqueeze(1).expand(*lead, horizon, m),
        h0=states[..., :n],
    )
    return solve(problem).u[..., 0, :]


def cost(systems: Systems, states: Tensor, u: Tensor) -> Tensor:
    """The cost of a step that takes u and ends in these states."""
    places = states[..., : systems.q.shape[-1]]
    return ((systems.q * places.square()).sum(-1) + (systems.r * u.square()).sum(-1)) / 2
