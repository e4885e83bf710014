"""ttcnet data: imports happen inside, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def data(
    settings: Annotated[Path, typer.Argument(help="TOML file with sources, stages and seeds; see docs/data.md.")],
    out: Annotated[str | None, typer.Option(help="Folder of the run. A run that is there already goes on.")] = None,
) -> None:
    """Make training data: fetch, bring into one form, drop copies and test problems, verify answers, sample. Killed
    runs go on where they stopped when the command is given again."""
    from ttcnet.errors import is_complaint

    from .settings import settings as made

    try:
        config = made(settings, out)
        from .run import run

        result = run(config)
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on from here.", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        if not isinstance(error, ImportError | OSError) and not is_complaint(error):
            raise  # a fault of ours or of a library: with all that is known about it
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    typer.echo(f"Done. The data is in {result}; counts.json beside it has the numbers.")
