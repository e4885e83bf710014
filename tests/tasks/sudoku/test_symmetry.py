"""Symmetries: a puzzle becomes another with one solution, evenly over the group, without waiting for the device."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tests.raising import raises
from tests.tasks.sudoku.boards import made, valid
from ttcnet.tasks import sudoku

KINDS = ("relabel", "rows", "bands", "columns", "stacks", "transpose")
SIZES = dict(relabel=math.factorial(9), rows=216, bands=6, columns=216, stacks=6, transpose=2)


def generator(kind, seed=0):
    return np.random.default_rng(seed) if kind == "numpy" else torch.Generator().manual_seed(seed)


def boards(kind, dtype=np.uint8):
    arrays = made().puzzles.astype(dtype), made().solutions.astype(dtype)
    return arrays if kind == "numpy" else tuple(map(torch.from_numpy, arrays))


def only(*kinds):
    return {kind: kind in kinds for kind in KINDS}


def moved(kind, count, *kinds, seed=0):
    """The cells that those of `count` boards are taken from: the boards hold the numbers of the cells as digits."""
    cells = np.tile(np.arange(81), (count, 1))
    cells = cells if kind == "numpy" else torch.from_numpy(cells)
    return np.asarray(sudoku.augment(cells, cells, generator(kind, seed), **only(*kinds))[0])


def counts(cells):
    """How often each different row comes; rows are told apart by one number each."""
    keys = np.random.default_rng(0).integers(1 << 50, size=cells.shape[1])
    return np.unique(cells @ keys, return_counts=True)[1]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("kinds", [KINDS, *((name,) for name in KINDS)], ids="+".join)
def test_puzzles_stay_puzzles(kind, kinds):
    before = boards(kind)
    copies = [np.asarray(array).copy() for array in before]
    puzzles, solutions = map(np.asarray, sudoku.augment(*before, generator(kind), **only(*kinds)))
    assert all(np.array_equal(array, copy) for array, copy in zip(before, copies, strict=True))
    assert puzzles.dtype == solutions.dtype == np.uint8
    assert valid(solutions)
    made_anew = sudoku.Boards(puzzles, solutions)
    assert (made_anew.givens == made().givens).all()
    changed = (puzzles != copies[0]).any(1).mean()
    assert changed > (0.3 if kinds == ("transpose",) else 0.7)
    for puzzle, solution in made_anew[:30]:
        found = sudoku.solutions(puzzle)
        assert len(found) == 1
        assert (found[0] == solution).all()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_nothing_switched_on_changes_nothing(kind):
    puzzles, solutions = sudoku.augment(*boards(kind), generator(kind), **only())
    assert np.array_equal(puzzles, made().puzzles)
    assert np.array_equal(solutions, made().solutions)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", KINDS[1:])
def test_every_rearrangement_comes_equally_often(kind, name):
    draws = 40 * SIZES[name]
    numbers = counts(moved(kind, draws, name))
    assert len(numbers) == SIZES[name]
    assert stats.chisquare(numbers).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_every_relabelling_comes_equally_often(kind):
    cells = np.tile(np.arange(81) % 10, (9000, 1))
    cells = cells if kind == "numpy" else torch.from_numpy(cells)
    labels = np.asarray(sudoku.augment(cells, cells, generator(kind), **only("relabel"))[0])[:, :10]
    assert (labels[:, 0] == 0).all()
    assert (np.sort(labels, 1) == np.arange(10)).all()
    table = np.stack([np.bincount(labels[:, digit], minlength=10)[1:] for digit in range(1, 10)])
    assert stats.chisquare(table.ravel(), ddof=16).pvalue > 1e-3
    assert len(counts(labels)) > 8800


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_whole_group(kind):
    """Parts are drawn independently: rows 6^4, columns 6^4, and twice that with transposition."""
    cells = moved(kind, 30_000, *KINDS[1:]).reshape(-1, 9, 9)
    assert len(counts(cells.reshape(-1, 81))) > 29_700  # of 3,359,232; about 134 pairs are expected
    assert abs((cells[:, 0, 1] // 9 == cells[:, 0, 0] // 9).mean() - 0.5) < 0.015
    assert stats.chisquare(np.bincount(cells[:, 0, 0], minlength=81)).pvalue > 1e-3
    rows = moved(kind, 30_000, "rows", "bands").reshape(-1, 9, 9)[:, :, 0]
    assert len(counts(rows)) == 6**4


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_generator_decides(kind):
    one, again, other = (sudoku.augment(*boards(kind), generator(kind, seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8])
def test_dtypes_stay(dtype):
    for kind in ("numpy", "torch"):
        puzzles, solutions = sudoku.augment(*boards(kind, dtype), generator(kind))
        assert np.asarray(puzzles).dtype == np.asarray(solutions).dtype == dtype
    assert np.asarray(sudoku.reveal(*boards("torch", dtype), generator("torch"))).dtype == dtype


def test_reveal():
    puzzles, solutions = (board.repeat(100, 1) for board in boards("torch"))
    more = sudoku.reveal(puzzles, solutions, generator("torch"))
    assert ((more == puzzles) | (puzzles == 0)).all()
    assert ((more == solutions) | (more == 0)).all()
    assert ((more == 0).sum(1) > 0).all()
    share = (more != puzzles).any(1).double().mean().item()
    assert abs(share - 0.3 * (1 - 1 / 51)) < 0.01  # of about 51 blanks, none at all is revealed at times
    assert torch.equal(more, sudoku.reveal(puzzles, solutions, generator("torch")))
    assert torch.equal(puzzles, sudoku.reveal(puzzles, solutions, generator("torch"), share_of_boards=0))


def test_the_number_of_revealed_cells_is_even():
    puzzle, solution = (board[:1].repeat(20_000, 1) for board in boards("torch"))
    blanks = int((puzzle[0] == 0).sum())
    more = sudoku.reveal(puzzle, solution, generator("torch"), share_of_boards=1.0)
    revealed = (more != puzzle).numpy()
    numbers = np.bincount(revealed.sum(1))
    assert len(numbers) == blanks
    assert stats.chisquare(numbers).pvalue > 1e-3
    by_cell = revealed.mean(0)[puzzle[0].numpy() == 0]
    assert abs(by_cell - by_cell.mean()).max() < 5 * 0.5 / math.sqrt(20_000)


def test_full_boards_have_nothing_to_reveal():
    _, solutions = boards("torch")
    assert torch.equal(sudoku.reveal(solutions, solutions, generator("torch"), share_of_boards=1.0), solutions)


def test_nothing_waits_for_the_device():
    """Tensors of the meta device hold no data, so that whatever has to look at data fails."""
    puzzles = torch.empty(5, 81, dtype=torch.int64, device="meta")
    new, solutions = sudoku.augment(puzzles, puzzles, None)
    assert sudoku.reveal(new, solutions, None).shape == (5, 81)
    with raises("device", "generator", "cpu"):
        sudoku.augment(puzzles, puzzles, generator("torch"))


@pytest.mark.parametrize(
    ("call", "code", "field", "value"),
    [
        (
            lambda p, s: sudoku.augment(p, s, torch.Generator()),
            "type",
            "generator",
            "Generator",
        ),
        (
            lambda p, s: sudoku.augment(torch.from_numpy(p), torch.from_numpy(s), np.random.default_rng()),
            "type",
            "generator",
            "Generator",
        ),
        (
            lambda p, s: sudoku.augment(p, torch.from_numpy(s), None),
            "type",
            "puzzles and solutions",
            "ndarray and Tensor",
        ),
        (lambda p, s: sudoku.augment(p[:3], s, None), "shape", "puzzles and solutions", r"\(3, 81\) and \(200,"),
        (lambda p, s: sudoku.augment(p[0], s[0], None), "shape", "puzzles and solutions", r"\(81,\) and \(81,\)"),
        (lambda p, s: sudoku.augment(p * 1.0, s, None), "dtype", "puzzles", "float64"),
        (lambda p, s: sudoku.reveal(p, s, np.random.default_rng()), "type", "puzzles", "ndarray"),
        (
            lambda p, s: sudoku.reveal(torch.from_numpy(p), torch.from_numpy(s), None, 1.5),
            "out-of-range",
            "share_of_boards",
            r"1\.5",
        ),
    ],
)
def test_bad_arguments(call, code, field, value):
    with raises(code, field, value):
        call(made().puzzles, made().solutions)
