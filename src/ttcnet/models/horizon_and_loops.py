"""Horizon and loops of a model: for one call, or for the whole model.

    model(tokens, horizon=16, loops=4)          # for this call
    set_horizon(model, 16); set_loops(model, 4) # from now on, and when the model is saved
    with horizon(model, 16), loops(model, 4):   # for a while

The whole model's values are `config.horizon` and `config.loops`. The model reads them once a call, where an argument is
left out, and hands them to its layers. A model is one of `ttcnet.models`, or one of transformers with layers inserted,
in wrappers such as PEFT's, torch.compile's or DistributedDataParallel too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from ttcnet.bounds import check_size
from ttcnet.errors import fail
from ttcnet.lqr.checks import horizon as check_horizon
from ttcnet.nn.ttc import ttc_layers


def set_horizon(model: nn.Module, steps: int) -> None:
    """Have the TTC layers look `steps` ahead, from now on and when the model is saved; 0 switches them off.

    Examples:
        >>> from ttcnet.models import TTCNetConfig, TTCNetModel
        >>> model = TTCNetModel(TTCNetConfig(hidden_size=32, num_hidden_layers=1, interleave="1:1", ttc_heads=2))
        >>> set_horizon(model, 16)
        >>> with horizon(model, 32):
        ...     horizon_of(model)
        32
        >>> horizon_of(model)
        16
    """
    _set(model, "horizon", steps)


def horizon(model: nn.Module, steps: int) -> AbstractContextManager[None]:
    """Set the horizon for the time of a `with` block. See `set_horizon`."""
    return _within(model, "horizon", steps)


def at_horizon(steps: int | None) -> dict[str, int]:
    """The argument of a call for this horizon; for None there is none, and the model's own counts."""
    return {} if steps is None else {"horizon": steps}


def horizon_of(model: nn.Module) -> int | None:
    """The horizon of a model; None if it has no TTC layers."""
    return _config_with(model, "horizon").horizon if ttc_layers(model) else None


def set_loops(model: nn.Module, times: int) -> None:
    """Apply the blocks `times` times, from now on and when the model is saved."""
    _set(model, "loops", times)


def loops(model: nn.Module, times: int) -> AbstractContextManager[None]:
    """Set the loops for the time of a `with` block. See `set_loops`."""
    return _within(model, "loops", times)


def check_loops(times: object) -> int:
    """Return `times` if it is a valid number of loops; fail otherwise."""
    return check_size("loops", times, 1, "Pass 1 to apply blocks once.")


def _set(model: nn.Module, knob: str, value: int) -> tuple[Any, int]:
    """Set a knob of the whole model. Returns its configuration, and the value before."""
    config = _config_with(model, knob)
    before = getattr(config, knob)
    setattr(config, knob, check_horizon(value) if knob == "horizon" else check_loops(value))
    return config, before


@contextmanager
def _within(model: nn.Module, knob: str, value: int) -> Iterator[None]:
    config, before = _set(model, knob, value)
    try:
        yield
    finally:
        setattr(config, knob, before)


def _config_with(model: nn.Module, field: str) -> Any:
    """The configuration that has the field, of a model that may be in wrappers."""
    if field == "horizon" and not ttc_layers(model):
        remedy = "Insert TTC layers, or load a model that has them."
        fail("model", "must have TTC layers to set their horizon", type(model).__name__, remedy, "no-layers")
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, field):
            return config
    remedy = "Pass a model of ttcnet.models, or one with layers inserted."
    fail("model", f"must have a configuration with {field}", type(model).__name__, remedy, "unsupported-model")
