"""Scores, by hand and by simulation."""

import json

import numpy as np
import pytest
import torch

from tests.raising import raises
from tests.tasks.sudoku.boards import made
from ttcnet.evaluate import wilson
from ttcnet.tasks import sudoku
from ttcnet.tasks.sudoku.metrics import rates


def spoiled(boards, wrong):
    """The solutions with wrong[i] masked cells of board i changed."""
    predictions = boards.solutions.copy()
    for prediction, puzzle, number in zip(predictions, boards.puzzles, wrong, strict=True):
        cells = np.flatnonzero(puzzle == 0)[:number]
        prediction[cells] = prediction[cells] % 9 + 1
    return predictions


def test_by_hand():
    boards = made()[:4]
    blanks = 81 - boards.givens
    scores = sudoku.score(spoiled(boards, [0, 1, 5, 0]), boards.puzzles, boards.solutions)
    assert (scores.boards.rate, scores.boards.right, scores.boards.total) == (0.5, 2, 4)
    assert (scores.cells.right, scores.cells.total) == (blanks.sum() - 6, blanks.sum())
    assert scores.cells.rate == pytest.approx(1 - 6 / blanks.sum())
    assert scores.cells.low < scores.cells.rate < scores.cells.high


def test_givens_do_not_count():
    boards = made()
    predictions = np.where(boards.puzzles > 0, 1, boards.solutions)
    scores = sudoku.score(predictions, boards.puzzles, boards.solutions)
    assert scores.boards.rate == scores.cells.rate == scores.cells.high == 1.0
    open_cells = sudoku.score(boards.puzzles, boards.puzzles, boards.solutions)
    assert open_cells.boards.rate == open_cells.cells.rate == open_cells.cells.low == 0.0


def test_groups():
    boards = made()
    random = np.random.default_rng(0)
    scores = sudoku.score(spoiled(boards, random.integers(0, 3, 200)), boards.puzzles, boards.solutions)
    assert [group.givens for group in scores.by_givens] == list(range(25, 35))
    assert sum(group.boards.total for group in scores.by_givens) == 200
    assert sum(group.cells.right for group in scores.by_givens) == scores.cells.right
    here = boards[boards.givens == 28]
    assert scores.by_givens[3].boards.total == len(here)
    lines = scores.table().splitlines()
    assert len(lines) == 12
    assert "givens" in lines[0]
    assert str(scores.boards) in lines[-1]
    assert len({len(line) for line in lines}) == 1


def test_results_are_json():
    boards = made()
    scores = sudoku.score(torch.from_numpy(boards.solutions), boards.puzzles, boards.solutions)
    result = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert result["boards"] == dict(rate=1.0, low=pytest.approx(0.9812, abs=1e-4), high=1.0, right=200, total=200)
    assert result["by_givens"][0]["givens"] == 25


@pytest.mark.parametrize(("alpha", "beta"), [(9.0, 1.0), (0.9, 0.1), (2.0, 2.0)])
def test_intervals_of_cells_hold_as_often_as_they_say(alpha, beta):
    """Boards that are easy or hard as a whole: cells of a board agree, to a degree that alpha and beta set."""
    random = np.random.default_rng(1)
    trials, boards = 1000, 100
    blanks = random.integers(47, 65, (trials, boards))
    ease = random.beta(alpha, beta, (trials, boards))
    right = random.binomial(blanks, ease)
    truth = alpha / (alpha + beta)
    cells = [rates(*pair)[1] for pair in zip(right, blanks, strict=True)]
    held = np.mean([rate.low <= truth <= rate.high for rate in cells])
    assert 0.925 < held < 0.98
    naive = [wilson(rate.right, rate.total) for rate in cells]
    assert np.mean([low <= truth <= high for low, high in naive]) < 0.85


def test_one_board():
    boards = made()[:1]
    scores = sudoku.score(spoiled(boards, [3]), boards.puzzles, boards.solutions)
    assert 0 < scores.cells.low < 0.5 < scores.cells.rate < scores.cells.high < 1


@pytest.mark.parametrize(
    ("change", "code", "field", "value"),
    [
        (lambda p, q, s: (p[:3], q, s), "shape", "predictions, puzzles and solutions", r"\(3, 81\), \(200, 81\) and"),
        (lambda p, q, s: (p - 1, q, s - 1), "bad-board", "solutions", "0 to 8"),
        (lambda p, q, s: (p * 1.0, q, s), "dtype", "predictions", "float64"),
        (lambda p, q, s: (p[0], q[0], s[0]), "shape", "predictions", r"\(81,\)"),
        (lambda p, q, s: (p[:0], q[:0], s[:0]), "shape", "predictions", r"\(0, 81\)"),
        (lambda p, q, s: (p, s, s), "bad-board", "puzzles", "a full puzzle at index 0"),
    ],
)
def test_bad_arguments(change, code, field, value):
    boards = made()
    with raises(code, field, value):
        sudoku.score(*change(boards.solutions, boards.puzzles, boards.solutions))


def test_by_guesses():
    boards = made()
    ratings = np.arange(200) // 5
    wrong = boards.solutions.copy()
    wrong[ratings >= 10] = wrong[ratings >= 10] % 9 + 1
    scores = sudoku.score(wrong, boards.puzzles, boards.solutions, ratings)
    found = [(band.guesses, band.boards.total, band.boards.rate) for band in scores.by_guesses]
    assert found == [("0", 5, 1), ("1-3", 15, 1), ("4-9", 30, 1), ("10-29", 100, 0), ("30+", 50, 0), ("10+", 150, 0)]
    assert "10-29" in scores.table("guesses")
    assert "by_guesses" not in sudoku.score(wrong, boards.puzzles, boards.solutions).to_dict()
    with raises("shape", "guesses", r"\(3,\)"):
        sudoku.score(wrong, boards.puzzles, boards.solutions, [1, 2, 3])
