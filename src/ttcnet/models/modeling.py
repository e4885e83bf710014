"""TTC-Net as a Hugging Face model: blocks of mixer, TTC layer (in some) and MLP."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import ModelOutput

from ttcnet.lqr.checks import fail
from ttcnet.nn import TTCLayer, mixers
from ttcnet.nn.mixers import Mixer

from .cache import MixerCache
from .card import write_card
from .configuration import TTCNetConfig
from .pattern import TTC, BlockPlan


def ttc_layer(config: TTCNetConfig) -> TTCLayer:
    assert config.ttc_heads is not None
    return TTCLayer(
        config.hidden_size,
        heads=config.ttc_heads,
        state_size=config.ttc_state_size,
        rank=config.ttc_rank,
        horizon=config.horizon,
        time_homogeneous=config.ttc_time_homogeneous,
        eps=config.norm_eps,
    )


class Inserted(nn.Module):
    """A mixer in TTC's place: x + mixer(norm(x)), with as many parameters."""

    def __init__(self, config: TTCNetConfig, kind: str) -> None:
        super().__init__()
        options: dict[str, Any] = dict(heads=config.num_attention_heads, causal=config.causal)
        options |= (config.mixer_options or {}).get(f"+{kind}", {})
        if "inner" not in options:
            with torch.device("meta"):
                target = sum(parameter.numel() for parameter in ttc_layer(config).parameters())
            options = mixers.matched(kind, config.hidden_size, target, **options)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mixer = mixers.build(kind, config.hidden_size, **options)


class Block(GradientCheckpointingLayer):  # type: ignore[misc, unused-ignore]
    """x + mixer(norm(x)), then what is inserted, then x + mlp(norm(x))."""

    def __init__(self, config: TTCNetConfig, plan: BlockPlan, first: int) -> None:
        super().__init__()
        width, heads, eps = config.hidden_size, config.num_attention_heads, config.norm_eps
        options = (config.mixer_options or {}).get(plan.mixer, {})
        self.first = first  # the number of this block's first mixer in the cache
        self.dropout = config.dropout
        self.mixer_norm = nn.RMSNorm(width, eps=eps)
        self.mixer = mixers.build(plan.mixer, width, heads=heads, causal=config.causal, **options)
        self.inserted = nn.ModuleList(
            ttc_layer(config) if kind == TTC else Inserted(config, kind) for kind in plan.inserted
        )
        self.mlp_norm = nn.RMSNorm(width, eps=eps)
        self.mlp = mixers.build("mlp", width, heads=1, inner=config.intermediate_size)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        horizon: int | None = None,
        past_key_values: MixerCache | None = None,
    ) -> Tensor:
        x = self._add(x, self.mixer_norm, self.mixer, mask, past_key_values, self.first)
        for place, layer in enumerate(self.inserted, self.first + 1):
            if isinstance(layer, TTCLayer):
                x = x + self._drop(layer(x, horizon) - x) if self.dropout and self.training else layer(x, horizon)
            else:
                assert isinstance(layer, Inserted)
                x = self._add(x, layer.norm, layer.mixer, mask, past_key_values, place)
        return x + self._drop(self.mlp(self.mlp_norm(x)))

    def _add(
        self, x: Tensor, norm: nn.Module, mixer: Mixer, mask: Tensor | None, cache: MixerCache | None, place: int
    ) -> Tensor:
        state = None if cache is None else cache.state(place, mixer, x)
        return x + self._drop(mixer(norm(x), mask=mask, state=state))

    def _drop(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.dropout, self.training)


class TTCNetPreTrainedModel(PreTrainedModel):  # type: ignore[misc, unused-ignore]
    config_class = TTCNetConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _supports_sdpa = True

    def _initialize_weights(self, module: nn.Module, *_: Any) -> None:
        # transformers would skip modules without parameters of their own, since it takes models from elsewhere to
        # overwrite what was loaded; but torch's initialisers, as it patches them, pass over loaded weights
        super()._initialize_weights(module, False)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Mixer | TTCLayer):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As in transformers; also writes a model card where the folder has none."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            write_card(self, save_directory)


class TTCNetModel(TTCNetPreTrainedModel):
    """Tokens to hidden states."""

    def __init__(self, config: TTCNetConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        if not config.causal:
            self.embed_positions = nn.Embedding(config.max_position_embeddings, width)
        if config.grid is not None:
            self.embed_grid = nn.Embedding(3 * config.grid, width)  # rows, columns, boxes
        blocks, first = [], 0
        for plan in config.blocks:
            blocks.append(Block(config, plan, first))
            first += 1 + len(plan.inserted)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: MixerCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        horizon: int | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states (batch, length, width).

        Args:
            input_ids: tokens (batch, length), or `inputs_embeds` instead.
            attention_mask: (batch, length), or longer by the tokens in the cache; 1 for real tokens, 0 for padding.
            past_key_values: the cache of an earlier call, whose tokens these follow.
            use_cache: return such a cache.
            horizon: steps that TTC layers look ahead; None is the configuration's.
            output_hidden_states: also return what goes into the first block and comes out of every block.
        """
        if (input_ids is None) == (inputs_embeds is None):
            fail("input_ids", "or inputs_embeds must be given, one of them", "both or none", "Pass input_ids alone.")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        length = x.shape[1]
        if not self.config.causal:
            x = x + self._positions(length, x.device)
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        if use_cache and past_key_values is None and self.config.causal:
            past_key_values = MixerCache()
        mask = _real(attention_mask, length)
        states: list[Any] = [x]
        for block in self.layers:
            x = block(x, mask=mask, horizon=horizon, past_key_values=past_key_values)
            states.append(x)
        if past_key_values is not None:
            past_key_values.seen += length
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(x),
            past_key_values=past_key_values,
            hidden_states=tuple(states) if output_hidden_states else None,
        )

    def _positions(self, length: int, device: torch.device) -> Tensor:
        known = self.config.max_position_embeddings
        if length > known:
            fail("input_ids", f"must have at most {known} tokens", length, "Configure more max_position_embeddings.")
        place = torch.arange(length, device=device)
        positions = self.embed_positions(place)
        side = self.config.grid
        if side is not None:
            box = round(side**0.5)
            row, column = place // side, place % side
            for which, index in enumerate((row, column, row // box * box + column // box)):
                positions = positions + self.embed_grid(which * side + index % side)
        return positions


def _real(attention_mask: Tensor | None, length: int) -> Tensor | None:
    """Which of the last `length` tokens are real; None if all are, which is faster."""
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2 or attention_mask.shape[1] < length:
        rule = f"must have shape (batch, {length} or more)"
        fail("attention_mask", rule, tuple(attention_mask.shape), "Pass 1 for real tokens and 0 for padding.")
    mask = attention_mask[:, -length:].bool()
    if not torch.compiler.is_compiling() and bool(mask.all()):
        return None
    return mask


class TTCNetForCausalLM(TTCNetPreTrainedModel, GenerationMixin):  # type: ignore[misc, unused-ignore]
    """A language model. `generate(..., horizon=16)` plans further ahead."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: TTCNetConfig) -> None:
        super().__init__(config)
        if not config.causal:
            fail("causal", "must be True for a language model", False, "Pass causal=True.")
        self.model = TTCNetModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the model makes its own

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: MixerCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        horizon: int | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (batch, length, vocabulary), and the loss where `labels` are given: the tokens themselves, -100 where
        none is to be learned. See TTCNetModel for the other arguments."""
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            horizon=horizon,
            output_hidden_states=output_hidden_states,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )


@dataclass
class CellClassificationOutput(ModelOutput):  # type: ignore[misc, unused-ignore]
    """Args:
    loss: mean over all blocks, each judged by the same classifier.
    logits: after the last block, (batch, cells, labels).
    block_logits: after every block, (blocks, batch, cells, labels), where labels were given.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    block_logits: Tensor | None = None


class TTCNetForCellClassification(TTCNetPreTrainedModel):
    """Labels the cells of a board, such as Sudoku, all at once. In training the classifier looks at every block."""

    def __init__(self, config: TTCNetConfig) -> None:
        super().__init__(config)
        if config.causal:
            fail("causal", "must be False, so that cells see each other", True, "Pass causal=False.")
        self.model = TTCNetModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 2)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        horizon: int | None = None,
        **kwargs: Any,
    ) -> CellClassificationOutput:
        """Logits (batch, cells, labels), and the loss where `labels` (batch, cells) are given, -100 where a cell does
        not count. See TTCNetModel for the other arguments."""
        deep = labels is not None
        outputs = self.model(input_ids, horizon=horizon, output_hidden_states=deep, use_cache=False, **kwargs)
        if labels is None:
            return CellClassificationOutput(logits=self.classifier(outputs.last_hidden_state))
        every = self.classifier(self.model.norm(torch.stack(outputs.hidden_states[1:])))
        flat = every.float().flatten(0, -2)
        loss = F.cross_entropy(flat, labels.expand(len(every), *labels.shape).flatten(), ignore_index=-100)
        return CellClassificationOutput(loss=loss, logits=every[-1], block_logits=every)
