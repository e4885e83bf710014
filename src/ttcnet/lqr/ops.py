"""plan's computation as operators of torch, ttcnet::plan and ttcnet::plan_backward, so that torch.compile and other
tracers see one opaque step. Plain eager tensors do not use the operators: if problems are few, their registered
autograd takes the host several times as long as the kernels take the GPU. A backend is a module, reference.py or
kernels/{backend}_{device}.py, such as kernels/fused_cpu.py, with

    checkpoints(family, horizon) -> shape of the check-points that the forward pass keeps for the backward pass
    forward(family, horizon, keep) -> first actions, check-points
    backward(family, horizon, checkpoints, g) -> gradients of all fields; those of a shared B and Q may have a dimension
        more, after the tokens, over which they are summed here

over a Family, whose fields are contiguous and in working precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.onnx import is_in_onnx_export

from ..bounds import check_horizon
from ..errors import fail
from .adjoint import refuse_second_derivatives
from .arithmetic import working_dtype
from .modulated import Family, ModulatedLQR
from .steps import wide_dtype

FIELDS = Family._fields


class Backend(Protocol):
    def checkpoints(self, family: Family, horizon: int) -> tuple[int, ...]: ...

    def forward(self, family: Family, horizon: int, keep: bool) -> tuple[Tensor, Tensor]: ...

    def backward(self, family: Family, horizon: int, checkpoints: Tensor, g: Tensor) -> list[Tensor]: ...


def plan(family: ModulatedLQR, horizon: int, backend: str) -> Tensor:
    """The first actions, differentiable once. `backend` is "reference", "fused", or on a CUDA device "symplectic"; the
    horizon is at least 1."""
    tensors = [getattr(family, name) for name in FIELDS]
    compiling = torch.compiler.is_compiling()
    # up to torch 2.12, code that torch.compile traces is told that it is exported
    if compiling and torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
        return _exported(tensors, horizon, backend)
    if not compiling and transformed():
        return _TransformedPlan.apply(horizon, backend, *tensors)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if compiling or any(type(x) not in (Tensor, Parameter) for x in tensors):
        return torch.ops.ttcnet.plan(*tensors, horizon, keep, backend)[0]
    if keep or forward_ad._current_level >= 0:  # forward mode, which it refuses and a kernel would not notice
        return _EagerPlan.apply(horizon, backend, *tensors)
    return _plan(*tensors, horizon, False, backend)[0]


def _refuse_forward_mode() -> NoReturn:
    rule, value = "has no forward mode derivatives", "one of torch.func.jvp, jacfwd and hessian"
    remedy = (
        'Use torch.func.grad, vjp or jacrev, or solve(family.unroll(horizon), method="riccati"), which torch can '
        "differentiate in every way."
    )
    fail("plan", rule, value, remedy, "no-derivative", NotImplementedError)


def transformed() -> bool:
    """Whether torch.func (grad, vmap, jacrev, ...) is at work, so that tensors may be wrappers. Not for compilers."""
    return torch._C._are_functorch_transforms_active()


def _exported(tensors: list[Tensor], horizon: int, backend: str) -> Tensor:
    if is_in_onnx_export():
        from .traceable import first_actions

        return first_actions(_family(tensors), horizon).to(tensors[0].dtype)
    # nothing is kept: the number of check-points would tie the graph to horizons near this one
    return torch.ops.ttcnet.plan(*tensors, horizon, False, backend)[0]


@cache
def _module(backend: str, device: str) -> Backend:
    return import_module(".reference" if backend == "reference" else f".kernels.{backend}_{device}", __package__)


def _family(tensors: list[Tensor]) -> Family:
    dtype = working_dtype(tensors[0].dtype)
    if all(x.dtype == dtype and x.is_contiguous() for x in tensors):
        return Family(*tensors)
    return Family(*(x.to(dtype).contiguous() for x in tensors))


def _plan(*arguments: Any) -> tuple[Tensor, Tensor]:
    *tensors, horizon, keep, backend = arguments
    u, points = _module(backend, tensors[0].device.type).forward(_family(tensors), horizon, keep)
    dtype = tensors[0].dtype
    return u if u.dtype == dtype else u.to(dtype), points


def _plan_asked(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`_plan` for compiled or exported programs, which get their horizon, unchecked so far, when they run."""
    horizon = arguments[-3]
    if horizon < 1:
        remedy = "Leave the layer out for none."
        fail("horizon", "must be 1 or more in an exported program", horizon, remedy, "too-small")
    check_horizon("horizon", horizon)
    return _plan(*arguments)


def _plan_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    *tensors, horizon, keep, backend = arguments
    family = Family(*tensors)
    shape = _module(backend, family.a.device.type).checkpoints(family, horizon) if keep else (0,)
    u = torch.empty(family.r_inv.shape, dtype=family.a.dtype, device=family.a.device)
    dtype = wide_dtype(u.dtype, u.device) if backend == "reference" else working_dtype(u.dtype)
    return u, u.new_empty(shape, dtype=dtype)


def _plan_backward(*arguments: Any) -> list[Tensor]:
    *tensors, checkpoints, g, horizon, backend = arguments
    family = _family(tensors)
    module = _module(backend, family.a.device.type)
    if checkpoints is None:
        checkpoints = module.forward(family, horizon, True)[1]
    grads = module.backward(family, horizon, checkpoints, g.to(family.a.dtype).contiguous())
    # a field that the heads of a token share gets the sum of their gradients
    whole = (summed(grad, x.ndim) for grad, x in zip(grads, family, strict=True))
    return [grad if grad.dtype == g.dtype else grad.to(g.dtype) for grad in whole]


def summed(grad: Tensor, ndim: int) -> Tensor:
    if grad.ndim == ndim:
        return grad
    return grad.squeeze(1) if grad.shape[1] == 1 else grad.sum(1)


def _plan_backward_fake(*arguments: Any) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in arguments[: len(FIELDS)]]


class _EagerPlan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, horizon: int, backend: str, *tensors: Tensor) -> Tensor:
        u, points = _plan(*tensors, horizon, True, backend)
        ctx.save_for_backward(*tensors, points)
        ctx.horizon, ctx.backend = horizon, backend
        return u

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        refuse_second_derivatives("plan")
        return None, None, *_plan_backward(*ctx.saved_tensors, grads[0], ctx.horizon, ctx.backend)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _refuse_forward_mode()


class _TransformedPlan(torch.autograd.Function):
    """The plan under torch.func. A mapped dimension becomes more tokens, so that all backends can do it. Nothing is
    saved for the backward pass, which makes its own check-points."""

    @staticmethod
    def forward(horizon: int, backend: str, *tensors: Tensor) -> Tensor:
        return _plan(*tensors, horizon, False, backend)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.horizon, ctx.backend, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, None, *_TransformedGradients.apply(ctx.horizon, ctx.backend, *ctx.saved_tensors, grads[0])

    @staticmethod
    def vmap(info: Any, dims: Any, horizon: int, backend: str, *tensors: Tensor) -> Any:
        u = _TransformedPlan.apply(horizon, backend, *_as_tokens(info.batch_size, dims[2:], tensors))
        return u.unflatten(0, (info.batch_size, -1)), 0

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _refuse_forward_mode()


class _TransformedGradients(torch.autograd.Function):
    @staticmethod
    def forward(horizon: int, backend: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        *fields, g = tensors
        return tuple(_plan_backward(*fields, None, g, horizon, backend))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        with torch.enable_grad():
            refuse_second_derivatives("plan")

    @staticmethod
    def vmap(info: Any, dims: Any, horizon: int, backend: str, *tensors: Tensor) -> Any:
        grads = _TransformedGradients.apply(horizon, backend, *_as_tokens(info.batch_size, dims[2:], tensors))
        return tuple(x.unflatten(0, (info.batch_size, -1)) for x in grads), (0,) * len(grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _refuse_forward_mode()


def _as_tokens(batch: int, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors that have a batch dimension, at `dims` or to be added, in front of their tokens: all one, tokens."""
    whole = (x.expand(batch, *x.shape) if d is None else x.movedim(d, 0) for x, d in zip(tensors, dims, strict=True))
    return [x.flatten(0, 1) for x in whole]


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.horizon, keep, ctx.backend = inputs
    ctx.save_for_backward(*tensors, output[1] if keep else None)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    refuse_second_derivatives("plan")
    grads = torch.ops.ttcnet.plan_backward(*ctx.saved_tensors, g, ctx.horizon, ctx.backend)
    return *grads, None, None, None


_library = torch.library.Library("ttcnet", "DEF")


def _define(name: str, signature: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> None:
    _library.define(f"{name}{signature}", tags=torch.Tag.pt2_compliant_tag)
    _library.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"ttcnet::{name}", fake, lib=_library)


_tensors = ", ".join(f"Tensor {name}" for name in FIELDS)
_define("plan", f"({_tensors}, SymInt horizon, bool keep, str backend) -> (Tensor, Tensor)", _plan_asked, _plan_fake)
_define(
    "plan_backward",
    f"({_tensors}, Tensor? checkpoints, Tensor g, SymInt horizon, str backend) -> Tensor[]",
    _plan_backward,
    _plan_backward_fake,
)
torch.library.register_autograd("ttcnet::plan", _differentiate, setup_context=_remember, lib=_library)
