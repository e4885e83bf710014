"""A sign of life within a pass of a model that takes many loops."""

import torch

from ttcnet.models import TTCNetForCellClassification
from ttcnet.tasks.sudoku import progress
from ttcnet.tasks.sudoku.settings import SudokuTraining
from ttcnet.terminal import progress_bars


def test_loops_of_a_pass_are_told(monkeypatch, capsys):
    config = SudokuTraining(layers=1, width=8, heads=2, loops=2, recall=True).model()
    monkeypatch.setattr(progress, "PAUSE", 0)
    monkeypatch.setattr(progress_bars, "PAUSE", 0)
    model = TTCNetForCellClassification(config).eval()
    with torch.no_grad(), progress.watched(model, "Solving", 1):
        model(torch.zeros(1, 81, dtype=torch.long), loops=5)
    assert "Solving, 5 loops of a pass" in capsys.readouterr().err
    assert not model._forward_hooks
    assert not model.model.layers[0]._forward_hooks
