"""Ratings by guesses, boards made to a rating, and the commands for both."""

import random
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.raising import raises, told
from tests.tasks.sudoku.boards import PUZZLE, made
from ttcnet.cli import app
from ttcnet.tasks import sudoku
from ttcnet.tasks.sudoku import generator
from ttcnet.tasks.sudoku.grid import PEERS, UNITS

HARD = "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4.."


def fixpoint(digits):
    """What cells may hold after all singles, as sets; None on a contradiction. Written without the project's loops."""
    changed = True
    while changed:
        changed = False
        for cell in range(81):
            if len(digits[cell]) == 1:
                for peer in PEERS[cell]:
                    if digits[cell] <= digits[peer]:
                        digits[peer] = digits[peer] - digits[cell]
                        changed = True
        for unit in UNITS:
            for digit in range(1, 10):
                places = [cell for cell in unit if digit in digits[cell]]
                if not places:
                    return None
                if len(places) == 1 and len(digits[places[0]]) > 1:
                    digits[places[0]] = {digit}
                    changed = True
        if not all(digits):
            return None
    return digits


def guessed(digits, chance):
    """Guesses until the solution, as the rating defines them, and whether there is one."""
    digits = fixpoint(list(digits))
    if digits is None:
        return 0, False
    open_cells = [cell for cell in range(81) if len(digits[cell]) > 1]
    if not open_cells:
        return 0, True
    fewest = min(len(digits[cell]) for cell in open_cells)
    cell = chance.choice([cell for cell in open_cells if len(digits[cell]) == fewest])
    digit = chance.choice(sorted(digits[cell]))
    number = 1
    for choice in ({digit}, digits[cell] - {digit}):
        count, found = guessed([choice if k == cell else each for k, each in enumerate(digits)], chance)
        number += count
        if found:
            return number, True
    return number, False


@pytest.mark.parametrize("puzzle", [PUZZLE, *(sudoku.format(p) for p in sudoku.generate(3, guesses=(2, 6)).puzzles)])
def test_a_rating_is_the_mean_number_of_guesses(puzzle):
    """Against a plain search of the same rules with other random numbers."""
    chance = random.Random(0)
    start = [{int(digit)} if digit > 0 else set(range(1, 10)) for digit in sudoku.parse(puzzle)]
    counts = [guessed(start, chance)[0] for _ in range(60)]
    error = np.std(counts) * (1 / 60 + 1 / 100) ** 0.5
    assert abs(sudoku.rate(puzzle) - np.mean(counts)) <= 0.5 + 4 * error


def test_ratings_of_known_boards():
    assert sudoku.rate(PUZZLE) == 0
    assert sudoku.rate(made().solutions[0]) == 0
    assert 60 < sudoku.rate(HARD) < 95
    assert sudoku.rate(HARD) == sudoku.rate(sudoku.parse(HARD))


def test_a_rating_hardly_depends_on_symmetries():
    puzzles = np.repeat(sudoku.parse(HARD)[None], 12, 0)
    solutions = np.repeat(sudoku.solutions(HARD), 12, 0)
    copies, _ = sudoku.augment(puzzles, solutions, np.random.default_rng(0))
    ratings = [sudoku.rate(copy) for copy in copies]
    assert np.std(ratings) < 0.1 * np.mean(ratings)


@pytest.mark.parametrize(("puzzle", "value"), [("1" + "." * 80, "more than one"), ("55" + "." * 79, "none")])
def test_only_puzzles_with_one_solution_are_rated(puzzle, value):
    with raises("bad-board", "puzzle", value):
        sudoku.rate(puzzle)


@pytest.mark.parametrize(
    ("guesses", "low", "high"),
    [
        (0, 0, 0),
        ((1, 3), 1, 3),
        ([4, 9], 4, 9),
        pytest.param((10, None), 10, 999, marks=pytest.mark.slow),
        pytest.param((30, None), 30, 999, marks=pytest.mark.slow),
    ],
)
def test_boards_of_a_rating(guesses, low, high):
    boards = sudoku.generate(20, guesses=guesses, seed=2)
    assert len(np.unique(boards.puzzles, axis=0)) == 20
    for puzzle, solution in boards:
        assert low <= sudoku.rate(puzzle) <= high
        assert (sudoku.solutions(puzzle) == solution).all()
        for cell in np.flatnonzero(puzzle):  # no given is for nothing
            less = puzzle.copy()
            less[cell] = 0
            assert sudoku.count(less) == 2
    assert (boards.solutions[0] != boards.solutions[generator.FAMILY]).any(), "another family, another full board"
    assert (sudoku.generate(5, guesses=guesses, seed=2).puzzles == boards.puzzles[:5]).all()
    assert (sudoku.generate(5, guesses=guesses, seed=3).puzzles != boards.puzzles[:5]).any()


@pytest.mark.parametrize(
    ("options", "code", "field", "value"),
    [
        (dict(guesses=(3, 1)), "out-of-range", "guesses", r"\(3, 1\)"),
        (dict(guesses=-1), "out-of-range", "guesses", "-1"),
        (dict(guesses=(99, None)), "out-of-range", "guesses", "99"),
        (dict(guesses=(1, 2, 3)), "format", "guesses", r"\(1, 2, 3\)"),
        (dict(guesses=0, givens=30), "conflict", "givens", "30"),
    ],
)
def test_bad_wishes(options, code, field, value):
    with raises(code, field, value):
        sudoku.generate(1, **options)


def command(*arguments):
    return CliRunner().invoke(app, ["sudoku", *map(str, arguments)])


def test_making_and_rating_on_the_command_line(tmp_path):
    made = command("generate", 3, "--guesses", "4-9", "--seed", 1, "--out", tmp_path / "hard.csv")
    assert made.exit_code == 0, made.output
    boards = sudoku.read(tmp_path / "hard.csv")
    assert (boards.puzzles == sudoku.generate(3, guesses=(4, 9), seed=1).puzzles).all()
    rated = command("rate", tmp_path / "hard.csv", "--out", tmp_path / "ratings.csv")
    assert "  4-9 guesses: 3 boards" in rated.stdout
    lines = (tmp_path / "ratings.csv").read_text().splitlines()
    assert lines[0] == "puzzle,guesses"
    assert lines[1:] == [f"{sudoku.format(puzzle)},{sudoku.rate(puzzle)}" for puzzle in boards.puzzles]
    made = command("generate", 2, "--givens", "30", "--out", tmp_path / "easy.csv.gz")
    assert made.exit_code == 0, made.output
    assert sudoku.read(tmp_path / "easy.csv.gz").givens.tolist() == [30, 30]


@pytest.mark.parametrize("wish", [["--guesses", "x"], ["--guesses", "4-9+"], ["--givens", "30+"], ["--guesses", "-4"]])
def test_ranges_that_are_none(wish, tmp_path):
    run = command("generate", 1, *wish, "--out", tmp_path / "x.csv")
    assert run.exit_code == 1
    assert told(run.stderr, "format", wish[0][2:], re.escape(f"'{wish[1]}'. Pass {wish[0]} "))


def test_boards_with_several_solutions_are_named(tmp_path):
    boards = made()[:2]
    puzzles = boards.puzzles.copy()
    puzzles[1] = 0
    sudoku.Boards(puzzles, boards.solutions).write(tmp_path / "two.csv")
    run = command("rate", tmp_path / "two.csv")
    assert run.exit_code == 1
    assert told(run.stderr, "bad-board", "boards", "several of board 2")
