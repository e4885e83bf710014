"""The content of a checkpoint: weights, the optimizer's state of each, and random states, as tensors by name.

All tensors are whole, however many processes they are spread over (DDP, FSDP2), so that a checkpoint is resumed by as
many processes or by others.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ttcnet.errors import fail
from ttcnet.processes import is_first_process, whole

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # what compiling and checkpointing put into names
DAMAGED = "It is damaged: delete it."


def model_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The trained weights, and the optimizer's state of each, by the name of the weight. Every process must call this;
    the first one gets the tensors."""
    parameters = trained_parameters(model)
    found: dict[str, Any] = {f"model/{name}": parameter for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        for kind, value in optimizer.state.get(parameter, {}).items():
            found[f"optimizer/{kind}/{name}"] = value
    tensors = {}
    for name, value in found.items():
        tensor = whole(value.detach()) if isinstance(value, Tensor) else torch.tensor(value)
        if is_first_process():
            tensors[name] = tensor
    return tensors


@torch.no_grad()
def restore_model(
    tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, source: str = "checkpoint"
) -> None:
    """Put back what `model_state` returned. Tensors that exist are overwritten in place."""
    parameters = trained_parameters(model)
    saved = {name.removeprefix("model/") for name in tensors if name.startswith("model/")}
    if saved != set(parameters):
        odd = f"missing {sorted(set(parameters) - saved)}, extra {sorted(saved - set(parameters))}"
        remedy = "Resume with the settings that the run was started with, or choose another folder."
        fail(source, "must hold the weights that are trained", odd, remedy, code="weights")
    check_shapes(tensors, {name: tuple(parameter.shape) for name, parameter in parameters.items()}, source)
    on_device = optimizer.defaults.get("capturable") or optimizer.defaults.get("fused")
    for key, value in tensors.items():
        if key.startswith("model/"):
            parameter = parameters[key.removeprefix("model/")]
            parameter.copy_(_spread_like(parameter, value))
        elif key.startswith("optimizer/"):
            _, kind, name = key.split("/", 2)
            parameter = parameters[name]
            memory: dict[str, Any] = optimizer.state[parameter]
            if isinstance(memory.get(kind), Tensor):
                there = memory[kind]
                there.copy_(_spread_like(there, value))
            elif value.ndim == 0:  # a count of steps stays on the CPU unless the optimizer wants it on the device
                memory[kind] = value.to(parameter.device) if on_device else value.clone()
            else:
                memory[kind] = _spread_like(parameter, value)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters by name, without the prefixes of wrappers. A weight with two names, as tied embeddings
    have, keeps the first."""
    found = {}
    for name, parameter in model.named_parameters():
        for wrapper in WRAPPERS:
            name = name.replace(wrapper, "")
        if parameter.requires_grad:
            found[name.removeprefix("module.")] = parameter
    return found


def check_shapes(tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]], source: str = "checkpoint") -> None:
    """Fail unless every tensor but random states belongs to a weight, has its shape or counts steps, and is finite."""
    for key, value in tensors.items():
        name = key.rpartition("/")[2]
        if key.startswith(("random/", "task/")):
            continue
        counts = key.startswith("optimizer/step/")
        fits = name in shapes and tuple(value.shape) == (() if counts else shapes[name])
        if not fits or value.dtype in (torch.bool, torch.complex64, torch.complex128) or not value.isfinite().all():
            shown = f"{key}, {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
            fail(source, "must hold numbers in the shapes of this model", shown, DAMAGED, code="damaged")


def check_carried(tensors: dict[str, Tensor], carried: dict[str, Tensor], source: str = "checkpoint") -> None:
    """Fail unless the tensors that a task carries from step to step are there, in their shapes."""
    for name, x in carried.items():
        value = tensors.get(f"task/{name}")
        if value is None or value.shape != x.shape or value.dtype != x.dtype or not value.isfinite().all():
            shown = f"no task/{name}" if value is None else f"task/{name}, {value.dtype} {tuple(value.shape)}"
            fail(source, "must hold what the last step handed on", shown, DAMAGED, code="damaged")


def _spread_like(like: Tensor, value: Tensor) -> Tensor:
    """A whole tensor on the device of another one, and sharded over processes in the same way."""
    value = value.to(like.device)
    if not hasattr(like, "full_tensor"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def random_states() -> dict[str, Tensor]:
    """The random states of Python, numpy and torch in this process."""
    kind, keys, *rest = np.random.get_state()
    others = {"python": random.getstate(), "numpy": [kind, np.asarray(keys).tolist(), *rest]}
    states = {"random/others": torch.frombuffer(bytearray(json.dumps(others).encode()), dtype=torch.uint8)}
    states["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        states["random/cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random(tensors: dict[str, Tensor], source: str = "checkpoint") -> None:
    """Put back what `random_states` returned."""
    try:
        others = json.loads(tensors["random/others"].numpy().tobytes())
        version, words, gauss = others["python"]
        random.setstate((version, tuple(words), gauss))
        kind, keys, *rest = others["numpy"]
        np.random.set_state((kind, np.array(keys, np.uint32), *rest))
        torch.set_rng_state(tensors["random/cpu"])
        if torch.cuda.is_available() and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"])
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        fail(source, "must hold random states", repr(error)[:200], DAMAGED, code="damaged")


def seed_all(seed: int) -> None:
    """Seed the random numbers of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
