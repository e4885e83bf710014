"""Puzzles with one solution: of so many givens, or as hard as wished.

A full board is filled at random; then its cells are emptied in random order, each unless that would allow a second
solution, until as many givens are left as wished. Where no cell can be emptied before that, another full board is
taken. This rarely leaves fewer than 22 givens (most boards get stuck at 23 to 26), so that is the lowest number here;
the 17 to 21 givens of collections come from searches of another kind.

Emptied as far as it goes, a board rarely needs more than five guesses. Harder ones are found by a walk of small changes
that raise the rating (rating_loops.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from ttcnet.errors import fail

from .data import Boards
from .solver import ORDERS, compiled

LOWEST, HIGHEST = 22, 80
MOST = 10**8  # puzzles at a time, 16 GB of them
TRIES = 2000  # full boards for one puzzle
HARDEST = 60  # guesses that can be asked for; more are rare
FAMILY = 16  # rated puzzles of one full board
_CHUNK = 64  # puzzles between two chances to interrupt


def generate(
    count: int,
    givens: int | tuple[int, int] | None = None,
    seed: int = 0,
    guesses: int | tuple[int, int | None] | None = None,
    report: Callable[[int], object] = lambda made: None,
) -> Boards:
    """`count` puzzles with their only solutions.

    The number of givens of each is drawn evenly from a range, both ends included, 25 to 34 if not given. Or else all
    have a rating in a range of `guesses` (see `rate`), (10, None) for ten or more: then no given can be taken away, and
    puzzles of one FAMILY, so many in a row, mostly share a solution. The same seed gives the same puzzles, and more of
    them continue where fewer end. `report` is told now and then how many there are.

    Examples:
        >>> boards = generate(3, givens=30, seed=1)
        >>> len(boards), boards.givens.tolist()
        (3, [30, 30, 30])
        >>> from ttcnet.tasks.sudoku import rate
        >>> rate(generate(1, guesses=(10, None)).puzzles[0]) >= 10
        True
    """
    count = _integer("count", count, 0, MOST, "Pass how many puzzles to make.")
    seed = _integer("seed", seed, 0, 2**63 - 1, "Pass any such number.")
    if guesses is not None:
        if givens is not None:
            fail("givens", "must not be given together with guesses", givens, "Leave one of them out.", "conflict")
        return _rated(count, seed, *_range(guesses), report)
    givens = (25, 34) if givens is None else givens
    ends = givens if isinstance(givens, tuple | list) else (givens, givens)
    if len(ends) != 2:
        remedy = "Pass 30 or (25, 34), for example."
        fail("givens", "must be a number or a lowest and a highest one", givens, remedy, "format")
    remedy = "Emptying full boards leads to that range; for puzzles with fewer givens, `read` a collection of them."
    lowest, highest = (_integer("givens", end, LOWEST, HIGHEST, remedy) for end in ends)
    if lowest > highest:
        remedy = f"Pass ({highest}, {lowest})."
        fail("givens", "must go from a lower to a higher number", givens, remedy, "out-of-range")
    puzzles, solutions = np.empty((count, 81), np.uint8), np.empty((count, 81), np.uint8)
    run = compiled("generator_loops").generate
    for first in range(0, count, _CHUNK):
        part = slice(first, min(first + _CHUNK, count))
        made = run(first, np.uint64(seed), lowest, highest, TRIES, puzzles[part], solutions[part])
        if made < part.stop - first:
            value = f"{givens}, not reached from {TRIES} full boards for puzzle {first + made}"
            fail("givens", "must be within reach", value, "Ask for more givens, or take another seed.", "failed")
        report(part.stop)
    return Boards(puzzles, solutions)


def _rated(count: int, seed: int, low: int, high: int, report: Callable[[int], object]) -> Boards:
    puzzles, solutions = np.empty((count, 81), np.uint8), np.empty((count, 81), np.uint8)
    run = compiled("rating_loops").generate
    for number, first in enumerate(range(0, count, FAMILY)):
        part = slice(first, min(first + FAMILY, count))
        made = run(
            np.int64(number), np.uint64(seed), np.int64(low), np.int64(high), ORDERS, puzzles[part], solutions[part]
        )
        if made < part.stop - first:
            value = f"{low} to {high}, not reached for puzzle {first + made}"
            fail("guesses", "must be within reach", value, "Ask for fewer guesses, or take another seed.", "failed")
        report(part.stop)
    return Boards(puzzles, solutions)


def _range(guesses: object) -> tuple[int, int]:
    ends = guesses if isinstance(guesses, tuple | list) else (guesses, guesses)
    remedy = "Pass 0, (1, 3) or (10, None), for example."
    if len(ends) != 2:
        fail("guesses", "must be a number or a lowest and a highest one", guesses, remedy, "format")
    low = _integer("guesses", ends[0], 0, HARDEST, remedy)
    high = MOST if ends[1] is None else _integer("guesses", ends[1], 0, MOST, remedy)
    if low > high:
        fail("guesses", "must go from a lower to a higher number", guesses, f"Pass ({high}, {low}).", "out-of-range")
    return low, high


def _integer(name: str, value: object, lowest: int, highest: int | None, remedy: str) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        fail(name, "must be an integer", repr(value), remedy, "type")
    if number < lowest or (highest is not None and number > highest):
        rule = f"must be {lowest} or more" if highest is None else f"must be between {lowest} and {highest}"
        fail(name, rule, number, remedy, "out-of-range")
    return number
