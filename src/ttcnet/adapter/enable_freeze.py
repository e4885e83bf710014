"""Use a model with inserted layers: enable and disable them, and choose the weights to train.
`ttcnet.models.horizon_and_loops` sets the horizon.

All of these find the layers inside wrappers too, such as PEFT's, torch.compile's or DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ttcnet.errors import fail

from .decoder import LayerWithInserted, ModelWithInserted
from .inserted_layers import InsertedLayers


def disable(model: nn.Module) -> None:
    """Skip the inserted layers: the model computes the same as its base. See `enable`."""
    for layer in layers_of(model):
        layer.enabled = False


def enable(model: nn.Module) -> None:
    """Undo `disable`."""
    for layer in layers_of(model):
        layer.enabled = True


@contextmanager
def disabled(model: nn.Module) -> Iterator[None]:
    """Skip the inserted layers for the time of a `with` block. See `disable`."""
    before = [layer.enabled for layer in layers_of(model)]
    disable(model)
    try:
        yield
    finally:
        for layer, value in zip(layers_of(model), before, strict=True):
            layer.enabled = value


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of the inserted layers, by their names in a file."""
    return {
        inserted.prefix + name: parameter
        for inserted in inserted_of(model)
        for name, parameter in inserted.named_parameters()
    }


def freeze_base(model: nn.Module) -> None:
    """Train the inserted layers, and nothing of the base model.

    A base wrapped by PEFT is frozen already and does not change: PEFT's own weights are still trained.
    """
    inserted = parameters(model)
    if not hasattr(model, "peft_config"):
        model.requires_grad_(False)
    elif any(isinstance(layer.inserted, InsertedLayers) for layer in layers_of(model)):
        outermost(model).base_model.beside_lora = True
    for parameter in inserted.values():
        parameter.requires_grad_(True)


def train_all(model: nn.Module) -> None:
    """Train the base model and the inserted layers. Save the whole model then, not the adapter alone."""
    if hasattr(model, "peft_config"):
        remedy = "Call freeze_base(model) to train the inserted layers beside PEFT's own weights."
        rule = "must not be wrapped by PEFT, which freezes the base"
        fail("model", rule, type(model).__name__, remedy, "unsupported-model")
    layers_of(model)
    model.requires_grad_(True)


def layers_of(model: nn.Module) -> list[LayerWithInserted]:
    """The decoder layers that have inserted layers."""
    layers: list[LayerWithInserted] = [module for module in model.modules() if isinstance(module, LayerWithInserted)]
    if not layers:
        remedy = "Call ttcnet.adapter.insert or ttcnet.adapter.load first."
        fail("model", "must have layers inserted", type(model).__name__, remedy, "no-layers")
    return layers


def inserted_of(model: nn.Module) -> list[InsertedLayers]:
    """The inserted layers of a decoder layer; PEFT's copy, if PEFT trains one."""
    found: list[InsertedLayers] = []
    for layer in layers_of(model):
        held: Any = layer.inserted
        found.append(held if isinstance(held, InsertedLayers) else held.modules_to_save[held.active_adapters[0]])
    return found


def outermost(model: nn.Module) -> Any:
    """The model itself, without its wrappers."""
    layers_of(model)
    return next(module for module in model.modules() if isinstance(module, ModelWithInserted))
