"""Linear probes of plans: how much of the answer can be read from the states that a TTC layer plans to pass through, by
step of the plan and by loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttcnet.errors import fail, not_finite
from ttcnet.nn import TTCLayer, ttc_layers

STEPS = (0, 2, 4, 8)
TOGETHER = 256  # rows in one pass of the model


class Labelled(NamedTuple):
    """Tokens (rows, length), and a label for each: 0, 1, ..., or -100 where it does not count."""

    tokens: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Probe:
    """The share of labels that a linear probe gets right at a step of the plan, by layer, by the time that the layer is
    at work (0 for the first, more where blocks are applied in loops), and by step."""

    layer: int
    time: int
    step: int
    accuracy: float


def probe(
    model: nn.Module,
    train: Labelled,
    test: Labelled,
    steps: tuple[int, ...] = STEPS,
    iterations: int = 300,
) -> Iterator[Probe]:
    """Fit a probe for every TTC layer, every loop and every planning step on `train`, and test it on `test`; one after
    the other, on request."""
    layers = [*ttc_layers(model).values()]
    if not layers:
        remedy = "Probe a model that has some."
        fail("model", "must have a TTC layer", type(model).__name__, remedy, "no-layers")
    for step in steps:
        if step < 0:
            fail("step", "must be 0 or more", step, "Count the steps of a plan from its first state, 0.", "too-small")
    learnt, held_out = planned_states(model, train, steps), planned_states(model, test, steps)
    for layer in range(len(layers)):
        for when in range(len(learnt[0][layer])):
            for place, step in enumerate(steps):
                fitted, tested = ((states[layer][when][:, place], labels) for states, labels in (learnt, held_out))
                yield Probe(layer, when, step, _accuracy(fitted, tested, iterations))


@torch.no_grad()
def planned_states(model: nn.Module, data: Labelled, steps: tuple[int, ...]) -> tuple[list[list[Tensor]], Tensor]:
    """The states that TTC layers plan, and the labels of the tokens, (tokens,). There is one tensor of states for every
    call of every layer: all tokens that count, at the given planning steps, (tokens, steps, heads * n)."""
    device = next(model.parameters()).device
    layers = [*ttc_layers(model).values()]
    found: list[list[list[Tensor]]] = [[] for _ in layers]  # by layer, part of the rows, time
    place = {id(layer): k for k, layer in enumerate(layers)}

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(layer, TTCLayer)
        _, solution = TTCLayer.forward(layer, inputs[0], max(*steps, 1), return_plan=True)
        states = solution.h[..., list(steps), :].transpose(-2, -3).flatten(-2)  # (rows, length, steps, heads * n)
        broken = ~states.isfinite().flatten(1).all(1)
        if broken.any():
            not_finite(f"row {first + int(broken.int().argmax()) + 1} of {len(data.tokens)}")
        found[place[id(layer)]][-1].append(states[counts].cpu())

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        for first in range(0, len(data.tokens), TOGETHER):
            part = slice(first, first + TOGETHER)
            counts = (data.labels[part] >= 0).to(device)
            for parts in found:
                parts.append([])
            model(data.tokens[part].to(device))
    finally:
        for hook in hooks:
            hook.remove()
    states = [[torch.cat(parts).float() for parts in zip(*times, strict=True)] for times in found]
    return states, data.labels[data.labels >= 0].cpu()


def _accuracy(learnt: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], iterations: int) -> float:
    """The accuracy of softmax regression on standardised features, fitted by L-BFGS with a little ridge."""
    features, labels = learnt
    mean, std = features.mean(0), features.std(0).clamp_min(1e-6)
    inputs = (features - mean) / std
    kinds = 1 + int(max(labels.max(), held_out[1].max()))
    weight = torch.zeros(features.shape[1] + 1, kinds, requires_grad=True)
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
