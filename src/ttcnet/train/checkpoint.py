"""Everything that a training run needs to go on, in one safetensors file that is written whole or not at all."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ttcnet.errors import fail
from ttcnet.tensor_file import facts, load, save

__all__ = ["facts", "load", "random_states", "restore", "restore_random", "save", "state_of"]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights, and what the optimizer remembers of each, by the name of the weight; random states of torch."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {f"model/{name}": parameter for parameter, name in names.items()}
    for parameter, memory in optimizer.state.items():
        for kind, value in memory.items():
            value = value if isinstance(value, Tensor) else torch.tensor(value)
            tensors[f"optimizer/{kind}/{names[parameter]}"] = value
    return tensors | random_states()


def random_states() -> dict[str, Tensor]:
    states = {"random/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random/cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random(tensors: dict[str, Tensor]) -> None:
    try:
        torch.set_rng_state(tensors["random/cpu"])
    except (KeyError, TypeError, RuntimeError) as error:
        fail("checkpoint", "must hold the state of random numbers", repr(error)[:200], "It is damaged: start anew.")
    if torch.cuda.is_available() and "random/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random/cuda"])


def check_shapes(tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
    """That each tensor of a checkpoint, but for random states, is of a weight, and has its shape, or counts its steps,
    and that they are numbers."""
    for key, value in tensors.items():
        name = key.rpartition("/")[2]
        if key.startswith("random/"):
            continue
        counts = key.startswith("optimizer/step/")
        fits = name in shapes and tuple(value.shape) == (() if counts else shapes[name])
        if not fits or value.dtype in (torch.bool, torch.complex64, torch.complex128) or not value.isfinite().all():
            shown = f"{key}, {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
            fail("checkpoint", "must hold numbers in the shapes of this model", shown, "It is damaged: start anew.")


@torch.no_grad()
def restore(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put back what `state_of` gave. Tensors that are there are overwritten in place."""
    names = dict(model.named_parameters())
    saved = {name.removeprefix("model/") for name in tensors if name.startswith("model/")}
    if saved != set(names):
        missing, extra = sorted(set(names) - saved), sorted(saved - set(names))
        remedy = "Resume with the configuration that the run was started with."
        fail("checkpoint", "must hold the weights of this model", f"missing {missing}, extra {extra}", remedy)
    check_shapes(tensors, {name: tuple(parameter.shape) for name, parameter in names.items()})
    for name, parameter in names.items():
        parameter.copy_(tensors[f"model/{name}"])
    for key, value in tensors.items():
        if key.startswith("optimizer/"):
            _, kind, name = key.split("/", 2)
            memory = optimizer.state[names[name]]
            if isinstance(memory.get(kind), Tensor):
                memory[kind].copy_(value)
            else:  # a count of steps stays on the CPU unless the optimizer is captured
                on_device = value.ndim > 0 or optimizer.defaults.get("capturable", False)
                memory[kind] = value.to(names[name].device) if on_device else value.clone()
    restore_random(tensors)
