"""How the runs of this table are trained: as `ttcnet sft` trains, on one GPU, for many short runs.

A step's rows are sorted by length and cut into a few micro-batches, padded at the end. That costs about half more
tokens, and less time than more micro-batches would: a model of this size is bound by launches. Packing would cost none,
but stateful mixers cannot have it, and all runs of a table are trained alike. On a GPU the decoder layers without
insertions are compiled, once for all shapes and for all runs of a process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ttcnet.machine.torch_settings import compiling_up_to
from ttcnet.nn.inserted import inserted_layers
from ttcnet.train.answers import Answers
from ttcnet.train.examples import Example
from ttcnet.train.learner import Learner
from ttcnet.train.settings import FineTuning

CAUSAL = "causal_without_mask"  # transformers makes no mask for attention that it does not know
AttentionInterface.register(CAUSAL, sdpa_attention_forward)
LAUNCH = 8192  # the fixed cost of a micro-batch, in tokens
EXCESS = 1e6  # the cost of a token above the most; rows that are too long make some unavoidable


class SortedAnswers(Answers):
    """The objective of `ttcnet sft`, in micro-batches of at most `most` tokens. Only logits that count are computed."""

    def __init__(self, model: Any, examples: Sequence[Example], config: FineTuning, most: float = math.inf) -> None:
        super().__init__(model, examples, config)
        self.most = most

    def pieces(self, packs: list[list[Example]]) -> list[list[list[Example]]]:
        return [[part] for part in micro_batches([row for pack in packs for row in pack], self.most)]

    def logits(self, model: nn.Module, ids: Tensor, at: Tensor, options: dict[str, Any]) -> Tensor:
        net: Any = model
        hidden = net.base_model(input_ids=ids, use_cache=False, **options).last_hidden_state
        return net.lm_head(hidden[:, :-1].flatten(0, 1).index_select(0, at))


def learner(model: Any, examples: Sequence[Example], config: FineTuning, most: float = math.inf) -> Learner:
    """A model with its insertions, on its device, which learns."""
    objective = SortedAnswers(model.train(), examples, config, most)
    device = next(model.parameters()).device
    return Learner(objective, model, objective.groups(), device, seed=config.seed, bf16=config.bf16)


@contextmanager
def fast(model: Any, compiled: bool = False) -> Iterator[None]:
    """Inside the block, attention has no mask and layers are compiled."""
    before = model.config._attn_implementation
    layers = [layer for layer in model.base_model.layers if compiled and not inserted_layers(layer)]
    model.config._attn_implementation = CAUSAL
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        with compiling_up_to(64) if layers else nullcontext():  # kinds of models and of batches, all runs together
            yield
    finally:
        model.config._attn_implementation = before
        for layer in layers:
            layer._compiled_call_impl = None  # later code has other shapes
        model.eval()


def micro_batches(rows: Sequence[Example], most: float = math.inf) -> list[list[Example]]:
    """Rows sorted by length and cut where padding and the number of micro-batches together cost least."""
    rows = sorted(rows, key=lambda row: len(row.input_ids))
    best, cut = [0.0] + [math.inf] * len(rows), [0] * (len(rows) + 1)
    for end in range(1, len(rows) + 1):
        for begin in range(end - 1 if len(rows) > 1 else 1):  # no row alone: code for many does not serve one
            tokens = len(rows[end - 1].input_ids) * (end - begin)
            cost = best[begin] + LAUNCH + tokens + EXCESS * max(tokens - most, 0.0)
            if cost < best[end]:
                best[end], cut[end] = cost, begin
    parts, end = list[list[Example]](), len(rows)
    while end:
        parts.append(rows[cut[end] : end])
        end = cut[end]
    return parts
