"""TTC-Net as a Hugging Face model: tokens to hidden states. language.py and cells.py have the heads on top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from ttcnet.errors import fail

from .attention import Attending
from .blocks import Block, Recall
from .cache import MixerCache, check_loops_of_cache
from .configuration import TTCNetConfig
from .horizon_and_loops import check_loops
from .hub import card
from .masks import real_tokens, refuse_others, refuse_packing
from .pretrained import Conventions


class TTCNetPreTrainedModel(Conventions, PreTrainedModel):  # type: ignore[misc, unused-ignore]
    config_class = TTCNetConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def card(self) -> str:
        return card(self)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model as transformers does. If a configuration is given and the weights belong to another context, the
        error names both."""
        try:
            return super().from_pretrained(*args, **kwargs)
        except RuntimeError:  # weights do not fit
            config = kwargs.pop("config", None)
            if isinstance(config, TTCNetConfig):
                saved, _ = TTCNetConfig.get_config_dict(args[0], **kwargs)
                trained = saved.get("ttc_context", "head")
                if trained != config.ttc_context:
                    remedy = f"Pass a configuration with ttc_context={trained!r}, or none."
                    rule = f"must be {trained!r}, which the weights were trained with"
                    fail("ttc_context", rule, repr(config.ttc_context), remedy, "context")
            raise


class TTCNetModel(TTCNetPreTrainedModel):
    """Computes hidden states from tokens."""

    def __init__(self, config: TTCNetConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        if not config.causal:
            self.embed_positions = nn.Embedding(config.max_position_embeddings, width)
        if config.grid is not None:
            self.embed_grid = nn.Embedding(3 * config.grid, width)  # rows, columns, boxes
        blocks, first = [], 0
        for spec in config.blocks:
            blocks.append(Block(config, spec, first))
            first += 1 + len(spec.inserted)
        self.layers = nn.ModuleList(blocks)
        self.recall = Recall(config) if config.recall else None
        self.mixers = first  # entries of the cache for every loop
        self.norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator, unused-ignore]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        horizon: int | None = None,
        loops: int | None = None,
        output_hidden_states: bool | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states (batch, length, width).

        Args:
            input_ids: tokens (batch, length), or `inputs_embeds` instead.
            attention_mask: (batch, length), or longer by the tokens in the cache; 1 for real tokens, 0 for padding.
            past_key_values: the cache of an earlier call, whose tokens these follow; where the model mixes tokens by
                attention alone, any cache of transformers.
            use_cache: return such a cache.
            horizon: steps that TTC layers look ahead; None is the configuration's.
            loops: how many times the blocks are applied; None is the configuration's.
            output_hidden_states: also return the input of the first block and the output of every block, in every
                loop; a block that sits out a loop returns its input.
            position_ids: where tokens are in their sequences, (batch or 1, length). Several sequences in a row need a
                model that mixes tokens by attention alone.
            output_attentions: also return the weights of attention, in such a model, if `attn_implementation` is
                "eager".
        """
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        weighed = self.config.output_attentions if output_attentions is None else output_attentions
        weights: list[Any] | None = [] if weighed else None
        states, cache = self.run(
            input_ids, attention_mask, past_key_values, inputs_embeds, use_cache, horizon, loops, every=bool(wanted),
            position_ids=position_ids, weights=weights, **kwargs,
        )  # fmt: skip
        last = self.norm(states[-1])
        return BaseModelOutputWithPast(
            last_hidden_state=last,
            past_key_values=cache,
            hidden_states=(*states[:-1], last) if wanted else None,
            attentions=None if weights is None else tuple(weights),
        )

    def run(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        horizon: int | None = None,
        loops: int | None = None,
        every: bool = False,
        position_ids: Tensor | None = None,
        weights: list[Tensor] | None = None,
        state: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[list[Any], Cache | None]:
        """The output of the last block, before the norm (`every`: the input, and the output of each block in each
        loop), and the cache. Weights of attention are appended to `weights`. A `state` is the output of the last
        block of an earlier call: the loops continue from there."""
        refuse_others(kwargs, self.config.attends, weights)
        if (input_ids is None) == (inputs_embeds is None):
            remedy = "Pass input_ids alone."
            fail("input_ids", "or inputs_embeds must be given, one of them", "both or none", remedy, "missing")
        if input_ids is not None and input_ids.ndim != 2:
            remedy = "Pass input_ids.unsqueeze(0) for a single sequence."
            fail("input_ids", "must have shape (batch, length)", tuple(input_ids.shape), remedy, "shape")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        length = x.shape[1]
        if not self.config.causal:
            x = x + self._positions(length, x.device)
        embeddings = x
        if state is not None:
            x = self._continued(state, x)
        cache = self._cache(past_key_values, use_cache)
        mask, memory = None, cast(Any, cache)
        if self.config.attends:
            memory = Attending(self.config, x, attention_mask, position_ids, cache, weights)
        else:
            mask = real_tokens(attention_mask, *x.shape[:2])
            refuse_packing(position_ids, mask, "a mixer of this model")
        horizon = self.config.horizon if horizon is None else horizon
        loops = check_loops(self.config.loops if loops is None else loops)
        check_loops_of_cache(cache, loops)
        states: list[Any] = [x] if every else []
        for number in range(1, loops + 1):
            start = 0 if cache is None else (number - 1) * self.mixers
            block: Any
            if self.recall is not None and (number > 1 or state is not None):
                x = self.recall(x, embeddings)
            for block in self.layers:
                if number % block.every == 0:
                    active = tuple(number % each == 0 for each in block.each)
                    x = block(x, mask=mask, horizon=horizon, past_key_values=memory, start=start, active=active)
                if every:
                    states.append(x)
        if isinstance(cache, MixerCache):
            cache.seen += length
        return states or [x], cache

    def _continued(self, state: Tensor, embeddings: Tensor) -> Tensor:
        if self.recall is None:
            remedy = "Leave it out, or train a model with TTCNetConfig(recall=True)."
            fail("state", "needs a model whose loops recall the input", "recall=False", remedy, "conflict")
        if state.shape != embeddings.shape:
            rule = f"must have shape (batch, length, width) = {tuple(embeddings.shape)}"
            fail("state", rule, tuple(state.shape), "Pass the state of an earlier call on the same tokens.", "shape")
        return state

    def supervised(self, states: Sequence[Tensor]) -> Sequence[Tensor]:
        """The states, of those that `run` returns, that have a loss."""
        step = {"loop": len(self.layers), "end": len(states) - 1}.get(self.config.supervision, 1)
        return states[step::step]

    def _cache(self, given: Cache | None, use_cache: bool | None) -> Cache | None:
        ours = not self.config.attends
        if given is not None and (not isinstance(given, Cache) or isinstance(given, MixerCache) != ours):
            kind = "ttcnet.models.MixerCache" if ours else "cache of transformers"
            remedy = "Leave it out: the model makes its own and returns it."
            fail("past_key_values", f"must be a {kind}", type(given).__name__, remedy, "type")
        recomputing = self.training and any(block.gradient_checkpointing for block in self.layers)
        if recomputing and given is not None and given.get_seq_length():
            remedy = "Call model.eval(), or switch gradient check-pointing off."
            fail("past_key_values", "cannot be continued with gradient check-pointing", "a cache", remedy, "cache")
        wanted = self.config.use_cache and not self.training if use_cache is None else use_cache
        if recomputing or not self.config.causal:
            return None
        if wanted and given is None:
            return MixerCache() if ours else DynamicCache(config=self.config)
        return given

    def _positions(self, length: int, device: torch.device) -> Tensor:
        known = self.config.max_position_embeddings
        if length > known:
            remedy = "Configure more max_position_embeddings."
            fail("input_ids", f"must have at most {known} tokens", length, remedy, "too-long")
        place = torch.arange(length, device=device)
        positions = self.embed_positions(place)
        side = self.config.grid
        if side is not None:
            box = round(side**0.5)
            row, column = place // side, place % side
            for which, index in enumerate((row, column, row // box * box + column // box)):
                positions = positions + self.embed_grid(which * side + index)
        return positions
