"""Insert layers into a pretrained model, and remove them again."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from ttcnet.errors import fail

from .config import TTCAdapterConfig
from .families import Family, family_of
from .in_place import build_layers, change_config, check_forward, put_layers, take_layers
from .inserted_layers import InsertedLayers
from .origin import UNSAVED, mark_inserted

Model = TypeVar("Model", bound=nn.Module)


def insert(model: Model, config: TTCAdapterConfig | None = None) -> Model:
    """Insert layers between attention and MLP of a pretrained model. It is changed in place, and returned.

    With the output of the layers at zero, as it starts by default, the model computes the same as before, to the bit.
    The model's class and configuration become those of its ttc_* family, so that it can be saved and loaded whole.
    Other models, and the classes of transformers, are left alone.

    Args:
        model: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM or Gemma3ForCausalLM of
            transformers, or one of these without its head.
        config: which layers, and where.

    Examples:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> base = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=8))
        >>> model = insert(base, TTCAdapterConfig(every=4, heads=4))
        >>> [index for index, layer in enumerate(model.model.layers) if hasattr(layer, "inserted")]
        [3, 7]
    """
    config = TTCAdapterConfig() if config is None else config
    family = check(model, config)
    attach(model, family, config, build_layers(model, config), base_of(model.config))
    mark_inserted(model, silent=config.zero_init)
    return model


def remove(model: Model) -> Model:
    """Remove the inserted layers, in place. Returns the base model, with the training that it has had since.

    Examples:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> base = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2))
        >>> type(remove(insert(base, TTCAdapterConfig(every=2, heads=4)))).__name__
        'LlamaForCausalLM'
    """
    if hasattr(model, "peft_config"):
        remedy = "Call remove(model.merge_and_unload()), or remove(model.unload())."
        fail("model", "must not be wrapped by PEFT", type(model).__name__, remedy, "unsupported-model")
    family = family_of(model)
    if type(model) not in family.ours.values():
        fail("model", "must have layers inserted", type(model).__name__, "There is nothing to remove.", "no-layers")
    old: Any = model.config
    new = copy.deepcopy(old)
    for field in ("ttc_adapter", "ttc_base", "horizon"):
        del new.__dict__[field]
    new.__class__ = family.config
    parts: set[Any] = {model, model.base_model}
    for part in parts:
        name = part.__dict__.pop("base_name", UNSAVED)
        part.name_or_path = new._name_or_path = name
    take_layers(model, {our: their for their, our in family.ours.items()})
    change_config(model, old, new)
    return model


def check(model: nn.Module, config: TTCAdapterConfig) -> Family:
    """Fail unless layers can be inserted. Returns the model's family."""
    if not isinstance(config, TTCAdapterConfig):
        remedy = "Pass TTCAdapterConfig(every=8), say."
        fail("config", "must be a TTCAdapterConfig", type(config).__name__, remedy, "type")
    family = family_of(model)
    if type(model) in family.ours.values():
        remedy = "Call ttcnet.adapter.remove first."
        fail("model", "must have no layers inserted", type(model).__name__, remedy, "has-layers")
    backbone: Any = model.base_model
    check_forward(backbone, "model")
    for index in config.places(len(backbone.layers)):
        layer: Any = backbone.layers[index]
        name = f"decoder layer {index}"
        parts = {part for part, _ in layer.named_children()}
        if type(layer) is not family.layer or parts != family.parts:
            rule = f"must be a {family.layer.__name__} with {', '.join(sorted(family.parts))}"
            found = f"{type(layer).__name__} with {', '.join(sorted(parts))}"
            fail(name, rule, found, "Insert into the model as transformers makes it.", "unsupported-model")
        check_forward(layer, name)
        if any(parameter.is_meta for parameter in layer.parameters()):
            remedy = "Load the model onto devices that hold it."
            rule = "must have its weights in memory"
            fail(name, rule, "weights that are offloaded or not loaded", remedy, "offloaded")
    return family


def attach(
    model: Any, family: Family, config: TTCAdapterConfig, built: Mapping[int, InsertedLayers], base: dict[str, Any]
) -> None:
    """Insert layers that were built. Nothing in here can fail."""
    old = model.config
    new = copy.deepcopy(old)
    new.__class__ = family.ours[family.config]
    fields = config.to_dict()
    new.horizon = fields.pop("horizon")
    new.ttc_adapter, new.ttc_base = fields, {name: base[name] for name in ("name", "revision")}
    put_layers(model, built, family.ours)
    change_config(model, old, new)
    for part in {model, model.base_model}:
        part.uses_cache, part.base_name = new.use_cache, old._name_or_path


def base_of(config: Any) -> dict[str, Any]:
    """The identity of a base model: its name, revision and shape. A local folder has its own name alone."""
    known = getattr(config, "ttc_base", None)
    if known is None:
        name = str(config._name_or_path or "")
        name = os.path.basename(os.path.abspath(name)) if os.path.isdir(name) else name
        known = {"name": name, "revision": getattr(config, "_commit_hash", None)}
    shape = {field: getattr(config, field) for field in ("hidden_size", "num_hidden_layers", "vocab_size")}
    return {**known, "model_type": config.model_type.removeprefix("ttc_"), **shape}
