"""Softmax attention: full, causal, or through a sliding window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Mixer, State, draw_linear, positive, rms_norm
from .rotary import positions, rotate

PADDING = 2**30  # the position of a padded token: later than all others


@dataclass
class KeysAndValues(State):
    """Keys and values that attention has read: it grows with the sequence, up to the window if there is one.

    Args:
        keys, values: (batch, tokens, heads, size); keys are rotated already.
        position: of these tokens in their sequences, (batch, tokens); PADDING for padding.
        seen: how many real tokens have passed, (batch,).
        padded: whether any mask was ever given.
    """

    keys: Tensor
    values: Tensor
    position: Tensor
    seen: Tensor
    padded: bool = False

    def forget(self, count: int) -> None:
        """Drop the last `count` tokens, if there is no window."""
        left = self.keys.shape[1] - count
        self.seen = self.seen - (self.position[:, left:] < PADDING).sum(1)
        self.keys, self.values, self.position = self.keys[:, :left], self.values[:, :left], self.position[:, :left]


@dataclass
class Elsewhere(State):
    """Stands in for a state when another library stores the keys and values, and computes the attention.

    Args:
        position: of these tokens in their sequences, (batch or 1, length).
        attend: the mixer, its queries, keys and values (batch, heads, length, size), all rotated, to the output of the
            heads, (batch, length, heads, size).
    """

    position: Tensor
    attend: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


class Attention(Mixer):
    """softmax(q k' / sqrt(size)) v, over heads of size inner / heads. `inner` is the width by default.

    Args:
        window: a token sees itself and the window - 1 tokens before it, and as many after it when causal=False;
            None means no limit.
        rotary: turn queries and keys by their position; None means yes if causal. Bidirectional models have their own
            embedding of positions.
        qk_norm: normalise queries and keys per head, which keeps the logits bounded at high learning rates.
    """

    remembers = (KeysAndValues, Elsewhere)  # a union could not be traced by torch 2.8

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        causal: bool = True,
        inner: int | None = None,
        window: int | None = None,
        rotary: bool | None = None,
        qk_norm: bool = False,
    ) -> None:
        super().__init__(width, heads=heads, causal=causal, inner=inner)
        remedy = "Pass the number of tokens to look back to, itself included, or None for all."
        self.window = window if window is None else positive("window", window, remedy)
        self.rotary = causal if rotary is None else rotary
        self.project = nn.Linear(width, 3 * self.inner, bias=False)  # queries, keys, values
        self.out = nn.Linear(self.inner, width, bias=False)
        self.query_norm = nn.Parameter(torch.empty(self.head_size)) if qk_norm else None
        self.key_norm = nn.Parameter(torch.empty(self.head_size)) if qk_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw_linear(self.project)
        draw_linear(self.out)
        for weight in (self.query_norm, self.key_norm):
            if weight is not None:
                nn.init.ones_(weight)

    def _new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> KeysAndValues:
        empty = torch.zeros(batch, 0, self.heads, self.head_size, device=device, dtype=dtype)
        none = torch.zeros(batch, 0, device=device, dtype=torch.long)
        return KeysAndValues(empty, empty, none, torch.zeros(batch, device=device, dtype=torch.long))

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        assert state is None or isinstance(state, (KeysAndValues, Elsewhere))
        length = x.shape[1]
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, self.head_size)).unbind(2)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = rms_norm(q, self.query_norm).to(v.dtype), rms_norm(k, self.key_norm).to(v.dtype)
        if isinstance(state, Elsewhere):
            where = state.position
        else:
            where = positions(length, mask, state.seen if state else None, x.device)
        if self.rotary:
            q, k = rotate(q, where), rotate(k, where)
        if isinstance(state, Elsewhere):
            y = state.attend(self, *(part.transpose(1, 2) for part in (q, k, v)))
            return self.out(y.flatten(2))
        if mask is not None:
            where = where.masked_fill(~mask, PADDING)
        start = state.keys.shape[1] if state else 0
        key_positions = where
        if state is not None:
            k, v, key_positions = self._remember(state, k, v, where, mask)
        allowed = self._allowed(
            where, key_positions, start, length, mask is not None or (state is not None and state.padded)
        )
        causal = self.causal and allowed is None and start == 0
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))

    def _allowed(self, where: Tensor, key_positions: Tensor, start: int, length: int, padded: bool) -> Tensor | None:
        """Which keys at positions `key_positions` a query at `where` may see, (batch or 1, 1, queries, keys).

        None where nothing but order counts: a sequence from its start, or a single token after all that is stored
        (a window stores no more than it may see).
        """
        narrow = self.window is not None and self.window < length
        if not padded and not narrow and (start == 0 or length == 1):
            return None
        query, key = where.unsqueeze(-1), key_positions.unsqueeze(-2)
        allowed = key <= query if self.causal else (key < PADDING) | (query == PADDING)
        if self.window is not None:
            allowed = allowed & ((query - key).abs() < self.window)
        return allowed.unsqueeze(-3) if allowed.ndim == 3 else allowed[None, None]

    def _remember(
        self, state: KeysAndValues, k: Tensor, v: Tensor, where: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All keys, values and positions that these queries may see; the state keeps those that later ones may."""
        k = torch.cat([state.keys.to(k.dtype), k], 1)
        v = torch.cat([state.values.to(v.dtype), v], 1)
        key_positions = torch.cat([state.position, where], 1)
        state.seen = state.seen + (where.shape[1] if mask is None else mask.sum(1))
        state.padded = state.padded or mask is not None
        state.keys, state.values, state.position = k, v, key_positions
        if self.window is not None and k.shape[1] >= self.window:
            if state.padded:  # real tokens last, so that padding between them takes no room
                order = (key_positions < PADDING).byte().argsort(dim=1, stable=True)[:, k.shape[1] - self.window + 1 :]
                index = order[..., None, None].expand(-1, -1, *k.shape[2:])
                state.keys, state.values, state.position = (
                    k.gather(1, index),
                    v.gather(1, index),
                    key_positions.gather(1, order),
                )
            else:
                first = k.shape[1] - self.window + 1
                state.keys, state.values, state.position = k[:, first:], v[:, first:], key_positions[:, first:]
        return k, v, key_positions
