"""Problems that are the same at every step, for torch.compile and export: as operators, ttcnet::plan_stationary and its
backward pass, so that one graph serves all horizons. The number of products in stationary.py depends on the bits of the
horizon, and a graph of them would fix it. ONNX knows no operator of ours and gets the steps one by one, in a loop
(traceable.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.onnx import is_in_onnx_export

from ..bounds import check_horizon
from ..errors import fail
from . import traceable
from .stationary import StationaryLQR, first_actions

FIELDS = ("A", "B", "Q", "r_inv", "h0", "Qf")


def plan(family: StationaryLQR, horizon: int) -> Tensor:
    """The first actions, differentiable; the horizon is at least 1."""
    if not torch.compiler.is_compiling():
        return first_actions(family, horizon)
    if is_in_onnx_export() and not torch.compiler.is_dynamo_compiling():
        return traceable.first_actions_of_system(family, horizon)
    return torch.ops.ttcnet.plan_stationary(*(getattr(family, name) for name in FIELDS), horizon)


def _plan(*arguments: Any) -> Tensor:
    *tensors, horizon = arguments
    if horizon < 1:
        remedy = "Leave the layer out for none."
        fail("horizon", "must be 1 or more in an exported program", horizon, remedy, "too-small")
    check_horizon("horizon", horizon)
    return first_actions(StationaryLQR(*tensors), horizon)


def _plan_fake(*arguments: Any) -> Tensor:
    return torch.empty_like(arguments[3])


def _backward(*arguments: Any) -> list[Tensor]:
    """Compute the gradients by autograd, through the products of the forward pass once more."""
    *tensors, g, horizon = arguments
    with torch.enable_grad():
        leaves: list[Any] = [None if x is None else x.detach().requires_grad_() for x in tensors]
        u = first_actions(StationaryLQR(*leaves), horizon)
        return list(torch.autograd.grad(u, [x for x in leaves if x is not None], g, materialize_grads=True))


def _backward_fake(*arguments: Any) -> list[Tensor]:
    return [torch.empty_like(x) for x in arguments[: len(FIELDS)] if x is not None]


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.horizon = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    found = torch.ops.ttcnet.plan_stationary_backward(*ctx.saved_tensors, g, ctx.horizon)
    return *found, *(None for _ in range(len(FIELDS) + 1 - len(found)))  # Qf comes last


_library = torch.library.Library("ttcnet", "FRAGMENT")
_fields = "Tensor A, Tensor B, Tensor Q, Tensor r_inv, Tensor h0, Tensor? Qf"
for _name, _signature, _compute, _fake in (
    ("plan_stationary", f"({_fields}, SymInt horizon) -> Tensor", _plan, _plan_fake),
    ("plan_stationary_backward", f"({_fields}, Tensor g, SymInt horizon) -> Tensor[]", _backward, _backward_fake),
):
    _library.define(f"{_name}{_signature}", tags=torch.Tag.pt2_compliant_tag)
    _library.impl(_name, _compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"ttcnet::{_name}", _fake, lib=_library)
torch.library.register_autograd("ttcnet::plan_stationary", _differentiate, setup_context=_remember, lib=_library)
