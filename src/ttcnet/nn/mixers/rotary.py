"""Rotary positions: queries and keys turned by angles that grow with their position, so that products of the two depend
on the distance between them."""

from __future__ import annotations

import torch
from torch import Tensor

from ttcnet.lqr.arithmetic import working_dtype

BASE = 10_000.0


def positions(length: int, mask: Tensor | None, seen: Tensor | None, device: torch.device) -> Tensor:
    """Number of real tokens before each, (length,), or (batch, length) where sequences differ.

    Args:
        mask: (batch, length), True for real tokens.
        seen: real tokens before the first of these, (batch,).
    """
    order = torch.arange(length, device=device) if mask is None else (mask.cumsum(1) - 1).clamp_min(0)
    return order if seen is None else seen.unsqueeze(-1) + order


def rotate(x: Tensor, position: Tensor) -> Tensor:
    """x (batch, length, heads, size), turned by its position (length,) or (batch, length).

    Channels turn in pairs; an odd one out does not turn.
    """
    half = x.shape[-1] // 2
    dtype = working_dtype(x.dtype)
    frequency = BASE ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    angle = (position.to(dtype).unsqueeze(-1) * frequency).unsqueeze(-2)  # (..., length, 1, half)
    cos, sin = angle.cos(), angle.sin()
    one, two, rest = x.to(dtype).split([half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin, rest], -1).to(x.dtype)
