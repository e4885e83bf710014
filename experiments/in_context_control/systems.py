"""Unknown linear systems, prefixes of their transitions, and questions: the task of `in_context_control`.

    s' = A s + B u + NOISE w        3 states, 3 actions, w normal

B is dense, with singular values of 0.5 to 1.2. (In the first round there were 2 actions, and B had normal entries.)
A is dense, V L V^-1 with V of condition e at most. A third of the systems each is

stable       three eigenvalues in 0.2 to 0.95
unstable     one of them in 1 to 1.15; held out 1.15 to 1.3
oscillating  a complex pair of modulus 0.7 to 1.1 and any angle, a real one in 0.2 to 0.95; held out 1.1 to 1.25

A prefix is 16 transitions of one trajectory under normal actions. A question is a state, costs and a horizon; the
answer is the first action of the plan that knows A and B.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.where_planning_pays import planner
from experiments.where_planning_pays.planner import Systems

STATES, ACTIONS, LONGEST_PREFIX = 3, 3, 16
BOTH = STATES + ACTIONS
NOISE, REACH = 0.3, (0.5, 1.2)  # of a transition; singular values of B
REAL, UNSTABLE, UNSTABLE_FAR = (0.2, 0.95), (1.0, 1.15), (1.15, 1.3)
TURNING, TURNING_FAR, ANGLES = (0.7, 1.1), (1.1, 1.25), (0.3, 2.8)
Q, R = (-1.0, 1.0), (0.0, 2.0)  # costs are 4 to the power of a number between
FIT_WEIGHT = 0.5  # of the mean, if least squares writes tokens: variance of the noise over that of entries of [A B]
LOST = 1e3  # a number of the state beyond it ends an episode


def draw(count: int, seed: int, held_out: bool = False) -> Systems:
    """Systems, with costs to ask them by; the same for a seed on every machine."""
    random = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=random, dtype=torch.float64)

    def turn() -> Tensor:
        found, triangle = torch.linalg.qr(torch.randn(count, STATES, STATES, generator=random, dtype=torch.float64))
        return found * torch.diagonal(triangle, dim1=-2, dim2=-1).sign().unsqueeze(-2)

    kind = torch.arange(count) % 3
    L = torch.diag_embed(uniform(*REAL, STATES))
    large = uniform(*(UNSTABLE_FAR if held_out else UNSTABLE))
    L[:, 0, 0] = torch.where(kind == 1, large, L[:, 0, 0])
    modulus, angle = uniform(*(TURNING_FAR if held_out else TURNING)), uniform(*ANGLES)
    pair = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).view(-1, 2, 2)
    L[:, :2, :2] = torch.where((kind == 2).view(-1, 1, 1), modulus.view(-1, 1, 1) * pair, L[:, :2, :2])
    V = turn() @ torch.diag_embed(uniform(-0.5, 0.5, STATES).exp()) @ turn()
    A = V @ L @ torch.linalg.inv(V)
    B = turn() @ torch.diag_embed(uniform(*REACH, STATES)) @ turn()
    return Systems({"A": A, "B": B}, q=4 ** uniform(*Q, STATES), r=4 ** uniform(*R, ACTIONS))


def asked_anew(systems: Systems, seed: int) -> tuple[Systems, Tensor]:
    """The same systems with other costs, and states (N, n)."""
    random, count = torch.Generator().manual_seed(seed), len(systems.q)
    u = torch.rand(count, BOTH, generator=random, dtype=torch.float64)
    states = torch.randn(count, STATES, generator=random, dtype=torch.float64)
    q, r = (
        4 ** (low + (high - low) * part)
        for part, (low, high) in zip(u.split([STATES, ACTIONS], 1), (Q, R), strict=True)
    )
    return systems._replace(q=q, r=r), states


def step(systems: Systems, states: Tensor, u: Tensor, w: Tensor) -> Tensor:
    """States (..., N, n) after actions (..., N, m) and normal w."""
    A, B = systems.physics["A"], systems.physics["B"]
    return (A @ states.unsqueeze(-1) + B @ u.unsqueeze(-1)).squeeze(-1) + NOISE * w


def prefixes(systems: Systems, seed: int) -> tuple[Tensor, Tensor]:
    """The inputs of transitions, states and actions (N, K, n + m), and the next states (N, K, n)."""
    random, count = torch.Generator().manual_seed(seed), len(systems.q)

    def normal(size: int) -> Tensor:
        return torch.randn(count, size, generator=random, dtype=torch.float64)

    states, ins, outs = normal(STATES), [], []
    for _ in range(LONGEST_PREFIX):
        u = normal(ACTIONS)
        ins.append(torch.cat([states, u], -1))
        states = step(systems, states, u, normal(STATES))
        outs.append(states)
    return torch.stack(ins, 1), torch.stack(outs, 1)


def transition_tokens(ins: Tensor, outs: Tensor) -> Tensor:
    """A token for each transition (N, K, 39). A transition is scaled so that its input has length 1, which a linear
    system allows; the length is a feature. The products that least squares sums over transitions are further
    features."""
    size = ins.norm(dim=-1, keepdim=True)
    z, y = ins / size, outs / size
    above = torch.triu_indices(BOTH, BOTH)
    squares = math.sqrt(BOTH) * (z.unsqueeze(-1) * z.unsqueeze(-2))[..., above[0], above[1]]
    products = math.sqrt(BOTH) * (y.unsqueeze(-1) * z.unsqueeze(-2)).flatten(-2)
    return torch.cat([z, y, size.log(), squares, products], -1).float()


def matrices(systems: Systems) -> Tensor:
    """A and B side by side, (N, n, n + m)."""
    return torch.cat([systems.physics["A"], systems.physics["B"]], -1)


def question(systems: Systems, states: Tensor) -> Tensor:
    """Costs, in logarithms of mean 0 and variance 1, and states: (..., N, 8) in float32."""
    told = []
    for value, (low, high) in ((systems.q, Q), (systems.r, R)):
        told.append((value.log() / math.log(4) - (low + high) / 2) / ((high - low) * 12**-0.5))
    costs = torch.cat(told, -1)
    return torch.cat([costs.expand(*states.shape[:-1], -1), states], -1).float()


def ridge(ins: Tensor, outs: Tensor, weight: float, usual: Tensor) -> Tensor:
    """[A B] by least squares over transitions (N, K, ...), drawn towards the mean, (n, n + m), with this weight."""
    one = torch.eye(BOTH, dtype=ins.dtype, device=ins.device)
    right = ins.mT @ outs + weight * usual.mT
    return torch.linalg.solve(ins.mT @ ins + weight * one, right).mT


@functools.cache
def usual() -> Tensor:
    """The mean of [A B] over systems, (n, n + m)."""
    return matrices(draw(65_536, 1000)).mean(0)


class Fit(NamedTuple):
    """The sums of least squares over transitions: products of inputs (..., n + m, n + m), and of inputs with next
    states."""

    squares: Tensor
    products: Tensor

    @classmethod
    def of(cls, ins: Tensor, outs: Tensor) -> Fit:
        """Of transitions (..., K, n + m) and (..., K, n), after each of them: (..., K, n + m, .)."""
        z = ins.unsqueeze(-1)
        return cls((z * ins.unsqueeze(-2)).cumsum(-3), (z * outs.unsqueeze(-2)).cumsum(-3))

    def plus(self, other: Fit) -> Fit:
        return Fit(self.squares + other.squares, self.products + other.products)

    def rows(self, rows: slice) -> Fit:
        return Fit(self.squares[rows], self.products[rows])

    def at(self, length: int) -> Fit:
        """After so many transitions."""
        return Fit(*(x[..., length - 1, :, :] for x in self))

    def matrices(self) -> Tensor:
        """[A B] as least squares has them, (..., n, n + m)."""
        return (usual() + (self.products - self.squares @ usual().mT).mT @ self._spread()).contiguous()

    def features(self) -> Tensor:
        """A token's share: [A B] spelled as by `told`, and their uncertainty (..., 39) in float32."""
        above = torch.triu_indices(BOTH, BOTH)
        spread = self._spread()[..., above[0], above[1]]
        return torch.cat([2 * self.matrices().flatten(-2), FIT_WEIGHT * spread], -1).float()

    def _spread(self) -> Tensor:
        one = torch.eye(BOTH, dtype=self.squares.dtype)
        return torch.linalg.inv(self.squares + FIT_WEIGHT * one)


def gains(systems: Systems, horizon: int) -> Tensor:
    """K (N, m, n): the planner with this horizon takes u = K s. A plan from each unit state."""
    A, B = systems.physics["A"], systems.physics["B"]
    units = torch.eye(STATES, dtype=A.dtype).unsqueeze(1).expand(STATES, len(A), STATES)
    return planner.actions(systems, A, B, units, horizon).permute(1, 2, 0)


def known_as(systems: Systems, found: Tensor) -> Systems:
    """The systems with these matrices (N, n, n + m) in place of their own."""
    A, B = found.split([STATES, ACTIONS], -1)
    return systems._replace(physics={"A": A, "B": B})
