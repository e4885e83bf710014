"""Rows, table and figure of a comparison: accuracy against the compute of every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from ttcnet.extras import require
from ttcnet.storage.writing import replacing
from ttcnet.tasks import Task
from ttcnet.tasks.statistics import Mean, accuracy

from ..engines.base import FAILED
from ..runs.storage import Line
from ..runs.summary import metrics
from .selection import Vote, best_of, by_problem

METHODS = ("horizon", "best-of-n", "self-consistency", "tree")
STYLES = {"horizon": ("#D55E00", "o"), "best-of-n": ("#0072B2", "s"), "self-consistency": ("#009E73", "^")}
STYLES |= {"tree": ("#CC79A7", "D")}


@dataclass(frozen=True)
class Row:
    """The accuracy of a method and its cost per answer. `n` is the number of samples per answer."""

    method: str
    cot: bool
    horizon: int | None
    n: int
    accuracy: float
    low: float
    high: float
    tokens: float  # generated for an answer
    seconds: float  # spent on an answer
    problems: int
    failed: int


def horizon_rows(lines: list[Line], cot: bool, samples: int, task: Task) -> list[Row]:
    """Every horizon, the mean over its samples."""
    found = []
    for horizon in dict.fromkeys(line["horizon"] for line in lines):
        part = [line for line in lines if line["horizon"] == horizon]
        score = metrics(part, samples, task)["accuracy"]
        if score is not None:
            found.append(_row("horizon", cot, horizon, 1, score, part, len(part)))
    return found


def sample_rows(lines: list[Line], cot: bool, methods: tuple[str, ...], most: int, task: Task) -> list[Row]:
    """Best of n and votes of n, for n = 1, 2, 4, ... of the same samples."""
    problems, failed = by_problem(lines), [line for line in lines if line["verdict"] == FAILED]
    choosers: dict[str, Callable[[list[Line]], Line]] = {}
    if "best-of-n" in methods:
        choosers["best-of-n"] = best_of
    if "self-consistency" in methods:
        choosers["self-consistency"] = Vote(problems, task).winner
    sizes = [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
    return [
        _chosen(method, cot, [samples[:n] for samples in problems.values()], n, choose, failed)
        for method, choose in choosers.items()
        for n in sizes
        if problems
    ]


def tree_rows(lines: list[Line], cot: bool) -> list[Row]:
    samples, failed = list(by_problem(lines).values()), [line for line in lines if line["verdict"] == FAILED]
    return [_chosen("tree", cot, samples, 1, lambda group: group[0], failed)] if samples else []


def _chosen(
    method: str, cot: bool, groups: list[list[Line]], n: int, choose: Callable[[list[Line]], Line], failed: list[Line]
) -> Row:
    score = accuracy([float(choose(group)["verdict"] == "right") for group in groups])
    assert score is not None  # there are groups
    lines = [line for group in groups for line in group]
    return _row(method, cot, lines[0]["horizon"], n, score, lines + failed, len(groups))


def _row(
    method: str,
    cot: bool,
    horizon: int | None,
    n: int,
    score: Mean,
    lines: list[Line],
    answers: int,
) -> Row:
    tokens, seconds = (sum(line[name] or 0 for line in lines) / answers for name in ("new_tokens", "seconds"))
    problems, failed = len({line["problem"] for line in lines}), sum(line["verdict"] == FAILED for line in lines)
    costs = round(tokens, 2), round(seconds, 4)
    return Row(method, cot, horizon, n, score.mean, score.low, score.high, *costs, problems, failed)


def table(rows: list[Row]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("method", "CoT"):
        made.add_column(name)
    for name in ("T", "n", "accuracy, %", "tokens", "seconds", "failed"):
        made.add_column(name, justify="right")
    for row in rows:
        horizon = "" if row.horizon is None else str(row.horizon)
        score = f"{100 * row.accuracy:.1f} ({100 * row.low:.0f}-{100 * row.high:.0f})"
        costs = f"{row.tokens:,.0f}", f"{row.seconds:.2f}", str(row.failed)
        made.add_row(row.method, "on" if row.cot else "off", horizon, str(row.n), score, *costs)
    return made


def draw(rows: list[Row], title: str, path: Path) -> None:
    """Accuracy against the horizon, and against the tokens of an answer; filled with chain of thought, open without."""
    require("matplotlib", "plot", "Drawing the figure").use("Agg")
    pyplot = require("matplotlib.pyplot", "plot", "Drawing the figure")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for method in dict.fromkeys(row.method for row in rows):
        for cot in (True, False):
            part = [row for row in rows if row.method == method and row.cot == cot]
            if method == "horizon" and any(row.horizon is not None for row in part):
                _line(left, part, [row.horizon for row in part], method, cot)
            if part:
                _line(right, part, [max(row.tokens, 1.0) for row in part], method, cot)
    left.set(xlabel="horizon T", ylabel="accuracy, %", title=title)
    left.set_xscale("symlog", base=2, linthresh=1)
    steps = sorted({row.horizon for row in rows if row.method == "horizon" and row.horizon is not None})
    left.set_xticks(steps, map(str, steps))
    right.set(xlabel="tokens generated for an answer")
    right.set_xscale("log")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    with replacing(path) as new:
        figure.savefig(new, dpi=150)
    pyplot.close(figure)


def _line(axis: Any, rows: list[Row], places: list[Any], method: str, cot: bool) -> None:
    colour, marker = STYLES[method]
    heights = [100 * row.accuracy for row in rows]
    spread = [[100 * (row.accuracy - row.low) for row in rows], [100 * (row.high - row.accuracy) for row in rows]]
    look = dict(color=colour, marker=marker, markerfacecolor=colour if cot else "white", linestyle="-" if cot else "--")
    axis.errorbar(places, heights, yerr=spread, capsize=2, label=f"{method}, CoT {'on' if cot else 'off'}", **look)
