"""A language model for several processes that each hold a part of it: made without its weights, spread, and then
filled, each process reading its own pieces of the safetensors files. No process ever holds the whole model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.initialization import no_init_weights
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from ttcnet.errors import fail
from ttcnet.machine.pieces import own_piece, sliced
from ttcnet.model_names import RULE, loading

from .loading import check_files, check_weights

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
WRAPPED = ("base_model.model.", "_orig_mod.", "base_layer.")  # inserted into names by PEFT and torch.compile
SPARED = (r"rotary_emb\.inv_freq", r"(^|\.)position_ids$")  # buffers that older versions of transformers have saved


class Weights:
    """The weights of a model, in its safetensors files.

    Args:
        model: a folder or a name of the Hub.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        with loading(model):
            found = cached_file(model, INDEX, _raise_exceptions_for_missing_entries=False)
            one = cached_file(model, ONE, _raise_exceptions_for_missing_entries=False)
            if found is None and one is None:
                remedy = "Save it again with save_pretrained, or start one process."
                fail("model", "must have its weights in safetensors files", repr(model), remedy, "no-model")
            files = [one] if found is None else get_checkpoint_shard_files(model, found)[0]
            self.files = [safe_open(file, "pt") for file in files]
            self.place = {name: file for file in self.files for name in file.keys()}  # noqa: SIM118

    def describe(self) -> str:
        """The names and shapes of all weights as text. Models that differ in them are not the same."""
        return json.dumps({name: file.get_slice(name).get_shape() for name, file in sorted(self.place.items())})

    @torch.no_grad()
    def fill(self, model: nn.Module, names: dict[str, str]) -> None:
        """Read this process's pieces of the parameters, whose names in the files are given. All others are left as
        they are. The parameters may be held by wrappers by now."""
        for name, parameter in model.named_parameters():
            for wrapper in WRAPPED:
                name = name.replace(wrapper, "")
            if name in names:
                piece = own_piece(parameter)
                if piece.values.numel():
                    where = tuple(slice(a, a + b) for a, b in zip(piece.start, piece.size, strict=True))
                    piece.values.copy_(sliced(self.place[names[name]], names[name], where))


def skeleton(name: str, dtype: torch.dtype, *, trust_remote_code: bool = False) -> Any:
    """A model by its config.json alone. Its memory is promised by the operating system and not taken, for nothing is
    written to it. Buffers are as they must be."""
    check_files(name)
    with loading(name):
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        with no_init_weights():
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
        model.tie_weights()
        with suppress(OSError):
            model.generation_config = GenerationConfig.from_pretrained(name)
    return model.eval()


def without_weights(
    name: str, dtype: torch.dtype, *, trust_remote_code: bool = False
) -> tuple[Any, Weights, dict[str, str]]:
    """A model whose weights are not read; its files; and the names that its parameters have in them."""
    model, weights = skeleton(name, dtype, trust_remote_code=trust_remote_code), Weights(name)
    names: dict[str, str] = {}
    all_names: dict[int, list[str]] = {}
    for each, parameter in model.named_parameters(remove_duplicate=False):
        all_names.setdefault(id(parameter), []).append(each)
    for each, parameter in model.named_parameters():
        there = [alias for alias in all_names[id(parameter)] if alias in weights.place]
        if there:
            names[each] = there[0]
        if there and (shape := tuple(weights.place[there[0]].get_slice(there[0]).get_shape())) != parameter.shape:
            value = f"{name!r}, whose {there[0]} is of shape {shape} and not {tuple(parameter.shape)}"
            fail("model", RULE, value, "Its files do not fit its config.json: fetch them again.", "no-model")
    missing = [each for each, _ in model.named_parameters() if each not in names]
    check_weights(name, missing, _left_over(model, weights.place.keys() - model.state_dict().keys()))
    return model, weights, names


def _left_over(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Weights that are in files and not in the model, without those that transformers leaves out on purpose."""
    spared = [*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()), *SPARED]
    return [name for name in names if not any(re.search(each, name) for each in spared)]
