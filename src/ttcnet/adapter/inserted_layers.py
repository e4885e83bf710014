"""The layers inserted into one decoder layer."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ttcnet.models.pattern import TTC
from ttcnet.nn import Inserted, TTCLayer
from ttcnet.nn.mixers import State

from .config import TTCAdapterConfig
from .memory import remember


class InsertedLayers(nn.Module):
    """TTC layers, or mixers in their place, one after the other: x (batch, length, width) to the same shape.

    Args:
        config: says which.
        width: size of a token.
        count: how many.
        place: the number of the decoder layer that they are in.
    """

    def __init__(self, config: TTCAdapterConfig, width: int, count: int, place: int) -> None:
        super().__init__()
        self.plans, self.remembers = config.insert == TTC, config.remembers
        self.dropout, self.place = config.dropout, place
        options = config.layer_options(width)
        self.layers = nn.ModuleList(
            TTCLayer(**options) if self.plans else Inserted(config.insert, options, zero_init=config.zero_init)
            for _ in range(count)
        )

    @property
    def prefix(self) -> str:
        """The beginning of the names of its weights in the file of an adapter."""
        return f"layers.{self.place}.inserted."

    def forward(
        self, x: Tensor, horizon: int | None, mask: Tensor | None = None, past_key_values: Any = None
    ) -> Tensor:
        """Args:
        x: tokens.
        horizon: steps that TTC layers look ahead; None is their own.
        mask: which tokens are real, (batch, length); None if all are.
        past_key_values: the base model's cache, which has the keys of these tokens already.
        """
        if self.plans:
            for layer in self.layers:
                x = layer(x, horizon)
            return x
        states: list[State | None] = [None] * len(self.layers)
        if self.remembers and past_key_values is not None:
            mixers = [layer.mixer for layer in self.layers if isinstance(layer, Inserted)]
            states = remember(past_key_values, self.place).seen(mixers, x)
        for layer, state in zip(self.layers, states, strict=True):
            x = x + F.dropout(layer(x, mask=mask, state=state), self.dropout, self.training)
        return x
