"""Tables of speed for pages: one of the VIEWS, layer-gpu, decode-gpu, forms, speed-summary, a table of `solve` beside
others (dense-DEVICE, limited-DEVICE), or else results/NAME.csv unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ttcnet.bench.results import Row, read, sweep_of
from ttcnet.errors import fail

DECODING = {0: 47.16, 8: 45.77, 16: 44.61, 64: 41.43, 128: 36.18}  # tokens a second, 8B, by horizon; 0 is without TTC
SUMMARY = [  # file, device, problems, horizon
    ("lqr-gpu.csv", "H200", "65536", "8"),
    ("lqr-gpu.csv", "H200", "65536", "64"),
    ("lqr-cpu.csv", "2 CPU cores", "1024", "32"),
]
SUMMARISED = {
    "plan": "`plan`", "symplectic": "the paper's iteration", "autograd-riccati": "Riccati by autograd",
    "mpc.pytorch": "mpc.pytorch",
}  # fmt: skip
KINDS = {"eager": False, "compiled": True}


class View(NamedTuple):
    """The lines of a file that belong to a sweep (or all of them), the command that measured them, and the text of a
    cell."""

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
    if name == "speed-summary":
        return summary(results)
    if name == "forms":
        return forms(read(results / "forms.csv"))
    if name.partition("-")[0] in ("dense", "limited"):
        return beside_others(read(results / f"{name}.csv"), f"python -m benchmarks {name.partition('-')[0]}")
    if name not in VIEWS:
        return plain(read(results / f"{name}.csv"))
    view = VIEWS[name]
    rows = [row for row in read(results / view.file) if view.sweep in (None, sweep_of(row))]
    if not rows:
        fail(view.file, f"must have lines of the sweep {view.sweep!r}", "none", f"Run: {view.command}", "no-data")
    return planning(rows, view)


def plain(rows: list[Row]) -> str:
    """The unchanged file."""
    lines = [list(rows[0]), ["---"] + ["--:"] * (len(rows[0]) - 1), *([*row.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def beside_others(rows: list[Row], command: str) -> str:
    """Times and errors of solvers on the same problems: a line for each kind and number of problems."""
    providers = list(dict.fromkeys(row["provider"] for row in rows))
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        kind = row.get("case") or f"n = {row['n']}, m = {row['m']}, T = {row['horizon']}"
        times = " / ".join(_time(row[name]) if row[name] else "-" for name in ("forward_ms", "both_ms"))
        errors = " / ".join(row[name] for name in ("error_u", "error_gradient") if row.get(name))
        found.setdefault((kind, row["problems"]), {})[row["provider"]] = f"{times} <br> {errors}"
    lines = [f"| | problems | {' | '.join(f'`{name}`' for name in providers)} |", "|---|--:|" + "--:|" * len(providers)]
    lines += [
        f"| {kind} | {count} | {' | '.join(cells.get(name, '') for name in providers)} |"
        for (kind, count), cells in found.items()
    ]
    first = rows[0]
    if first["device"] == "cuda":
        command += " --device cuda" + "".join(f" --problems {size}" for size in dict.fromkeys(x for _, x in found))
    machine = first["gpu" if first["device"] == "cuda" else "cpu"]
    return "\n".join(lines) + (
        f"\n\n{machine}; torch {first['version_torch']}, commit {first['commit']}, {first['date']}. "
        f"Command: `{command}`.\n"
    )


def forms(rows: list[Row]) -> str:
    """The time of both passes by each form of the kernels, and its memory."""
    names = list(dict.fromkeys(row["form"] for row in rows))
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        shape = f"{int(row['problems']):,} problems, T = {row['horizon']}, n = {row['n']}, m = {row['m']}"
        times = f"{_time(row['forward_ms'])} / {_time(row['both_ms'])}" if row["status"] == "ok" else row["status"]
        memory = f" <br> {float(row['peak_mb']):,.0f} MB" if row["status"] == "ok" else ""
        found.setdefault(shape, {})[row["form"]] = times + memory
    lines = [f"| | {' | '.join(f'`{name}`' for name in names)} |", "|---|" + "--:|" * len(names)]
    lines += [f"| {shape} | {' | '.join(each.get(name, '') for name in names)} |" for shape, each in found.items()]
    first = rows[0]
    return "\n".join(lines) + (
        f"\n\nMedian time of the forward pass / of both, as CUDA graphs, and peak memory of both; float32, regime "
        f"{first['regime']}. {first['gpu']}; torch {first['version_torch']}, commits "
        f"{', '.join(dict.fromkeys(row['commit'] for row in rows))}, {first['date']}. Command: `ttcnet bench forms`.\n"
    )


def training_steps(rows: list[Row]) -> str:
    """The cost of TTC layers in training."""
    row = rows[0]
    command = f"ttcnet bench layer --repeats {row['repeats']}"
    return (
        f"{plain(with_overhead(rows))}\n{row['blocks']} blocks of width {row['width']}, batch {row['batch']} x "
        f"{row['length']} tokens, bfloat16: median time of forward, backward and AdamW. {row['gpu']}; torch "
        f"{row['version_torch']}, commit {row['commit']}, {row['date']}. Command: `{command}`.\n"
    )


def summary(results: Path) -> str:
    """A few shapes of two files: the time of both passes, and the worst error of a gradient."""
    lines = [f"| | {' | '.join(SUMMARISED.values())} |", "|---|" + "--:|" * len(SUMMARISED)]
    commits = []
    for file, device, problems, horizon in SUMMARY:
        rows = [row for row in read(results / file) if (row["problems"], row["horizon"]) == (problems, horizon)]
        found = {row["provider"]: row for row in rows if row["status"] == "ok"}
        cells = [_both_passes(found[name]) if name in found else "" for name in SUMMARISED]
        lines.append(f"| {device}, {int(problems):,} problems, T = {horizon} | {' | '.join(cells)} |")
        commits.append(rows[0]["commit"])
    legend = "Median time of both passes; in brackets the worst relative error of a gradient against float64"
    return "\n".join(lines) + f"\n\n{legend}. Commits {', '.join(dict.fromkeys(commits))}.\n"


def _both_passes(row: Row) -> str:
    return f"{_time(row['median_ms'])} ({float(row['error_worst_gradient']):.0e})"


def decoding(rows: list[Row]) -> str:
    """The cost of TTC layers when text is generated."""
    row, commits = rows[0], ", ".join(sorted({row["commit"] for row in rows}))
    return (
        f"{plain(decode_rows(rows))}\nA Llama of the shape {row['shape']} with random weights, batch 1, bfloat16, "
        f"{row['prompt']} tokens of prompt and {row['new']} new ones; a TTC layer in every eighth block. Eager: with a "
        f"dynamic cache, the horizon changing from token to token; median time, and median ratio of neighbours. "
        f"Compiled: static cache, as `generate` compiles it, {_compiled(row)}. {row['gpu']}; "
        f"torch {row['version_torch']}, transformers {row['version_transformers']}, commit {commits}, {row['date']}. "
        f"Command: `ttcnet bench decode --device cuda`.\n"
    )


def with_overhead(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows of the table: how much longer a step takes than without TTC layers."""
    base = {row["compiled"]: float(row["step_ms"]) for row in rows if row["interleave"] == "none"}
    table = []
    for row in rows:
        more = 100 * (float(row["step_ms"]) / base[row["compiled"]] - 1)
        table.append(
            {
                "step": "compiled" if row["compiled"] == "True" else "eager",
                "TTC layers": row["interleave"],
                "T": row["horizon"] if row["interleave"] != "none" else "",
                "ms": f"{float(row['step_ms']):.1f}",
                "more": f"{more:+.1f} %" if row["interleave"] != "none" else "",
                "peak GB": f"{float(row['peak_mb']) / 1024:.1f}",
            }
        )
    return table


def decode_rows(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows of the table: how much slower than without TTC layers, here and in the paper."""
    found = {(int(row["horizon"]), row["compiled"] == "True"): row for row in rows}
    kinds = {name: compiled for name, compiled in KINDS.items() if any(kind == compiled for _, kind in found)}
    table = []
    for horizon in dict.fromkeys(horizon for horizon, _ in found):
        line = {"T": str(horizon) if horizon else "no TTC"}
        for name, compiled in kinds.items():
            row = found[horizon, compiled]
            spread = [float(row[name]) for name in ("slower_p20", "slower_p80") if name in row]
            more = _slower(horizon, float(row["slower"]), *spread)
            line[f"{name}, tokens/s"] = f"{float(row['tokens_per_second']):.1f}" + more
        line["paper, tokens/s"] = f"{DECODING[horizon]:.1f}" + _slower(horizon, DECODING[0] / DECODING[horizon])
        table.append(line)
    return table


def _compiled(row: Row) -> str:
    """How it was measured: files from before horizons took turns have no spread."""
    if "slower_p20" not in row:
        return "the time of a text by its tokens"
    return (
        "the horizon changing from text to text; median time of a token, median ratio within a round, and in brackets "
        "its 20th and 80th percentile"
    )


def _slower(horizon: int, factor: float, *spread: float) -> str:
    if not horizon:
        return ""
    between = " to ".join(f"{100 * (end - 1):+.1f}" for end in spread)
    return f" ({100 * (factor - 1):+.1f} % time{f'; {between}' if between else ''})"


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
    return "\n".join(lines) + "\n\n" + _caption(rows, view) + "\n"


def _size(row: Row, view: View) -> str:
    return row["problems"] if view.size == "problems" else str(max(1, int(row["problems"]) // int(row["heads"])))


def _cell(row: Row, view: View) -> str:
    return view.cell(row) if row["status"] == "ok" else row["status"]


def _training(row: Row) -> str:
    errors = f"{float(row['error_u']):.0e} / {float(row['error_worst_gradient']):.0e}"
    times = " / ".join(_time(row[name]) for name in ("forward_ms", "median_ms") if row.get(name))
    return f"{times}{_of_limit(row)} <br> {float(row['peak_mb']):.0f} MB <br> {errors}"


def _of_limit(row: Row) -> str:
    """The part of the time, forward / both passes, that is the physical limit, in files that have it."""
    if not row.get("limit_ms") or math.isnan(float(row["limit_ms"])):
        return ""
    pairs = (("limit_forward_ms", "forward_ms"), ("limit_ms", "median_ms"))
    return f" <br> limit {' / '.join(f'{100 * float(row[a]) / float(row[b]):.2g} %' for a, b in pairs)}"


def _decoding(row: Row) -> str:
    return f"{_time(row['forward_ms'])} / {_time(row['graph_ms'])} <br> {float(row['error_u']):.0e}"


def _time(text: str) -> str:
    ms = float(text)
    return "-" if math.isnan(ms) else f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def _caption(rows: list[Row], view: View) -> str:
    row = rows[0]
    device = row["cpu"] if row["gpu"].startswith("none") else row["gpu"]
    heads = f", {row['heads']} heads a token" if view.size == "tokens" else ""
    limit = LIMIT if view.cell is _training and any(map(_of_limit, rows)) else ""
    return (
        f"Float32, n = m = {row['n']}{heads}, {row['regime']} regime: {view.legend}{limit}. {device}; torch "
        f"{row['version_torch']}, commit {row['commit']}, {row['date']}. Command: `{view.command}`."
    )


_BOTH = (
    "median time of the forward pass / of both passes, peak memory, worst relative error of u / of any gradient "
    "against float64"
)
LIMIT = (
    "; limit: the part of these times that the arithmetic alone, or moving inputs and outputs alone, would take at the "
    "rates of a float32 matrix product and of a copy, measured in the same run"
)
_ALONE = "median time of the forward pass, launched by the host / replayed as a CUDA graph, and the relative error of u"
VIEWS = {
    "lqr-cpu": View("lqr-cpu.csv", None, "make bench", _training, _BOTH),
    "lqr-gpu": View("lqr-gpu.csv", "targets", "make bench-gpu", _training, _BOTH),
    "lqr-gpu-llm": View("lqr-gpu.csv", "llm", "make bench-gpu", _training, _BOTH, "tokens"),
    "lqr-gpu-decode": View("lqr-gpu.csv", "decode", "make bench-gpu", _decoding, _ALONE, "tokens"),
}
