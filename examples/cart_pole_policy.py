"""A policy that plans, in a Gymnasium loop: a TTC layer learns from a planner, then balances CartPole's pole.

Demonstrations are states with the force that a linear-quadratic planner would take there, looking 2 to 32 steps ahead.
The policy takes that horizon as its own; afterwards it is a knob: look further, balance longer. Takes a minute.

    pip install 'ttcnet[gym]'
    python examples/cart_pole_policy.py --steps 300
"""

from __future__ import annotations

from statistics import mean

import torch
import typer
from torch import Tensor, nn

from ttcnet.extras import require
from ttcnet.lqr import LQR, solve
from ttcnet.nn import TTCLayer

HORIZONS, HOLD = (2, 4, 8, 16, 32), 2  # steps that planners look ahead; how long a force is held
SPREAD = torch.tensor([0.5, 0.5, 0.06, 0.25])  # of place, speed, angle and turning


def planner(states: Tensor, horizon: int) -> Tensor:
    """The first force of the plan, (N, 1): CartPole's own equations and quantities, linear near upright."""
    gravity, mass, pole, length, tau = 9.8, 1.1, 0.1, 0.5, HOLD * 0.02
    inertia, lever = length * (4 / 3 - pole / mass), pole * length / mass
    A, B = torch.eye(4), torch.zeros(4, 1)
    A[0, 1] = A[2, 3] = tau
    A[3, 2], A[1, 2] = tau * gravity / inertia, -tau * lever * gravity / inertia
    B[3, 0], B[1, 0] = -tau / (mass * inertia), tau / mass * (1 + lever / inertia)
    Q, R = torch.diag(torch.tensor([1.0, 0.2, 10.0, 1.0])), torch.tensor([0.01])
    A, B, Q, R = (x.expand(len(states), horizon, *x.shape) for x in (A, B, Q, R))
    return solve(LQR(A=A, B=B, Q=Q, R=R, h0=states)).u[:, 0]


class Policy(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.read = nn.Linear(4, width), nn.Linear(width, 1)
        self.layer = TTCLayer(width, heads=4, state_size=8)

    def forward(self, states: Tensor, horizon: int) -> Tensor:
        return 10 * self.read(self.layer(self.embed(states / SPREAD), horizon))


@torch.no_grad()
def balance(policy: Policy, horizon: int, episodes: int = 5) -> float:
    """Steps until the pole falls, 500 at most. The force may have any size: CartPole's own is on or off."""
    env, lengths = require("gymnasium", "gym", "The loop").make("CartPole-v1"), []
    for seed in range(episodes):
        state, _ = env.reset(seed=seed)
        for step in range(500):
            if step % HOLD == 0:
                force = float(policy(torch.as_tensor(state).view(1, 4), horizon))
            env.unwrapped.force_mag = abs(force)
            state, _, fallen, ended, _ = env.step(int(force > 0))
            if fallen or ended:
                break
        lengths.append(step + 1)
    return mean(lengths)


def main(steps: int = 300, seed: int = 0) -> None:
    torch.manual_seed(seed)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for step in range(steps):
        loss = torch.zeros(())
        for horizon in HORIZONS:
            states = SPREAD * torch.randn(32, 4)
            loss = loss + (policy(states, horizon) - planner(states, horizon)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: squared error {loss.item() / len(HORIZONS):.3f}")
    for horizon in (1, 2, 4, 8, 16, 32, 64):
        print(f"looks {horizon:2} steps ahead: balances for {balance(policy, horizon):.0f} steps of 500")


if __name__ == "__main__":
    typer.run(main)
