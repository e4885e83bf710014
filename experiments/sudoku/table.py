"""The Sudoku tables: what experiments/sudoku measured, beside what the paper reports; a model by horizon; loops."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.commands import current
from ttcnet.train.run import settings_of

NAMES = {
    "ttc": "TTC-Net", "transformer": "Transformer", "mamba": "Mamba", "mamba2": "Mamba2", "gdn": "GDN", "samba": "Samba"
}  # fmt: skip
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
    """looped, horizons, or else the name of a setting, as strict."""
    if name == "looped":
        return looped_table(results / "looped")
    if name == "horizons":
        return horizons_table(results / "shipped" / "horizons.json")
    return sudoku_table(results / name)


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


def looped_table(folder: Path) -> str:
    """Of runs that `ttcnet sudoku train` made: boards in one pass and cell by cell, and in one pass at other numbers of
    loops, with the run's own horizon and without plans."""
    loops = (16, 32, 64, 128)
    head = " | ".join(f"{count} loops" for count in loops)
    lines = [f"| run | one pass | cell by cell | {head} |", "|---|" + "--:|" * (2 + len(loops))]
    config: dict[str, Any] = {}
    for path in sorted(folder.glob("*/eval.json")):
        config, found = settings_of(path.parent), json.loads(path.read_text())
        more = json.loads((path.parent / "loops.json").read_text())["results"]
        rates = {rate["mode"]: rate["boards"] for rate in found["results"]}
        cells = [_interval(rates[mode]) for mode in ("single", "multi")]
        for count in loops:
            at = {rate["horizon"]: 100 * rate["boards"]["rate"] for rate in more if rate["loops"] == count}
            own = at[config["horizon"] if config["horizon"] in at else None]
            cells.append(f"{own:.1f} (T = 0: {at[0]:.1f})" if 0 in at else f"{own:.1f}")
        lines.append(f"| {path.parent.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + (
        f"\n\nPercent of {found['boards']:,} regenerated test boards that are solved, with 95 % intervals. One block "
        f"of width {config['width']}, {config['loops']} loops in training, {config['steps']:,} steps of "
        f"{config['batch']} boards, augmentation: {config['augmentation']}; the number behind a name is the seed. "
        f"{found['machine']['gpu']}; torch {found['versions']['torch']}, commit {found['commit']}.\n"
    )


def _head() -> str:
    return " | ".join(f"{'one pass' if mode == 'single' else 'cell by cell'}: {kind}" for mode, kind in COLUMNS)


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
