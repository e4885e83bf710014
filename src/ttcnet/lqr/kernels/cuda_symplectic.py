"""The symplectic iteration on a CUDA device: symplectic.cu, compiled at run time."""

from __future__ import annotations

from torch import Tensor

from ..problem import Family
from . import fused_symplectic
from .fused_symplectic import checkpoints
from .nvrtc import run

__all__ = ["backward", "checkpoints", "forward"]


def forward(family: Family, horizon: int, keep: bool) -> tuple[Tensor, Tensor]:
    return fused_symplectic.forward(family, horizon, keep, run)


def backward(family: Family, horizon: int, checkpoints: Tensor, g: Tensor) -> list[Tensor]:
    return fused_symplectic.backward(family, horizon, checkpoints, g, run)
