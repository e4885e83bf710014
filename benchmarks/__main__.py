"""Published measurements: `python -m benchmarks figure`, `parameters`; `dense` and `limited` for control problems.

`ttcnet bench` measures; `make bench` and `make bench-gpu` measure and publish here. `make tables` writes the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

from ttcnet.bench.results import Row, write
from ttcnet.errors import errors_as_sentences, fail
from ttcnet.terminal.console import Commands, say

from .dense import dense_rows
from .figure import draw
from .limited import limited_rows
from .parameters import parameter_rows

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@app.command()
def parameters() -> None:
    """Count the parameters of all layers again, into benchmarks/results/parameters.csv."""
    write(parameter_rows(), RESULTS / "parameters.csv")


@app.command()
def dense(
    problems: Annotated[
        list[int] | None, typer.Option(help="How many problems at once, such as 4096 or 65536; may be repeated.")
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="Size of the states.")] = 12,
    m: Annotated[int, typer.Option(min=1, help="Number of actions.")] = 4,
    horizon: Annotated[int, typer.Option(min=1, help="Steps.")] = 50,
    budget: Annotated[float, typer.Option(help="Seconds for which each time is measured.")] = 2.0,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to solve.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="CSV file to write; results/dense-DEVICE.csv if not given.")] = None,
) -> None:
    """Measure `solve` on dense problems beside mpc.pytorch, diffilqrax, autograd, OSQP and CasADi."""
    rows = dense_rows(problems or [1, 64, 1024], n, m, horizon, budget, device)
    _publish(rows, out or RESULTS / f"dense-{device}.csv", "error_gradient")


@app.command()
def limited(
    problems: Annotated[
        list[int] | None, typer.Option(help="How many problems at once, such as 4096 or 65536; may be repeated.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds for which each time is measured.")] = 2.0,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to solve.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; results/limited-DEVICE.csv if not given.")
    ] = None,
) -> None:
    """Measure `solve_constrained` and `ilqr` with bounded actions, beside mpc.pytorch, OSQP, Clarabel and CasADi."""
    _publish(limited_rows(problems or [1, 64, 1024], budget, device), out or RESULTS / f"limited-{device}.csv")


def _publish(rows: Iterable[Row], out: Path, *more: str) -> None:
    """Show every line when it is measured, and write the file anew."""
    names = ("case", "provider", "problems", "forward_ms", "both_ms", "error_u", *more, "solved", "busy", "status")
    done: list[Row] = []
    for row in rows:
        say("  ".join(f"{name} {row[name]}" for name in names if row.get(name)))
        write([*done, row], out)
        done.append(row)
    say(f"Written to {out}")


@app.command()
def figure(
    results: Annotated[Path, typer.Option(help="CSV file with the sweeps horizon and problems.")] = RESULTS
    / "lqr-gpu.csv",
    out: Annotated[Path, typer.Option(help="Picture to write.")] = ROOT / "docs" / "images" / "lqr-throughput.png",
) -> None:
    """Draw throughput, peak memory and error against the horizon and against the number of problems."""
    with errors_as_sentences():
        if not results.is_file():
            fail("results", "must be a file", results, f"Measure first, with --out {results}.", "not-found")
        draw(results, out)
    say(f"Written to {out}")


if __name__ == "__main__":
    app()
