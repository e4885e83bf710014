"""A policy that plans, in a Gymnasium loop: a TTC layer learns from a planner, then balances CartPole's pole.

The planner looks 2 to 32 steps ahead; the policy, which sees states and forces alone, takes that number as its horizon.
Afterwards it is a knob: look further, balance longer. Takes a minute and needs the extra gym.

    python examples/cart_pole_policy.py --steps 400
"""

import torch
import typer
from torch import Tensor, nn

from ttcnet.extras import require
from ttcnet.lqr import LQR, solve
from ttcnet.nn import TTCLayer

HOLD = 2  # a force is held for so many of Gymnasium's steps of 0.02 s
SPREAD = torch.tensor([0.5, 0.5, 0.06, 0.25])  # of place, speed, angle and turning
# CartPole's own equations, linear near upright: the motion without a force, and the effect of a force
A = torch.tensor([[1, 0.04, 0, 0], [0, 1, -0.0287, 0], [0, 0, 1, 0.04], [0, 0, 0.6311, 1]])
B = torch.tensor([[0.0], [0.0390], [0.0], [-0.0585]])
Q, R = torch.diag(torch.tensor([1.0, 0.2, 10.0, 1.0])), torch.tensor([0.01])


def planner(states: Tensor, horizon: int) -> Tensor:
    """The first force of the best plan, (N, 1)."""
    problem = LQR(A=A[None, None], B=B[None, None], Q=Q[None, None], R=R[None, None], h0=states, horizon=horizon)
    return solve(problem).u[:, 0]


class Policy(nn.Module):
    """States in, forces out. Between the two the layer writes a control problem and plans."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.read = nn.Linear(4, width), nn.Linear(width, 1)
        self.layer = TTCLayer(width, heads=2, state_size=8, context="system")

    def forward(self, states: Tensor, horizon: int) -> Tensor:
        return 10 * self.read(self.layer(self.embed(states / SPREAD), horizon))


@torch.no_grad()
def balance(policy: Policy, horizon: int, seed: int) -> int:
    """Steps until the pole falls, 500 at most."""
    env = require("gymnasium", "gym", "The loop").make("CartPole-v1")
    state, _ = env.reset(seed=seed)
    for step in range(1, 501):
        if step % HOLD == 1:
            force = float(policy(torch.as_tensor(state).view(1, 4), horizon))
        env.unwrapped.force_mag = abs(force)  # of any size; CartPole's own is on or off
        state, _, fallen, ended, _ = env.step(int(force > 0))
        if fallen or ended:
            break
    return step


def main(steps: int = 400) -> None:
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for step in range(steps):
        horizon, states = (2, 4, 8, 16, 32)[step % 5], SPREAD * torch.randn(128, 4)
        loss = (policy(states, horizon) - planner(states, horizon)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: squared error {loss.item():.3f}")
    for horizon in (1, 2, 4, 8, 16, 32, 64):
        lengths = [balance(policy, horizon, seed) for seed in range(5)]
        print(f"looks {horizon:2} steps ahead: balances for {sum(lengths) / 5:.0f} steps of 500")


if __name__ == "__main__":
    typer.run(main)
