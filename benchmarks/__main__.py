"""Measure providers on the same inputs, in one run, into one CSV file.

python -m benchmarks lqr                         # the standard table, into bench/lqr.csv
make bench                                       # the same, published in benchmarks/results and README.md
python -m benchmarks lqr --horizon 8 --problems 64 --provider plan --provider mpc.pytorch
"""

from __future__ import annotations

import csv
import datetime
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ttcnet.environment import commit, machine, versions

from .measure import Outcome, Point, measure
from .providers import PROVIDERS, installed
from .regimes import REGIMES
from .tables import update

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
STANDARD = ("plan", "autograd-riccati", "mpc.pytorch")


@app.callback()
def main() -> None:
    """Benchmarks of ttcnet."""


@app.command()
def lqr(
    provider: Annotated[list[str] | None, typer.Option(help=f"Who: {', '.join(PROVIDERS)}.")] = None,
    horizon: Annotated[list[int] | None, typer.Option(help="Steps to plan; 8, 32 and 128 if not given.")] = None,
    problems: Annotated[list[int] | None, typer.Option(help="Problems at once; 64 and 1024 if not given.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Instead of both: problems x horizon, as 65536x8.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    regime: Annotated[str, typer.Option(help=f"Parameters: {', '.join(REGIMES)}.")] = "trained",
    seconds: Annotated[float, typer.Option(help="Time to repeat each measurement for.")] = 2.0,
    out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("bench/lqr.csv"),
) -> None:
    """Planning, forward and backward, float32, n = m = 16: time, peak memory and error against float64."""
    console = Console(width=max(Console().width, 110))
    chosen = list(provider or [name for name in STANDARD if name in installed()])
    for name in chosen:
        if name not in PROVIDERS:
            raise typer.BadParameter(f"provider must be one of {', '.join(PROVIDERS)}; got {name!r}.")
        if name not in installed():
            raise typer.BadParameter(f"provider {name} is not installed here. `make test` installs it.")
    if regime not in REGIMES:
        raise typer.BadParameter(f"regime must be one of {', '.join(REGIMES)}; got {regime!r}.")
    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"device must be cpu or cuda; got {device!r}.")
    shapes = [(count, steps) for count in problems or (64, 1024) for steps in horizon or (8, 32, 128)]
    if shape:
        shapes = [_shape(text) for text in shape]
    points = [Point(name, regime, count, steps, device=device) for count, steps in shapes for name in chosen]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    rows: list[tuple[Point, Outcome]] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("measuring", total=len(points))
        for point in points:
            progress.update(task, description=f"{point.provider}, {point.problems} problems, T = {point.horizon}")
            rows.append((point, measure(point, seconds)))
            progress.advance(task)
    write(rows, out)
    show(rows, console)
    console.print(f"Written to {out}")


def _shape(text: str) -> tuple[int, int]:
    problems, _, horizon = text.partition("x")
    if not (problems.isdigit() and horizon.isdigit()):
        raise typer.BadParameter(f"shape must be problems x horizon, such as 65536x8; got {text!r}.")
    return int(problems), int(horizon)


@app.command()
def tables(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if a table is out of date.")] = False,
) -> None:
    """Write the tables of README.md and docs/ anew from the files in benchmarks/results."""
    pages = [Path("README.md"), *sorted(Path("docs").glob("*.md"))]
    stale = [name for page in pages for name in update(page, Path("benchmarks/results"), write=not check)]
    if check and stale:
        typer.echo(f"Out of date: {', '.join(stale)}. Run: python -m benchmarks tables", err=True)
        raise typer.Exit(1)
    typer.echo(f"Rewritten: {', '.join(stale)}" if stale else "All tables are up to date.")


def write(rows: list[tuple[Point, Outcome]], path: Path) -> None:
    """One line a measurement, each with machine, versions and commit, written whole or not at all."""
    stamp = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        **machine(),
        **{f"version_{name}": version for name, version in versions().items()},
        "commit": commit(),
    }
    lines = [asdict(point) | asdict(outcome) | stamp for point, outcome in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    os.replace(unfinished, path)


def show(rows: list[tuple[Point, Outcome]], console: Console) -> None:
    table = Table(title="Planning, forward + backward, float32, n = m = 16")
    for column in (
        "problems",
        "T",
        "provider",
        "forward ms",
        "both ms",
        "20-80 %",
        "peak MB",
        "error u",
        "worst gradient",
    ):
        table.add_column(column, justify="left" if column == "provider" else "right")
    for point, outcome in rows:
        head = (str(point.problems), str(point.horizon), point.provider)
        if outcome.status != "ok":
            table.add_row(*head, outcome.status)
            continue
        table.add_row(
            *head,
            f"{outcome.forward_ms:.3g}",
            f"{outcome.median_ms:.3g}",
            f"{outcome.p20_ms:.3g}-{outcome.p80_ms:.3g}",
            f"{outcome.peak_mb:.0f}",
            f"{outcome.error_u:.0e}",
            f"{outcome.error_worst_gradient:.0e}",
        )
    console.print(table)


if __name__ == "__main__":
    app()
