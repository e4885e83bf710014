"""Tables of speed for people: one of the VIEWS, layer-gpu, decode-gpu, or else results/NAME.csv as it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .results import Row, read, sweep_of


class View(NamedTuple):
    """The lines of a file that belong to a sweep (or all of them), who measured them, and what a cell says."""

    file: str
    sweep: str | None
    command: str
    cell: Callable[[Row], str]
    legend: str
    size: str = "problems"


def speed_table(name: str, results: Path) -> str:
    """The text of the table of that name."""
    if name == "layer-gpu":
        return training_steps(read(results / "layer-gpu.csv"))
    if name == "decode-gpu":
        return decoding(read(results / "decode-gpu.csv"))
    if name not in VIEWS:
        return plain(read(results / f"{name}.csv"))
    view = VIEWS[name]
    rows = [row for row in read(results / view.file) if view.sweep in (None, sweep_of(row))]
    if not rows:
        raise ValueError(f"{view.file} must have lines of the sweep {view.sweep!r}; it has none. Run: {view.command}")
    return planning(rows, view)


def plain(rows: list[Row]) -> str:
    """The file as it is."""
    lines = [list(rows[0]), ["---"] + ["--:"] * (len(rows[0]) - 1), *([*row.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def training_steps(rows: list[Row]) -> str:
    """What TTC layers cost in training."""
    from .layer import with_overhead

    row = rows[0]
    command = f"python -m benchmarks layer --repeats {row['repeats']}"
    return (
        f"{plain(with_overhead(rows))}\n{row['blocks']} blocks of width {row['width']}, batch {row['batch']} x "
        f"{row['length']} tokens, bfloat16: median time of forward, backward and AdamW. {row['gpu']}; torch "
        f"{row['version_torch']}, commit {row['commit']}, {row['date']}. Command: `{command}`.\n"
    )


def decoding(rows: list[Row]) -> str:
    """What TTC layers cost when text is generated."""
    from .decode import decode_rows

    row, commits = rows[0], ", ".join(sorted({row["commit"] for row in rows}))
    return (
        f"{plain(decode_rows(rows))}\nA Llama of the shape {row['shape']} with random weights, batch 1, bfloat16, "
        f"{row['prompt']} tokens of prompt and {row['new']} new ones; a TTC layer in every eighth block. Eager: with a "
        f"dynamic cache, the horizon changing from token to token; median time, and median ratio of neighbours. "
        f"Compiled: static cache, as `generate` compiles it, the time of a text by its tokens. {row['gpu']}; "
        f"torch {row['version_torch']}, transformers {row['version_transformers']}, commit {commits}, {row['date']}. "
        f"Command: `ttcnet bench decode --device cuda`.\n"
    )


def planning(rows: list[Row], view: View) -> str:
    """One line a shape; a cell a provider."""
    providers = list(dict.fromkeys(row["provider"] for row in rows))
    shapes = list(dict.fromkeys((_size(row, view), row["horizon"]) for row in rows))
    cells = {(_size(row, view), row["horizon"], row["provider"]): _cell(row, view) for row in rows}
    head = f"| {view.size} | T | " + " | ".join(f"`{provider}`" for provider in providers) + " |"
    lines = [head, "|--:|--:|" + "--:|" * len(providers)]
    for size, horizon in shapes:
        line = " | ".join(cells.get((size, horizon, provider), "") for provider in providers)
        lines.append(f"| {size} | {horizon} | {line} |")
    return "\n".join(lines) + "\n\n" + _caption(rows[0], view) + "\n"


def _size(row: Row, view: View) -> str:
    return row["problems"] if view.size == "problems" else str(max(1, int(row["problems"]) // int(row["heads"])))


def _cell(row: Row, view: View) -> str:
    return view.cell(row) if row["status"] == "ok" else row["status"]


def _training(row: Row) -> str:
    errors = f"{float(row['error_u']):.0e} / {float(row['error_worst_gradient']):.0e}"
    times = " / ".join(_time(row[name]) for name in ("forward_ms", "median_ms") if row.get(name))
    return f"{times} <br> {float(row['peak_mb']):.0f} MB <br> {errors}"


def _decoding(row: Row) -> str:
    return f"{_time(row['forward_ms'])} / {_time(row['graph_ms'])} <br> {float(row['error_u']):.0e}"


def _time(text: str) -> str:
    ms = float(text)
    return "-" if math.isnan(ms) else f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def _caption(row: Row, view: View) -> str:
    device = row["cpu"] if row["gpu"].startswith("none") else row["gpu"]
    heads = f", {row['heads']} heads a token" if view.size == "tokens" else ""
    return (
        f"Float32, n = m = {row['n']}{heads}, {row['regime']} regime: {view.legend}. {device}; torch "
        f"{row['version_torch']}, commit {row['commit']}, {row['date']}. Command: `{view.command}`."
    )


_BOTH = (
    "median time of the forward pass / of both passes, peak memory, worst relative error of u / of any gradient "
    "against float64"
)
_ALONE = "median time of the forward pass, launched by the host / replayed as a CUDA graph, and the relative error of u"
VIEWS = {
    "lqr-cpu": View("lqr-cpu.csv", None, "make bench", _training, _BOTH),
    "lqr-gpu": View("lqr-gpu.csv", "targets", "make bench-gpu", _training, _BOTH),
    "lqr-gpu-llm": View("lqr-gpu.csv", "llm", "make bench-gpu", _training, _BOTH, "tokens"),
    "lqr-gpu-decode": View("lqr-gpu.csv", "decode", "make bench-gpu", _decoding, _ALONE, "tokens"),
}
