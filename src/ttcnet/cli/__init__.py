"""The command line: one command, `ttcnet`, with sub-commands. Imports happen inside them, to keep --help instant."""

from __future__ import annotations

from typing import Annotated

import typer

from ttcnet import __version__
from ttcnet.terminal.console import Commands, plain_logs, say

from . import analyse, countdown, data, evaluate, grpo, sft, sudoku

app = typer.Typer(
    cls=Commands,
    help="Planning inside language models: a layer that solves an optimal-control problem for every token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(sudoku.app, name="sudoku")
app.add_typer(countdown.app, name="countdown")
app.add_typer(evaluate.app, name="eval")
app.add_typer(analyse.app, name="analyse")
app.command(epilog=sft.KEYS)(sft.sft)
app.command(epilog=grpo.KEYS)(grpo.grpo)
app.command()(data.data)


def _version(asked: bool) -> None:
    if asked:
        say(f"ttcnet {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    plain_logs()


@app.command()
def env(json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Show versions, the machine, and which planning backends can run here (and why not)."""
    from ttcnet.environment import report

    sections = report()
    if json:
        from json import dumps

        say(dumps(sections, indent=2))
        return
    width = max(len(name) for entries in sections.values() for name in entries)
    for section, entries in sections.items():
        typer.secho(section, bold=True)
        for name, value in entries.items():
            say(f"  {name:<{width}}  {value}")


@app.command(
    "bench", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def measure(context: typer.Context) -> None:
    """Measure planning and other solvers: time, memory and error."""
    from .bench import app as benchmarks

    benchmarks(args=context.args, prog_name="ttcnet bench")
