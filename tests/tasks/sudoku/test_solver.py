"""The solver, against plain backtracking and against published boards."""

import numpy as np
import pytest

from tests.raising import raises
from tests.tasks.sudoku.boards import PUZZLE, SOLUTION, made, shared
from ttcnet.tasks import sudoku

HARD = {  # of collections of puzzles that are hard for people or for programs
    "4.....8.5.3..........7......2.....6.....8.4......1.......6.3.7.5..2.....1.4......": 1,
    "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4..": 1,
    "..............3.85..1.2.......5.7.....4...1...9.......5......73..2.1........4...9": 1,
    ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4.........": 0,
}


def allowed(grid, cell, digit):
    row, column = divmod(cell, 9)
    for k in range(9):
        box = 27 * (row // 3) + 3 * (column // 3) + 9 * (k // 3) + k % 3
        if digit in (grid[9 * row + k], grid[9 * k + column], grid[box]):
            return False
    return True


def backtrack(grid):
    """All solutions, by trying all digits in all blanks."""
    if 0 not in grid:
        return [list(grid)]
    cell, found = grid.index(0), []
    for digit in range(1, 10):
        if allowed(grid, cell, digit):
            grid[cell] = digit
            found += backtrack(grid)
            grid[cell] = 0
    return found


@pytest.mark.parametrize("seed", range(12))
def test_all_solutions_are_found(seed):
    """Boards with cells emptied at random have many; a wrong digit in one leaves few or none."""
    random = np.random.default_rng(seed)
    cells = made().solutions[seed].copy()
    cells[random.permutation(81)[: random.integers(30, 46)]] = 0
    if seed % 3 == 0:
        blank = random.choice(np.flatnonzero(cells == 0))
        cells[blank] = 1 + random.integers(9)
        if sudoku.conflicts(cells).any():
            assert sudoku.count(cells) == 0
            return
    wanted = backtrack(cells.tolist())
    found = sudoku.solutions(cells, limit=10_000)
    assert len(found) == len(wanted)
    assert {tuple(board) for board in found.tolist()} == {tuple(board) for board in wanted}


def test_limits():
    cells = made().solutions[0].copy()
    cells[(cells == 1) | (cells == 2) | (cells == 3)] = 0
    total = len(backtrack(cells.tolist()))
    assert total >= 6
    assert [sudoku.count(cells, limit) for limit in (1, 2, 5, total, 1000)] == [1, 2, 5, total, total]
    assert sudoku.solutions(cells, 5).shape == (5, 81)
    assert len(np.unique(sudoku.solutions(cells, 5), axis=0)) == 5
    assert sudoku.count("." * 81, 1000) == 1000
    assert (sudoku.solutions("." * 81, 3) > 0).all()


def test_a_known_puzzle():
    found = sudoku.solutions(PUZZLE)
    assert found.dtype == np.uint8
    assert [sudoku.format(board) for board in found] == [SOLUTION]
    assert sudoku.count(SOLUTION) == 1


@pytest.mark.parametrize("puzzle", HARD)
def test_hard_puzzles(puzzle):
    assert sudoku.count(puzzle) == HARD[puzzle]


def test_contradictions():
    assert sudoku.count("55" + "." * 79) == 0
    assert sudoku.solutions("5........" * 2 + "." * 63).shape == (0, 81)
    assert sudoku.count("12345678." + "........9" + "." * 63) == 0  # no digit left for a cell
    assert sudoku.count("." * 80 + "1") == 2
    assert np.flatnonzero(sudoku.conflicts("5.......5" + "5" + "." * 71)).tolist() == [0, 8, 9]
    assert not sudoku.conflicts(PUZZLE).any()


def test_the_puzzle_is_left_alone():
    cells = sudoku.parse(PUZZLE)
    cells.flags.writeable = False
    assert sudoku.count(cells[::1]) == 1
    assert sudoku.count(np.stack([cells, cells], 1)[:, 0]) == 1
    assert sudoku.format(cells, ".") == PUZZLE


def test_bad_limits():
    with raises("too-small", "limit", "0"):
        sudoku.count(PUZZLE, 0)
    with raises("type", "limit", r"2\.0"):
        sudoku.solutions(PUZZLE, 2.0)


def test_published_puzzles_have_the_published_solution_and_no_other():
    for puzzle, solution in sudoku.read(shared("test-1k.csv")):
        found = sudoku.solutions(puzzle)
        assert len(found) == 1
        assert (found[0] == solution).all()
