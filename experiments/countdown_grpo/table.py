"""Tables of Countdown by reward.

countdown-grpo-gains      accuracy before and after, and the gain, by arm
countdown-grpo-horizons   accuracy against the horizon, before and after
countdown-grpo-curves     the share of samples that is right, and held-out accuracy, by step
"""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

Result = dict[str, Any]
OWN = 8  # the horizon of the main figure
TITLES = {"full": "without TTC", "ttc": "with TTC"}
SHOWN = (0, 20, 40, 60, 80, 100)


def grpo_table(name: str, results: Path) -> str:
    """The table of that name, less "countdown-grpo-"; a sentence if there are no runs for it yet."""
    found = [json.loads(path.read_text()) | {"log": _log(path)} for path in sorted(results.glob("runs/*/metrics.json"))]
    if not found:
        return "*Not run yet: experiments/countdown_grpo/README.md has the commands.*\n"
    lines = {"gains": _gains, "horizons": _horizons, "curves": _curves}[name](found)
    commits = ", ".join(sorted({run["commit"] for run in found}))
    rates = ", ".join(sorted({f"{run['lr']:g}" for run in found}))
    caption = (
        f"Greedy accuracy on {found[0]['accuracy']['start'][0]['total']:,} puzzles; rate {rates}; commit {commits}."
    )
    return "\n".join(lines) + f"\n\n{caption} Mean over seeds, and their range in brackets.\n"


def paired(runs: list[Result]) -> tuple[float, float] | None:
    """The gain with TTC minus the gain without, in points, and two standard errors, over the seeds of both."""
    gains = {arm: {run["seed"]: _gain(run) for run in runs if run["arm"] == arm} for arm in TITLES}
    seeds = sorted(gains["full"].keys() & gains["ttc"].keys())
    if len(seeds) < 2:
        return None
    found = [gains["ttc"][seed] - gains["full"][seed] for seed in seeds]
    return mean(found), 2 * stdev(found) / sqrt(len(found))


def _gains(runs: list[Result]) -> list[str]:
    lines = ["| | seeds | start, % | after, % | gain, points |", "|---|--:|--:|--:|--:|"]
    for arm, title in TITLES.items():
        if own := [run for run in runs if run["arm"] == arm]:
            cells = [[_rate(run, when, OWN) for run in own] for when in ("start", "end")] + [
                [_gain(run) for run in own]
            ]
            lines.append(f"| {title} | {len(own)} | {' | '.join(map(_cell, cells))} |")
    if (found := paired(runs)) is not None:
        lines.append(f"| with minus without | | | | {found[0]:+.1f} ± {found[1]:.1f} |")
    return lines


def _horizons(runs: list[Result]) -> list[str]:
    own = [run for run in runs if run["arm"] == "ttc"]
    lines = ["| T | start, % | after, % |", "|--:|--:|--:|"]
    for steps in dict.fromkeys(each["horizon"] for run in own for each in run["accuracy"]["end"]):
        cells = [_cell([_rate(run, when, steps) for run in own]) for when in ("start", "end")]
        lines.append(f"| {steps} | {' | '.join(cells)} |")
    return lines


def _curves(runs: list[Result]) -> list[str]:
    lines = ["| | step | samples right, % | held out, % |", "|---|--:|--:|--:|"]
    for arm, title in TITLES.items():
        for step in SHOWN:
            found = [line for run in runs if run["arm"] == arm for line in run["log"] if line["step"] == step]
            cells = [_cell([100 * x[key] for x in found if key in x]) for key in ("right", "held_out")]
            if found:
                lines.append(f"| {title} | {step} | {' | '.join(cells)} |")
    return lines


def _log(metrics: Path) -> list[Result]:
    return [json.loads(line) for line in (metrics.parent / "log.jsonl").read_text().splitlines()]


def _rate(run: Result, when: str, horizon: int) -> float:
    """The accuracy before or after training, in per cent; at `horizon`, if the model plans."""
    return 100 * next(each["rate"] for each in run["accuracy"][when] if each["horizon"] in (horizon, None))


def _gain(run: Result) -> float:
    return _rate(run, "end", OWN) - _rate(run, "start", OWN)


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.1f}" + (f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else "")
