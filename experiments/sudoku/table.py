"""The Sudoku tables: results beside those that the paper reports, looped models, and the model in the package."""

from __future__ import annotations

import json
import re
from math import hypot
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.commands import current
from experiments.shared.tables import check_alike
from ttcnet.errors import fail
from ttcnet.run_folder import settings_of

NAMES = {
    "ttc": "TTC-Net", "transformer": "Transformer", "mamba": "Mamba", "mamba2": "Mamba2", "gdn": "GDN", "samba": "Samba"
}  # fmt: skip
ARMS = {"ttc": "TTC-Net", "mlp": "MLP in its place"} | {arm: name for arm, name in NAMES.items() if arm != "ttc"}
BOARDS = {"test-1k": "test", "hard-test": "hard"}
LOOPS, HORIZONS, AT_LOOPS = (8, 16, 32, 64, 128, 256), (0, 1, 2, 8, 16, 32), 64
GIVENS = ((17, 19), (20, 22), (23, 25), (26, 34))
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
    """The table "shipped", "horizons", or that of a setting, such as "strict"; looped settings have NAME-givens too."""
    if name == "shipped":
        return shipped_table(results)
    if name == "horizons":
        return horizons_table(results / "best" / "horizons.json")
    if name.endswith("-givens"):
        return givens_table(results / name.removesuffix("-givens"))
    return arms_table(results / name) if name.startswith("looped") else sudoku_table(results / name)


def sudoku_table(folder: Path) -> str:
    """The runs in a folder: one line for each architecture, with the results and the paper's."""
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
    """Results of `ttcnet sudoku eval` at several horizons."""
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
    """Looped runs: boards in one pass by loops, the mean over seeds for each arm, and differences between arms."""
    runs = _read(folder)
    data = list(dict.fromkeys(rate["data"] for run in runs for rate in run["results"]))
    arms = {arm: name for arm, name in ARMS.items() if _of(runs, arm)}
    columns: list[tuple[str, int | None, str]] = []
    for each in reversed(data):
        columns += [(each, loops, "single") for loops in LOOPS if _in_all(runs, each, loops)]
        columns += [(each, None, "multi")] * _in_all(runs, each, None, "multi")
    head = " | ".join(
        f"{BOARDS[each]}, " + (f"{loops} loops" if loops else "cell by cell") for each, loops, _ in columns
    )
    lines = [f"| | seeds | parameters | {head} |", "|---|--:|--:|" + "--:|" * len(columns)]
    for arm, name in arms.items():
        found = _of(runs, arm)
        cells = [_with_error(_boards(found, each, loops, mode=mode)) for each, loops, mode in columns]
        lines.append(f"| {name} | {len(found)} | {found[0]['parameters']:,} | {' | '.join(cells)} |")
    config, hard = runs[0]["config"], data[-1]
    own = _boards(_of(runs, "ttc"), hard, AT_LOOPS)
    if len(own) > 1:
        title = f"At {AT_LOOPS} loops, on the {BOARDS[hard]} boards:"
        lines += ["", title, "", "| difference | points |", "|---|--:|"]
        for arm in list(arms)[1:]:
            other = _boards(_of(runs, arm), hard, AT_LOOPS)
            gap, error = mean(own) - mean(other), hypot(_error(own), _error(other))
            lines.append(f"| TTC-Net less {arms[arm]} | {gap:+.1f} ± {error:.1f} |")
        for horizon in HORIZONS:
            with_others = _boards(_of(runs, "ttc"), hard, AT_LOOPS, horizon)
            if len(with_others) == len(own):
                gaps = [one - two for one, two in zip(with_others, own, strict=True)]
                name = "without plans" if horizon == 0 else f"with T = {horizon}"
                change = _with_error(gaps, "+.1f")
                lines.append(f"| TTC-Net {name}, less itself with T = {config['horizon']} | {change} |")
    return "\n".join(lines) + "\n\n" + _looped_caption(runs, data, arms) + "\n"


def givens_table(folder: Path) -> str:
    """Looped runs: boards in one pass by their number of givens, with as many loops as in training."""
    runs = _read(folder)
    head = " | ".join(f"{first} to {last}" for first, last in GIVENS)
    lines = [f"| givens | {head} |", "|---|" + "--:|" * len(GIVENS)]
    for arm, name in ARMS.items():
        shares = [_by_givens(run) for run in _of(runs, arm)]
        if shares:
            cells = [_with_error([share[place] for share in shares]) for place in range(len(GIVENS))]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + (
        "\n\nPercent of the test boards with so many givens that are solved in one pass, with as many loops as in "
        "training; ± is the standard error over seeds. The runs are those of the table above.\n"
    )


def _by_givens(run: dict[str, Any]) -> list[float]:
    asked = {"data": "test-1k", "mode": "single", "loops": None, "horizon": None}
    rates = next(rate for rate in run["results"] if asked.items() <= rate.items())["by_givens"]
    found = []
    for first, last in GIVENS:
        boards = [rate["boards"] for rate in rates if first <= rate["givens"] <= last]
        found.append(100 * sum(each["right"] for each in boards) / sum(each["total"] for each in boards))
    return found


def _looped_caption(runs: list[dict[str, Any]], data: list[str], arms: dict[str, str]) -> str:
    config = runs[0]["config"]
    share = (config["interleave"] or "1:1").partition(":")[0]
    where = "all" if share == "1" else f"one of every {share}"
    rates = ", ".join(f"{name} {_of(runs, arm)[0]['config']['lr']:g}" for arm, name in arms.items())
    totals = {rate["data"]: rate["boards"]["total"] for rate in runs[0]["results"]}
    counts = " and ".join(f"{totals[each]:,} {BOARDS[each]}" for each in reversed(data))
    how = "one pass, and cell by cell where that is said" if _in_all(runs, data[0], None, "multi") else "one pass"
    return (
        f"Percent of {counts} boards that are solved in {how}; ± is the standard error over seeds. One block of "
        f"width {config['width']}, applied {config['loops']} times; {config['steps']:,} steps of {config['batch']} "
        f"boards, {config['loops_per_step']} loops each. Dropout {config['dropout']}, "
        f"augmentation: {config['augmentation']}; inserted layers in {where} passes. Learning rates: {rates}. "
        f"{runs[0]['machine']['gpu']}; torch {runs[0]['versions']['torch']}."
    )


def shipped_table(results: Path) -> str:
    """The model in the package, the pilot's carried32: hard boards as measured by the pilot, and test boards by
    `ttcnet sudoku eval`."""
    told = PILOT.findall((results / "looped" / "pilot.txt").read_text())
    found = {(data, int(loops), horizon): rate for data, loops, horizon, rate in told}
    test = json.loads((results / "shipped" / "test.json").read_text())
    solved = {(rate["mode"], rate["loops"]): f"{100 * rate['boards']['rate']:.1f}" for rate in test["results"]}
    loops = sorted({loops for _, loops, _ in found})
    rows = {
        "hard boards, one pass": [found.get(("hard", each, "None"), "") for each in loops],
        "hard boards, one pass, without plans": [found.get(("hard", each, "0"), "") for each in loops],
        "test boards, one pass": [solved.get(("single", each), "") for each in loops],
        "test boards, cell by cell": [solved.get(("multi", each), "") for each in loops],
    }
    lines = [f"| | {' | '.join(f'{each} loops' for each in loops)} |", "|---|" + "--:|" * len(loops)]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines) + (
        "\n\nPercent of boards that are solved. Hard boards: 640 that need ten guesses or more, with 51 solutions "
        "among them, as measured at the end of training (`experiments/sudoku/results/looped/pilot.txt`). Test boards: "
        f"{test['boards']:,}, by `ttcnet sudoku eval` (`experiments/sudoku/results/shipped/test.json`). "
        f"{test['machine']['gpu']}, torch {test['versions']['torch']}.\n"
    )


def _head() -> str:
    return " | ".join(f"{'one pass' if mode == 'single' else 'cell by cell'}: {kind}" for mode, kind in COLUMNS)


def _of(runs: list[dict[str, Any]], arm: str) -> list[dict[str, Any]]:
    return [run for run in runs if run["config"]["architecture"] == arm]


def _boards(
    runs: list[dict[str, Any]], data: str, loops: int | None, horizon: int | None = None, mode: str = "single"
) -> list[float]:
    """The boards that each run solves, in percent."""
    asked = {"data": data, "mode": mode, "loops": loops, "horizon": horizon}
    return [100 * rate["boards"]["rate"] for run in runs for rate in run["results"] if asked.items() <= rate.items()]


def _in_all(runs: list[dict[str, Any]], data: str, loops: int | None, mode: str = "single") -> bool:
    return len(_boards(runs, data, loops, mode=mode)) == len(runs)


def _error(values: list[float]) -> float:
    return float(stdev(values)) / len(values) ** 0.5


def _with_error(values: list[float], form: str = ".1f") -> str:
    return f"{mean(values):{form}}" + (f" ± {_error(values):.1f}" if len(values) > 1 else "")


def _interval(rate: dict[str, Any]) -> str:
    return f"{100 * rate['rate']:.1f} ({100 * rate['low']:.1f} to {100 * rate['high']:.1f})"


def _read(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("*/metrics.json"))
    if not paths:
        fail(str(folder), "must hold runs", "none", f"Run: python -m experiments.sudoku {folder.name} ...", "no-data")
    read = [{"config": settings_of(path.parent)} for path in paths]
    return [run | json.loads(path.read_text()) for run, path in zip(read, paths, strict=True)]


def _cell(runs: list[dict[str, Any]], mode: str, kind: str) -> str:
    """The mean over seeds and their range, or for one seed its 95 % interval, in percent."""
    rates = [next(found for found in run["results"] if found["mode"] == mode)[kind] for run in runs]
    values = [rate["rate"] for rate in rates]
    return _interval({"rate": mean(values), "low": min(values), "high": max(values)} if len(rates) > 1 else rates[0])


def _caption(runs: list[dict[str, Any]]) -> str:
    config, first = runs[0]["config"], runs[0]
    check_alike(runs, fields=sorted({field for run in runs for field in run["config"]} - {"architecture", "seed"}))
    boards = first["results"][0]["boards"]["total"]
    commits = ", ".join(sorted({run["commit"] for run in runs}))
    return (
        f"Percent of {boards:,} regenerated test boards; in brackets the range over seeds, or for one seed its 95 % "
        f"interval. {config['layers']} blocks of width {config['width']}, {config['steps']:,} steps of "
        f"{config['batch']} boards, dropout {config['dropout']}, augmentation: {config['augmentation']}. "
        f"{first['machine']['gpu']}; torch {first['versions']['torch']}, commit {commits}. "
        f"Command: `{current(first['command'])}`."
    )
