"""The objective of `ttcnet sft`: learn the answers of conversations, at horizons that are drawn for each step."""

from __future__ import annotations

import math
import time
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ttcnet.lqr.arithmetic import working_dtype
from ttcnet.machine.processes import count, rank, total
from ttcnet.models.horizon_and_loops import at_horizon
from ttcnet.nn import ttc_layers
from ttcnet.nn.horizon import parse
from ttcnet.nn.inserted import inserted_parameters

from .examples import IGNORED, Example, padded
from .schedule import parameter_groups, warm_up_and_cosine
from .settings import FineTuning

Pack = list[int]  # rows, by their places, that stand in one sequence


class Answers:
    """The order of rows depends on the seed alone; an epoch has each row once. All tokens of the answers
    of a step count alike, whichever process and piece computes them.

    Rows are padded at the end. Causal models need no mask for that: tokens before the padding do not see it.
    """

    counts = 0

    def __init__(self, model: nn.Module, examples: Sequence[Any], config: FineTuning) -> None:
        self.model, self.examples, self.config = model, examples, config
        self.carried: dict[str, Tensor] = {}
        lengths = _lengths(examples)
        limit = config.max_length or int(lengths.max())
        self.packs: list[Pack] = (
            packed(lengths, limit) if config.packing else [[place] for place in range(len(lengths))]
        )
        self.sizes = np.array([lengths[pack].sum() for pack in self.packs])
        self.each = math.ceil(len(self.packs) / config.batch)  # steps of an epoch
        self.steps = config.steps or math.ceil(config.epochs * self.each)
        self.horizons = parse(config.horizon, seed=config.seed) if ttc_layers(model) else None
        self._epoch: tuple[int, Tensor] = (-1, torch.empty(0))
        self._counted, self._then = (0, 0), time.monotonic()

    def groups(self) -> list[dict[str, Any]]:
        """The trained parameters, in groups. Inserted layers may have a learning rate of their own."""
        config = self.config
        share = 1.0 if config.inserted_lr is None else config.inserted_lr / config.lr
        apart = inserted_parameters(self.model) if config.inserted_lr is not None else ()
        return parameter_groups(
            self.model, config.weight_decay, spared=lambda name: name.endswith("bias"), apart=apart, share=share
        )

    def rate(self, step: int) -> float:
        """The learning rate: it rises over the share `warm_up` of the steps and falls by a cosine to a tenth."""
        return self.config.lr * warm_up_and_cosine(step, self.steps, 1.0, 0.1, self.config.warm_up)

    def rows(self, step: int) -> list[int]:
        """The packs of a step, by their numbers."""
        epoch, place = divmod(step, self.each)
        if epoch != self._epoch[0]:
            generator = torch.Generator().manual_seed(2**20 * self.config.seed + epoch)
            self._epoch = epoch, torch.randperm(len(self.packs), generator=generator)
        return self._epoch[1][place * self.config.batch : (place + 1) * self.config.batch].tolist()

    def tokens(self, step: int) -> int:
        """How many tokens were trained on before a step, without padding."""
        first, found = self._counted if self._counted[0] <= step else (0, 0)
        for number in range(first, step):
            found += int(self.sizes[self.rows(number)].sum())
        self._counted = step, found
        return found

    def begin(self, step: int) -> list[tuple[Any, ...]]:
        horizon = None if self.horizons is None else self.horizons.at(step)
        batch = self.rows(step)
        own = [self.pack(place) for place in batch[rank() :: count()]]
        while len(own) < math.ceil(len(batch) / count()):  # every process has as many pieces: this one teaches nothing
            own.append([Example(ids, [IGNORED] * len(ids)) for ids, _ in self.pack(batch[0])])
        learned = sum(label != IGNORED for rows in own for row in rows for label in row.labels[1:])
        answers = float(total(torch.tensor(float(learned), dtype=torch.float64)))
        return [(*self.tensors(piece), count() / max(answers, 1.0), horizon) for piece in self.pieces(own)]

    def pack(self, place: int) -> list[Example]:
        """The rows of a pack."""
        rows = (self.examples[row] for row in self.packs[place])
        return [Example(row["input_ids"], row["labels"]) if isinstance(row, dict) else row for row in rows]

    def pieces(self, packs: list[list[Example]]) -> list[list[list[Example]]]:
        """The packs in pieces that are computed one at a time."""
        size = self.config.device_batch
        return [packs[first : first + size] for first in range(0, len(packs), size)]

    def tensors(self, piece: list[list[Example]]) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Tokens (rows, length); their positions, if they are in packs; the places of tokens whose next token is
        learned, among the tokens of all rows without the last of each; and those next tokens."""
        rows = [row for pack in piece for row in pack]
        positions = None
        if self.config.packing:  # one sequence; rows do not see each other, because positions begin anew
            positions = torch.cat([torch.arange(len(row.input_ids)) for row in rows]).unsqueeze(0)
            tokens = [token for row in rows for token in row.input_ids]
            rows = [Example(tokens, [label for row in rows for label in (IGNORED, *row.labels[1:])])]
        ids, labels = padded(rows, 0, 1 if self.config.packing else 8)
        goals = labels[:, 1:].flatten()
        at = (goals != IGNORED).nonzero().squeeze(1)
        return ids, positions, at, goals[at]

    def loss(
        self, model: nn.Module, ids: Tensor, positions: Tensor | None, at: Tensor, goals: Tensor, scale: float,
        horizon: int | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        device = next(self.model.parameters()).device
        ids, at, goals = (_sent(x, device) for x in (ids, at, goals))
        options = {} if positions is None else {"position_ids": _sent(positions, device)}
        logits = self.logits(model, ids, at, options | at_horizon(horizon))
        logits = logits.to(working_dtype(logits.dtype))
        return nn.functional.cross_entropy(logits, goals, reduction="sum") * scale, torch.zeros(0, device=device)

    def logits(self, model: nn.Module, ids: Tensor, at: Tensor, options: dict[str, Any]) -> Tensor:
        """The logits at these places, (places, vocabulary)."""
        found = model(input_ids=ids, use_cache=False, **options).logits
        return found[:, :-1].flatten(0, 1).index_select(0, at)

    def news(self, step: int, steps: int, loss: float, counted: list[float]) -> dict[str, float]:
        before, tokens = self.tokens(step - steps), self.tokens(step)
        then, self._then = self._then, time.monotonic()
        speed = (tokens - before) / max(self._then - then, 1e-9)
        return {"loss": loss, "lr": self.rate(step - 1), "tokens": tokens, "tokens_per_second": speed}

    def describe(self, news: dict[str, float]) -> str:
        return f"loss {news['loss']:.3f}, {news['tokens_per_second']:,.0f} tokens/s"


def packed(lengths: np.ndarray[Any, Any], limit: int) -> list[Pack]:
    """Rows in packs of at most `limit` tokens: the longest first, each into the fullest pack that has room for it.

    Examples:
        >>> packed(np.array([3, 8, 5, 2]), limit=10)
        [[1, 3], [2, 0]]
    """
    packs, rooms = list[Pack](), list[tuple[int, int]]()  # rooms: (free tokens, pack), in order
    for row in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[row])
        place = bisect_left(rooms, (length, 0))
        left, pack = rooms.pop(place) if place < len(rooms) else (limit, len(packs))
        if pack == len(packs):
            packs.append([])
        packs[pack].append(row)
        insort(rooms, (left - length, pack))
    return packs


def _lengths(examples: Sequence[Any]) -> np.ndarray[Any, Any]:
    table = getattr(examples, "data", None)
    if table is None:
        return np.array([len(row.input_ids) for row in examples])
    import pyarrow.compute as pc

    return np.asarray(pc.list_value_length(table.column("input_ids")))


def _sent(x: Tensor, device: torch.device) -> Tensor:
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
