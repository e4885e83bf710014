"""Accuracy of predictions: whole boards and single cells, overall, by the number of givens and by the rating.

Only masked cells count, those that were blank in the puzzle. A board is right if all its masked cells are; the rate of
cells is right masked cells over all masked cells. Intervals hold with 95 % confidence:

- boards: Wilson's interval for a proportion;
- cells: the cells of a board stand or fall together, so that boards are the unit of sampling. The variance of the rate
  is that of a ratio estimator over boards, Σ (right_i - rate · masked_i)² n / (n - 1) / (Σ masked_i)²; it gives the
  effective number of independent cells, rate (1 - rate) / variance, and Wilson's interval for that number. Where the
  variance says nothing (all cells right, all wrong, or one board) the number is that of the boards.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttcnet.errors import fail
from ttcnet.tasks.statistics import wilson

# ranges of ratings; the last is the two before it together
BANDS = ((0, 0), (1, 3), (4, 9), (10, 29), (30, None), (10, None))


@dataclass(frozen=True)
class Rate:
    """A share between 0 and 1, its 95 % interval, and the total."""

    rate: float
    low: float
    high: float
    right: int
    total: int

    def __str__(self) -> str:
        return f"{100 * self.rate:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


@dataclass(frozen=True)
class Group:
    """The boards with one number of givens."""

    givens: int
    boards: Rate
    cells: Rate


@dataclass(frozen=True)
class Band:
    """The boards whose ratings are in a range, written as 0, 1-3 or 10+."""

    guesses: str
    boards: Rate
    cells: Rate


@dataclass(frozen=True)
class Scores:
    """Rates of boards and of masked cells, overall, by number of givens, and by rating where that was given."""

    boards: Rate
    cells: Rate
    by_givens: tuple[Group, ...]
    by_guesses: tuple[Band, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The scores as plain dictionaries, lists and numbers, for JSON."""
        found = asdict(self) | {"by_givens": [asdict(group) for group in self.by_givens]}
        bands = found.pop("by_guesses")
        return found | ({"by_guesses": list(bands)} if bands else {})

    def table(self, by: str = "givens") -> str:
        """One line for every number of givens, or for every range of `guesses`, and one for all."""
        rows = [(by, "number", "boards right", "cells right")]
        for group in self.by_givens if by == "givens" else self.by_guesses:
            rows.append((str(getattr(group, by)), str(group.boards.total), str(group.boards), str(group.cells)))
        rows.append(("all", str(self.boards.total), str(self.boards), str(self.cells)))
        widths = [max(len(row[k]) for row in rows) for k in range(4)]
        return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


def score(predictions: Any, puzzles: Any, solutions: Any, guesses: Any = None) -> Scores:
    """Compare predicted boards with solutions, all (N, 81) with digits 1 to 9, and 0 for a blank in the puzzles.

    A prediction of 0, for a cell left open, is wrong. Predictions for givens do not matter. With the ratings of
    the puzzles, `guesses` (N,), there are also rates for each of BANDS that a board is in.
    """
    predictions, puzzles, solutions = (
        _boards(name, value, lowest)
        for name, value, lowest in (
            ("predictions", predictions, 0),
            ("puzzles", puzzles, 0),
            ("solutions", solutions, 1),
        )
    )
    if not predictions.shape == puzzles.shape == solutions.shape:
        value = f"{predictions.shape}, {puzzles.shape} and {solutions.shape}"
        remedy = "Give one of each for every board."
        fail("predictions, puzzles and solutions", "must have one shape", value, remedy, "shape")
    check_blanks(puzzles)
    masked = puzzles == 0
    right = ((predictions == solutions) & masked).sum(1)
    blanks = masked.sum(1)
    groups = []
    for number in np.unique(blanks)[::-1]:
        here = blanks == number
        groups.append(Group(81 - int(number), *rates(right[here], blanks[here])))
    bands = []
    if guesses is not None:
        ratings = np.asarray(guesses)
        if ratings.shape != blanks.shape:
            remedy = "Give one rating for every board."
            fail("guesses", f"must have shape {blanks.shape}", ratings.shape, remedy, "shape")
        for low, high in BANDS:
            here = (ratings >= low) & (ratings <= (np.inf if high is None else high))
            if here.any():
                bands.append(Band(span(low, high), *rates(right[here], blanks[here])))
    return Scores(*rates(right, blanks), tuple(groups), tuple(bands))


def span(low: int, high: int | None) -> str:
    """A range of ratings, in short."""
    return f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"


def check_blanks(puzzles: NDArray[Any]) -> None:
    """Fail unless there is something to predict on every board."""
    full = (puzzles > 0).all(1)
    if full.any():
        value = f"a full puzzle at index {int(full.argmax())}"
        remedy = "Leave full boards out: there is nothing to predict."
        fail("puzzles", "must have a blank each", value, remedy, "bad-board")


def rates(right: NDArray[np.int64], blanks: NDArray[np.int64]) -> tuple[Rate, Rate]:
    """The rates of boards and of cells, given the numbers of right and of all masked cells of every board."""
    boards, solved = len(right), int((right == blanks).sum())
    cells, correct = int(blanks.sum()), int(right.sum())
    rate = correct / cells
    spread = float(((right - rate * blanks) ** 2).sum())
    effective = float(boards)
    if boards > 1 and 0 < correct < cells and spread > 0:
        variance = spread * boards / (boards - 1) / cells**2
        effective = min(rate * (1 - rate) / variance, float(cells))
    return (
        Rate(solved / boards, *wilson(solved, boards), solved, boards),
        Rate(rate, *wilson(rate * effective, effective), correct, cells),
    )


def _boards(name: str, value: Any, lowest: int) -> NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        fail(name, "must hold integers", array.dtype, "Convert it, or take the most likely digit first.", "dtype")
    if array.ndim != 2 or array.shape[1] != 81 or len(array) == 0:
        remedy = "Write every board as one row of 81 digits."
        fail(name, "must have shape (N, 81) with N > 0", array.shape, remedy, "shape")
    if array.min() < lowest or array.max() > 9:
        value = f"{array.min()} to {array.max()}"
        remedy = "Add 1 to classes that are counted from 0."
        fail(name, f"must hold the digits {lowest} to 9", value, remedy, "bad-board")
    return array
