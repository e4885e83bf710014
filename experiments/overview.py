"""Where planning pays, all tasks together: two tables, and a picture of them.

planning-uses     for README: unexplained variance and the cost of acting
planning-tasks    the same with standard errors, other horizons of the layer, and the answer

    python -m experiments.overview --out docs/images/planning.svg

A task has the results of its newest round in which the layer that plans and both MLPs were trained. They are the layer
`context="system"`, and MLPs of at least its size and of 2.5 times that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from experiments.in_context_control import table as in_context
from experiments.where_planning_pays import table as imitation
from experiments.where_planning_pays.table import verdict, with_error
from ttcnet.extras import require

ARMS = ("system", "mlp", "mlp-2.5", "system-one")
OTHERS = ("MLP", "MLP 2.5 times as large", "TTC with one step")  # in the order of ARMS
RESULTS = Path(__file__).parent
BLUE, ORANGE, GREEN, PURPLE, GREY = COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#6b7280")
SHORT = (1, 2, 4, 8, 16, 32)  # horizons of the picture


@dataclass(frozen=True)
class Task:
    """Unexplained variance and cost of acting (in multiples of the planner's) of every arm, seed by seed; unexplained
    variance of the layer by its horizon, for the planner with 32 steps."""

    title: str
    left: dict[str, list[float]]
    paid: dict[str, list[float]]
    knob: dict[int, list[float]]

    def pays(self) -> str:
        return verdict(self.left["system"], [self.left[arm] for arm in ("mlp", "mlp-2.5")])


IMITATED = (  # title, rounds from the newest, system
    ("linear systems, given their matrices", ("third", "."), "dense"),
    ("linked pendulums, given masses and lengths", ("third", "."), "pendulums"),
    ("a cart with a pole, given masses and lengths", ("third", "."), "cart-pole"),
    ("robot arms, given their matrices", ("mujoco-longer", "mujoco"), "arms"),
)
READ = (
    ("linear systems with noise, given their matrices", ("third", "second", "."), "told"),
    ("the same, read from 16 transitions by least squares", ("third",), "fitted"),
    ("the same, read from 16 transitions by attention", ("third", "second", "."), "read"),
)


def tasks(results: Path = RESULTS) -> list[Task]:
    found = [_imitated(results / "where_planning_pays" / "results", *each) for each in IMITATED]
    read = [_read(results / "in_context_control" / "results", *each) for each in READ]
    return [task for task in (found[0], *read, *found[1:]) if task]


def _imitated(results: Path, title: str, rounds: Sequence[str], system: str) -> Task | None:
    for folder in rounds:
        every = {arm: imitation._runs(results / folder, system, arm) for arm in ARMS}
        number = next(iter(every["system"]), 0)
        runs = {arm: found[number] for arm, found in every.items() if number in found}
        if runs.keys() >= {"system", "mlp", "mlp-2.5"}:
            return Task(
                title,
                {arm: imitation._left(run) for arm, run in runs.items()},
                {arm: imitation._times(run) for arm, run in runs.items()},
                {T: imitation.own_horizon(runs["system"], T) for T in SHORT},
            )
    return None


def _read(results: Path, title: str, rounds: Sequence[str], task: str) -> Task | None:
    for folder in rounds:
        found = {arm: in_context._run(results / folder / task / arm / "run") for arm in ARMS}
        runs = {arm: run for arm, run in found.items() if run}
        if runs.keys() >= {"system", "mlp", "mlp-2.5"}:
            paid = {arm: in_context._values(run, "acting", "seen", None, 16) for arm, run in runs.items()}
            return Task(
                title,
                {arm: in_context._values(run, "unexplained", "seen", "trained", 16) for arm, run in runs.items()},
                {arm: [1 + share for share in shares] for arm, shares in paid.items()},
                {each["own"]: each["values"] for each in runs["system"]["knob"] if each["own"] in SHORT},
            )
    return None


def overview_table(view: str, results: Path = RESULTS) -> str:
    """The table of that name, less "planning-"; a sentence if there are no runs for it yet."""
    found = tasks(results)
    if not found:
        return "*Not run yet.*\n"
    return "\n".join({"uses": _uses, "tasks": _tasks}[view](found)) + "\n"


def _uses(found: list[Task]) -> list[str]:
    titles = ["unexplained: TTC", *OTHERS, "cost of acting: TTC", *OTHERS]
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(titles)]
    for task in found:
        cells = [f"{mean(task.left[arm]):.3f}" if arm in task.left else "" for arm in ARMS]
        cells += [f"{mean(task.paid[arm]):.2f}" if arm in task.paid else "" for arm in ARMS]
        lines.append(f"| {task.title} | {' | '.join(cells)} |")
    return lines


def _tasks(found: list[Task]) -> list[str]:
    titles = [
        "TTC below both MLPs", "unexplained: TTC", *OTHERS, "planner at T = 32: TTC at T = 1", "TTC at T = 8",
        "cost of acting: TTC", *OTHERS,
    ]  # fmt: skip
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(titles)]
    for task in found:
        cells = [task.pays(), *(_cell(task.left.get(arm)) for arm in ARMS), *(with_error(task.knob[T]) for T in (1, 8))]
        cells += [f"{mean(task.paid[arm]):.2f}" if arm in task.paid else "" for arm in ARMS]
        lines.append(f"| {task.title} | {' | '.join(cells)} |")
    return lines


def _cell(values: list[float] | None) -> str:
    return with_error(values) if values else ""


def picture(found: list[Task]) -> Any:
    """Unexplained variance of the layer as a share of the better MLP's; and its horizon as a knob."""
    pyplot = require("matplotlib.pyplot", "plot", "Drawing")
    figure, (bars, knob) = pyplot.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained", width_ratios=[1, 1])
    for place, task in enumerate(found):
        best = min(mean(task.left[arm]) for arm in ("mlp", "mlp-2.5"))
        for arm, colour, shift in (("system", BLUE, -0.19), ("system-one", ORANGE, 0.19)):
            if arm in task.left:
                share = mean(task.left[arm]) / best
                bars.barh(place + shift, share, 0.36, color=colour)
                bars.text(share + 0.02, place + shift, f"{100 * share:.0f} %", va="center", fontsize=8)
    bars.axvline(1, color=GREY, lw=1, ls="--")
    bars.set(title="Unexplained variance, as a share of the better MLP's", xlim=(0, None))
    bars.set_yticks(range(len(found)), [task.title.replace(", ", ",\n") for task in found])
    bars.tick_params(axis="y", labelsize=8)
    bars.invert_yaxis()
    bars.xaxis.set_major_formatter(pyplot.matplotlib.ticker.PercentFormatter(1))
    bars.plot([], [], color=BLUE, lw=6, label="TTC, plans ahead")
    bars.plot([], [], color=ORANGE, lw=6, label="TTC, one step")
    bars.legend(loc="upper right", fontsize=8)
    styles = [(colour, dash) for dash in ("-", "--") for colour in COLOURS]
    for task, (colour, dash) in zip(found, styles, strict=False):
        knob.plot(SHORT, [mean(task.knob[T]) for T in SHORT], dash, marker="o", ms=3, color=colour, label=task.title)
    knob.set(title="Unexplained variance of TTC, by its horizon", xscale="log", yscale="log", xlabel="horizon")
    knob.set_xticks(SHORT, [str(T) for T in SHORT])
    knob.minorticks_off()
    figure.legend(*knob.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure


def main(out: Annotated[Path, typer.Option(help="Where to write the picture, an SVG.")]) -> None:
    pyplot = require("matplotlib.pyplot", "plot", "Drawing")
    pyplot.switch_backend("svg")
    style = {"svg.fonttype": "none", "svg.hashsalt": "ttcnet", "axes.spines.top": False, "axes.spines.right": False}
    pyplot.rcParams.update(style | {"axes.titlelocation": "left", "axes.titlesize": 10, "legend.frameon": False})
    picture(tasks()).savefig(out, metadata={"Date": None}, facecolor="white")
    typer.echo(out)


if __name__ == "__main__":
    typer.run(main)
