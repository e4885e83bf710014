"""A model at work on one puzzle, step by step: for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ttcnet.errors import not_finite
from ttcnet.machine.torch_settings import one_thread
from ttcnet.nn import TTCLayer, ttc_layers

from .decode import probabilities
from .grid import Board

if TYPE_CHECKING:
    from ttcnet.models import TTCNetForCellClassification


@dataclass(frozen=True)
class Move:
    """A cell, 0 to 80, the digit that the model put there, and how sure it was."""

    cell: int
    digit: int
    confidence: float


def moves(
    model: TTCNetForCellClassification, puzzle: Board, horizon: int | None = None, loops: int | None = None
) -> Iterator[Move]:
    """Fill a puzzle, the most confident cell first, with one pass of the model per cell."""
    board = torch.from_numpy(puzzle.astype(np.int64))
    while (board == 0).any():
        confidence, digit = probabilities(model, board[None], horizon, loops)[0].cpu().max(-1)
        cell = int(confidence.masked_fill(board > 0, -1).argmax())
        board[cell] = digit[cell] + 1
        yield Move(cell, int(board[cell]), float(confidence[cell]))


def stage_name(model: TTCNetForCellClassification) -> str:
    """The stages in which a model's answer settles: the loops of a looped one, else its blocks."""
    return "loop" if model.config.loops > 1 else "block"


@one_thread()
@torch.inference_mode()
def settling(
    model: TTCNetForCellClassification, puzzle: Board, horizon: int | None = None, loops: int | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """One pass, step by step: the digits of all cells after every loop, or every block of a model without loops, and
    the model's confidence in them, both (stages, 81). Givens stay. After loop k they are the answer of k loops."""
    board = torch.from_numpy(puzzle.astype(np.int64))
    found = model(board[None].to(model.device), horizon=horizon, loops=loops, output_hidden_states=True)
    step = len(model.model.layers) if stage_name(model) == "loop" else 1
    states = torch.cat(found.hidden_states[step::step])
    sure, digits = model.classifier(model.model.norm(states)).float().softmax(-1).cpu().max(-1)
    if not sure.isfinite().all():
        not_finite("this puzzle")
    given = board > 0
    return torch.where(given, board, digits + 1).numpy().astype(np.uint8), sure.masked_fill(given, 1.0).numpy()


@one_thread()
@torch.inference_mode()
def plan_values(model: TTCNetForCellClassification, puzzle: Board, horizons: Sequence[int]) -> NDArray[np.float64]:
    """The values of the plans of the TTC layers at each horizon, (layers, horizons), a row for each loop that a layer
    is at work in: minus their cost, the mean over the blank cells and the heads."""
    blank = torch.from_numpy(puzzle == 0)
    inputs: list[tuple[TTCLayer, torch.Tensor]] = []
    layers = ttc_layers(model).values()
    hooks = [layer.register_forward_pre_hook(lambda self, given: inputs.append((self, given[0]))) for layer in layers]
    try:
        model(torch.from_numpy(puzzle.astype(np.int64))[None].to(model.device))
    finally:
        for hook in hooks:
            hook.remove()
    values = []
    for layer, x in inputs:
        tokens = x[0][blank.to(x.device)]
        costs = [layer(tokens, T, return_plan=True)[1].cost.mean().item() for T in horizons] if len(tokens) else []
        values.append([-cost for cost in costs])
    found = np.array(values)
    if not np.isfinite(found).all():
        not_finite("the plans of this puzzle")
    return found
