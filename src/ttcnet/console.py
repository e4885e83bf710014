"""What a command says before it keeps its user waiting."""

from __future__ import annotations

import os
import sys


def tell(text: str) -> None:
    """A line on stderr, from the first of several processes alone."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)
