"""Tables for people, generated from the CSV files that the benchmarks wrote.

A table stands in a Markdown file between `<!-- table: NAME -->` and `<!-- end -->`, and comes from results/NAME.csv.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)
Row = dict[str, str]
COMMANDS = {"lqr-cpu": "make bench", "lqr-gpu": "make bench-gpu"}


def update(document: Path, results: Path, write: bool) -> list[str]:
    """Names of the tables that differ from their results; they are rewritten if `write`."""
    text, stale = document.read_text(), []

    def fresh(block: re.Match[str]) -> str:
        rows, name = read(results / f"{block['name']}.csv"), block["name"]
        body = planning(rows, COMMANDS[name]) if name in COMMANDS else plain(rows)
        if body != block["body"]:
            stale.append(block["name"])
        return block[1] + body + block[4]

    new = BLOCK.sub(fresh, text)
    if write and stale:
        unfinished = document.with_suffix(".tmp")
        unfinished.write_text(new)
        os.replace(unfinished, document)
    return stale


def read(path: Path) -> list[Row]:
    with path.open() as file:
        return list(csv.DictReader(file))


def plain(rows: list[Row]) -> str:
    """The file as it is."""
    lines = [list(rows[0]), ["---"] + ["--:"] * (len(rows[0]) - 1), *([*row.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def planning(rows: list[Row], command: str) -> str:
    """One line a shape; a cell a provider: time, and the worst error of u and of the gradients."""
    providers = list(dict.fromkeys(row["provider"] for row in rows))
    shapes = list(dict.fromkeys((row["problems"], row["horizon"]) for row in rows))
    cells = {(row["problems"], row["horizon"], row["provider"]): _cell(row) for row in rows}
    head = "| problems | T | " + " | ".join(f"`{provider}`" for provider in providers) + " |"
    lines = [head, "|--:|--:|" + "--:|" * len(providers)]
    for problems, horizon in shapes:
        line = " | ".join(cells.get((problems, horizon, provider), "") for provider in providers)
        lines.append(f"| {problems} | {horizon} | {line} |")
    return "\n".join(lines) + "\n\n" + _caption(rows[0], command) + "\n"


def _cell(row: Row) -> str:
    if row["status"] != "ok":
        return row["status"]
    errors = f"{float(row['error_u']):.0e} / {float(row['error_worst_gradient']):.0e}"
    times = " / ".join(_time(float(row[name])) for name in ("forward_ms", "median_ms") if row.get(name))
    return f"{times} <br> {float(row['peak_mb']):.0f} MB <br> {errors}"


def _time(ms: float) -> str:
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def _caption(row: Row, command: str) -> str:
    device = row["cpu"] if row["gpu"].startswith("none") else row["gpu"]
    return (
        f"Float32, n = m = {row['n']}, {row['regime']} regime: median time of the forward pass / of both passes, peak "
        f"memory, worst relative error of u / of any gradient against float64. {device}; torch "
        f"{row['version_torch']}, commit {row['commit']}, {row['date']}. Command: `{command}`."
    )
