"""Plan a small control problem: bring a drifting boat to its mooring and stop it there.

The state is (x, y, speed in x, speed in y); the action is the thrust in x and y. Left alone, the speeds grow by 5 % a
step. Prints the plan as a table and draws it:

    python examples/plan_a_course.py --steps 24 --out demo/plan.png
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from ttcnet.errors import errors_as_sentences
from ttcnet.extras import require
from ttcnet.lqr import LQR, Solution, solve

NAMES = ("x", "y", "speed x", "speed y")


def boat(steps: int) -> LQR:
    """The problem: unstable speeds, thrust that costs, and a mooring that counts most at the end."""
    A = torch.eye(4, dtype=torch.float64)
    A[:2, 2:] += 0.25 * torch.eye(2)
    A[2:, 2:] *= 1.05
    B = torch.cat([torch.zeros(2, 2), 0.25 * torch.eye(2)]).double()
    Q = torch.diag(torch.tensor([0.1, 0.1, 0.02, 0.02], dtype=torch.float64)).repeat(steps, 1, 1)
    Q[-1] = 20 * torch.eye(4)
    R = 0.5 * torch.ones(steps, 2, dtype=torch.float64)
    h0 = torch.tensor([4.0, -2.0, 0.5, 1.0], dtype=torch.float64)
    return LQR(A=A.expand(steps, 4, 4), B=B.expand(steps, 4, 2), Q=Q, R=R, h0=h0)


def cost_to_go(solution: Solution) -> torch.Tensor:
    """The cost of the rest of the plan, from h_0 to h_T: half the product of state and co-state."""
    return 0.5 * (solution.h * solution.costate).sum(-1)


def show(solution: Solution, console: Console) -> None:
    table = Table(title="The plan", caption="thrust t acts between the states t-1 and t")
    for column in ("t", *NAMES, "thrust x", "thrust y", "cost to go"):
        table.add_column(column, justify="right")
    values = cost_to_go(solution)
    for t, (state, value) in enumerate(zip(solution.h, values, strict=True)):
        thrust = ("", "") if t == 0 else (f"{u:+.3f}" for u in solution.u[t - 1].tolist())
        table.add_row(str(t), *(f"{h:+.3f}" for h in state.tolist()), *thrust, f"{float(value):.3f}")
    console.print(table)


def draw(solution: Solution, path: Path) -> None:
    require("matplotlib", "plot", "Drawing the plan").use("Agg")
    pyplot = require("matplotlib.pyplot", "plot", "Drawing the plan")
    figure, (states, actions, value) = pyplot.subplots(3, 1, figsize=(7, 8), sharex=True, layout="constrained")
    for name, series in zip(NAMES, solution.h.T.tolist(), strict=True):
        states.plot(series, label=name)
    for name, series in zip(("thrust x", "thrust y"), solution.u.T.tolist(), strict=True):
        actions.step(range(1, len(series) + 1), series, where="pre", label=name)
    value.plot(cost_to_go(solution).tolist(), color="black", label="cost to go")
    for axes, title in ((states, "states"), (actions, "actions"), (value, "value")):
        axes.set_title(title, loc="left")
        axes.axhline(0, color="lightgrey", zorder=0)
        axes.legend(loc="upper right", frameon=False)
    value.set_xlabel("step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(
    steps: Annotated[int, typer.Option(min=1, help="How far ahead to plan.")] = 24,
    out: Annotated[Path, typer.Option(help="Where to write the picture.")] = Path("demo/plan.png"),
) -> None:
    console = Console()
    problem = boat(steps)
    solution = solve(problem)
    show(solution, console)
    idle = float(problem.objective(torch.zeros_like(solution.u)))
    console.print(f"Cost of this plan: {float(solution.cost):.3f}; of doing nothing: {idle:.3f}.")
    console.print(f"Optimality conditions met to {float(solution.residual(problem)):.0e}.")
    with errors_as_sentences():
        draw(solution, out)
    console.print(f"Picture: {out}")


if __name__ == "__main__":
    typer.run(main)
