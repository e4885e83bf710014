"""Writes the tables of README.md and docs/ from the files of results: `python -m docs.tables`, or `make tables`.

A table stands in a Markdown file between `<!-- table: NAME -->` and `<!-- end -->`. Speed is in benchmarks/results, the
rest in experiments/TABLE/results.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.tables import speed_table
from experiments.countdown_grpo.table import grpo_table
from experiments.in_context_control.table import context_table
from experiments.lqr_in_a_token.table import token_table
from experiments.math_small.table import math_small_table
from experiments.overview import overview_table
from experiments.shortest_paths.table import paths_table
from experiments.sudoku.table import sudoku_tables
from experiments.where_planning_pays.table import pays_table
from ttcnet.storage.writing import write_text
from ttcnet.terminal.console import say

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)
EXPERIMENTS = {
    "sudoku": sudoku_tables, "math_small": math_small_table, "countdown_grpo": grpo_table,
    "lqr_in_a_token": token_table, "where_planning_pays": pays_table, "in_context_control": context_table,
    "shortest_paths": paths_table,
}  # fmt: skip


def table(name: str) -> str:
    """The text of the table of that name: an experiment's name and a table of it, or a table of speed."""
    for experiment, write in EXPERIMENTS.items():
        prefix = experiment.replace("_", "-") + "-"
        if name.startswith(prefix):
            return write(name.removeprefix(prefix), ROOT / "experiments" / experiment / "results")
    if name.startswith("planning-"):
        return overview_table(name.removeprefix("planning-"))
    return speed_table(name, ROOT / "benchmarks" / "results")


def update(page: Path, write: bool) -> list[str]:
    """Names of the tables on a page that differ from their results; they are rewritten if `write`."""
    stale = []

    def fresh(block: re.Match[str]) -> str:
        body = table(block["name"])
        if body != block["body"]:
            stale.append(block["name"])
        return block[1] + body + block[4]

    new = BLOCK.sub(fresh, page.read_text())
    if write and stale:
        write_text(page, new)
    return stale


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if a table is out of date.")] = False,
) -> None:
    """Write the tables of README.md and docs/ again, from the files of results."""
    stale = [name for page in pages() for name in update(page, write=not check)]
    if check and stale:
        say(f"Out of date: {', '.join(stale)}. Run: make tables", err=True)
        raise typer.Exit(1)
    say(f"Rewritten: {', '.join(stale)}" if stale else "All tables are up to date.")


if __name__ == "__main__":
    typer.run(main)
