"""Puzzles of our own: one solution each, as many givens as wished, the same for a seed."""

import numpy as np
import pytest
from scipy import stats

from tests.raising import raises
from tests.tasks.sudoku.boards import made, valid
from ttcnet.tasks import sudoku
from ttcnet.tasks.sudoku import generator

PINNED = ".7...31..2.178......4..97...47...23.63.271.8585243.97..985....7........4.......2."


def test_one_solution_each():
    boards = made()
    assert valid(boards.solutions)
    for puzzle, solution in boards:
        found = sudoku.solutions(puzzle)
        assert len(found) == 1
        assert (found[0] == solution).all()


def test_givens_are_spread_evenly_over_the_range():
    givens = sudoku.generate(1500, seed=5).givens
    assert (givens.min(), givens.max()) == (25, 34)
    assert stats.chisquare(np.bincount(givens)[25:]).pvalue > 1e-3
    assert set(sudoku.generate(10, givens=40).givens) == {40}
    assert set(sudoku.generate(5, givens=(23, 23)).givens) == {23}
    assert set(sudoku.generate(5, givens=80).givens) == {80}


def test_boards_are_diverse():
    boards = sudoku.generate(1500, seed=5)
    assert len(np.unique(boards.solutions, axis=0)) == 1500
    for cell in (0, 40, 80):
        assert stats.chisquare(np.bincount(boards.solutions[:, cell])[1:]).pvalue > 1e-3
    filled = (boards.puzzles > 0).mean(0)
    assert abs(filled - filled.mean()).max() < 6 * np.sqrt(0.25 / 1500)


def test_a_seed_decides():
    boards = sudoku.generate(70, seed=11)
    assert np.array_equal(boards.puzzles, sudoku.generate(130, seed=11).puzzles[:70])
    assert np.array_equal(boards.puzzles[:7], sudoku.generate(7, seed=11).puzzles)
    assert not (boards.puzzles == sudoku.generate(70, seed=12).puzzles).all(1).any()
    assert len(sudoku.generate(0)) == 0


def test_the_first_puzzle_is_pinned():
    """A change here would change everybody's generated data."""
    assert sudoku.format(sudoku.generate(1, seed=0).puzzles[0], ".") == PINNED


def test_out_of_reach(monkeypatch):
    monkeypatch.setattr(generator, "TRIES", 1)
    with raises("failed", "givens", "22, not reached from 1 full .* puzzle 0"):
        sudoku.generate(40, givens=22)


@pytest.mark.parametrize(
    ("options", "code", "field", "value"),
    [
        (dict(count=-1), "out-of-range", "count", "-1"),
        (dict(count=1.5), "type", "count", r"1\.5"),
        (dict(count=1, givens=17), "out-of-range", "givens", "17"),
        (dict(count=1, givens=(25, 81)), "out-of-range", "givens", "81"),
        (dict(count=1, givens=(30, 25)), "out-of-range", "givens", r"\(30, 25\)"),
        (dict(count=1, givens=(25, 30, 35)), "format", "givens", r"\(25, 30, 35\)"),
        (dict(count=1, givens="30"), "type", "givens", "'30'"),
        (dict(count=1, seed=-1), "out-of-range", "seed", r"\-1"),
    ],
)
def test_bad_wishes(options, code, field, value):
    with raises(code, field, value):
        sudoku.generate(**options)
