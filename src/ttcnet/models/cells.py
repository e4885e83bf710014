"""TTC-Net that labels the cells of a board, as a Hugging Face model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput, can_return_tuple

from ttcnet.errors import fail

from .configuration import TTCNetConfig
from .modeling import TTCNetModel, TTCNetPreTrainedModel


@dataclass
class CellClassificationOutput(ModelOutput):  # type: ignore[misc, unused-ignore]
    """Args:
    loss: mean over masked cells and over all outputs that have a loss (see `TTCNetConfig.supervision`).
    logits: after the last block, (batch, cells, labels).
    block_logits: of all outputs that have a loss, such as every block's, (outputs, batch, cells, labels), where labels
        were given.
    hidden_states: the input of the first block and the output of every block, in every loop, where asked for.
    state: the output of the last block, from which another call can continue.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    block_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    state: Tensor | None = None


class TTCNetForCellClassification(TTCNetPreTrainedModel):
    """Labels the cells of a board, such as Sudoku, all at once. Where labels are given, the same classifier labels
    the output of every block, or of every loop, and each has a loss."""

    accepts_loss_kwargs = False  # the loss is a mean over this batch's cells

    def __init__(self, config: TTCNetConfig) -> None:
        super().__init__(config)
        if config.causal:
            fail("causal", "must be False, so that cells see each other", True, "Pass causal=False.", "conflict")
        self.model = TTCNetModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 2)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator, unused-ignore]
    def forward(
        self,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        horizon: int | None = None,
        loops: int | None = None,
        output_hidden_states: bool | None = None,
        use_cache: bool | None = None,
        state: Tensor | None = None,
        **kwargs: Any,
    ) -> CellClassificationOutput:
        """Logits (batch, cells, labels), and the loss if `labels` (batch, cells) are given, -100 for cells that do
        not count. With the `state` of an earlier call on the same boards, the loops continue where that one stopped;
        such a model needs `recall`. See TTCNetModel for the other arguments; there is no cache."""
        wanted = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        every = wanted or labels is not None
        states, _ = self.model.run(
            input_ids, attention_mask, None, inputs_embeds, False, horizon, loops, every, state=state, **kwargs
        )
        shown = tuple(states) if wanted else None
        if labels is None:
            logits = self.classifier(self.model.norm(states[-1]))
            return CellClassificationOutput(logits=logits, hidden_states=shown, state=states[-1])
        if labels.shape != states[-1].shape[:-1]:
            rule = f"must have shape (batch, cells) = {tuple(states[-1].shape[:-1])}"
            fail("labels", rule, tuple(labels.shape), "Pass one for every cell, -100 if it does not count.", "shape")
        every = self.classifier(self.model.norm(torch.stack(self.model.supervised(states))))
        flat = every.float().flatten(0, -2)
        counted = labels.expand(len(every), *labels.shape).flatten()
        total = F.cross_entropy(flat, counted, ignore_index=-100, reduction="sum")
        loss = total / (counted != -100).sum().clamp_min(1)  # a batch without masked cells costs nothing
        return CellClassificationOutput(
            loss=loss, logits=every[-1], block_logits=every, hidden_states=shown, state=states[-1]
        )
