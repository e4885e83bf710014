"""What a command says before it keeps its user waiting."""

from __future__ import annotations

import os


def tell(text: str) -> None:
    """A line on stderr, from the first of several processes alone."""
    import typer

    if os.environ.get("RANK", "0") == "0":
        typer.echo(text, err=True)
