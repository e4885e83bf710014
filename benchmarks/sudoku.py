"""The Sudoku table: what recipes/sudoku.py measured, beside what the paper reports."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

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


def sudoku_table(folder: Path) -> str:
    """Of the runs in a folder: one line an architecture, what was measured and what the paper has."""
    runs = _read(folder)
    head = " | ".join(f"{'one pass' if mode == 'single' else 'cell by cell'}: {kind}" for mode, kind in COLUMNS)
    lines = [f"| | seeds | {head} |", "|---|--:|" + "--:|" * len(COLUMNS)]
    for architecture, name in NAMES.items():
        found = [run for run in runs if run["config"]["architecture"] == architecture]
        if found:
            cells = [_cell(found, *column) for column in COLUMNS]
            lines.append(f"| {name} | {len(found)} | {' | '.join(cells)} |")
        paper = " | ".join(f"{value:.1f}" for value in PAPER[architecture])
        lines.append(f"| *{name}, paper* | | {paper} |")
    return "\n".join(lines) + "\n\n" + _caption(runs) + "\n"


def _read(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("*/metrics.json"))
    if not paths:
        raise ValueError(f"{folder} must hold runs; it has none. Run: python -m recipes.sudoku {folder.name} ...")
    read = [{"config": json.loads((path.parent / "config.json").read_text())} for path in paths]
    return [run | json.loads(path.read_text()) for run, path in zip(read, paths, strict=True)]


def _cell(runs: list[dict[str, Any]], mode: str, kind: str) -> str:
    """The mean over seeds and their range, or for one seed its 95 % interval, in percent."""
    rates = [next(found for found in run["results"] if found["mode"] == mode)[kind] for run in runs]
    values = [100 * rate["rate"] for rate in rates]
    low, high = (min(values), max(values)) if len(values) > 1 else (100 * rates[0]["low"], 100 * rates[0]["high"])
    return f"{mean(values):.1f} ({low:.1f} to {high:.1f})"


def _caption(runs: list[dict[str, Any]]) -> str:
    config, first = runs[0]["config"], runs[0]
    same = ("steps", "batch", "lr", "dropout", "augmentation", "layers", "width")
    for run in runs:
        if any(run["config"][field] != config[field] for field in same):
            raise ValueError(f"{run['run']} must share {', '.join(same)} with {first['run']}. Train it again.")
    boards = first["results"][0]["boards"]["total"]
    commits = ", ".join(sorted({run["commit"] for run in runs}))
    return (
        f"Percent of {boards:,} regenerated test boards; in brackets the range over seeds, or for one seed its 95 % "
        f"interval. {config['layers']} blocks of width {config['width']}, {config['steps']:,} steps of "
        f"{config['batch']} boards, dropout {config['dropout']}, augmentation: {config['augmentation']}. "
        f"{first['machine']['gpu']}; torch {first['versions']['torch']}, commit {commits}. "
        f"Command: `{first['command']}`."
    )
