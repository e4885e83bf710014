"""plan and its backward pass as a CUDA device would run them, on tensors without values: for their memory alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .arithmetic import working_dtype
from .kernels import fused_cuda
from .modulated import Family
from .ops import FIELDS, summed

R_INV = FIELDS.index("r_inv")


def fits(arguments: Sequence[Any]) -> bool:
    """Whether the kernels are made for the sizes of a call of ttcnet::plan or of its backward pass."""
    return max(arguments[0].shape[-1], arguments[R_INV].shape[-1]) <= fused_cuda.LARGEST


def forward(tensors: Sequence[Tensor], horizon: int, keep: bool) -> tuple[Tensor, Tensor]:
    """The first actions, and what is kept for the backward pass."""
    u, points = fused_cuda.forward(_family(tensors), horizon, keep, _skip)
    return u.to(tensors[0].dtype), points


def backward(tensors: Sequence[Tensor], points: Tensor, g: Tensor, horizon: int) -> list[Tensor]:
    """The gradients of all fields."""
    family = _family(tensors)
    grads = fused_cuda.backward(family, horizon, points, g.to(family.a.dtype).contiguous(), _skip)
    return [summed(grad, x.ndim).to(g.dtype) for grad, x in zip(grads, family, strict=True)]


def _family(tensors: Sequence[Tensor]) -> Family:
    return Family(*(x.to(working_dtype(x.dtype)).contiguous() for x in tensors))


def _skip(*_: Any) -> None:
    """Instead of starting a kernel."""
