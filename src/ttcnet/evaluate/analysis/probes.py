"""Linear probes of plans on Sudoku: how much of the solution can be read from the states that a TTC layer plans, by
step of the plan and by loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttcnet.errors import fail, not_finite
from ttcnet.nn import TTCLayer, ttc_layers
from ttcnet.tasks.sudoku.data import Boards
from ttcnet.tasks.sudoku.metrics import check_blanks

if TYPE_CHECKING:
    from ttcnet.models import TTCNetForCellClassification

STEPS = (0, 2, 4, 8)
TOGETHER = 256  # boards in one pass of the model


@dataclass(frozen=True)
class Probe:
    """The share of masked cells that a linear probe gets right at a step of the plan, by layer, by the time that the
    layer is at work (0 for the first, more where blocks are applied in loops), and by step."""

    layer: int
    time: int
    step: int
    cells: float


def probe(
    model: TTCNetForCellClassification,
    train: Boards,
    test: Boards,
    steps: tuple[int, ...] = STEPS,
    iterations: int = 300,
) -> Iterator[Probe]:
    """Fit a probe for every TTC layer, every loop and every planning step on `train`, and judge it on `test`; one after
    the other, as they are asked for."""
    layers = [*ttc_layers(model).values()]
    if not layers:
        remedy = "Probe a model of the architecture ttc."
        fail("model", "must have a TTC layer", model.config.mixer, remedy, "no-layers")
    for step in steps:
        if step < 0:
            fail("step", "must be 0 or more", step, "Count the steps of a plan from its first state, 0.", "too-small")
    for boards in (train, test):
        check_blanks(boards.puzzles)
    learnt, held_out = planned_states(model, train, steps), planned_states(model, test, steps)
    for layer in range(len(layers)):
        for when in range(len(learnt[0][layer])):
            for place, step in enumerate(steps):
                fitted, judged = ((states[layer][when][:, place], labels) for states, labels in (learnt, held_out))
                yield Probe(layer, when, step, _accuracy(fitted, judged, iterations))


@torch.no_grad()
def planned_states(
    model: TTCNetForCellClassification, boards: Boards, steps: tuple[int, ...]
) -> tuple[list[list[Tensor]], Tensor]:
    """For every TTC layer and every time that it is at work, the states of all masked cells at the given planning
    steps, (cells, steps, heads * n); and the labels of those cells, (cells,)."""
    puzzles = torch.from_numpy(boards.puzzles).long().to(model.device)
    solutions = torch.from_numpy(boards.solutions).long().to(model.device)
    layers = [*ttc_layers(model).values()]
    found: list[list[list[Tensor]]] = [[] for _ in layers]  # by layer, part of the boards, time
    place = {id(layer): k for k, layer in enumerate(layers)}

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(layer, TTCLayer)
        _, solution = TTCLayer.forward(layer, inputs[0], max(*steps, 1), return_plan=True)
        states = solution.h[..., list(steps), :].transpose(-2, -3).flatten(-2)  # (boards, 81, steps, heads * n)
        broken = ~states.isfinite().flatten(1).all(1)
        if broken.any():
            not_finite(f"board {first + int(broken.int().argmax()) + 1} of {len(boards)}")
        found[place[id(layer)]][-1].append(states[blank].cpu())

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        for first in range(0, len(puzzles), TOGETHER):
            part = puzzles[first : first + TOGETHER]
            blank = part == 0
            for parts in found:
                parts.append([])
            model(part)
    finally:
        for hook in hooks:
            hook.remove()
    states = [[torch.cat(parts).float() for parts in zip(*times, strict=True)] for times in found]
    return states, (solutions[puzzles == 0] - 1).cpu()


def _accuracy(learnt: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], iterations: int) -> float:
    """Of softmax regression on standardised features, fitted by L-BFGS with a little ridge."""
    features, labels = learnt
    mean, std = features.mean(0), features.std(0).clamp_min(1e-6)
    inputs = (features - mean) / std
    weight = torch.zeros(features.shape[1] + 1, 9, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=iterations, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(inputs @ weight[:-1] + weight[-1], labels) + 1e-5 * weight[:-1].square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        guess = ((held_out[0] - mean) / std @ weight[:-1] + weight[-1]).argmax(-1)
    return float((guess == held_out[1]).float().mean())
