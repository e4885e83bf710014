"""Arguments of a call: which tokens are real and which are padding, one sequence per row, and no unused arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ttcnet.errors import fail

# arguments of transformers and its trainer that can be ignored here
HARMLESS = {"num_items_in_batch", "return_dict", "cache_position"}


def real_tokens(attention_mask: Tensor | None, batch: int, length: int) -> Tensor | None:
    """Which of the last `length` tokens are real, (batch, length); None if all are, which is faster."""
    if attention_mask is None:
        return None
    shape: tuple[int, ...] = tuple(getattr(attention_mask, "shape", ()))
    if len(shape) != 2 or shape[0] != batch or shape[1] < length:
        rule = f"must have shape ({batch}, {length} or more)"
        fail("attention_mask", rule, shape, "Pass 1 for real tokens and 0 for padding.", "shape")
    mask = attention_mask[:, shape[1] - length :].bool()
    unknown = torch.compiler.is_compiling() or mask.is_meta
    unknown = unknown or (mask.is_cuda and torch.cuda.is_current_stream_capturing())
    return None if not unknown and bool(mask.all()) else mask


def refuse_packing(position_ids: Tensor | None, mask: Tensor | None, kind: str, packed: bool = False) -> None:
    """Fail if the tokens of a row are several sequences: mixers would carry something from one to the next.

    Args:
        position_ids: (batch or 1, length).
        mask: which tokens are real, (batch, length); None if all are.
        kind: of mixer.
        packed: whether they are known to be.
    """
    rule, value = f"must count up by one, since {kind} remembers", "several sequences in a row"
    if position_ids is not None and position_ids.shape[-1] > 1:
        breaks = position_ids.diff() != 1
        breaks = (breaks if mask is None else breaks & mask[:, 1:] & mask[:, :-1]).any()
        if torch.compiler.is_compiling():  # where values are not known until it runs
            torch._assert_async(~breaks, f"position_ids {rule}; got {value}.")
        else:
            packed = packed or bool(breaks)
    if packed:
        remedy = "Pass one sequence a row, padded, or use attention and TTC layers alone."
        fail("position_ids", rule, value, remedy, "stateful")


def refuse_others(kwargs: dict[str, Any], attends: bool, weights: list[Tensor] | None) -> None:
    """Fail if a call has arguments that the model would ignore."""
    if weights is not None and not attends:
        fail("output_attentions", "must be False", True, "Leave it out: mixers hand out no weights.", "stateful")
    for name, value in kwargs.items():
        if value is not None and name not in HARMLESS:
            remedy = "Check its spelling."
            fail(name, "is no argument of this model", repr(value)[:60], remedy, "unknown-field", TypeError)
