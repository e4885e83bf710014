"""Puzzles with one solution, for tests and for those who have no file.

A full board is filled at random; then its cells are emptied in random order, each unless that would allow a second
solution, until as many givens are left as wished. Where no cell can be emptied before that, another full board is
taken. This rarely leaves fewer than 22 givens (most boards get stuck at 23 to 26), so that is the lowest number here;
the 17 to 21 givens of collections come from searches of another kind.
"""

from __future__ import annotations

import operator

import numpy as np

from ttcnet.errors import fail

from .data import Boards
from .solver import loops

LOWEST, HIGHEST = 22, 80
MOST = 10**8  # puzzles at a time, 16 GB of them
TRIES = 2000  # full boards for one puzzle
_CHUNK = 64  # puzzles between two chances to interrupt


def generate(count: int, givens: int | tuple[int, int] = (25, 34), seed: int = 0) -> Boards:
    """`count` puzzles with their only solutions.

    The number of givens of each is drawn evenly from a range, both ends included. The same seed gives the
    same puzzles, and more of them go on where fewer end.

    Examples:
        >>> boards = generate(3, givens=30, seed=1)
        >>> len(boards), boards.givens.tolist()
        (3, [30, 30, 30])
    """
    count = _integer("count", count, 0, MOST, "Pass how many puzzles to make.")
    seed = _integer("seed", seed, 0, 2**63 - 1, "Pass any such number.")
    ends = givens if isinstance(givens, tuple | list) else (givens, givens)
    if len(ends) != 2:
        fail("givens", "must be a number or a lowest and a highest one", givens, "Pass 30 or (25, 34), for example.")
    remedy = "Emptying full boards leads to that range; for puzzles with fewer givens, `read` a collection of them."
    lowest, highest = (_integer("givens", end, LOWEST, HIGHEST, remedy) for end in ends)
    if lowest > highest:
        fail("givens", "must go from a lower to a higher number", givens, f"Pass ({highest}, {lowest}).")
    puzzles, solutions = np.empty((count, 81), np.uint8), np.empty((count, 81), np.uint8)
    run = loops().generate
    for first in range(0, count, _CHUNK):
        part = slice(first, min(first + _CHUNK, count))
        made = run(first, np.uint64(seed), lowest, highest, TRIES, puzzles[part], solutions[part])
        if made < part.stop - first:
            value = f"{givens}, not reached from {TRIES} full boards for puzzle {first + made}"
            fail("givens", "must be within reach", value, "Ask for more givens, or take another seed.", RuntimeError)
    return Boards(puzzles, solutions)


def _integer(name: str, value: object, lowest: int, highest: int | None, remedy: str) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        fail(name, "must be an integer", repr(value), remedy, TypeError)
    if number < lowest or (highest is not None and number > highest):
        rule = f"must be {lowest} or more" if highest is None else f"must be between {lowest} and {highest}"
        fail(name, rule, number, remedy)
    return number
