"""Tables of experiments/lqr_in_a_token.

lqr-in-a-token-TASK       layers against MLPs, by horizon
lqr-in-a-token-switches   a TTC layer with a switch, against the same without
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.commands import current
from experiments.lqr_in_a_token.arms import OWN, trained_at
from experiments.shared.tables import check_alike
from ttcnet.run_folder import settings_of

Result = dict[str, Any]
TASKS = ("diagonal", "dense", "tracking")
HORIZONS = (1, 2, 4, 8, 16, 32)
KINDS = ("test", "held out")
ARMS = {
    "ttc": "TTC", "head": 'TTC, context "head"', "fixed": "TTC, trained at T = 8", "one": "TTC, trained at T = 1",
    "system": 'TTC, context "system"', "system-one": 'TTC, context "system", trained at T = 1',
    "mlp": "MLP of its size", "mlp-2.5": "MLP 2.5 times as large",
}  # fmt: skip
SWITCHES = {
    "terminal-shared": "terminal cost shared, Qf = Q",
    "terminal-none": "no terminal cost",
    "fixed-scale": "actions at a fixed scale, no norm",
    "decay-per-state": "a decay of A per state",
    "homogeneous-pure": "no decays, and a free to grow",
    "homogeneous-bounded": 'no decays, and a at most 0: `time_homogeneous="pure"`',
    "homogeneous": "no decays, and a negative by a sigmoid: `time_homogeneous=True`",
    "target": "a target for the state",
    "rank-one": "dynamics diagonal + rank one",
    "undecayed-bases": "no weight decay on the bases",
}
LEAST = 0.05  # a smaller change, as a share, counts as none, whatever its error


def token_table(view: str, results: Path) -> str:
    """The table of that name, less "lqr-in-a-token-"; a sentence if there are no runs for it yet."""
    if view == "switches":
        runs = {(task, arm): _read(results, task, arm) for arm in ("ttc", *SWITCHES) for task in TASKS}
        lines = _switches({key: run for key, run in runs.items() if run})
    else:
        runs = {(view, arm): _read(results, view, arm) for arm in ARMS}
        lines = _arms({arm: run for (_, arm), run in runs.items() if run})
    found = [run for run in runs.values() if run]
    if not found:
        return "*Not run yet: `python -m experiments.lqr_in_a_token --out experiments/lqr_in_a_token/results`.*\n"
    return "\n".join(lines) + "\n\n" + _caption(found) + "\n"


def _arms(runs: dict[str, Result]) -> list[str]:
    head = " | ".join(f"T = {horizon}" for horizon in HORIZONS)
    lines = [
        f"| | parameters | rate | {head} | held out, T of training |",
        "|---|--:|--:|" + "--:|" * (len(HORIZONS) + 1),
    ]
    for arm, run in runs.items():
        plans = not arm.startswith("mlp")
        cells = [_with_error(_values(run, "test", T)) if plans or T == OWN else "" for T in HORIZONS]
        cells.append(_with_error(_values(run, "held out", trained_at(arm))))
        lines.append(f"| {ARMS[arm]} | {run['parameters']:,} | {run['rate']:g} | {' | '.join(cells)} |")
    return lines


def _switches(runs: dict[tuple[str, str], Result]) -> list[str]:
    tasks = [task for task in TASKS if (task, "ttc") in runs]
    head = " | ".join(f"{task}: {kind}" for task in tasks for kind in KINDS)
    lines = [f"| | {head} |", "|---|" + "--:|" * (len(KINDS) * len(tasks))]
    plain = [_with_error(_values(runs[task, "ttc"], kind)) for task in tasks for kind in KINDS]
    lines.append(f"| TTC as it is | {' | '.join(plain)} |")
    for arm, title in SWITCHES.items():
        cells = []
        for task in tasks:
            for kind in KINDS:
                run = runs.get((task, arm))
                cells.append(change(_values(run, kind), _values(runs[task, "ttc"], kind)) if run else "")
        if any(cells):
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def change(values: Sequence[float], plain: Sequence[float]) -> str:
    """The change in percent of the plain mean with two standard errors of it, seed by seed; bold where it counts."""
    each = [100 * (value - other) / mean(plain) for value, other in zip(values, plain, strict=True)]
    size, error = mean(each), 2 * _error(each)
    text = f"{size:+.0f} ± {error:.0f} %"
    return f"**{text}**" if abs(size) > max(error, 100 * LEAST) else text


def _values(run: Result, kind: str, horizon: int = OWN) -> list[float]:
    return next(x["unexplained"] for x in run["results"] if (x["tokens"], x["horizon"]) == (kind, horizon))


def _error(values: Sequence[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def _with_error(values: Sequence[float]) -> str:
    return f"{mean(values):.3f} ± {_error(values):.3f}"


def _read(results: Path, task: str, arm: str) -> Result | None:
    folder = results / task / arm
    if not (folder / "metrics.json").exists():
        return None
    config = {"config": settings_of(folder)}
    return config | json.loads((folder / "metrics.json").read_text())


def _caption(runs: list[Result]) -> str:
    first = runs[0]
    config = first["config"]
    check_alike(runs, but=("task", "arm"))
    device = first["machine"]["gpu"]
    device = first["machine"]["cpu"] if device.startswith("none") else device
    commits = ", ".join(sorted({run["commit"] for run in runs if run["commit"]}))
    rates = ", ".join(f"{rate:g}" for rate in config["rates"])
    return (
        f"Unexplained variance on {config['judged']:,} fresh tokens, mean over {config['seeds']} seeds and its "
        f"standard error. {config['steps']:,} steps of {config['batch']} tokens; the best of the rates {rates} by "
        f"validation. {device}; torch {first['versions']['torch']}, commit {commits or 'unknown'}. "
        f"Command: `{current(first['command']).partition(' --only ')[0]}`."
    )
