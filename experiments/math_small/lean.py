"""The training step of `ttcnet sft` without TRL around it, for many short runs on one GPU: the same loss, clipping,
optimizer, schedule and horizons; a test holds the two together.

A step's rows are sorted by length and cut into a few micro-batches, padded at the end. That costs about half more
tokens, and less time than more micro-batches would: a model of this size is bound by launches. Packing would cost
none, but mixers that carry a memory from token to token cannot have it, and all runs of a table are to be trained
alike. Padding behind the last token changes nothing before it, so that no mask is needed.
On a GPU the decoder layers without insertions are compiled, once for all shapes and for all runs of a process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from transformers import AttentionInterface, Trainer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ttcnet import adapter
from ttcnet.evaluate.analysis.likelihood import padded
from ttcnet.insertable import plans
from ttcnet.lqr.arithmetic import working_dtype
from ttcnet.nn.horizon import parse
from ttcnet.train.examples import IGNORED, Example
from ttcnet.train.schedule import UNDECAYED, set_apart, warm_up_and_cosine
from ttcnet.train.settings import FineTuning

CAUSAL = "causal_without_mask"  # transformers makes no mask for attention that it does not know
AttentionInterface.register(CAUSAL, sdpa_attention_forward)
LAUNCH = 8192  # what a micro-batch costs beyond its tokens, in tokens
EXCESS = 1e6  # what a token costs above the most, which rows that are too long make unavoidable
News = Callable[[dict[str, float]], None]


class Lean:
    """A run of `config`, which says what it means in `ttcnet sft`, on a model with its insertions.

    Args:
        compiled: compile decoder layers.
        most: tokens at once, padding included, for GPUs with less memory.
    """

    def __init__(
        self,
        model: Any,
        examples: Sequence[Example],
        config: FineTuning,
        compiled: bool = False,
        most: float = math.inf,
    ) -> None:
        self.model, self.examples, self.config, self.most = model.train(), examples, config, most
        self.device = next(model.parameters()).device
        each = math.ceil(len(examples) / config.batch)
        self.steps = config.steps or math.ceil(config.epochs * each)
        self.order = [batch for epoch in range(math.ceil(self.steps / each)) for batch in self._epoch(epoch)]
        self.horizons = parse(config.horizon, seed=config.seed) if plans(model) else None
        self.optimizer = torch.optim.AdamW(
            _groups(model, config.weight_decay), lr=config.lr, betas=(0.9, 0.95), fused=self.device.type == "cuda"
        )
        if config.inserted_lr is not None:
            set_apart(self.optimizer, adapter.parameters(model).values(), config.inserted_lr)
        self.highest = [group["lr"] for group in self.optimizer.param_groups]
        self.layers = [layer for layer in model.base_model.layers if compiled and not hasattr(layer, "inserted")]
        self.tokens = 0  # that were trained on, without padding

    def _epoch(self, epoch: int) -> list[list[int]]:
        """The rows of each step: all of them once, in an order that depends on the seed alone."""
        order = torch.randperm(
            len(self.examples), generator=torch.Generator().manual_seed(2**20 * self.config.seed + epoch)
        )
        return [part.tolist() for part in order.split(self.config.batch)]

    def train(self, every: int = 10, news: News | None = None) -> None:
        """To the end. Every so many steps `news` gets the mean loss since the last time, and how far it is."""
        before = self.model.config._attn_implementation
        self.model.config._attn_implementation = CAUSAL
        torch._dynamo.config.recompile_limit = 64  # kinds of models and of batches, all runs together
        for layer in self.layers:
            layer.compile(dynamic=True)
        try:
            losses, then = [], (time.monotonic(), 0)
            for step in range(self.steps):
                losses.append(self.step(step))
                if (step + 1) % every == 0 or step + 1 == self.steps:
                    loss = float(torch.stack(losses).mean())
                    now, losses = (time.monotonic(), self.tokens), []
                    speed = (now[1] - then[1]) / max(now[0] - then[0], 1e-9)
                    then = now
                    if news is not None:
                        values = {
                            "loss": loss,
                            "lr": self.rate(step),
                            "tokens": self.tokens,
                            "tokens_per_second": speed,
                        }
                        news({"step": step + 1} | values)
        finally:
            self.model.config._attn_implementation = before
            for layer in self.layers:
                layer._compiled_call_impl = None  # what follows has other shapes
        self.model.eval()

    def step(self, step: int) -> Tensor:
        """One step; its loss, the mean over the tokens of its answers."""
        if self.horizons is not None:
            adapter.set_horizon(self.model, self.horizons.at(step))
        rows = [self.examples[place] for place in self.order[step]]
        answers = sum(label != IGNORED for row in rows for label in row.labels[1:])
        self.tokens += sum(len(row.input_ids) for row in rows)
        total = torch.zeros((), device=self.device)
        for part in micro_batches(rows, self.most):
            loss = self._loss(*padded(part, 0, 8)) / answers
            loss.backward()
            total += loss.detach()
        clip_grad_norm_(self.model.parameters(), 1.0)
        for group, highest in zip(self.optimizer.param_groups, self.highest, strict=True):
            group["lr"] = self.rate(step, highest)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def rate(self, step: int, highest: float | None = None) -> float:
        """The learning rate of a step."""
        return (highest or self.config.lr) * warm_up_and_cosine(step, self.steps, 1.0, 0.1, self.config.warm_up)

    def _loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The sum over the tokens of answers; logits are computed for those alone."""
        at = (labels[:, 1:].flatten() != IGNORED).nonzero().squeeze(1)
        goals = labels[:, 1:].flatten()[at]
        ids, at, goals = (_sent(x, self.device) for x in (ids, at, goals))
        with torch.autocast(self.device.type, torch.bfloat16, self.config.bf16):
            hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            logits = self.model.lm_head(hidden[:, :-1].flatten(0, 1).index_select(0, at))
        return nn.functional.cross_entropy(logits.to(working_dtype(logits.dtype)), goals, reduction="sum")


def micro_batches(rows: Sequence[Example], most: float = math.inf) -> list[list[Example]]:
    """Rows sorted by length and cut where padding and the number of micro-batches together cost least."""
    rows = sorted(rows, key=lambda row: len(row.input_ids))
    best, cut = [0.0] + [math.inf] * len(rows), [0] * (len(rows) + 1)
    for end in range(1, len(rows) + 1):
        for begin in range(end - 1 if len(rows) > 1 else 1):  # no row alone: what is compiled for many is not for one
            tokens = len(rows[end - 1].input_ids) * (end - begin)
            cost = best[begin] + LAUNCH + tokens + EXCESS * max(tokens - most, 0.0)
            if cost < best[end]:
                best[end], cut[end] = cost, begin
    parts, end = list[list[Example]](), len(rows)
    while end:
        parts.append(rows[cut[end] : end])
        end = cut[end]
    return parts


def _sent(x: Tensor, device: torch.device) -> Tensor:
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weights that decay and others, as transformers' trainer and ours tell them apart."""
    found = Trainer.get_decay_parameter_names(None, model)  # type: ignore[arg-type]
    decayed = {name for name in found if name.rpartition(".")[2] not in UNDECAYED}
    names = dict(model.named_parameters())
    return [
        dict(params=[p for name, p in names.items() if name in decayed], weight_decay=weight_decay),
        dict(params=[p for name, p in names.items() if name not in decayed], weight_decay=0.0),
    ]
