"""Changing a model in place: its layers, its class, its configuration. No class of a library is touched."""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import nn

from ttcnet.errors import fail

from .config import TTCAdapterConfig
from .inserted_layers import InsertedLayers


def build_layers(model: Any, config: TTCAdapterConfig) -> dict[int, InsertedLayers]:
    """Build the layers to insert, by the number of their decoder layer, on its device and in the dtype of its norms."""
    layers = model.base_model.layers
    built = {}
    for index, count in config.places(len(layers)).items():
        weight = layers[index].input_layernorm.weight
        with torch.device(weight.device):
            inserted = InsertedLayers(config, model.config.hidden_size, count, index)
        built[index] = inserted.to(weight.dtype).train(layers[index].training)
    return built


def put_layers(model: Any, built: Mapping[int, InsertedLayers], classes: Mapping[type, type]) -> None:
    """Insert layers into the model. Its parts get the classes that `classes` maps theirs to."""
    layers = model.base_model.layers
    for index, inserted in built.items():
        layers[index].inserted = inserted
        change_class(layers[index], classes)
    kinds = {kind.__name__ for pair in classes.items() for kind in pair}
    absent = kinds - {type(layer).__name__ for layer in layers}  # accelerate looks for all that it is told of
    for part in {model, model.base_model}:
        change_class(part, classes)
        part._no_split_modules = {*part._no_split_modules, *type(part)._no_split_modules} - absent


def take_layers(model: Any, classes: Mapping[type, type]) -> None:
    """Undo `put_layers`. `classes` maps our classes to the library's."""
    for layer in model.base_model.layers:
        if type(layer) in classes:
            del layer.inserted
            layer.__dict__.pop("enabled", None)
            change_class(layer, classes)
    for part in {model, model.base_model}:
        change_class(part, classes)
        for name in ("uses_cache", "unsaved", "beside_lora"):
            part.__dict__.pop(name, None)
        ours = {kind.__name__ for kind in classes}
        part._no_split_modules = {*part._no_split_modules, *(type(part)._no_split_modules or ())} - ours


def change_class(part: nn.Module, classes: Mapping[type, type]) -> None:
    """Give a module the method of its new class, also where accelerate has wrapped its forward."""
    new = classes.get(type(part))
    if new is None:
        return
    for name in ("forward", "_old_forward"):
        if is_own(part, name):
            part.__dict__[name] = MethodType(new.forward, part)  # type: ignore[attr-defined]
    part.__class__ = new


def is_own(part: nn.Module, name: str) -> bool:
    """Whether this instance has the attribute, and it holds the forward of its class."""
    return getattr(part.__dict__.get(name), "__func__", None) is type(part).forward


def check_forward(part: nn.Module, name: str) -> None:
    """Fail if the module's forward was replaced by one that would leave out the inserted layers."""
    held = part.__dict__
    if "forward" in held and not is_own(part, "forward") and not is_own(part, "_old_forward"):
        remedy = "Insert first, and patch or wrap afterwards."
        rule = "must have the forward of its class"
        fail(name, rule, "one that was patched", remedy, "unsupported-model", ValueError)


def change_config(model: nn.Module, old: Any, new: Any) -> None:
    """Replace `old` by `new` wherever the model holds it."""
    for module in model.modules():
        if module.__dict__.get("config") is old:
            module.config = new
