"""Which tokens are real and which are padding."""

from __future__ import annotations

import torch
from torch import Tensor

from ttcnet.errors import fail


def real_tokens(attention_mask: Tensor | None, batch: int, length: int) -> Tensor | None:
    """Which of the last `length` tokens are real, (batch, length); None if all are, which is faster."""
    if attention_mask is None:
        return None
    shape: tuple[int, ...] = tuple(getattr(attention_mask, "shape", ()))
    if len(shape) != 2 or shape[0] != batch or shape[1] < length:
        rule = f"must have shape ({batch}, {length} or more)"
        fail("attention_mask", rule, shape, "Pass 1 for real tokens and 0 for padding.")
    mask = attention_mask[:, shape[1] - length :].bool()
    unknown = torch.compiler.is_compiling() or mask.is_meta
    unknown = unknown or (mask.is_cuda and torch.cuda.is_current_stream_capturing())
    return None if not unknown and bool(mask.all()) else mask
