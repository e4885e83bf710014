"""The recursion on a CUDA device: plan_forward.cu and plan_backward.cu, compiled at run time."""

from __future__ import annotations

from torch import Tensor

from ..problem import Family
from . import fused
from .fused import checkpoints
from .launch import LARGEST
from .nvrtc import run, why_not

__all__ = ["LARGEST", "backward", "checkpoints", "forward", "why_not"]


def forward(family: Family, horizon: int, keep: bool) -> tuple[Tensor, Tensor]:
    return fused.forward(family, horizon, keep, run)


def backward(family: Family, horizon: int, checkpoints: Tensor, g: Tensor) -> list[Tensor]:
    return fused.backward(family, horizon, checkpoints, g, run)
