"""Tables of experiments/shortest_paths.

shortest-paths-right     the share of right next nodes, by arm
shortest-paths-horizon   the same by the horizon of the layer
shortest-paths-answers   the questions
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.commands import current
from experiments.shared.tables import check_alike
from experiments.where_planning_pays.table import standard_error, verdict
from ttcnet.run_folder import settings_of

Run = dict[str, Any]
ARMS = {
    "system": "TTC that writes systems", "system-one": "the same with one step", "mlp": "MLP",
    "mlp-2.5": "MLP 2.5 times as large", "linear": "no layer",
}  # fmt: skip
COMMAND = "python -m experiments.shortest_paths --out experiments/shortest_paths/results"


def paths_table(view: str, results: Path) -> str:
    """The table of that name, less "shortest-paths-"; a sentence if not all arms were run."""
    if not all((results / arm / "run" / "metrics.json").exists() for arm in ARMS):
        return f"*Not run yet: `{COMMAND}`.*\n"
    runs = {arm: _run(results / arm / "run") for arm in ARMS}
    return "\n".join({"right": _right, "horizon": _horizon, "answers": _answers}[view](runs)) + "\n"


def _right(runs: dict[str, Run]) -> list[str]:
    lines = ["| | parameters | rate | right, % | right, paths of three edges or more, % |", "|---|--:|--:|--:|--:|"]
    for arm, title in ARMS.items():
        cells = [_percent(_values(runs[arm], long)) for long in (False, True)]
        lines.append(f"| {title} | {runs[arm]['parameters']:,} | {runs[arm]['rate']:g} | {' | '.join(cells)} |")
    first, settings = runs["system"], runs["system"]["config"]
    check_alike([*runs.values()], but=("arm", "rates"))
    return [
        *lines,
        "",
        f"Mean over {settings['seeds']} seeds and its standard error. {settings['steps']:,} steps of "
        f"{settings['batch']} questions. {first['machine']['cpu']}; torch {first['versions']['torch']}, commit "
        f"{first['commit']}. Command: `{current(first['command']).partition(' --only ')[0]}`.",
    ]


def _horizon(runs: dict[str, Run]) -> list[str]:
    found = runs["system"]["results"]
    horizons = [each["horizon"] for each in found if not each["long"]]
    lines = ["| | " + " | ".join(f"T = {T}" for T in horizons) + " |", "|---|" + "--:|" * len(horizons)]
    for long, title in ((False, "all questions"), (True, "paths of three edges or more")):
        cells = [_percent(each["right"]) for each in found if each["long"] is long]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def _answers(runs: dict[str, Run]) -> list[str]:
    def wrong(arm: str, horizon: int | None = None) -> list[float]:
        return [1 - share for share in _values(runs[arm], False, horizon)]

    system = wrong("system")
    return [
        "| question | wrong next nodes, difference |",
        "|---|---|",
        f"| 1. right more often than both MLPs | {verdict(system, [wrong('mlp'), wrong('mlp-2.5')])} |",
        f"| 2. right more often than with one step | {verdict(system, [wrong('system-one')])} |",
        f"| 3. right more often at T = 8 than at T = 1 | {verdict(wrong('system', 8), [wrong('system', 1)])} |",
    ]


def _values(run: Run, long: bool, horizon: int | None = None) -> list[float]:
    fits = (each for each in run["results"] if each["long"] is long)
    return next(each["right"] for each in fits if (each["own"] if horizon is None else each["horizon"] == horizon))


def _percent(shares: list[float]) -> str:
    return f"{100 * mean(shares):.1f} ± {100 * standard_error(shares):.1f}"


def _run(folder: Path) -> Run:
    return {"config": settings_of(folder)} | json.loads((folder / "metrics.json").read_text())
