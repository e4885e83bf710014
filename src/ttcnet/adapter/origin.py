"""The names under which other libraries load a model again.

TRL loads a reference model from `config._name_or_path`, and PEFT writes down `model.name_or_path` as the base of its
own weights. If inserted layers have an effect, neither may be the plain base model's name: the reference, or a model
that is loaded again, would lack them without a message. So that name is

    insert                 the base model, while the layers have an output of zero; once they are trained, UNSAVED
    load                   the folder of the adapter, which `from_pretrained` loads together with its base
    save_pretrained        the folder, if the model is loaded from there
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig

from ttcnet.errors import fail
from ttcnet.model_names import ADAPTER

from .inserted_layers import InsertedLayers

UNSAVED = str(Path(__file__).with_name("unsaved"))  # a folder: loading a model from it is an error with a remedy
WEIGHTS = ("*.safetensors", "*.bin")
_bases: dict[str, str] = {}  # which base an adapter's folder was loaded onto, in this process


class Unsaved(PreTrainedConfig):  # type: ignore[misc, unused-ignore]
    """The configuration in `UNSAVED`: loading it is an error."""

    model_type = "ttc_unsaved"

    def __post_init__(self, **_: Any) -> None:
        value = "one whose layers were inserted, trained or removed in this process"
        remedy = (
            "Save it whole with save_pretrained(folder), and load that folder. A trainer can be given its "
            "processing_class, and DPOTrainer a ref_model, too."
        )
        fail("model", "must be in a folder, for others to load it", value, remedy, "no-model")


AutoConfig.register(Unsaved.model_type, Unsaved)


class Origin:
    """The part of the backbone in this. It comes before a class of transformers among the bases."""

    config: Any
    layers: Any
    training: bool
    base_name: str | None = None  # name of the model that layers were inserted into, in this process
    unsaved = False  # whether they are in no file
    beside_lora = False  # whether they are trained in place while PEFT trains something else

    def check_origin(self) -> None:
        """Check this at every forward pass."""
        if torch.compiler.is_compiling():
            return
        if self.beside_lora and self.training and not torch.is_grad_enabled() and _stands_for_reference(self):
            rule = "must not move: inserted layers are trained in place, and PEFT cannot undo that"
            remedy = "Leave out freeze_base, and pass modules_to_save=['inserted'] to LoraConfig."
            fail("reference model", rule, "the model without its LoRA", remedy, "peft")
        if self.base_name is None:
            return
        for layer in self.layers if self.unsaved else ():
            if isinstance(held := getattr(layer, "inserted", None), InsertedLayers):
                _refuse_tuners(held)
        if self.training and torch.is_grad_enabled() and self.config._name_or_path == self.base_name:
            self.config._name_or_path = UNSAVED


def _stands_for_reference(backbone: Any) -> bool:
    """Whether LoRA is switched off, or set to TRL's copy: then the model must compute the same as at the start."""
    tuners = (module for module in backbone.modules() if _is_tuner(module) and hasattr(module, "disable_adapters"))
    tuner: Any = next(tuners, None)
    return tuner is not None and (tuner.disable_adapters or "ref" in tuner.active_adapters)


def _is_tuner(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "peft"


def _refuse_tuners(inserted: InsertedLayers) -> None:
    for name, module in inserted.named_modules():
        if _is_tuner(module):
            remedy = (
                "Pass exclude_modules=r'.*\\.inserted\\..*', or modules_to_save=['inserted'] to train and save them "
                "whole; or save them first, with ttcnet.adapter.save."
            )
            rule = "must leave out inserted layers, whose weights PEFT would not save"
            fail("target_modules", rule, inserted.prefix + name, remedy, "peft")


def mark_inserted(model: Any, silent: bool) -> None:
    """Tell PEFT that layers were inserted; tell TRL too, unless their output is zero."""
    config = model.config
    model.base_model.unsaved = True
    if config._name_or_path:
        model.name_or_path = (
            f"{config._name_or_path} with {config.inserted} layers inserted, which no folder holds. Load what PEFT "
            "saved with PeftModel.from_pretrained(ttcnet.adapter.insert(base, config), folder)"
        )
    if not silent:
        config._name_or_path = UNSAVED


def mark_loaded(model: Any, folder: str | os.PathLike[str]) -> None:
    """Give a loaded model the folder of its adapter as name."""
    _bases[os.path.abspath(folder)] = model.config._name_or_path
    model.name_or_path = model.config._name_or_path = str(folder)


def is_adapter(name: Any) -> bool:
    """Whether a folder has inserted layers and no model."""
    folder = Path(name) if isinstance(name, str | os.PathLike) else Path()
    if not (folder / ADAPTER).is_file():
        return False
    return {path.name for kind in WEIGHTS for path in folder.glob(kind)} <= {ADAPTER, "adapter_model.safetensors"}


def base_name(folder: str | os.PathLike[str], config: Any) -> str:
    """The base model of an adapter's folder: the one that it was loaded onto, or the one of the Hub."""
    name = _bases.get(os.path.abspath(folder)) or (config.ttc_base or {}).get("name") or ""
    if not ("/" in name or os.path.isdir(name)):
        rule = "must name a base model of the Hub, or have been loaded in this process onto one from a folder"
        remedy = "Load the base model, and call ttcnet.adapter.load(base, folder)."
        fail(str(folder), rule, repr(name), remedy, "no-model")
    return str(name)
