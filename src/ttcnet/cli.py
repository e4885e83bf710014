"""The command line: one command, `ttcnet`, with sub-commands. Imports happen inside them, to keep --help instant."""

from __future__ import annotations

from typing import Annotated

import typer

from . import __version__

app = typer.Typer(
    help="Planning inside language models: a layer that solves an optimal-control problem for every token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"ttcnet {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def env(json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Show versions, the machine, and which planning backends can run here (and why not)."""
    from .environment import report

    sections = report()
    if json:
        from json import dumps

        typer.echo(dumps(sections, indent=2))
        return
    for section, entries in sections.items():
        typer.secho(section, bold=True)
        for name, value in entries.items():
            typer.echo(f"  {name:<14} {value}")


if __name__ == "__main__":
    app()
