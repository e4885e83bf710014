"""Learning rates over a run, and what does not decay."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

UNDECAYED = ("A_log", "D", "ridge")  # of mixers: rates, which zero would not tame


def warm_up_and_cosine(step: int, steps: int, highest: float, lowest: float, warm_up: float) -> float:
    """The learning rate of step 0 .. steps - 1: up in a line over the share `warm_up`, then down along half a cosine.

    Examples:
        >>> [round(warm_up_and_cosine(step, 100, 1.0, 0.1, 0.1), 3) for step in (0, 9, 10, 55, 99)]
        [0.1, 1.0, 1.0, 0.542, 0.1]
    """
    rising = max(1, round(warm_up * steps))
    if step < rising:
        return highest * (step + 1) / rising
    share = (step - rising) / max(1, steps - 1 - rising)
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def set_apart(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], lr: float) -> None:
    """Give some of the parameters of a new optimizer a learning rate of their own. All else of theirs stays."""
    own = {id(parameter) for parameter in parameters}
    groups = list(optimizer.param_groups)
    optimizer.param_groups.clear()
    for group in groups:
        parts = ([p for p in group["params"] if (id(p) in own) is chosen] for chosen in (False, True))
        for part, rate in zip(parts, (group["lr"], lr), strict=True):
            if part:
                optimizer.add_param_group(group | {"params": part, "lr": rate})
