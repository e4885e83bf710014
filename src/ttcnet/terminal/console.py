"""What commands say. Texts of others (answers, data, names of files, messages of servers) pass through `plain`, so that
none of them moves the cursor, sets the title of a window, fills the clipboard or dresses up as one of ours."""

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

DEBUG = "TTCNET_DEBUG"  # the environment variable that has tracebacks shown
FAULT = "Something went wrong that ttcnet has no words for, which is a fault of it:"
_ClickError: Any = typer.BadParameter.__mro__[2]
_UsageError: Any = typer.BadParameter.__base__  # of click, which typer may bring along under another name
# control characters but for tabs and ends of lines, those that turn the direction of writing, and halves of letters
_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    r"""A text, fit for a terminal: control characters are shown as Python writes them.

    Examples:
        >>> plain("\x1b[31mred\x1b[0m")
        '\\x1b[31mred\\x1b[0m'
    """
    return _UNFIT.sub(lambda match: ascii(match[0])[1:-1], str(text).replace("\r\n", "\n"))


def say(text: object, err: bool = False) -> None:
    """A line on stdout, or on stderr."""
    typer.echo(plain(text), err=err)


def foreign(text: object, style: str = "") -> Text:
    """A text of others for rich, which takes no markup from it."""
    from rich.text import Text

    return Text(plain(text), style=style)


def show(table: Table) -> None:
    """A table, in full: rich would leave out letters where a terminal is too narrow."""
    from rich.console import Console

    needed = Console(width=1000).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)


def tell(text: str) -> None:
    """A line on stderr, from the first of several processes alone."""
    if os.environ.get("RANK", "0") == "0":
        print(plain(text), file=sys.stderr, flush=True)


class Commands(TyperGroup):
    """A group of commands that repeats what was typed, wrong options say, in plain text."""

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
            say(f"{FAULT} {type(error).__name__}: {error}. Please report it, with what {DEBUG}=1 shows.", err=True)
            raise typer.Exit(1) from None


class _Record(logging.LogRecord):
    """What a library logs, in plain text: names of weights are a model's, too."""

    def getMessage(self) -> str:
        return plain(super().getMessage())


def plain_logs() -> None:
    """From now on, in this process."""
    logging.setLogRecordFactory(_Record)
