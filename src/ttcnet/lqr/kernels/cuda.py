"""The recursion on a CUDA device: recursion.cu, compiled at run time."""

from __future__ import annotations

from torch import Tensor

from ..problem import ModulatedLQR
from . import fused
from .fused import LARGEST, checkpoints
from .nvrtc import run, why_not

__all__ = ["LARGEST", "backward", "checkpoints", "forward", "why_not"]


def forward(family: ModulatedLQR, horizon: int, keep: bool) -> tuple[Tensor, Tensor]:
    return fused.forward(family, horizon, keep, run)


def backward(family: ModulatedLQR, horizon: int, checkpoints: Tensor, g: Tensor) -> list[Tensor]:
    return fused.backward(family, horizon, checkpoints, g, run)
