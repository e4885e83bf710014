"""Boards to try that come with the package, from easy to hardest: samples.txt, a line each with rating and puzzle.

They were made by `generate`, each from a full board of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("samples.txt")
LEVELS = {"easy": 0, "hard": 10, "hardest": 30}  # the guesses that each begins with


class Sample(NamedTuple):
    """A puzzle as text, the guesses that it needs, and the name of its level."""

    level: str
    guesses: int
    puzzle: str


def samples() -> list[Sample]:
    """All of them, the easy ones first."""
    found = []
    for line in FILE.read_text().splitlines():
        guesses, puzzle = line.split()
        level = [name for name, lowest in LEVELS.items() if int(guesses) >= lowest][-1]
        found.append(Sample(level, int(guesses), puzzle))
    return found
