"""Spread weights, gradients and the optimizer of a model over the processes of a job, by torch's FSDP2."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ttcnet.adapter.inserted_layers import InsertedLayers
from ttcnet.errors import fail
from ttcnet.machine.processes import count, is_first_process, whole


def shard(model: nn.Module, device: str, bf16: bool) -> None:
    """Each process keeps its piece of every weight, on its device. A decoder layer is put together when it computes.

    Inserted layers are a unit of their own in their decoder layer, so that they may be in float32 while the base is in
    bfloat16. Everything is computed in bfloat16, and gradients are summed in float32.
    """
    kind = torch.device(device).type
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    options: dict[str, Any] = dict(mesh=init_device_mesh(kind, (count(),)), mp_policy=policy)
    modules = list(model.modules())
    names = {name for module in modules for name in getattr(module, "_no_split_modules", None) or ()}
    for part in modules:
        if isinstance(part, InsertedLayers):
            fully_shard(part, **options)
    for part in modules:
        if type(part).__name__ in names:
            fully_shard(part, **options)
    fully_shard(model, **options)


def gathered(model: nn.Module, trained: bool = False) -> dict[str, Tensor]:
    """The state of a model, or of its `trained` weights, complete and in main memory: in the first process only, though
    all have to call this. A weight with two names has the first."""
    found: dict[str, Tensor] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in reversed(parameters.items())}
    for name, value in model.state_dict().items():
        parameter = parameters.get(name)
        if parameter is None or (first[id(parameter)] == name and (parameter.requires_grad or not trained)):
            tensor = whole(value.detach())
            if is_first_process():
                found[name] = tensor.cpu()
    return found


def check_launcher() -> None:
    """Fail if the launcher would spread the model: that is a setting of the run, for every launcher."""
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM"):
        if os.environ.get(name, "false").lower() == "true":
            remedy = "Take it out of the launcher's configuration, and put sharded = true into the run's settings."
            fail("accelerate launch", "must only start processes", f"{name}=true", remedy, "conflict")
