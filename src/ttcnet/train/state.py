"""What a run has learned: the weights that are trained and what the optimizer remembers of them, in one piece, however
many processes they are spread over (DDP, FSDP2), and back again, onto as many or others."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from ttcnet.errors import fail

from .checkpoint import check_shapes

GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
SCATTER = StateDictOptions(full_state_dict=True, ignore_frozen_params=True, strict=False)


def gather(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, on the CPU, and facts that are fit for JSON. All processes have to call it; the first one has
    the result."""
    found: Any = get_state_dict(model, optimizer, options=GATHER)
    weights, memory = found
    once = _trained(model)  # a weight that has two names, as tied embeddings have, goes by the first
    tensors = {f"model/{name}": value for name, value in weights.items() if name in once}
    for name, kept in memory.get("state", {}).items():
        for kind, value in kept.items():
            tensors[f"optimizer/{kind}/{name}"] = torch.as_tensor(value)
    return tensors, {"groups": [plain_items(group) for group in memory.get("param_groups", ())]}


def scatter(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], facts: dict[str, Any], source: str
) -> None:
    """Put back what `gather` gave; `source` is where it was kept, for messages."""
    trained = _trained(model)
    weights: Any = {name.removeprefix("model/"): x for name, x in tensors.items() if name.startswith("model/")}
    if set(weights) != trained:
        missing, extra = sorted(trained - set(weights)), sorted(set(weights) - trained)
        remedy = "Resume with the settings that the run was started with, or choose another folder."
        fail(source, "must hold the weights that are trained", f"missing {missing}, extra {extra}", remedy)
    shapes = {_name(name): tuple(parameter.shape) for name, parameter in model.named_parameters()}
    check_shapes(tensors, shapes)
    state: dict[str, dict[str, Tensor]] = {name: {} for name in weights}
    for key, value in tensors.items():
        if key.startswith("optimizer/"):
            _, kind, name = key.split("/", 2)
            state[name][kind] = value
    groups = zip(_names_of_groups(model, optimizer), facts["groups"], strict=True)
    whole: Any = {"state": state, "param_groups": [{"params": names} | group for names, group in groups]}
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=whole, options=SCATTER)


def _trained(model: nn.Module) -> set[str]:
    return {_name(name) for name, parameter in model.named_parameters() if parameter.requires_grad}


def _names_of_groups(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    names = {parameter: _name(name) for name, parameter in model.named_parameters()}
    return [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]


def _name(name: str) -> str:
    """Without what DDP and torch.compile put before it."""
    return name.removeprefix("module.").replace("_orig_mod.", "")


def plain_items(values: dict[str, Any]) -> dict[str, Any]:
    """Those that JSON can hold, but for the list of parameters."""
    return {name: value for name, value in values.items() if name != "params" and _plain(value)}


def _plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True
