"""Four systems that people know, controlled by `ilqr`, from several starts at once, and a picture of all.

A pendulum and a cart-pole swing up, a quadrotor flies to a place, and a bicycle drives around obstacles.

    python examples/control_gallery.py --out demo/control.png

Needs matplotlib (the extra plot).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor

from ttcnet.errors import errors_as_sentences
from ttcnet.extras import require
from ttcnet.lqr import Trajectory, ilqr

DOUBLE = torch.float64


class System(NamedTuple):
    """The inputs of `ilqr`, a first guess of the actions, and the two numbers of a state to draw."""

    dynamics: Callable[[Tensor, Tensor], Tensor]
    cost: Callable[[Tensor, Tensor], Tensor]
    terminal: Callable[[Tensor], Tensor]
    starts: Tensor
    u: Tensor
    u_min: Tensor
    u_max: Tensor
    axes: tuple[int, int]
    labels: tuple[str, str]

    def plan(self) -> Trajectory:
        return ilqr(
            self.dynamics, self.cost, self.starts, self.u.shape[-2], terminal=self.terminal, u=self.u,
            u_min=self.u_min, u_max=self.u_max, max_iterations=300,
        )  # fmt: skip


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def spread(start: Tensor, width: Tensor, count: int) -> Tensor:
    """Starts around one."""
    generator = torch.Generator().manual_seed(0)
    return start + width * torch.randn(count, len(start), dtype=DOUBLE, generator=generator)


def pendulum(count: int) -> System:
    """State: angle from upright, speed. Action: torque, too weak to lift the rod at once."""

    def dynamics(h: Tensor, u: Tensor) -> Tensor:
        speed = h[1] + 0.05 * (15 * h[0].sin() + 3 * u[0])
        return torch.stack([h[0] + 0.05 * speed, speed])

    return System(
        dynamics,
        lambda h, u: 0.05 * ((1 - h[0].cos()) + 0.05 * h[1] ** 2 + 0.01 * u[0] ** 2),
        lambda h: 20 * (1 - h[0].cos()) + 2 * h[1] ** 2,
        spread(numbers(torch.pi, 0), numbers(0.3, 0.3), count),
        torch.zeros(count, 100, 1, dtype=DOUBLE),
        numbers(-2.5), numbers(2.5), (0, 1), ("angle", "speed"),
    )  # fmt: skip


def cart_pole(count: int) -> System:
    """State: position, angle of the pole from upright, their speeds. Action: a push."""

    def dynamics(h: Tensor, u: Tensor) -> Tensor:
        sin, cos = h[1].sin(), h[1].cos()
        push = (u[0] + 0.05 * h[3] ** 2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        speeds = torch.stack([h[2] + 0.05 * (push - 0.05 * turn * cos / 1.1), h[3] + 0.05 * turn])
        return torch.cat([h[:2] + 0.05 * speeds, speeds])

    return System(
        dynamics,
        lambda h, u: 0.05 * (0.5 * h[0] ** 2 + 2 * (1 - h[1].cos()) + 0.02 * h[2:].square().sum() + 0.02 * u[0] ** 2),
        lambda h: 10 * h[0] ** 2 + 40 * (1 - h[1].cos()) + 2 * h[2:].square().sum(),
        spread(numbers(0, torch.pi, 0, 0), numbers(0.2, 0.1, 0.1, 0.1), count),
        torch.zeros(count, 80, 1, dtype=DOUBLE),
        numbers(-10), numbers(10), (0, 1), ("position", "angle"),
    )  # fmt: skip


def quadrotor(count: int) -> System:
    """Quadrotors in a vertical plane. State: place, tilt, their speeds. Actions: thrust of two rotors beyond that of
    hovering."""
    hover, goal = 0.5 * 9.81, numbers(2, 2)

    def dynamics(h: Tensor, u: Tensor) -> Tensor:
        left, right = u + hover
        forces = torch.stack([-(left + right) * h[2].sin(), (left + right) * h[2].cos() - 9.81, 8 * (right - left)])
        speeds = h[3:] + 0.05 * forces
        return torch.cat([h[:3] + 0.05 * speeds, speeds])

    def off(h: Tensor) -> Tensor:
        return (h[:2] - goal).square().sum() + h[2] ** 2 + 0.1 * h[3:].square().sum()

    return System(
        dynamics,
        lambda h, u: 0.05 * (off(h) + 0.1 * u.square().sum()),
        lambda h: 20 * off(h),
        spread(torch.zeros(6, dtype=DOUBLE), numbers(0.5, 0.5, 0.2, 0.3, 0.3, 0.3), count),
        torch.zeros(count, 60, 2, dtype=DOUBLE),
        numbers(-hover), numbers(5), (0, 1), ("x", "height"),
    )  # fmt: skip


OBSTACLES = torch.tensor([[2.5, 0.2, 0.8], [5.0, -0.9, 0.9], [5.5, 1.9, 0.8]], dtype=DOUBLE)  # x, y, radius
MARGIN = 0.15


def bicycle(count: int) -> System:
    """State: x, y, heading, speed. Actions: acceleration and steering angle. Touching an obstacle is expensive."""
    goal = numbers(8, 0, 0, 0)

    def dynamics(h: Tensor, u: Tensor) -> Tensor:
        speed = h[3] + 0.1 * u[0]
        return torch.stack([
            h[0] + 0.1 * speed * h[2].cos(), h[1] + 0.1 * speed * h[2].sin(), h[2] + 0.1 * speed * u[1].tan(), speed,
        ])  # fmt: skip

    def cost(h: Tensor, u: Tensor) -> Tensor:
        away = ((h[:2] - OBSTACLES[:, :2]).square().sum(-1) + 1e-9).sqrt() - OBSTACLES[:, 2] - MARGIN
        touched = torch.nn.functional.softplus(-40 * away) / 40
        return 0.1 * (0.02 * (h - goal)[:2].square().sum() + 0.1 * u[0] ** 2 + u[1] ** 2) + 20 * touched.square().sum()

    return System(
        dynamics, cost, lambda h: 20 * (h - goal).square().sum(),
        spread(numbers(0, 0, 0, 1), numbers(0.1, 0.4, 0.1, 0.1), count),
        torch.zeros(count, 80, 2, dtype=DOUBLE),
        numbers(-2, -0.6), numbers(2, 0.6), (0, 1), ("x", "y"),
    )  # fmt: skip


SYSTEMS = {"pendulum": pendulum, "cart-pole": cart_pole, "quadrotor": quadrotor, "bicycle": bicycle}


def clearance(found: Trajectory) -> float:
    """The smallest distance of any trajectory from an obstacle."""
    places = found.h[..., None, :2]
    return float(((places - OBSTACLES[:, :2]).norm(dim=-1) - OBSTACLES[:, 2]).min())


def draw(axes: Any, name: str, system: System, found: Trajectory) -> None:
    first, second = system.axes
    for states in found.h.detach():
        axes.plot(states[:, first], states[:, second], linewidth=1)
        axes.plot(states[-1, first], states[-1, second], "k.", markersize=4)
    if name == "bicycle":
        for x, y, radius in OBSTACLES.tolist():
            axes.add_patch(require("matplotlib.patches", "plot", "The picture").Circle((x, y), radius, color="0.8"))
        axes.set_aspect("equal")
    axes.set(title=name, xlabel=system.labels[0], ylabel=system.labels[1])


def main(
    count: Annotated[int, typer.Option(min=1, help="Starts of every system.")] = 8,
    only: Annotated[list[str] | None, typer.Option(help="A system; may be repeated. All if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("demo/control.png"),
) -> None:
    with errors_as_sentences():
        require("matplotlib", "plot", "The picture").use("Agg")
        plots = require("matplotlib.pyplot", "plot", "The picture")
        names = only or list(SYSTEMS)
        unknown = [name for name in names if name not in SYSTEMS]
        if unknown:
            raise typer.BadParameter(f"only must be of {', '.join(SYSTEMS)}; got {unknown[0]}.")
        figure, places = plots.subplots(
            1, len(names), figsize=(4 * len(names), 3.6), layout="constrained", squeeze=False
        )
        for axes, name in zip(places[0], names, strict=True):
            system = SYSTEMS[name](count)
            found = system.plan()
            steps = found.iterations.double().mean()
            print(
                f"{name}: {int(found.converged.sum())} of {count} converged, {steps:.0f} iterations, "
                f"mean cost {found.cost.mean():.3f}"
            )
            if name == "bicycle":
                print(f"  never closer than {clearance(found):.2f} to an obstacle")
            draw(axes, name, system, found)
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=120)
        print(f"Written to {out}")


if __name__ == "__main__":
    typer.run(main)
