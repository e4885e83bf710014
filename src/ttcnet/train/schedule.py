"""Learning rates over a run, and groups of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

UNDECAYED = ("A_log", "D", "ridge")  # rates of mixers, which have no reason to shrink to zero


def warm_up_and_cosine(step: int, steps: int, highest: float, lowest: float, warm_up: float) -> float:
    """The learning rate of step 0 .. steps - 1: it rises linearly over the share `warm_up`, then falls along half a
    cosine.

    Examples:
        >>> [round(warm_up_and_cosine(step, 100, 1.0, 0.1, 0.1), 3) for step in (0, 9, 10, 55, 99)]
        [0.1, 1.0, 1.0, 0.542, 0.1]
    """
    rising = max(1, round(warm_up * steps))
    if step < rising:
        return highest * (step + 1) / rising
    share = (step - rising) / max(1, steps - 1 - rising)
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    *,
    spared: Callable[[str], bool] = lambda name: False,
    apart: Iterable[nn.Parameter] = (),
    share: float = 1.0,
) -> list[dict[str, Any]]:
    """The trained parameters in groups for AdamW, by weight decay and learning rate. Some have no weight decay: norms,
    biases, rates, all with one dimension, and those whose names are in `spared`. Those in `apart` learn at a `share` of
    the rate of the others."""
    own, fixed = {id(parameter) for parameter in apart}, ("bias", *UNDECAYED)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim < 2 or name.rpartition(".")[2] in fixed or spared(name)
            what = 0.0 if plain else weight_decay, share if id(parameter) in own else 1.0
            groups.setdefault(what, []).append(parameter)
    return [dict(params=params, weight_decay=decay, share=part) for (decay, part), params in groups.items()]
