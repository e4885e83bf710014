"""Settings of a run that trains a model of Sudoku."""

import pytest

from tests.raising import raises
from ttcnet.tasks.sudoku.settings import SudokuTraining


@pytest.mark.parametrize(
    ("options", "code", "field", "value"),
    [
        (dict(architecture="lstm"), "unknown-name", "architecture", "'lstm'"),
        (dict(augmentation="mirror"), "unknown-name", "augmentation", "'mirror'"),
        (dict(lr="abc"), "type", "lr", "'abc'"),
        (dict(width=1.5), "type", "width", r"1\.5"),
        (dict(loops=True), "type", "loops", "True"),
        (dict(recall=1), "type", "recall", "1"),
        (dict(interleave=8), "type", "interleave", "8"),
        (dict(steps=0), "too-small", "steps", "0"),
        (dict(ttc_heads=0), "too-small", "ttc_heads", "0"),
        (dict(architecture="gdn", ttc_heads=8), "conflict", "ttc_heads", "8"),
        (dict(architecture="gdn", zero_init=True), "conflict", "zero_init", "True"),
        (dict(architecture="gdn", interleave="1:1"), "conflict", "interleave", "1:1"),
        (dict(loops=0), "too-small", "loops", "0"),
        (dict(supervision="often"), "unknown-name", "supervision", "'often'"),
        (dict(context="world"), "unknown-name", "context", "'world'"),
        (dict(inserted_lr=-1.0), "out-of-range", "inserted_lr", r"\-1\.0"),
        (dict(ema=1.0), "out-of-range", "ema", r"1\.0"),
        (dict(lr=-1.0), "out-of-range", "lr", r"\-1\.0"),
        (dict(final_lr=float("inf")), "out-of-range", "final_lr", "inf"),
        (dict(weight_decay=float("nan")), "out-of-range", "weight_decay", "nan"),
        (dict(seed=2**50), "out-of-range", "seed", "1125899906842624"),
    ],
)
def test_bad_configurations(options, code, field, value):
    with raises(code, field, value):
        SudokuTraining(**options)


def test_whole_numbers_are_numbers():
    assert SudokuTraining(clip=1, lr=0, inserted_lr=None).clip == 1
