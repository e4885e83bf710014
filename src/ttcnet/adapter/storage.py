"""Save and load an adapter: one file with the inserted layers, their configuration and the name of the base model."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ttcnet import __version__
from ttcnet.errors import fail
from ttcnet.machine import processes
from ttcnet.model_names import ADAPTER as FILE
from ttcnet.models.hub import write_card
from ttcnet.storage import tensor_file
from ttcnet.storage.writing import check_folder, write_text

from .card import adapter_card
from .config import TTCAdapterConfig
from .enable_freeze import inserted_of, outermost
from .in_place import build_layers
from .insert_remove import Model, attach, base_of, check
from .inserted_layers import InsertedLayers
from .origin import base_name, mark_loaded


def save(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write the inserted layers, without the base model, to `ttc_adapter.safetensors` in a folder; and a card if it has
    none. The file is written whole or not at all. The model may be wrapped, by PEFT say. Of several processes that
    share a model, all have to call this, and the first one writes.

    Examples:
        >>> import tempfile
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from ttcnet.adapter import TTCAdapterConfig, insert
        >>> shape = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2)
        >>> model = insert(LlamaForCausalLM(shape), TTCAdapterConfig(every=2, heads=4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, folder)
        ...     again = load(LlamaForCausalLM(shape), folder)
    """
    check_folder("folder", Path(folder))
    config = outermost(model).config
    tensors = {
        inserted.prefix + name: processes.whole(value)
        for inserted in inserted_of(model)
        for name, value in inserted.state_dict().items()
    }
    if not processes.is_first_process():
        return
    adapter, layers, base = config.adapter, config.num_hidden_layers, base_of(config)
    remedy = "Merge additions to the inserted layers, with PEFT's merge_and_unload, say."
    _check_names("the inserted layers", tensors, _expected(adapter, config.hidden_size, layers), remedy)
    facts = {"ttcnet": __version__, "adapter": adapter.to_dict(), "base": base, "digest": tensor_file.digest(tensors)}
    tensor_file.save(Path(folder) / FILE, tensors, facts)
    _write_config(outermost(model), folder)
    outermost(model).base_model.unsaved = False
    write_card(adapter_card(adapter, layers, base), folder)


def load(base_model: Model, folder: str | os.PathLike[str], *, any_base: bool = False) -> Model:
    """Insert layers that `save` wrote into their base model, which is changed in place and returned.

    All is checked before the model is changed: that the file is whole, that it has all weights and no others, and that
    the base model is the one that it was made for.

    Args:
        base_model: a model without inserted layers, of the name, revision and shape that it had at `insert`.
        folder: where `save` wrote to.
        any_base: accept a base model of another name, revision or vocabulary.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        remedy = "Pass a folder that ttcnet.adapter.save has written to."
        fail("folder", f"must hold {FILE}", str(folder), remedy, "no-model")
    tensors, facts = tensor_file.load(path)
    kinds = (("adapter", dict), ("base", dict), ("digest", str))
    whole = all(isinstance(facts.get(name), kind) for name, kind in kinds)
    if not whole or tensor_file.digest(tensors) != facts["digest"]:
        remedy = "The file is damaged: fetch or save it again."
        fail(str(path), "must hold the contents that were saved", "other contents", remedy, "damaged")
    config = TTCAdapterConfig.from_dict(facts["adapter"], str(path))
    family = check(base_model, config)
    if not any_base:
        _check_base(facts["base"], base_of(base_model.config))
    shape: Any = base_model.config
    expected = _expected(config, shape.hidden_size, shape.num_hidden_layers)
    _check_names(str(path), tensors, expected, "It is not of this model, or of another version of ttcnet.")
    built = build_layers(base_model, config)
    for inserted in built.values():
        inserted.load_state_dict({name: tensors[inserted.prefix + name] for name in inserted.state_dict()})
    attach(base_model, family, config, built, facts["base"])
    mark_loaded(base_model, folder)
    return base_model


def load_with_base(kind: Any, folder: str | os.PathLike[str], config: Any = None, **options: Any) -> Any:
    """The base model that an adapter's folder names, with the layers of the folder: `kind.from_pretrained(folder)`.

    Args:
        kind: the class of the model, one of ours.
        folder: where `save` wrote to.
        config: the configuration in that folder, if it has been read.
        options: of `from_pretrained`.
    """
    if not isinstance(config, kind.config_class):
        config = kind.config_class.from_pretrained(folder)
    theirs = {our: their for their, our in kind.ours.items()}[kind]
    steps = options.pop("horizon", config.horizon)
    options["revision"] = (config.ttc_base or {}).get("revision")
    model: Any = load(theirs.from_pretrained(base_name(folder, config), **options), folder, any_base=True)
    model.config.horizon = steps
    return model


def _write_config(model: Any, folder: str | os.PathLike[str]) -> None:
    """Write the facts that `from_pretrained` needs."""
    config = copy.deepcopy(model.config)
    config.architectures, config.use_cache = [type(model).__name__], model.uses_cache
    write_text(Path(folder) / "config.json", config.to_json_string())


def _expected(config: TTCAdapterConfig, width: int, layers: int) -> dict[str, tuple[int, ...]]:
    """The names and shapes of all weights."""
    with torch.device("meta"):
        every = [InsertedLayers(config, width, count, index) for index, count in config.places(layers).items()]
    return {each.prefix + name: tuple(value.shape) for each in every for name, value in each.state_dict().items()}


def _check_names(what: str, tensors: dict[str, Tensor], expected: dict[str, tuple[int, ...]], remedy: str) -> None:
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or extra:
        fail(what, "must have all weights and no others", f"missing {missing}, extra {extra}", remedy, "weights")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            fail(f"{what}: {name}", f"must have shape {shape}", tuple(tensors[name].shape), remedy, "weights")
        if not tensors[name].is_floating_point():
            fail(f"{what}: {name}", "must be of floating-point numbers", tensors[name].dtype, remedy, "weights")


def _check_base(recorded: dict[str, Any], found: dict[str, Any]) -> None:
    for field, value in recorded.items():
        other: Any = found.get(field)
        if field in ("name", "revision") and not (value and other):
            continue  # one of the two does not know
        if field in ("name", "revision") and not isinstance(value, str):
            fail(f"the adapter's {field} of its base", "must be text", repr(value)[:40], "Save it again.", "damaged")
        if field == "name" and not ("/" in value and "/" in other):  # a folder knows no owner
            value, other = value.rpartition("/")[2], other.rpartition("/")[2]
        if other != value:
            remedy = "Load that model; if this one is the same, give its folder that name, or pass any_base=True."
            rule = f"must have the {field} {recorded[field]!r} that the adapter was made for"
            fail("base_model", rule, repr(other), remedy, "base")
