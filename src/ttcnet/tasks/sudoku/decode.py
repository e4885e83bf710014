"""From a model to filled boards: in one pass, or cell by cell, the most confident first (the paper's Algorithm 6)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ttcnet.errors import fail, not_finite
from ttcnet.machine.torch_settings import one_thread

from .grid import board, format  # noqa: A004

if TYPE_CHECKING:
    from ttcnet.models import TTCNetForCellClassification

FEW = 4  # boards for which threads do not pay
BATCH = {"cpu": 64, "cuda": 1024}  # boards in one pass of the model; on a CPU, as many as its caches hold


@torch.inference_mode()
def probabilities(
    model: TTCNetForCellClassification, puzzles: Tensor, horizon: int | None = None, loops: int | None = None
) -> Tensor:
    """The probability of every digit in every cell, (boards, 81, 9), in float32."""
    parts = puzzles.to(model.device).split(BATCH.get(model.device.type, 1024))
    with one_thread() if len(puzzles) <= FEW else nullcontext():
        logits = [model(part, horizon=horizon, loops=loops).logits for part in parts]
    found = torch.cat(logits).float()
    broken = (~found.isfinite()).flatten(1).any(1)
    if broken.any():
        not_finite(f"board {int(broken.int().argmax()) + 1} of {len(puzzles)}")
    return found.softmax(-1)


@torch.inference_mode()
def in_one_pass(
    model: TTCNetForCellClassification, puzzles: Tensor, horizon: int | None = None, loops: int | None = None
) -> Tensor:
    """Boards (N, 81) with every blank filled at once."""
    puzzles = puzzles.to(model.device)
    return torch.where(puzzles == 0, probabilities(model, puzzles, horizon, loops).argmax(-1) + 1, puzzles)


@torch.inference_mode()
def cell_by_cell(
    model: TTCNetForCellClassification, puzzles: Tensor, horizon: int | None = None, loops: int | None = None
) -> Tensor:
    """Boards (N, 81) filled one cell per pass, the most confident one; all boards at the same time."""
    boards = puzzles.to(model.device).clone()
    everything = torch.arange(len(boards), device=boards.device)
    for _ in range(int((boards == 0).sum(1).max()) if len(boards) else 0):
        confidence, digit = probabilities(model, boards, horizon, loops).max(-1)
        blank = boards == 0
        cell = confidence.masked_fill(~blank, -1).argmax(-1)
        here = boards[everything, cell]
        boards[everything, cell] = torch.where(blank.any(1), digit[everything, cell] + 1, here)
    return boards


def solve(
    model: TTCNetForCellClassification, puzzles: Sequence[Any], horizon: int | None = None, loops: int | None = None
) -> list[str]:
    """Puzzles filled in cell by cell, as strings of 81 digits.

    Args:
        puzzles: strings of 81 characters, 0 or . for blanks, or arrays of 81 digits, such as `generate(9).puzzles`.
        horizon: steps to look ahead; None is the model's own.
        loops: how many times the blocks are applied; None is the model's own.
    """
    if isinstance(puzzles, str):
        fail("puzzles", "must be a list of puzzles", "one string", "Put the puzzle into a list.", "type")
    if len(puzzles) == 0:
        return []
    boards = torch.stack([torch.from_numpy(board(puzzle)) for puzzle in puzzles]).long()
    return [format(filled) for filled in cell_by_cell(model, boards, horizon, loops).cpu().numpy()]
