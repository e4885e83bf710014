"""The pictures of docs/concepts.md, made by the library: `python docs/pictures.py`.

The plans are those of the Sudoku model that comes with the package.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ttcnet.extras import require
from ttcnet.lqr import ModulatedLQR, plan
from ttcnet.nn import PoissonLogNormal, TTCLayer, Uniform, ttc_layers
from ttcnet.tasks import sudoku

PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
CELLS = 6
HORIZONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
BLUE, ORANGE, GREEN, PURPLE, GREY = "#2563eb", "#d97706", "#059669", "#7c3aed", "#6b7280"
OF_PASSES = (BLUE, ORANGE, GREEN, PURPLE)
PASSES = (8, 16, 24, 32)  # of the 32 loops, in which the TTC layer is shown
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ttcnet",  # the same file every time
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "legend.frameon": False,
    "figure.facecolor": "white",  # pages may be dark
}

pyplot = require("matplotlib.pyplot", "plot", "Drawing")


def main(out: Annotated[Path, typer.Option(help="Where to write them.")] = Path(__file__).parent / "images") -> None:
    pyplot.switch_backend("svg")
    pyplot.rcParams.update(STYLE)
    out.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        layers, tokens = blanks()
        figures = {
            "concept-layer": the_layer(),
            "concept-plan": a_plan(layers[0], tokens[0]),
            "concept-value": value(layers, tokens),
            "concept-action": first_action(layers, tokens),
            "concept-digits": digits(layers, tokens),
            "concept-training": training_horizons(),
        }
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.svg", metadata={"Date": None})
        typer.echo(out / f"{name}.svg")


def blanks() -> tuple[list[TTCLayer], list[torch.Tensor]]:
    """The TTC layer of the Sudoku model, and what reaches it at PASSES from the first blank cells of a puzzle."""
    model = sudoku.pretrained()
    board = torch.from_numpy(sudoku.parse(PUZZLE)).long()
    (layer,) = ttc_layers(model).values()
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(board[None])
    hook.remove()
    every = model.config.loops // len(seen)
    return [layer] * len(PASSES), [seen[number // every - 1][0][board == 0][:CELLS] for number in PASSES]


def the_layer() -> Any:
    """A diagram: from a token to a control problem, to its first optimal action, and back."""
    figure, axes = pyplot.subplots(figsize=(7.6, 3.3), layout="constrained")
    axes.set(xlim=(0, 15.2), ylim=(0, 6.6))
    axes.axis("off")

    def box(x: float, y: float, width: float, text: str, colour: str, height: float = 1.1) -> None:
        shape = pyplot.matplotlib.patches.FancyBboxPatch(
            (x, y), width, height, boxstyle="round,pad=0.06,rounding_size=0.15", fc=f"{colour}18", ec=colour, lw=1.2
        )
        axes.add_patch(shape)
        axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9)

    def arrow(start: tuple[float, float], end: tuple[float, float]) -> None:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": GREY, "lw": 1.2})

    box(0.2, 2.6, 1.5, "token x", GREY)
    box(2.5, 2.6, 1.7, "norm, W", GREY)
    box(5.0, 4.3, 3.5, "context writes the problem\nA_t  B_t  Q_t  R_t", ORANGE, 1.4)
    box(5.0, 2.6, 3.5, "state h₀ of every head", BLUE)
    box(5.0, 1.1, 3.5, "horizon T, free", GREEN)
    box(9.4, 2.3, 2.6, "plan T steps,\nkeep the first\naction u₁", PURPLE, 1.7)
    box(12.8, 2.6, 1.9, "norm, W_out", GREY)
    axes.text(13.75, 0.75, "x + ...", ha="center", va="center", fontsize=10)
    arrow((1.8, 3.15), (2.4, 3.15))
    arrow((4.3, 3.15), (4.9, 3.15))
    arrow((4.3, 3.5), (4.9, 4.7))
    arrow((8.6, 5.0), (9.9, 4.1))
    arrow((8.6, 3.15), (9.3, 3.15))
    arrow((8.6, 1.65), (9.9, 2.2))
    arrow((12.1, 3.15), (12.7, 3.15))
    arrow((13.75, 2.5), (13.75, 1.05))
    axes.plot([0.95, 0.95], [2.5, 0.75], color=GREY, lw=1.2)
    arrow((0.95, 0.75), (13.05, 0.75))
    axes.text(0.2, 6.1, "A TTC layer: every token plans by itself", fontsize=10)
    return figure


def a_plan(layer: TTCLayer, x: torch.Tensor, horizon: int = 16) -> Any:
    """States, actions and cost to go of the head of the first blank cell whose plan costs most."""
    solution = layer(x[:1], horizon, return_plan=True)[1]
    head = int(solution.cost[0].argmax())
    h, u, costate = (values[0, head] for values in (solution.h, solution.u, solution.costate))
    alone = layer.problem(x[:1]).unroll(horizon).rollout(torch.zeros_like(solution.u))[0, head]
    figure, (states, actions, cost) = pyplot.subplots(1, 3, figsize=(9.6, 2.9), layout="constrained")
    states.plot(h.numpy(), color=BLUE, alpha=0.35, lw=1)
    states.plot(h.norm(dim=-1), color=BLUE, lw=2, label="length, planned")
    states.plot(alone.norm(dim=-1), color=GREY, lw=1.5, ls="--", label="length, left alone")
    states.set(title="states h_t", xlabel="step t", ylim=(None, 1.4 * float(alone.norm(dim=-1).max())))
    states.legend(fontsize=8, loc="upper left")
    actions.plot(range(1, horizon + 1), u.numpy(), color=ORANGE, alpha=0.45, lw=1)
    actions.scatter([1] * u.shape[1], u[0], color=ORANGE, s=12, zorder=3, label="u₁, the output")
    actions.set(title="actions u_t", xlabel="step t")
    actions.legend(fontsize=8)
    cost.plot(0.5 * (h * costate).sum(-1), color=PURPLE, lw=2)
    cost.set(title="cost to go, half of h_t · λ_t", xlabel="step t", ylim=(0, None))
    return figure


def value(layers: list[TTCLayer], tokens: list[torch.Tensor]) -> Any:
    figure, axes = pyplot.subplots(figsize=(5.2, 3), layout="constrained")
    for number, layer, x, colour in zip(PASSES, layers, tokens, OF_PASSES, strict=True):
        values = [-float(layer(x, T, return_plan=True)[1].cost.mean()) for T in HORIZONS]
        axes.plot(HORIZONS, values, color=colour, marker=".", label=f"pass {number}")
    axes.set(title="what a plan is worth (minus its cost)")
    _against_horizon(axes)
    axes.legend(fontsize=8)
    return figure


def first_action(layers: list[TTCLayer], tokens: list[torch.Tensor]) -> Any:
    figure, (one, all_layers) = pyplot.subplots(1, 2, figsize=(9.6, 3), layout="constrained")
    family = layers[-1].problem(tokens[-1][:1])
    one.plot(HORIZONS, [plan(family, T)[0, 0].numpy() for T in HORIZONS], color=ORANGE, alpha=0.6, lw=1)
    one.set(title="u₁ of one head, each line an entry")
    for number, layer, x, colour in zip(PASSES, layers, tokens, OF_PASSES, strict=True):
        added = [layer(x, T) - x for T in HORIZONS]
        change = [float((y - added[-1]).norm() / added[-1].norm()) for y in added]
        all_layers.plot(HORIZONS, change, color=colour, marker=".", label=f"pass {number}")
    all_layers.set(title="what the layer adds: relative difference from T = 64")
    all_layers.axvline(4, color=GREY, lw=1, ls=":")
    all_layers.text(4.2, 0.02, "trained at T = 4", color=GREY, fontsize=8)
    all_layers.legend(fontsize=8)
    _against_horizon(one)
    _against_horizon(all_layers)
    return figure


def digits(layers: list[TTCLayer], tokens: list[torch.Tensor]) -> Any:
    """The worst relative error of u₁ in float32, over all plans of these cells, against float64."""
    families: list[Any] = [layer.problem(x) for layer, x in zip(layers, tokens, strict=True)]
    figure, axes = pyplot.subplots(figsize=(5.2, 3), layout="constrained")
    for backend, colour, name in (
        ("symplectic", ORANGE, "symplectic iteration (the paper's)"),
        ("reference", BLUE, "closed-loop recursion (ours)"),
    ):
        errors = [max(_error(family, T, backend) for family in families) for T in HORIZONS]
        axes.plot(HORIZONS, errors, color=colour, marker=".", label=name)
    axes.set(title="relative error of u₁ in float32, worst plan", yscale="log")
    _against_horizon(axes)
    axes.legend(fontsize=8)
    return figure


def _against_horizon(axes: Any) -> None:
    powers = [T for T in HORIZONS if T & (T - 1) == 0]
    axes.set(xlabel="horizon T", xscale="log")
    axes.set_xticks(powers, powers)
    axes.minorticks_off()


def _error(family: ModulatedLQR, horizon: int, backend: str) -> float:
    double = replace(family, **{field.name: getattr(family, field.name).double() for field in fields(family)})
    exact = plan(double, horizon, "reference")
    gap = (plan(family, horizon, backend, check=False) - exact).abs().amax(-1) / exact.abs().amax(-1)
    return float(gap.nan_to_num(1.0).max())


def training_horizons() -> Any:
    figure, axes = pyplot.subplots(figsize=(5.2, 2.6), layout="constrained")
    for sampler, colour, name in (
        (PoissonLogNormal(8, 0.1, 32), BLUE, "Poisson log-normal (the paper's)"),
        (Uniform(1, 32), ORANGE, "uniform"),
    ):
        counts = Counter(sampler.at(index) for index in range(10_000))
        axes.step(range(1, 33), [counts[T] / 100 for T in range(1, 33)], where="mid", color=colour, label=name)
    axes.set(title="horizons drawn in training, percent of steps", xlabel="horizon T", ylim=(0, None))
    axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    typer.run(main)
