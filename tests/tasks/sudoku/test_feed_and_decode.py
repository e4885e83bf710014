"""Batches, configurations and decoding."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.raising import raises
from ttcnet.models import TTCNetForCellClassification
from ttcnet.tasks.sudoku import generate
from ttcnet.tasks.sudoku.decode import cell_by_cell, in_one_pass
from ttcnet.tasks.sudoku.feed import STEPS_AT_ONCE, Feed
from ttcnet.tasks.sudoku.settings import SudokuTraining

TINY = SudokuTraining(steps=6, batch=4, layers=2, width=32, heads=2, dropout=0.1, augmentation="relabel+reveal")


@pytest.fixture(scope="module")
def boards():
    return generate(40, givens=(30, 34), seed=0)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_a_looped_model_has_the_size_that_it_is_known_by():
    model = TTCNetForCellClassification(SudokuTraining("transformer", layers=1, loops=32).model())
    assert sum(parameter.numel() for parameter in model.parameters()) == 214_345


def test_batches_are_a_function_of_seed_and_step(boards):
    one, other = (Feed(boards, 4, 1, "all+reveal", "cpu") for _ in range(2))
    for step in (0, STEPS_AT_ONCE + 3, 5, 200):
        for a, b in zip(one.at(step), other.at(step), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(one.at(0)[0], Feed(boards, 4, 2, "all+reveal", "cpu").at(0)[0])


def test_every_board_once_a_pass(boards):
    feed = Feed(boards, 8, 0, "none", "cpu")
    seen = torch.cat([feed.at(step)[0] for step in range(5)])
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, boards.puzzles.tolist()))


@pytest.mark.parametrize("augmentation", ["none", "relabel", "relabel+reveal", "all+reveal"])
def test_labels_are_the_digits_of_blank_cells(boards, augmentation):
    puzzles, labels = Feed(boards, 8, 0, augmentation, "cpu").at(3)
    assert torch.equal(labels == -100, puzzles > 0)
    filled = torch.where(puzzles > 0, puzzles, labels + 1).view(8, 9, 9)
    assert torch.equal(filled.sort(-1).values, torch.arange(1, 10).expand(8, 9, 9))


class Oracle:
    """A model that knows the solution of every board, and is surer of some cells than of others."""

    device = torch.device("cpu")

    def __init__(self, boards, confidence):
        self.solutions = torch.from_numpy(boards.solutions).long()
        self.confidence, self.seen = confidence, []

    def __call__(self, puzzles, horizon=None, loops=None):
        self.seen.append(puzzles.clone())
        one_hot = torch.nn.functional.one_hot(self.solutions - 1, 9).float()
        return type("Output", (), {"logits": one_hot * (1 + self.confidence[..., None])})


def test_decoding_cell_by_cell_takes_the_most_confident_first(boards):
    few = boards[:3]
    confidence = torch.rand(3, 81, generator=torch.Generator().manual_seed(0))
    model = Oracle(few, confidence)
    puzzles = torch.from_numpy(few.puzzles).long()
    filled = cell_by_cell(model, puzzles)
    assert torch.equal(filled, model.solutions)
    assert len(model.seen) == int((puzzles == 0).sum(1).max())
    for board in range(3):
        steps = pairwise([*(boards[board] for boards in model.seen), filled[board]])
        cells = [int(cell) for one, other in steps for cell in (one != other).nonzero()]
        blanks = (puzzles[board] == 0).nonzero().flatten()
        assert cells == sorted(blanks.tolist(), key=lambda cell: -confidence[board, cell])
    assert torch.equal(in_one_pass(Oracle(few, confidence), puzzles), model.solutions)


def test_decoding_keeps_the_givens(boards):
    torch.manual_seed(0)
    model = TTCNetForCellClassification(TINY.model()).eval()
    puzzles = torch.from_numpy(boards.puzzles[:3]).long()
    for filled in (in_one_pass(model, puzzles), cell_by_cell(model, puzzles, horizon=2)):
        assert torch.equal(filled[puzzles > 0], puzzles[puzzles > 0])
        assert np.isin(filled.numpy(), range(1, 10)).all()


def test_strings_in_strings_out(boards):
    from ttcnet.tasks import sudoku

    model = TTCNetForCellClassification(TINY.model()).eval()
    puzzle = sudoku.format(boards.puzzles[0])
    (solved,) = sudoku.solve(model, [puzzle.replace("0", ".")])
    assert len(solved) == 81
    assert all(given in ("0", digit) for given, digit in zip(puzzle, solved, strict=True))
    assert sudoku.solve(model, []) == []


def test_batches_larger_than_the_data(boards):
    with raises("out-of-range", "batch", "41"):
        Feed(boards, 41, 0, "none", "cpu")
