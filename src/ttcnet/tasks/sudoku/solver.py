"""An exact solver: all solutions of a puzzle, or as many as are asked for. And how hard one is.

The search itself is in solver_loops.py, the guesses are counted in rating_loops.py.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttcnet.errors import fail

from .grid import PEERS, board, name_of

ORDERS = np.int64(100)  # in which a rating counts guesses


def solutions(puzzle: Any, limit: int = 2) -> NDArray[np.uint8]:
    """Up to `limit` solutions of a puzzle, text or an array of 81 digits, as an array (K, 81).

    None if givens contradict each other, one if the puzzle is a proper Sudoku.
    """
    cells = board(puzzle)
    found = np.empty((_solve(cells, limit, np.empty((0, 81), np.uint8)), 81), np.uint8)
    if len(found):
        _solve(cells, len(found), found)
    return found


def count(puzzle: Any, limit: int = 2) -> int:
    """The number of solutions of a puzzle, text or an array of 81 digits; `limit` if there are as many or more."""
    return _solve(board(puzzle), limit, np.empty((0, 81), np.uint8))


def conflicts(puzzle: Any) -> NDArray[np.bool_]:
    """Which cells hold a digit that stands in another cell of their row, column or box too, (81,)."""
    cells = board(puzzle)
    return (cells > 0) & (cells[PEERS] == cells[:, None]).any(1)


def rate(puzzle: Any) -> int:
    """How hard a puzzle with one solution is: the guesses that an exact solver needs; 0 if it needs none.

    Where neither a cell with one digit left nor a digit with one place left helps, the solver takes a cell with the
    fewest digits, at random, and tries one of them, at random; every try is a guess, and a wrong one is taken back when
    it leads to a contradiction. The rating is the mean over ORDERS random orders, the same ones for every puzzle,
    rounded. It varies by a few percent over the symmetric copies of a puzzle.
    """
    cells = board(puzzle)
    found = count(cells)
    if found != 1:
        value, remedy = (
            "more than one" if found else "none",
            "Correct the puzzle: guesses are counted towards the solution.",
        )
        fail("puzzle", "must have one solution to be rated", value, remedy, "bad-board")
    stack, random = np.empty((82, 81), np.uint16), np.zeros(1, np.uint64)
    total = int(compiled("rating_loops").guesses(cells, ORDERS, random, stack))
    return (2 * total + int(ORDERS)) // (2 * int(ORDERS))


def verdict(puzzle: NDArray[np.uint8]) -> str:
    """The fault of a puzzle, in a sentence; empty if it has one solution."""
    clash = conflicts(puzzle)
    if clash.any():
        places = "; ".join(name_of(int(cell)) for cell in np.flatnonzero(clash))
        return f"This puzzle has no solution: the digits at {places} contradict each other."
    found = count(puzzle, limit=2)
    if found == 0:
        return "This puzzle has no solution."
    return "This puzzle has more than one solution; the model finds one at best." if found > 1 else ""


def _solve(puzzle: NDArray[np.uint8], limit: int, found: NDArray[np.uint8]) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer):
        fail("limit", "must be an integer", repr(limit), "Pass how many solutions to look for.", "type")
    if limit < 1:
        fail("limit", "must be 1 or more", limit, "Pass how many solutions to look for.", "too-small")
    return int(compiled("solver_loops").solve(puzzle, int(limit), found))


@cache
def compiled(name: str) -> ModuleType:
    """One of the modules of inner loops, compiled or found on disk; logs a line if it is compiled."""
    from numba.core import event

    what, seconds = {
        "solver_loops": ("the Sudoku solver", 3),
        "generator_loops": ("the Sudoku generator", 4),
        "rating_loops": ("the search for hard Sudoku boards", 8),
    }[name]

    class Notice(event.Listener):
        started = False

        def on_start(self, _: Any) -> None:
            if not self.started:
                notice = f"ttcnet: compiling {what}, once on this machine (about {seconds} s) ..."
                logging.getLogger("ttcnet").warning(notice)
            self.started = True

        def on_end(self, _: Any) -> None:
            pass

    module = import_module(f".{name}", __package__)
    none, one, zero = np.empty((0, 81), np.uint8), np.empty((1, 81), np.uint8), np.int64(0)
    with event.install_listener("numba:compile", Notice()):
        if name == "solver_loops":
            module.solve(np.zeros(81, np.uint8), 1, none)
        elif name == "generator_loops":
            module.generate(0, np.uint64(0), 30, 30, 1, none, none)
        else:
            module.generate(zero, np.uint64(0), zero, np.int64(99), ORDERS, one, one.copy())
    return module
