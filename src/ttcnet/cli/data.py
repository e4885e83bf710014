"""ttcnet data: imports happen inside, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def data(
    settings: Annotated[
        Path, typer.Argument(help="TOML file with sources, stages and seeds; the documentation says how to write one.")
    ],
    out: Annotated[str | None, typer.Option(help="Folder of the run. An existing run is resumed.")] = None,
) -> None:
    """Make training data: fetch, normalise, drop duplicates and test problems, verify answers, sample. Run the same
    command again to resume an interrupted run."""
    from ttcnet.data.settings import Settings
    from ttcnet.errors import errors_as_sentences
    from ttcnet.settings import from_table, read_toml
    from ttcnet.terminal.console import say, tell

    with errors_as_sentences():
        given = {} if out is None else {"out": out}
        config = from_table(Settings, read_toml(settings) | given, str(settings))
        tell("Looking at the sources ...")
        from ttcnet.data.run import run

        result = run(config)
    say(f"Done. The data is in {result}; counts.json beside it has the numbers.")
