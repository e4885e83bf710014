"""An exact solver: all solutions of a puzzle, or as many as are asked for. The search itself is in loops.py."""

from __future__ import annotations

import logging
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttcnet.errors import fail

from .grid import PEERS, board, name_of


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


def verdict(puzzle: NDArray[np.uint8]) -> str:
    """What is to be said of a puzzle before any model sees it; empty if it has one solution."""
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
        fail("limit", "must be an integer", repr(limit), "Pass how many solutions to look for.", TypeError)
    if limit < 1:
        fail("limit", "must be 1 or more", limit, "Pass how many solutions to look for.")
    return int(loops().solve(puzzle, int(limit), found))


@cache
def loops() -> ModuleType:
    """The loops, compiled or found on disk; says so if they are compiled."""
    from numba.core import event

    from . import loops as compiled

    class Notice(event.Listener):
        started = False

        def on_start(self, _: Any) -> None:
            if not self.started:
                notice = "ttcnet: compiling the Sudoku solver, once on this machine (about 6 s) ..."
                logging.getLogger("ttcnet").warning(notice)
            self.started = True

        def on_end(self, _: Any) -> None:
            pass

    nothing = np.empty((0, 81), np.uint8)
    with event.install_listener("numba:compile", Notice()):
        compiled.solve(np.zeros(81, np.uint8), 1, nothing)
        compiled.generate(0, np.uint64(0), 30, 30, 1, nothing, nothing)
    return compiled
