"""The content of a checkpoint: weights, the optimizer's state of each, and random states, as tensors by name.

Tensors that FSDP2 spreads over processes stay spread: each process writes and reads its pieces (`parts`). The number of
processes may change in between.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ttcnet.errors import fail
from ttcnet.machine.pieces import own_piece

from .parts import Parts

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # inserted into names by compiling and check-pointing
DAMAGED = "It is damaged: delete it."


def model_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights that are trained, and the optimizer's state of each, by the name of the weight. Those that are spread
    over processes stay so."""
    parameters = trained_parameters(model)
    found: dict[str, Any] = {f"model/{name}": parameter for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        for kind, value in optimizer.state.get(parameter, {}).items():
            found[f"optimizer/{kind}/{name}"] = value
    return {name: x.detach() if isinstance(x, Tensor) else torch.tensor(x) for name, x in found.items()}


@torch.no_grad()
def restore_model(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, source: str = "checkpoint"
) -> None:
    """Restore a state that `model_state` returned. Every process takes its pieces. Tensors that exist are overwritten
    in place."""
    parameters = trained_parameters(model)
    saved = {name.removeprefix("model/") for name in tensors if name.startswith("model/")}
    if saved != set(parameters):
        odd = f"missing {sorted(set(parameters) - saved)}, extra {sorted(saved - set(parameters))}"
        remedy = "Resume with the settings that the run was started with, or choose another folder."
        fail(source, "must hold the weights that are trained", odd, remedy, code="weights")
    on_device = optimizer.defaults.get("capturable") or optimizer.defaults.get("fused")
    for key in tensors:
        kind, _, name = key.rpartition("/")
        if kind.startswith(("random", "task", "average")):
            continue
        if name not in parameters:
            fail(source, "must hold the optimizer's memory of these weights", key, DAMAGED, code="damaged")
        parameter, what = parameters[name], kind.removeprefix("optimizer/")
        value = read_like(tensors, key, torch.empty(()) if what == "step" else parameter, source)
        memory: dict[str, Any] = optimizer.state[parameter]
        if kind == "model":
            own_piece(parameter).values.copy_(value)
        elif isinstance(memory.get(what), Tensor):
            own_piece(memory[what]).values.copy_(value)
        elif what == "step":  # stays on the CPU unless the optimizer wants it on the device
            memory[what] = value.to(parameter.device) if on_device else value.clone()
        else:
            memory[what] = torch.empty_like(parameter, dtype=value.dtype)
            own_piece(memory[what]).values.copy_(value)


def read_like(tensors: Mapping[str, Tensor], key: str, like: Tensor, source: str) -> Tensor:
    """Read this process's piece of a stored tensor, which must have numbers and the shape of `like`."""
    piece = own_piece(like)
    whole = tensors.shape(key) if isinstance(tensors, Parts) else tuple(tensors[key].shape)
    value = None
    if whole == tuple(like.shape):
        where = tuple(slice(a, a + b) for a, b in zip(piece.start, piece.size, strict=True))
        value = tensors.read(key, where) if isinstance(tensors, Parts) else tensors[key][where]
    odd = (torch.bool, torch.complex64, torch.complex128)
    if value is None or value.dtype in odd or not value.isfinite().all():
        fail(source, "must hold numbers in the shapes of this model", f"{key}, {whole}", DAMAGED, code="damaged")
    return value


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


def check_carried(tensors: Mapping[str, Tensor], carried: dict[str, Tensor], source: str = "checkpoint") -> None:
    """Fail unless the tensors that an objective carries from step to step are there, in their shapes."""
    for name, x in carried.items():
        value = tensors.get(f"task/{name}")
        if value is None or value.shape != x.shape or value.dtype != x.dtype or not value.isfinite().all():
            shown = f"no task/{name}" if value is None else f"task/{name}, {value.dtype} {tuple(value.shape)}"
            fail(source, "must hold the tensors that one step passes to the next", shown, DAMAGED, code="damaged")


def random_states() -> dict[str, Tensor]:
    """The random states of Python, numpy and torch in this process."""
    kind, keys, *rest = np.random.get_state()
    others = {"python": random.getstate(), "numpy": [kind, np.asarray(keys).tolist(), *rest]}
    states = {"random/others": torch.frombuffer(bytearray(json.dumps(others).encode()), dtype=torch.uint8)}
    states["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        states["random/cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random(tensors: Mapping[str, Tensor], source: str = "checkpoint") -> None:
    """Restore states that `random_states` returned."""
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
