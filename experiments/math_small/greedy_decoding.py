"""Greedy answers to many prompts at once, in seconds: keys and values in place, and on a GPU every token but the first
few one replay of a CUDA graph, so that the host has nothing to do. For Llama models, with insertions or without.

The same tokens as `generate` but for rounding; `ttcnet.evaluate` is for everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, StaticCache

from ttcnet.evaluate.analysis.likelihood import batches
from ttcnet.nn import ttc_layers

GROUPED = "grouped_with_own_mask"  # transformers makes no mask for attention that it does not know
TOKENS = 2**19  # in a batch, prompts and answers together
GLANCE = 32  # tokens between two looks at whether all rows have ended
GROWING = ("attention", "samba")  # mixers whose states grow, which cannot be replayed
EAGER = 3  # tokens before a graph is recorded, for whatever is made at first use


class Answer(NamedTuple):
    """New tokens, without the one that ended them; whether one did."""

    tokens: list[int]
    ended: bool


def answers(
    model: Any, prompts: Sequence[Sequence[int]], limit: int, ends: Sequence[int], *, tokens: int = TOKENS
) -> list[Answer]:
    """Up to `limit` new tokens for every prompt.

    Args:
        model: in evaluation mode and on its device.
        ends: tokens that end an answer.
        tokens: in a batch, padding included.
    """
    found: dict[int, Answer] = {}
    before = model.config._attn_implementation
    model.config._attn_implementation = GROUPED
    try:
        for places in batches([len(prompt) + limit for prompt in prompts], tokens):
            made = _batch(model, [prompts[place] for place in places], limit, ends)
            found |= dict(zip(places, made, strict=True))
    finally:
        model.config._attn_implementation = before
    return [found[place] for place in range(len(prompts))]


def _batch(model: Any, prompts: list[Sequence[int]], limit: int, ends: Sequence[int]) -> Iterator[Answer]:
    rows = _Rows(model, prompts, limit, ends)
    rows.prefill()
    graph = None
    for done in range(1, limit):
        if graph is not None:
            graph.replay()
        else:
            rows.step()
            if rows.captured and done == EAGER:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    rows.step()
        if done % GLANCE == 0 and bool(rows.ended.all()):
            break
    stops = torch.isin(rows.made, rows.ends)
    ended = stops.any(1).tolist()
    lengths = torch.where(stops.any(1), stops.long().argmax(1), limit).tolist()
    for made, length, over in zip(rows.made.tolist(), lengths, ended, strict=True):
        yield Answer(made[:length], over)


class _Rows:
    """Prompts padded at the left, side by side, and what is made of them. All that a step changes is changed in place.

    Mixers that remember have states of fixed size, which can be replayed, but for those that are GROWING.
    """

    def __init__(self, model: Any, prompts: list[Sequence[int]], limit: int, ends: Sequence[int]) -> None:
        self.model, device = model, next(model.parameters()).device
        width = -(-max(map(len, prompts)) // 8) * 8
        length = -(-(width + limit) // 64) * 64
        self.ids = torch.tensor([[ends[0]] * (width - len(p)) + [*p] for p in prompts], device=device)
        self.real = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts], device=device)
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        growing = getattr(model.config, "inserted", None) in GROWING
        waits = any(layer.context_kind == "system" for layer in ttc_layers(model).values())  # for its linear systems
        self.captured = device.type == "cuda" and not growing and not waits
        self.ends = torch.tensor(ends, device=device)
        self.made = torch.full((len(prompts), limit), ends[0], device=device)
        self.ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        self.token = torch.zeros(len(prompts), 1, dtype=torch.long, device=device)
        self.position = self.real.sum(1, keepdim=True) - 1  # of the last token in its row
        self.column = torch.zeros(1, dtype=torch.long, device=device)  # of `made`
        self.slot = torch.full((1,), width - 1, device=device)  # of the cache
        self.seen = torch.full((len(prompts), 1, 1, length), float("-inf"), dtype=model.dtype, device=device)
        self.seen[..., :width].masked_fill_(self.real[:, None, None], 0.0)
        self.one = torch.ones_like(self.token, dtype=torch.bool)

    @torch.no_grad()
    def prefill(self) -> None:
        width = self.ids.shape[1]
        causal = torch.ones(width, width, dtype=torch.bool, device=self.ids.device).tril()
        itself = torch.eye(width, dtype=torch.bool, device=self.ids.device)  # so that padding sees something
        mask = (causal & self.real[:, None, None]) | itself
        position = (self.real.cumsum(1) - 1).clamp_min(0)
        self._take(self._scores(self.ids, mask, position, self.real))

    @torch.no_grad()
    def step(self) -> None:
        """One more token for every row, those that have ended too."""
        self.position += 1
        self.slot += 1
        self.seen.index_fill_(3, self.slot, 0.0)
        self._take(self._scores(self.token, self.seen, self.position, self.one))

    def _scores(self, ids: Tensor, mask: Tensor, position: Tensor, real: Tensor) -> Tensor:
        options: dict[str, Any] = dict(past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        if hasattr(self.model.config, "inserted"):
            options["token_mask"] = real
        return self.model(input_ids=ids, attention_mask=mask, position_ids=position, **options).logits[:, -1]

    def _take(self, scores: Tensor) -> None:
        best = scores.argmax(-1, keepdim=True)
        self.token.copy_(best)
        self.made.index_copy_(1, self.column, best)
        self.ended |= torch.isin(best[:, 0], self.ends)
        self.column += 1


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Keys and values are read once for all queries that share them, and never copied when there is one new token."""
    length, groups = query.shape[2], module.num_key_value_groups
    if length > 1:  # a prompt: what is in the cache behind it is empty
        key, value = (x[:, :, :length].repeat_interleave(groups, 1) for x in (key, value))
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    else:
        shared = query.unflatten(1, (-1, groups)).squeeze(3)
        mask = attention_mask.expand(-1, -1, groups, -1)
        y = F.scaled_dot_product_attention(shared, key, value, attn_mask=mask, scale=scaling)
        y = y.flatten(1, 2).unsqueeze(2)
    return y.transpose(1, 2).contiguous(), None


AttentionInterface.register(GROUPED, _attention)
