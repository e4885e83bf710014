"""Decoding for many prompts at once, in seconds: keys and values in place, and on a GPU every token but the first few
one replay of a CUDA graph, so that the host has nothing to do. For Llama and its like, with insertions or without.

The same tokens as `decoding`, which takes every model and stop texts, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, StaticCache

from ttcnet.errors import not_finite
from ttcnet.nn import ttc_layers
from ttcnet.nn.inserted import inserted_kinds

from .decoding import Decoded, batches, drawn, noise
from .horizon_and_loops import at_horizon

GROUPED = "grouped_with_own_mask"  # transformers makes no mask for attention that it does not know
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
TOKENS = 2**19  # in a batch, prompts and answers together
GLANCE = 32  # tokens between two looks at whether all rows have ended
GROWING = {"attention", "samba"}  # mixers whose states grow, which cannot be replayed
EAGER = 3  # tokens before a graph is recorded, because first calls also set things up


def fits(model: Any) -> bool:
    """Whether this module can decode it: a known family, with attention to all earlier tokens in every layer."""
    config = model.config
    return config.model_type.removeprefix("ttc_") in FAMILIES and getattr(config, "sliding_window", None) is None


def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    limit: int,
    ends: Sequence[int],
    *,
    seeds: Sequence[int] | None = None,
    temperature: float = 0.0,
    tokens: int = TOKENS,
    horizon: int | None = None,
) -> list[Decoded]:
    """Up to `limit` new tokens for every prompt.

    Args:
        model: in evaluation mode and on its device.
        ends: tokens that end an answer.
        seeds: of the rows, for a temperature above 0.
        temperature: 0 is greedy.
        tokens: in a batch, padding included.
        horizon: of TTC layers; None is the model's own.
    """
    seeds = seeds or [0] * len(prompts)
    found: dict[int, Decoded] = {}
    before = model.config._attn_implementation
    model.config._attn_implementation = GROUPED
    try:
        for places in batches([len(prompt) + limit for prompt in prompts], tokens):
            uniform = noise([seeds[place] for place in places], limit) if temperature > 0 else None
            rows = _Rows(model, [prompts[place] for place in places], limit, ends, uniform, temperature, horizon)
            found |= dict(zip(places, _grown(rows, [f"prompt {place + 1}" for place in places]), strict=True))
    finally:
        model.config._attn_implementation = before
    return [found[place] for place in range(len(prompts))]


def _grown(rows: _Rows, names: Sequence[str]) -> list[Decoded]:
    rows.prefill()
    graph = None
    for done in range(1, rows.made.shape[1]):
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
    return rows.result(names)


class _Rows:
    """Prompts padded at the left, side by side, and their answers. A step changes tensors in place.

    Mixers that remember have states of fixed size, which can be replayed, but for those that are GROWING.
    """

    def __init__(
        self, model: Any, prompts: list[Sequence[int]], limit: int, ends: Sequence[int], uniform: Tensor | None,
        temperature: float, horizon: int | None,
    ) -> None:  # fmt: skip
        self.options: dict[str, Any] = dict(use_cache=True, logits_to_keep=1) | at_horizon(horizon)
        self.model, device = model, next(model.parameters()).device
        width = -(-max(map(len, prompts)) // 8) * 8
        length = -(-(width + limit) // 64) * 64
        filler = ends[0] if ends else 0
        self.ids = torch.tensor([[filler] * (width - len(p)) + [*p] for p in prompts], device=device)
        self.real = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts], device=device)
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        self.kinds = inserted_kinds(model)
        waits = any(layer.context_kind == "system" for layer in ttc_layers(model).values())  # for its linear systems
        self.captured = device.type == "cuda" and not self.kinds & GROWING and not waits
        self.ends = torch.tensor(ends, dtype=torch.long, device=device)
        self.uniform, self.temperature = None if uniform is None else uniform.to(device), temperature
        self.made = torch.full((len(prompts), limit), filler, device=device)
        self.logprobs = torch.zeros(len(prompts), limit, device=device)
        self.ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        self.token = torch.zeros(len(prompts), 1, dtype=torch.long, device=device)
        self.position = self.real.sum(1, keepdim=True) - 1  # the place of the last token in its row
        self.column = torch.zeros(1, dtype=torch.long, device=device)  # the next column of `made`
        self.slot = torch.full((1,), width - 1, device=device)  # the last slot of the cache in use
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
        options = self.options | {"past_key_values": self.cache}
        if self.kinds:
            options["token_mask"] = real
        return self.model(input_ids=ids, attention_mask=mask, position_ids=position, **options).logits[:, -1]

    def _take(self, scores: Tensor) -> None:
        scores = scores.float()
        uniform = None if self.uniform is None else self.uniform.index_select(1, self.column)[:, 0]
        chosen = drawn(scores, uniform, self.temperature)[:, None]
        self.token.copy_(chosen)
        self.made.index_copy_(1, self.column, chosen)
        self.logprobs.index_copy_(1, self.column, scores.log_softmax(-1).gather(1, chosen))
        self.ended |= torch.isin(chosen[:, 0], self.ends)
        self.column += 1

    def result(self, names: Sequence[str]) -> list[Decoded]:
        limit, stops = self.made.shape[1], torch.isin(self.made, self.ends)
        over = stops.any(1)
        lengths = torch.where(over, stops.long().argmax(1) + 1, limit)
        counted = torch.arange(limit, device=lengths.device) < lengths[:, None]
        sums = self.logprobs.masked_fill(~counted, 0.0).sum(1)
        broken = (~sums.isfinite()).nonzero()
        if len(broken):
            not_finite(names[int(broken[0])])
        columns = (self.made.tolist(), lengths.tolist(), over.tolist(), (sums / lengths).tolist())
        return [Decoded(made[:length], end, mean) for made, length, end, mean in zip(*columns, strict=True)]


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Keys and values are read once for all queries that share them, and never copied when there is one new token."""
    length, groups = query.shape[2], module.num_key_value_groups
    if length > 1:  # a prompt: the cache behind it is empty
        key, value = (x[:, :, :length].repeat_interleave(groups, 1) for x in (key, value))
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    else:
        shared = query.unflatten(1, (-1, groups)).squeeze(3)
        mask = attention_mask.expand(-1, -1, groups, -1)
        y = F.scaled_dot_product_attention(shared, key, value, attn_mask=mask, scale=scaling)
        y = y.flatten(1, 2).unsqueeze(2)
    return y.transpose(1, 2).contiguous(), None


AttentionInterface.register(GROUPED, _attention)
