"""The Sudoku tables: what was measured beside what the paper reports, looped models, and the model in the package."""

from __future__ import annotations

import json
import re
from math import hypot
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.commands import current
from ttcnet.train.run import settings_of

NAMES = {
    "ttc": "TTC-Net", "transformer": "Transformer", "mamba": "Mamba", "mamba2": "Mamba2", "gdn": "GDN", "samba": "Samba"
}  # fmt: skip
ARMS = {"ttc": "TTC-Net", "mlp": "MLP in its place", "transformer": "Transformer"}
BOARDS = {"test-1k": "test", "hard-test": "hard"}
LOOPS = (16, 32, 64, 128)
PILOT = re.compile(r"^EVAL carried32 (\w+) loops (\d+) T (\w+) single: boards ([\d.]+) ", re.MULTILINE)
COLUMNS = (("single", "boards"), ("single", "cells"), ("multi", "boards"), ("multi", "cells"))
PAPER = {
    "ttc": (61.30, 90.17, 93.40, 97.33),
    "transformer": (58.50, 86.54, 90.10, 94.08),
    "mamba": (54.60, 85.50, 88.60, 91.29),
    "mamba2": (55.50, 85.10, 87.20, 90.52),
    "gdn": (57.30, 87.19, 89.80, 93.70),
    "samba": (57.20, 87.99, 90.40, 94.61),
}


def sudoku_tables(name: str, results: Path) -> str:
    """shipped, horizons, or else the name of a setting, as strict."""
    if name == "shipped":
        return shipped_table(results)
    if name == "horizons":
        return horizons_table(results / "best" / "horizons.json")
    return arms_table(results / name) if name.startswith("looped") else sudoku_table(results / name)


def sudoku_table(folder: Path) -> str:
    """Of the runs in a folder: one line an architecture, what was measured and what the paper has."""
    runs = _read(folder)
    lines = [f"| | seeds | {_head()} |", "|---|--:|" + "--:|" * len(COLUMNS)]
    for architecture, name in NAMES.items():
        found = [run for run in runs if run["config"]["architecture"] == architecture]
        if not found:
            continue
        cells = [_cell(found, *column) for column in COLUMNS]
        lines.append(f"| {name} | {len(found)} | {' | '.join(cells)} |")
        paper = " | ".join(f"{value:.1f}" for value in PAPER[architecture])
        lines.append(f"| *{name}, paper* | | {paper} |")
    return "\n".join(lines) + "\n\n" + _caption(runs) + "\n"


def horizons_table(file: Path) -> str:
    """What `ttcnet sudoku eval` found at several horizons."""
    found = json.loads(file.read_text())
    rates = {(rate["horizon"], rate["mode"]): rate for rate in found["results"]}
    lines = [f"| T | {_head()} |", "|--:|" + "--:|" * len(COLUMNS)]
    for horizon in dict.fromkeys(horizon for horizon, _ in rates):
        cells = [_interval(rates[horizon, mode][kind]) for mode, kind in COLUMNS]
        lines.append(f"| {horizon or 'no plans'} | {' | '.join(cells)} |")
    return "\n".join(lines) + (
        f"\n\nPercent of {found['boards']:,} regenerated test boards, with 95 % intervals. {found['machine']['gpu']}; "
        f"torch {found['versions']['torch']}, commit {found['commit']}. Command: `{current(found['command'])}`.\n"
    )


def arms_table(folder: Path) -> str:
    """Of looped runs: boards in one pass by loops, the mean over seeds for each arm, and what differs between arms."""
    runs = _read(folder)
    data = list(dict.fromkeys(rate["data"] for run in runs for rate in run["results"]))
    columns = [(each, loops) for each in reversed(data) for loops in LOOPS]
    head = " | ".join(f"{BOARDS[each]}, {loops} loops" for each, loops in columns)
    lines = [f"| | seeds | parameters | {head} |", "|---|--:|--:|" + "--:|" * len(columns)]
    for arm, name in ARMS.items():
        found = _of(runs, arm)
        cells = [_with_error(_boards(found, *column)) for column in columns]
        lines.append(f"| {name} | {len(found)} | {found[0]['parameters']:,} | {' | '.join(cells)} |")
    config, hard = runs[0]["config"], data[-1]
    own = _boards(_of(runs, "ttc"), hard, 64)
    if len(own) > 1:
        lines += ["", f"At 64 loops, on the {BOARDS[hard]} boards:", "", "| difference | points |", "|---|--:|"]
        for arm in ("mlp", "transformer"):
            other = _boards(_of(runs, arm), hard, 64)
            gap, error = mean(own) - mean(other), hypot(_error(own), _error(other))
            lines.append(f"| TTC-Net less {ARMS[arm]} | {gap:+.1f} ± {error:.1f} |")
        for horizon in (0, 1, 16):
            gaps = [one - two for one, two in zip(_boards(_of(runs, "ttc"), hard, 64, horizon), own, strict=True)]
            name = "without plans" if horizon == 0 else f"with T = {horizon}"
            lines.append(f"| TTC-Net {name}, less itself with T = {config['horizon']} | {_with_error(gaps, '+.1f')} |")
    rates = ", ".join(f"{ARMS[arm]} {_of(runs, arm)[0]['config']['lr']:g}" for arm in ARMS)
    totals = {rate["data"]: rate["boards"]["total"] for rate in runs[0]["results"]}
    counts = " and ".join(f"{totals[each]:,} {BOARDS[each]}" for each in reversed(data))
    return "\n".join(lines) + (
        f"\n\nPercent of {counts} boards that are solved in one pass; ± is the standard error over seeds. One block of "
        f"width {config['width']}, applied {config['loops']} times; {config['steps']:,} steps of {config['batch']} "
        f"boards, {config['loops_per_step']} loops each. Dropout {config['dropout']}, "
        f"augmentation: {config['augmentation']}; "
        f"inserted layers in every fourth pass. Learning rates: {rates}. "
        f"{runs[0]['machine']['gpu']}; torch {runs[0]['versions']['torch']}.\n"
    )


def shipped_table(results: Path) -> str:
    """Of the model in the package, the pilot's carried32: hard boards and test boards by loops, and without plans."""
    told = PILOT.findall((results / "looped" / "pilot.txt").read_text())
    found = {(data, int(loops), horizon): rate for data, loops, horizon, rate in told}
    test = json.loads((results / "shipped" / "test.json").read_text())
    by_cell = {rate["loops"]: rate["boards"]["rate"] for rate in test["results"] if rate["mode"] == "multi"}
    rows = {
        "hard boards, one pass": [found.get(("hard", loops, "None"), "") for loops in LOOPS],
        "hard boards, one pass, without plans": [found.get(("hard", loops, "0"), "") for loops in LOOPS],
        "test boards, one pass": [found.get(("test", loops, "None"), "") for loops in LOOPS],
        "test boards, cell by cell": [f"{100 * by_cell[loops]:.1f}" if loops in by_cell else "" for loops in LOOPS],
    }
    lines = [f"| | {' | '.join(f'{loops} loops' for loops in LOOPS)} |", "|---|" + "--:|" * len(LOOPS)]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines) + (
        "\n\nPercent of boards that are solved: 640 boards that need ten guesses or more, of 51 solutions, and "
        f"{test['boards']:,} test boards. {test['machine']['gpu']}, torch {test['versions']['torch']}.\n"
    )


def _head() -> str:
    return " | ".join(f"{'one pass' if mode == 'single' else 'cell by cell'}: {kind}" for mode, kind in COLUMNS)


def _of(runs: list[dict[str, Any]], arm: str) -> list[dict[str, Any]]:
    return [run for run in runs if run["config"]["architecture"] == arm]


def _boards(runs: list[dict[str, Any]], data: str, loops: int, horizon: int | None = None) -> list[float]:
    """Boards in one pass, in percent, of each run."""
    asked = {"data": data, "mode": "single", "loops": loops, "horizon": horizon}
    return [100 * rate["boards"]["rate"] for run in runs for rate in run["results"] if asked.items() <= rate.items()]


def _error(values: list[float]) -> float:
    return float(stdev(values)) / len(values) ** 0.5


def _with_error(values: list[float], form: str = ".1f") -> str:
    return f"{mean(values):{form}}" + (f" ± {_error(values):.1f}" if len(values) > 1 else "")


def _interval(rate: dict[str, Any]) -> str:
    return f"{100 * rate['rate']:.1f} ({100 * rate['low']:.1f} to {100 * rate['high']:.1f})"


def _read(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("*/metrics.json"))
    if not paths:
        raise ValueError(f"{folder} must hold runs; it has none. Run: python -m experiments.sudoku {folder.name} ...")
    read = [{"config": settings_of(path.parent)} for path in paths]
    return [run | json.loads(path.read_text()) for run, path in zip(read, paths, strict=True)]


def _cell(runs: list[dict[str, Any]], mode: str, kind: str) -> str:
    """The mean over seeds and their range, or for one seed its 95 % interval, in percent."""
    rates = [next(found for found in run["results"] if found["mode"] == mode)[kind] for run in runs]
    values = [rate["rate"] for rate in rates]
    return _interval({"rate": mean(values), "low": min(values), "high": max(values)} if len(rates) > 1 else rates[0])


def _caption(runs: list[dict[str, Any]]) -> str:
    config, first = runs[0]["config"], runs[0]
    for run in runs:
        of_both = config | run["config"]
        odd = [field for field in of_both if run["config"].get(field) != config.get(field)]
        if odd := [field for field in odd if field not in ("architecture", "seed")]:
            raise ValueError(f"{run['run']} must share {', '.join(odd)} with {first['run']}. Train it again.")
    boards = first["results"][0]["boards"]["total"]
    commits = ", ".join(sorted({run["commit"] for run in runs}))
    return (
        f"Percent of {boards:,} regenerated test boards; in brackets the range over seeds, or for one seed its 95 % "
        f"interval. {config['layers']} blocks of width {config['width']}, {config['steps']:,} steps of "
        f"{config['batch']} boards, dropout {config['dropout']}, augmentation: {config['augmentation']}. "
        f"{first['machine']['gpu']}; torch {first['versions']['torch']}, commit {commits}. "
        f"Command: `{current(first['command'])}`."
    )
