"""Boards for the tests of this folder."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ttcnet.tasks import sudoku

PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


@cache
def made(count=200, seed=0):
    return sudoku.generate(count, seed=seed)


def shared(name):
    """A file of the published data set, which is not part of the project; skips the test where it is not there."""
    folder = os.environ.get("TTCNET_DATA")
    if folder is None:
        pytest.skip("the environment variable TTCNET_DATA does not name a folder with the data sets")
    path = Path(folder) / "sudoku" / name
    if not path.exists():
        pytest.skip(f"{path} does not exist")
    return path


def valid(solutions):
    """Whether every row, column and box of every board holds 1 to 9, written without the project's tables."""
    grids = np.asarray(solutions).reshape(-1, 9, 9)
    boxes = grids.reshape(-1, 3, 3, 3, 3).swapaxes(2, 3).reshape(-1, 9, 9)
    return all((np.sort(view, -1) == np.arange(1, 10)).all() for view in (grids, grids.swapaxes(1, 2), boxes))
