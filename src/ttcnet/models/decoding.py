"""Decoding for many prompts at once with transformers' `generate`: every row draws from a seed of its own, whatever
rows are beside it, and rows that have ended make room for the rest. `fast_decoding` gives the same tokens in less
time, for Llama and its like."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from ttcnet.bounds import LARGE
from ttcnet.errors import fail, not_finite

from .horizon_and_loops import at_horizon

ROOM = 0.5  # share of rows that must have ended before the batch is made smaller
TAIL = 16  # tokens in which the end of a stop text is looked for


@dataclass(frozen=True)
class Decoded:
    """The new tokens of a row, with that which ended it; whether one did; the mean log-likelihood of the tokens."""

    tokens: list[int]
    ended: bool
    mean_logprob: float


def noise(seeds: Sequence[int], limit: int) -> Tensor:
    """A uniform number for every token of every row, (rows, limit), from the seed of the row alone."""
    return torch.stack([torch.rand(limit, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


def drawn(scores: Tensor, uniform: Tensor | None, temperature: float) -> Tensor:
    """A token for every row of scores, (rows, words): the best one, or with a uniform number a row, (rows,), one by
    the inverse of the cumulative distribution."""
    if uniform is None:
        return scores.argmax(-1)
    mass = (scores / temperature).double().softmax(-1).cumsum(-1)
    point = uniform.double() * mass[:, -1]
    chosen = torch.searchsorted(mass, point[:, None], right=True)[:, 0]
    return chosen.clamp_max(scores.shape[-1] - 1)  # NaN would choose a place behind the last


def ends_of(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer, as tokenizer and model name them."""
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    found = [tokenizer.eos_token_id, *(listed if isinstance(listed, list) else [listed])]
    for each in found:
        if each is not None and not (type(each) is int and -LARGE < each < LARGE):
            value = f"{each!r:.40} in generation_config.json or config.json"
            fail("eos_token_id", "must be a token, or a list of tokens", value, "Correct it, or take it out.", "type")
    return sorted({*found} - {None})


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """The places of sequences in batches of at most `tokens` tokens with padding, the longest first."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    while order:
        size = max(1, tokens // lengths[order[0]])
        yield order[:size]
        order = order[size:]


class Rows:
    """The rows of a batch while they grow. All of them stay here; `active` are those still growing."""

    def __init__(
        self, seeds: list[int], limit: int, temperature: float, device: torch.device, names: Sequence[str]
    ) -> None:
        self.limit, self.temperature, self.names = limit, temperature, names
        self.active = torch.arange(len(seeds), device=device)
        self.length = torch.full((len(seeds),), limit, device=device)  # new tokens, as far as known
        self.ended = torch.zeros(len(seeds), dtype=torch.bool, device=device)
        self.tokens = torch.zeros(len(seeds), limit, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(len(seeds), limit, device=device)
        self.noise = noise(seeds, limit).to(device) if temperature > 0 else None

    def pick(self, scores: Tensor, step: int) -> Tensor:
        """The next token of every active row, which is written down."""
        chosen = drawn(scores, None if self.noise is None else self.noise[self.active, step], self.temperature)
        found = scores.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        broken = self.active[~found.isfinite() & ~self.ended[self.active]]
        if len(broken):
            not_finite(self.names[int(broken[0])])
        self.tokens[self.active, step] = chosen
        self.logprobs[self.active, step] = found
        return chosen

    def result(self) -> list[Decoded]:
        lengths, ended = self.length.tolist(), self.ended.tolist()
        tokens, logprobs = self.tokens.cpu(), self.logprobs.cpu()
        means = [logprobs[row, :length].mean().item() for row, length in enumerate(lengths)]
        return [Decoded(tokens[row, :length].tolist(), ended[row], means[row]) for row, length in enumerate(lengths)]


class _Pick(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Leaves one token to choose from: the one that `Rows` picks."""

    def __init__(self, rows: Rows, prompt: int) -> None:
        self.rows, self.prompt = rows, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen = self.rows.pick(scores, input_ids.shape[1] - self.prompt)
        return torch.full_like(scores, float("-inf")).scatter_(1, chosen[:, None], 0.0)


class _End(StoppingCriteria):  # type: ignore[misc, unused-ignore]
    """Ends rows at an end-of-text token or a stop text; and all of them for a moment when there is room to make."""

    def __init__(self, rows: Rows, prompt: int, ends: Tensor, stopped: Any, watch: Any) -> None:
        self.rows, self.prompt, self.stopped, self.watch = rows, prompt, stopped, watch
        self.eos_token_id = ends  # generate pads ended rows if this name exists

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        rows, step = self.rows, input_ids.shape[1] - self.prompt
        new = torch.isin(input_ids[:, -1], self.eos_token_id)
        if self.stopped is not None:
            new |= self.stopped(input_ids[:, max(self.prompt, input_ids.shape[1] - TAIL) :])
        new &= ~rows.ended[rows.active]
        ended = rows.active[new]
        rows.ended[ended], rows.length[ended] = True, step
        over = rows.ended[rows.active]
        if step % 8 == 0:
            self.watch(len(rows.ended) - len(over) + len(over) * step / rows.limit)
        return torch.ones_like(over) if over.float().mean() >= ROOM else over


@torch.inference_mode()
def decode(
    model: Any,
    prompts: list[list[int]],
    seeds: list[int],
    *,
    limit: int,
    temperature: float,
    ends: list[int],
    pad: int,
    stopped: Callable[[Tensor], Tensor] | None = None,
    watch: Callable[[float], None] = lambda _: None,
    names: Sequence[str] | None = None,
    horizon: int | None = None,
) -> list[Decoded]:
    """Up to `limit` new tokens for every prompt, greedily at temperature 0. `stopped` says of the last tokens of all
    rows, (rows, at most TAIL), which of them end there; messages call rows by their `names`; `horizon` is that of TTC
    layers, None the model's own."""
    names = names or [f"prompt {number}" for number in range(1, len(prompts) + 1)]
    own, model.generation_config = model.generation_config, GenerationConfig(pad_token_id=pad)  # no penalties
    try:
        rows = Rows(seeds, limit, temperature, model.device, names)
        return _grow(model, prompts, rows, ends, pad, stopped, watch, at_horizon(horizon)).result()
    finally:
        model.generation_config = own


def _grow(
    model: Any, prompts: list[list[int]], rows: Rows, ends: list[int], pad: int, stopped: Any, watch: Any,
    options: dict[str, Any],
) -> Rows:  # fmt: skip
    width, cache = max(map(len, prompts)), None
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    end = _End(rows, width, torch.tensor(ends, dtype=torch.long, device=model.device), stopped, watch)
    while True:
        made = model.generate(
            ids, attention_mask=mask, past_key_values=cache, max_new_tokens=width + rows.limit - ids.shape[1],
            logits_processor=LogitsProcessorList([_Pick(rows, width)]), stopping_criteria=StoppingCriteriaList([end]),
            return_dict_in_generate=True, **options,
        )  # fmt: skip
        ids, cache = made.sequences, made.past_key_values
        growing = (~rows.ended[rows.active]).nonzero()[:, 0]
        if ids.shape[1] == width + rows.limit or not len(growing):
            return rows
        ids, mask, rows.active = ids[growing], mask[growing], rows.active[growing]
        mask = torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=1)
        if cache is not None:
            cache.reorder_cache(growing)
