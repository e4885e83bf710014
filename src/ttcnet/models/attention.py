"""Attention as transformers computes it: with its caches, its masks and its implementations.

A model that mixes tokens by attention alone keeps nothing that transformers could not: static caches, assisted
generation and packed sequences work with it as with a Llama. Mixers of other kinds have `MixerCache`.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ttcnet.errors import fail
from ttcnet.nn.mixers import Attention, Mixer, State
from ttcnet.nn.mixers.attention import Elsewhere

from .configuration import TTCNetConfig


class Attending:
    """Shared by all attention of one call: where its tokens are, which tokens they may see, and where their keys go.

    Args:
        config: of the model.
        x: tokens (batch, length, width).
        attention_mask: (batch, length with the cache), 1 for real tokens and 0 for padding; or a mask of
            four dimensions, (batch, 1, queries, keys), as transformers makes them.
        position_ids: (batch or 1, length); None counts on from where the cache ends.
        cache: of transformers.
        weights: a list to which each mixer appends its weights (batch, heads, queries, keys).
    """

    def __init__(
        self,
        config: TTCNetConfig,
        x: Tensor,
        attention_mask: Any,
        position_ids: Tensor | None,
        cache: Cache | None,
        weights: list[Tensor] | None = None,
    ) -> None:
        self.config, self.cache, self.weights = config, cache, weights
        self.asked = 0
        self.blank = None  # a part of the cache before anything is in it
        if cache is not None and cache.layers and not cache.is_initialized:
            self.blank = copy.deepcopy(cache.layers[0])
        past = 0 if cache is None else cache.get_seq_length()
        _check_mask(attention_mask, x.shape[0], x.shape[1], past)
        if position_ids is None:
            position_ids = (torch.arange(x.shape[1], device=x.device) + past).unsqueeze(0)
        make = create_causal_mask if config.sliding_window is None else create_sliding_window_causal_mask
        self.position = position_ids
        self.mask = make(
            config=config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=cache,
            position_ids=position_ids,
        )

    def next(self, mixer: Mixer) -> State | None:
        """The state of the mixer that comes next. Mixers ask in the same order at every call."""
        if not isinstance(mixer, Attention):
            return None
        if self.cache is None:
            return Elsewhere(self.position, partial(self._attend, 0))
        number, self.asked = self.asked, self.asked + 1
        return Elsewhere(self.position, partial(self._attend, number))

    def _attend(self, number: int, mixer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.cache is not None:
            # transformers' caches have a part for each block; inserted attention needs one more
            while self.blank is not None and len(self.cache.layers) <= number:
                self.cache.layers.append(copy.deepcopy(self.blank))
            k, v = self.cache.update(k, v, number)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
        options = {} if self.config.sliding_window is None else {"sliding_window": self.config.sliding_window}
        y, weights = attend(mixer, q, k, v, self.mask, dropout=0.0, scaling=q.shape[-1] ** -0.5, **options)
        if self.weights is not None and weights is not None:
            self.weights.append(weights)
        return y


def eager(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Attention in plain steps, which hands out its weights."""
    scores = q @ k.mT * scaling
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return (weights @ v).transpose(1, 2).contiguous(), weights


def _check_mask(mask: Any, batch: int, length: int, past: int | Tensor) -> None:
    if not isinstance(mask, Tensor) or mask.ndim != 2 or isinstance(past, Tensor):
        return  # transformers' own kinds; and of a static cache, how much is in it is known to the device alone
    if tuple(mask.shape) != (batch, past + length):
        rule = f"must have shape ({batch}, {past + length})"
        if past:
            rule += f", the {past} tokens in the cache and these {length}"
        fail("attention_mask", rule, tuple(mask.shape), "Pass 1 for real tokens and 0 for padding.", "shape")
