"""From published measurements: `python -m benchmarks figure`, `python -m benchmarks parameters`.

`ttcnet bench` measures; `make bench` and `make bench-gpu` measure and publish here. `make tables` writes the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttcnet.bench.results import write
from ttcnet.terminal.console import Commands, say

from .figure import draw
from .parameters import parameter_rows

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@app.command()
def parameters() -> None:
    """Count the parameters of all layers again, into benchmarks/results/parameters.csv."""
    write(parameter_rows(), RESULTS / "parameters.csv")


@app.command()
def figure(
    results: Annotated[Path, typer.Option(help="CSV file with the sweeps horizon and problems.")] = RESULTS
    / "lqr-gpu.csv",
    out: Annotated[Path, typer.Option(help="Picture to write.")] = ROOT / "docs" / "images" / "lqr-throughput.png",
) -> None:
    """Draw throughput, peak memory and error against the horizon and against the number of problems."""
    if not results.is_file():
        raise typer.BadParameter(f"results must be a file; got {results}. Measure first, with --out {results}.")
    try:
        draw(results, out)
    except (ValueError, ImportError) as error:
        say(str(error), err=True)
        raise typer.Exit(1) from None
    say(f"Written to {out}")


if __name__ == "__main__":
    app()
