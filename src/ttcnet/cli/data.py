"""ttcnet data: imports happen inside, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def data(
    settings: Annotated[
        Path, typer.Argument(help="TOML file with sources, stages and seeds; the documentation says how to write one.")
    ],
    out: Annotated[str | None, typer.Option(help="Folder of the run. A run that is there already goes on.")] = None,
) -> None:
    """Make training data: fetch, bring into one form, drop copies and test problems, verify answers, sample. Killed
    runs go on where they stopped when the command is given again."""
    from ttcnet.console import say, tell
    from ttcnet.data.settings import settings as made
    from ttcnet.errors import complaints

    with complaints():
        config = made(settings, out)
        tell("Looking at the sources ...")
        from ttcnet.data.run import run

        result = run(config)
    say(f"Done. The data is in {result}; counts.json beside it has the numbers.")
