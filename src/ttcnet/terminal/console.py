"""Output of commands. Texts of others (answers, data, names of files, messages of servers) pass through `plain`, so
that none of them moves the cursor, sets the title of a window, fills the clipboard or imitates a message of ours."""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

DEBUG = "TTCNET_DEBUG"  # the environment variable that makes commands show tracebacks
FAULT = "Something went wrong that ttcnet has no words for, which is a fault of it:"
_ClickError: Any = typer.BadParameter.__mro__[2]
_UsageError: Any = typer.BadParameter.__base__  # an error of click, which typer may include under another name
# control characters except tabs and line ends, characters that change the direction of writing, and halves of letters
_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    r"""A text that is safe for a terminal: control characters are shown as Python writes them.

    Examples:
        >>> plain("\x1b[31mred\x1b[0m")
        '\\x1b[31mred\\x1b[0m'
    """
    return _UNFIT.sub(lambda match: ascii(match[0])[1:-1], str(text).replace("\r\n", "\n"))


def say(text: object, err: bool = False) -> None:
    """Print a line on stdout, or on stderr."""
    typer.echo(plain(text), err=err)


def foreign(text: object, style: str = "") -> Text:
    """A text of others for rich, without markup."""
    from rich.text import Text

    return Text(plain(text), style=style)


def show(table: Table) -> None:
    """Print a table in full: rich would leave out letters if the terminal is too narrow."""
    from rich.console import Console

    needed = Console(width=1000).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)


def tell(text: str) -> None:
    """Print a line on stderr, from the first of several processes only."""
    if os.environ.get("RANK", "0") == "0":
        print(plain(text), file=sys.stderr, flush=True)


class Commands(TyperGroup):
    """A group of commands whose messages repeat input of the user, such as wrong options, in plain text."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        try:
            return super().make_context(*args, **options)
        except _UsageError as error:
            error.message = plain(error.message)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            error.message = plain(error.message)
            raise
        except (_ClickError, typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if os.environ.get(DEBUG):
                raise
            told = f"{type(error).__name__}: {error}. Please report it, with the output under {DEBUG}=1."
            say(f"{FAULT} {told}", err=True)
            raise typer.Exit(1) from None


class _Record(logging.LogRecord):
    """Log messages of a library in plain text: they may hold texts of others, such as names of weights."""

    def getMessage(self) -> str:
        return plain(super().getMessage())


def plain_logs() -> None:
    """Use it from now on, in this process."""
    logging.setLogRecordFactory(_Record)
