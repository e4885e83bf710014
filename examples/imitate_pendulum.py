"""Learn a pendulum's mass and length from an expert's actions, through the expert's own optimisation; then swing it up.

The expert plans with the true pendulum, `ilqr` with a guess of it. The gradient of the difference between their actions
passes through the plan to the guess. Then Gymnasium's Pendulum-v1, which has the true values, is controlled in closed
loop, once with the guess from before learning and once with that from after it: every action is the first of a new
plan.

    python examples/imitate_pendulum.py --steps 60 --moves 100 --out demo/pendulum.png

Needs the extras gym and plot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from ttcnet.errors import errors_as_sentences
from ttcnet.extras import require
from ttcnet.lqr import Trajectory, ilqr

STEP, GRAVITY, TORQUE, SPEED = 0.05, 10.0, 2.0, 8.0  # as Gymnasium has them
TRUE = torch.tensor([1.0, 1.0], dtype=torch.float64)  # mass and length


def pendulum(h: Tensor, u: Tensor, body: Tensor) -> Tensor:
    """Angle from upright and speed, a moment later."""
    mass, length = body
    speed = h[1] + STEP * (1.5 * GRAVITY / length * h[0].sin() + 3 / (mass * length**2) * u[0])
    return torch.stack([h[0] + STEP * speed, speed])


def cost(h: Tensor, u: Tensor, body: Tensor) -> Tensor:
    return 2 * (1 - h[0].cos()) + 0.1 * h[1] ** 2 + 0.001 * u[0] ** 2


def terminal(h: Tensor, body: Tensor) -> Tensor:
    return 10 * (2 * (1 - h[0].cos()) + 0.1 * h[1] ** 2)


def plan(h: Tensor, body: Tensor, horizon: int, u: Tensor | None = None, tolerance: float | None = None) -> Trajectory:
    """The next states of h, (..., 2), with one body for all."""
    shared = body.reshape([1] * h.ndim + [2])
    return ilqr(
        pendulum, cost, h, horizon, terminal=terminal, params=shared, u=u, action_size=1, u_min=-TORQUE, u_max=TORQUE,
        tolerance=tolerance, max_iterations=100, check=False,
    )  # fmt: skip


def imitate(guess: Tensor, steps: int, rate: float = 0.1) -> Tensor:
    """The guess after `steps` of gradient descent on the difference from an expert's actions."""
    torch.manual_seed(0)
    starts = torch.randn(16, 2, dtype=torch.float64) * torch.tensor([0.1, 0.3])  # few of them need all of the torque
    expert = plan(starts, TRUE, horizon=20)
    logarithm = guess.log().requires_grad_()
    optimizer = torch.optim.Adam([logarithm], lr=rate)
    u = None
    for step in range(steps):
        now = plan(starts, logarithm.exp(), horizon=20, u=u)
        u = now.u.detach()  # the next plans start from these
        both = expert.converged & now.converged
        loss = (now.u - expert.u)[both].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            mass, length = logarithm.exp().tolist()
            print(f"step {step}: squared error {loss.item():.2e}, mass {mass:.3f}, length {length:.3f}")
    return logarithm.detach().exp()


def follow(last: Trajectory, h: Tensor, body: Tensor) -> Tensor:
    """Actions to start the next plan from: those of the last plan's feedback from the pendulum's present state. With
    the actions of the last plan alone it would fall: upright is unstable, and the model is not quite right."""
    actions = []
    for u, K, planned in zip(last.u[1:], last.K[1:], last.h[1:], strict=False):
        actions.append((u + K @ (h - planned)).clamp(-TORQUE, TORQUE))
        h = pendulum(h, actions[-1], body)
    return torch.stack([*actions, torch.zeros(1, dtype=h.dtype)])


def swing_up(body: Tensor, moves: int, horizon: int = 50) -> list[float]:
    """Angles from upright of Gymnasium's pendulum, which hangs at first, in closed loop."""
    gymnasium = require("gymnasium", "gym", "The pendulum")
    world = gymnasium.make("Pendulum-v1").unwrapped
    world.reset(seed=0)
    world.state = torch.tensor([torch.pi, 0.1]).double().numpy()
    earned, last, angles = 0.0, None, []
    for _ in range(moves):
        h = torch.tensor(world.state, dtype=torch.float64)
        last = plan(h, body, horizon, None if last is None else follow(last, h, body), tolerance=1e-3)
        earned += float(world.step(last.u[0].numpy())[1])
        angles.append(abs(float((world.state[0] + torch.pi) % (2 * torch.pi) - torch.pi)))
    print(f"  after {moves} moves: {angles[-1]:.2f} rad from upright, speed {world.state[1]:+.2f}, return {earned:.0f}")
    return angles


def draw(series: dict[str, list[float]], out: Path) -> None:
    require("matplotlib", "plot", "The picture").use("Agg")
    figure, axes = require("matplotlib.pyplot", "plot", "The picture").subplots(figsize=(7, 3.5), layout="constrained")
    for name, angles in series.items():
        axes.plot([STEP * (k + 1) for k in range(len(angles))], angles, label=f"planned with {name}")
    axes.set(xlabel="seconds", ylabel="rad from upright", title="Gymnasium's pendulum in closed loop")
    axes.legend(frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    print(f"Picture: {out}")


def main(
    steps: Annotated[int, typer.Option(min=1, help="Steps of learning.")] = 60,
    moves: Annotated[int, typer.Option(min=1, help="Moves of the pendulum in closed loop.")] = 100,
    out: Annotated[Path, typer.Option(help="Where to write the picture.")] = Path("demo/pendulum.png"),
) -> None:
    guess = torch.tensor([0.5, 1.5], dtype=torch.float64)
    with errors_as_sentences():
        require("gymnasium", "gym", "The pendulum")
        learned, angles = imitate(guess, steps), {}
        for name, body in (("the first guess", guess), ("the learned body", learned)):
            print(f"Planning with {name}: mass {body[0]:.3f}, length {body[1]:.3f}")
            angles[name] = swing_up(body, moves)
        draw(angles, out)


if __name__ == "__main__":
    typer.run(main)
