"""The figure of the paper, drawn from a file of results: throughput, peak memory and, beside them, the error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ttcnet.bench.measure import Outcome, Point
from ttcnet.bench.results import Row, parse, read, sweep_of
from ttcnet.errors import fail
from ttcnet.extras import require
from ttcnet.storage.writing import replacing

# colour-blind-safe (Okabe and Ito), and a marker each for print
STYLES = {
    "plan": ("#D55E00", "o"),
    "symplectic": ("#0072B2", "s"),
    "autograd-riccati": ("#009E73", "^"),
    "kkt": ("#CC79A7", "D"),
    "reference": ("#999999", "v"),
    "mpc.pytorch": ("#E69F00", "P"),
    "pypose": ("#56B4E9", "X"),
    "diffilqrax": ("#000000", "*"),
}
LABELS = {
    "plan": "plan (ours)",
    "symplectic": "symplectic (the paper's)",
    "autograd-riccati": "Riccati, autograd",
    "kkt": "KKT",
    "reference": "reference (plain PyTorch)",
}
COLUMNS = {"horizon": "horizon T, {problems:,} problems", "problems": "problems, T = {horizon}"}
QUANTITIES = ("problems / s, forward + backward", "peak memory, MB", "worst error of a gradient (10: or more)")
WRONG = 10.0  # larger relative errors, infinite or NaN included, are drawn here


def draw(results: Path, picture: Path) -> None:
    """Write the figure of the sweeps "horizon" and "problems" in the file."""
    rows = read(results)
    columns = {sweep: [row for row in rows if sweep_of(row) == sweep] for sweep in COLUMNS}
    for sweep, found in columns.items():
        if not any(row["status"] == "ok" for row in found):
            remedy = f"Run: ttcnet bench lqr --sweep horizon --sweep problems --out {results}"
            fail(str(results), f"must have measurements of the sweep {sweep!r}", "none", remedy, "no-data")
    require("matplotlib", "plot", "Drawing the figure").use("Agg")
    pyplot = require("matplotlib.pyplot", "plot", "Drawing the figure")
    figure, axes = pyplot.subplots(3, 2, figsize=(9, 9.4), sharex="col", sharey="row", layout="constrained")
    for column, (sweep, found) in enumerate(columns.items()):
        measured = [parse(row) for row in found]
        for provider in dict.fromkeys(point.provider for point, _ in measured):
            _lines(axes[:, column], sweep, [pair for pair in measured if pair[0].provider == provider])
        fixed = measured[0][0]
        axes[2, column].set_xlabel(COLUMNS[sweep].format(problems=fixed.problems, horizon=fixed.horizon))
    for row, quantity in enumerate(QUANTITIES):
        axes[row, 0].set_ylabel(quantity)
    for panel in axes.flat:
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.grid(alpha=0.25, linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in axes[2]:
        panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        panel.text(1, 1, "no digit right", transform=panel.get_yaxis_transform(), ha="right", va="bottom", fontsize=8)
    figure.align_ylabels()
    _legend(figure, axes)
    figure.supxlabel(caption(rows[0]), fontsize=7.5, color="#444444")
    picture.parent.mkdir(parents=True, exist_ok=True)
    with replacing(picture) as new:
        figure.savefig(new, dpi=130)
    pyplot.close(figure)


def caption(row: Row) -> str:
    """The machine, versions and settings of the measurement."""
    device = row["cpu"] if row["device"] == "cpu" else row["gpu"]
    return (
        f"float32, n = m = {row['n']}, {row['heads']} heads a token, {row['regime']} regime; errors against float64. "
        f"{device}; torch {row['version_torch']}, ttcnet {row['version_ttcnet']}, commit {row['commit']}; {row['date']}"
    )


def _lines(panels: Any, sweep: str, measured: list[tuple[Point, Outcome]]) -> None:
    """One provider in one column: a line in each panel, and a cross where it ran out of memory."""
    provider = measured[0][0].provider
    (colour, marker), label = STYLES[provider], LABELS.get(provider, provider)
    fine = [(getattr(point, sweep), point, outcome) for point, outcome in measured if outcome.status == "ok"]
    sizes = [size for size, _, _ in fine]
    series = (
        [1e3 * point.problems / outcome.median_ms for _, point, outcome in fine],
        [max(outcome.peak_mb, 0.1) for _, _, outcome in fine],
        [_drawable(outcome.error_worst_gradient) for _, _, outcome in fine],
    )
    order = 3 if provider == "plan" else 2
    full = [getattr(point, sweep) for point, outcome in measured if "out of memory" in outcome.status]
    for panel, values in zip(panels, series, strict=True):
        panel.plot(sizes, values, color=colour, marker=marker, markersize=4.5, linewidth=1.5, label=label, zorder=order)
        if full and values:
            panel.plot([sizes[-1], min(full)], [values[-1]] * 2, color=colour, linestyle=":", linewidth=1.2)
            panel.plot(min(full), values[-1], color=colour, marker="x", markersize=9, markeredgewidth=2.2)


def _drawable(error: float) -> float:
    return min(error, WRONG) if math.isfinite(error) else WRONG


def _legend(figure: Any, axes: Any) -> None:
    entries: dict[str, Any] = {}
    for panel in axes[0]:
        entries |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    cross = axes[0, 0].plot([], [], color="black", marker="x", markersize=8, markeredgewidth=2, linestyle="none")
    entries["out of memory"] = cross[0]
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=3, fontsize=9, frameon=False)
