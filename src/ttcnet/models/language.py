"""TTC-Net as a language model of Hugging Face."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from ttcnet.errors import fail

from .cache import MixerCache, check_generation
from .configuration import TTCNetConfig
from .modeling import TTCNetModel, TTCNetPreTrainedModel


class TTCNetForCausalLM(TTCNetPreTrainedModel, GenerationMixin):  # type: ignore[misc, unused-ignore]
    """A language model. `generate(..., horizon=16)` plans further ahead."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: TTCNetConfig) -> None:
        super().__init__(config)
        if not config.causal:
            fail("causal", "must be True for a language model", False, "Pass causal=True.", "conflict")
        self.model = TTCNetModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], generation_mode: Any, *sizes: Any
    ) -> Any:
        if self.config.attends:
            theirs: Any = super()
            return theirs._prepare_cache_for_generation(generation_config, model_kwargs, generation_mode, *sizes)
        check_generation(generation_config, generation_mode)
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = MixerCache()
        return None

    @can_return_tuple  # type: ignore[untyped-decorator, unused-ignore]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        horizon: int | None = None,
        loops: int | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        position_ids: Tensor | None = None,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (batch, length, vocabulary), and the loss where `labels` are given: the tokens themselves, -100 where
        none is to be learned; `shift_labels` are those moved to the tokens before them, in place of `labels`. See
        TTCNetModel for the other arguments."""
        wanted = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        learning = labels is not None or shift_labels is not None
        deep = learning and self.config.supervision in ("block", "loop")
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            horizon=horizon,
            loops=loops,
            output_hidden_states=wanted or deep,
            position_ids=position_ids,
            **kwargs,
        )
        places = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, places])
        loss = None
        if learning:
            items = kwargs.get("num_items_in_batch")
            options = dict(labels=labels, shift_labels=shift_labels, vocab_size=self.config.vocab_size)
            options["num_items_in_batch"] = items
            loss = self.loss_function(logits=logits, **options)
            if deep:
                earlier = self.model.supervised(outputs.hidden_states)[:-1]  # the last one is outputs.last_hidden_state
                losses = [self.loss_function(logits=self.lm_head(self.model.norm(x)), **options) for x in earlier]
                loss = torch.stack([*losses, loss]).mean()
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states if wanted else None,
            attentions=outputs.attentions,
        )
