"""What a command says before it keeps its user waiting."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def show(table: Table) -> None:
    """A table, in full: rich would leave out letters where a terminal is too narrow."""
    from rich.console import Console

    needed = Console(width=1000).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)


def tell(text: str) -> None:
    """A line on stderr, from the first of several processes alone."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)
