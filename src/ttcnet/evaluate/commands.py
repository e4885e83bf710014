"""ttcnet eval ...: imports happen inside the commands, to keep --help instant."""

from __future__ import annotations

import typer

app = typer.Typer(help="Evaluate language models.", no_args_is_help=True, pretty_exceptions_enable=False)
