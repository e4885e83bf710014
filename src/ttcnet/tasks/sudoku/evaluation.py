"""Accuracy of a Sudoku model: in one pass and cell by cell, at several horizons and numbers of loops."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .data import Boards
from .decode import cell_by_cell, in_one_pass
from .metrics import Scores, check_blanks, score

if TYPE_CHECKING:
    from ttcnet.models import TTCNetForCellClassification

MODES = {"single": in_one_pass, "multi": cell_by_cell}
WORDS = {"single": "one pass", "multi": "cell by cell"}


@dataclass(frozen=True)
class Evaluation:
    """Scores of one mode of decoding at one horizon and number of loops (None: the model's own), and the seconds it
    took."""

    mode: str
    horizon: int | None
    scores: Scores
    seconds: float
    loops: int | None = None

    def to_dict(self) -> dict[str, Any]:
        asked = {"mode": self.mode, "horizon": self.horizon, "loops": self.loops}
        return asked | {"seconds": self.seconds, **self.scores.to_dict()}


def evaluate(
    model: TTCNetForCellClassification,
    boards: Boards,
    mode: str = "single",
    horizon: int | None = None,
    loops: int | None = None,
    guesses: Any = None,
) -> Evaluation:
    """Decode all boards and compare, by their ratings too where these are given. On a GPU in bfloat16, as in
    training."""
    check_blanks(boards.puzzles)
    puzzles = torch.from_numpy(boards.puzzles).long()
    begin = time.perf_counter()
    with torch.autocast(model.device.type, torch.bfloat16, model.device.type == "cuda"):
        filled = MODES[mode](model, puzzles, horizon, loops).cpu().numpy()
    scores = score(filled, boards.puzzles, boards.solutions, guesses)
    return Evaluation(mode, horizon, scores, time.perf_counter() - begin, loops)
