"""Mixins that turn the decoder layers and models of transformers into ones with inserted layers.

Each is named before a class of transformers among the bases of ours; see `families`.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ttcnet.errors import fail
from ttcnet.lqr.checks import horizon as check_horizon
from ttcnet.models.masks import real_tokens, refuse_packing
from ttcnet.models.pretrained import Conventions
from ttcnet.nn.inserted import inserted_layers
from ttcnet.nn.options import TTC

from .card import whole_card
from .config import FORGETFUL, TTCAdapterConfig
from .in_place import build_layers, put_layers
from .inserted_layers import InsertedLayers
from .origin import Origin, is_adapter

LAYERS = "layers."  # in the names of weights of all decoder layers


class Norms(NamedTuple):
    """The norms of a decoder layer around the place of the inserted layers, by name; all families call the first
    input_layernorm."""

    before_mlp: str = "post_attention_layernorm"
    after_attention: str | None = None
    after_mlp: str | None = None


class LayerWithInserted:
    """A decoder layer: attention, then the inserted layers, then MLP."""

    norms: ClassVar[Norms]
    enabled = True
    inserted: InsertedLayers

    def forward(
        self, hidden_states: Tensor, token_mask: Tensor | None = None, horizon: int | None = None, **kwargs: Any
    ) -> Tensor:
        if not self.enabled:
            return super().forward(hidden_states, **kwargs)  # type: ignore[misc]
        attention: Any = self.self_attn  # type: ignore[attr-defined]
        x, _ = attention(hidden_states=self._norm("input_layernorm", hidden_states), **kwargs)
        x = hidden_states + self._norm(self.norms.after_attention, x)
        x = self.inserted(x, horizon, token_mask, kwargs.get("past_key_values"))
        y = self.mlp(self._norm(self.norms.before_mlp, x))  # type: ignore[attr-defined]
        return x + self._norm(self.norms.after_mlp, y)

    def _norm(self, name: str | None, x: Tensor) -> Tensor:
        return x if name is None else getattr(self, name)(x)


class ModelWithInserted(Conventions):
    """A model with such layers, with or without a head."""

    ours: ClassVar[dict[type, type]]  # the classes of this family, by the library's

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        refuse_paging(config)
        super().__init__(config, *args, **kwargs)
        put_layers(self, build_layers(self, config.adapter), self.ours)
        self.base_model.uses_cache = self.uses_cache  # type: ignore[attr-defined]

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """Load a model as transformers does, with two differences. Missing weights are an error, where transformers
        makes them up; they may be missing if the files are a base model's and all inserted layers are new, or if the
        report is asked for (`output_loading_info`). And the folder of an adapter is loaded together with its base."""
        name = pretrained_model_name_or_path
        if is_adapter(name):
            from .storage import load_with_base

            return load_with_base(cls, name, **kwargs)
        model, report = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        inserted = {f"{place}.{key}" for place, layer in inserted_layers(model).items() for key in layer.state_dict()}
        missing = [] if inserted <= report["missing_keys"] else sorted(report["missing_keys"])
        extra = sorted(key for key in report["unexpected_keys"] if LAYERS in key)
        if (missing or extra) and not output_loading_info:
            value = f"missing {missing}, extra {extra}"
            fail(str(name), "must have all weights and no others", value, "Fetch or save it again.", "weights")
        return (model, report) if output_loading_info else model

    def card(self) -> str:
        return whole_card(self)


class Backbone(Origin, ModelWithInserted):
    """The model without a head: tells mixers which tokens are real."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        token_mask: Tensor | None = None,
        horizon: int | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.config.inserted == TTC:
            kwargs["horizon"] = self.config.horizon if horizon is None else check_horizon(horizon)
        elif horizon is not None:
            remedy = "Leave it out, or insert TTC layers."
            fail("horizon", "needs TTC layers", f"{horizon} for {self.config.inserted}", remedy, "no-layers")
        self.check_origin()
        given: dict[str, Any] = dict(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
        )
        tokens = input_ids if inputs_embeds is None else inputs_embeds
        if tokens is not None and self.config.inserted not in FORGETFUL and self._any_enabled():
            mask = attention_mask if token_mask is None else token_mask
            kwargs["token_mask"] = real_tokens(mask, tokens.shape[0], tokens.shape[1])
            packed = kwargs.get("cu_seq_lens_q") is not None
            refuse_packing(position_ids, kwargs["token_mask"], self.config.inserted, packed)
            refuse_paging(self.config)
        return super().forward(**given, **kwargs)  # type: ignore[misc]

    def _any_enabled(self) -> bool:
        return any(getattr(layer, "enabled", False) for layer in self.layers)


class Generator(ModelWithInserted):
    """The model with a language model's head."""

    def generate(self, inputs: Any = None, generation_config: Any = None, **options: Any) -> Any:
        """Generate as transformers does. If the `generation_config` names a horizon, as a request to a server may,
        layers plan at that horizon."""
        steps = getattr(generation_config, "horizon", None)
        if steps is not None:  # transformers would take it for an option of its own, which never reaches the model
            generation_config = copy.deepcopy(generation_config)
            del generation_config.horizon
            options.setdefault("horizon", steps)
        return super().generate(inputs, generation_config, **options)  # type: ignore[misc]

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Any = None,
        attention_mask: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids, next_sequence_length, past_key_values, attention_mask, inputs_embeds, **kwargs
        )
        if self.config.inserted not in FORGETFUL:
            # where the cache is static, transformers turns the mask into one that only attention can read
            tokens = inputs["input_ids"] if inputs.get("inputs_embeds") is None else inputs["inputs_embeds"]
            batch, length = tokens.shape[:2]
            if attention_mask is None:
                inputs["token_mask"] = torch.ones(batch, length, dtype=torch.bool, device=tokens.device)
            elif attention_mask.ndim == 2:
                inputs["token_mask"] = attention_mask[:, -length:].to(tokens.device).bool()
        return inputs


def refuse_paging(config: Any) -> None:
    """Paged attention, vLLM's or transformers' own, has no place for the states of mixers."""
    attention = str(config._attn_implementation)
    if config.inserted not in FORGETFUL and (attention.startswith("paged") or attention == "vllm"):
        kind = config.inserted
        remedy = f"A model with {kind} is served by transformers only, with eager, sdpa or flash attention."
        fail("attn_implementation", f"must keep a cache that {kind} can join", repr(attention), remedy, "stateful")


def adapter_of(config: Any) -> TTCAdapterConfig:
    """The adapter that a ttc_* configuration describes."""
    return TTCAdapterConfig.from_dict({**(config.ttc_adapter or {}), "horizon": config.horizon})
