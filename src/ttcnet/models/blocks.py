"""Blocks of a TTC-Net: a mixer, inserted layers, and an MLP."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ttcnet.nn import Inserted, TTCLayer, mixers
from ttcnet.nn.mixers import Mixer, State

from .attention import Attending
from .cache import MixerCache
from .configuration import TTCNetConfig
from .pattern import TTC, BlockSpec


def ttc_options(config: TTCNetConfig) -> dict[str, Any]:
    """The options of a TTC layer of this model."""
    return dict(
        width=config.hidden_size,
        heads=config.ttc_heads or config.num_attention_heads,
        state_size=config.ttc_state_size,
        action_size=config.ttc_action_size,
        rank=config.ttc_rank,
        context=config.ttc_context,
        horizon=config.horizon,
        dropout=config.dropout,
        zero_init=config.zero_init,
        time_homogeneous=config.ttc_time_homogeneous,
        eps=config.norm_eps,
    )


def inserted(config: TTCNetConfig, kind: str) -> TTCLayer | Inserted:
    """A TTC layer, or the mixer in its place."""
    if kind == TTC:
        return TTCLayer(**ttc_options(config))
    options = (config.mixer_options or {}).get(f"+{kind}", {})
    return Inserted(kind, ttc_options(config), causal=config.causal, zero_init=config.zero_init, **options)


class Recall(nn.Module):
    """The start of a loop: norm(states) + embeddings. States of zero are a start from the embeddings alone."""

    def __init__(self, config: TTCNetConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)

    def forward(self, x: Tensor, embeddings: Tensor) -> Tensor:
        y: Tensor = self.norm(x) + embeddings
        return y


class Block(GradientCheckpointingLayer):  # type: ignore[misc, unused-ignore]
    """x + mixer(norm(x)), then the inserted layers, then x + mlp(norm(x))."""

    def __init__(self, config: TTCNetConfig, spec: BlockSpec, first: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        options = {"heads": config.num_attention_heads, **(config.mixer_options or {}).get(spec.mixer, {})}
        self.first = first  # the number of this block's first mixer in the cache
        self.every, self.each = spec.every, spec.each
        self.dropout = config.dropout
        self.mixer_norm = nn.RMSNorm(width, eps=eps)
        self.mixer = mixers.build(spec.mixer, width, causal=config.causal, **options)
        self.inserted = nn.ModuleList(inserted(config, kind) for kind in spec.inserted)
        self.mlp_norm = nn.RMSNorm(width, eps=eps)
        self.mlp = mixers.build("mlp", width, heads=1, inner=config.intermediate_size)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        horizon: int | None = None,
        past_key_values: MixerCache | Attending | None = None,
        start: int = 0,
        active: tuple[bool, ...] | None = None,
    ) -> Tensor:
        """One pass.

        Args:
            x: tokens (batch, length, width).
            mask: which are real, (batch, length).
            horizon: steps that TTC layers look ahead.
            past_key_values: the cache.
            start: the number of this pass' first mixer in it.
            active: whether each inserted layer is applied in this pass; None is all.
        """
        state = self._state(start, self.mixer, x, past_key_values)
        x = x + self._drop(self.mixer(self.mixer_norm(x), mask=mask, state=state))
        for place, layer in enumerate(self.inserted, 1):
            if active is not None and not active[place - 1]:
                continue
            if isinstance(layer, TTCLayer):
                x = layer(x, horizon)
            else:
                assert isinstance(layer, Inserted)
                state = self._state(start + place, layer.mixer, x, past_key_values)
                x = x + self._drop(layer(x, mask=mask, state=state))
        return x + self._drop(self.mlp(self.mlp_norm(x)))

    def _state(self, place: int, mixer: Mixer, x: Tensor, cache: MixerCache | Attending | None) -> State | None:
        # blocks that differ in `first` alone compile to one program if there is no cache
        if isinstance(cache, Attending):
            return cache.next(mixer)
        return None if cache is None else cache.state(self.first + place, mixer, x)

    def _drop(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.dropout, self.training)
