"""The families of models that layers can be inserted into: a table, and the classes made of it.

Every family has a configuration (ttc_llama), a decoder layer (TTCLlamaDecoderLayer), a backbone (TTCLlamaModel) and a
language model (TTCLlamaForCausalLM), each a class of transformers with a mixin before it. The table says where in the
decoder layer the place between attention and MLP is:

    most       h = x + attention(input_layernorm(x));  INSERTED;  h + mlp(post_attention_layernorm(h))
    Gemma 3    has a norm at both ends of attention and of MLP: the sum with x comes after post_attention_layernorm,
               INSERTED follows it, and pre_feedforward_layernorm comes next
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ClassVar, NamedTuple

from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from ttcnet.bounds import check_size
from ttcnet.errors import fail
from ttcnet.models.configuration import check_labels
from ttcnet.models.pattern import TTC

from .config import TTCAdapterConfig
from .decoder import Backbone, Generator, LayerWithInserted, Norms, adapter_of

PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}  # attributes that a decoder layer must have

SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings",
)  # fmt: skip


class Family(NamedTuple):
    """The classes of transformers, ours by theirs, and the place of inserted layers."""

    name: str
    config: type[PreTrainedConfig]
    layer: type[nn.Module]
    backbone: type[nn.Module]
    generator: type[nn.Module]
    ours: dict[type, type]
    parts: set[str]


def _configuration(base: Any, name: str) -> Any:
    @strict
    class Configuration(base):  # type: ignore[misc]
        """The base model's configuration, and the inserted layers.

        Args:
            ttc_adapter: the fields of `TTCAdapterConfig`, but for the horizon.
            ttc_base: name and revision of the model that the layers were inserted into.
            horizon: steps that TTC layers look ahead.
        """

        model_type = f"ttc_{base.model_type}"
        auto_map: ClassVar[dict[str, str]] = {}  # no code comes with a model; TRL asks
        ttc_adapter: dict[str, Any] | None = None
        ttc_base: dict[str, Any] | None = None
        horizon: int = 8

        def __post_init__(self, **kwargs: Any) -> None:
            check_labels(kwargs)
            super().__post_init__(**kwargs)
            for field in SIZES:
                if (size := getattr(self, field, None)) is not None:
                    check_size(field, size, 1, "Fetch the model from elsewhere, or pass such a number.")
            if self.ttc_adapter is not None:  # written to the file: one without it was saved before contexts
                self.ttc_adapter = {**self.ttc_adapter, "context": adapter_of(self).context}
            else:
                adapter_of(self)

        @classmethod
        def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
            """Read a configuration as transformers does. One from before contexts could be chosen gets its context."""
            if adapter := config_dict.get("ttc_adapter"):
                whole = TTCAdapterConfig.from_dict(adapter, "The configuration")
                config_dict = config_dict | {"ttc_adapter": adapter | {"context": whole.context}}
            return super().from_dict(config_dict, **kwargs)

        @property
        def adapter(self) -> TTCAdapterConfig:
            """The inserted layers."""
            return adapter_of(self)

        @property
        def inserted(self) -> str:
            """The kind of the inserted layers: "ttc", or a mixer."""
            return (self.ttc_adapter or {}).get("insert", TTC)

    Configuration.__name__ = Configuration.__qualname__ = name
    return Configuration


def _with_horizon(kind: Any) -> Callable[..., Any]:
    """The forward of a language model with one more argument, which goes to the backbone with other keywords."""
    theirs = kind.forward

    @wraps(theirs)
    def forward(self: Any, *args: Any, horizon: int | None = None, **kwargs: Any) -> Any:
        return theirs(self, *args, **kwargs, **({} if horizon is None else {"horizon": horizon}))

    *known, others = signature(theirs).parameters.values()
    mine = Parameter("horizon", Parameter.KEYWORD_ONLY, default=None, annotation="int | None")
    forward.__signature__ = signature(theirs).replace(parameters=[*known, mine, others])  # type: ignore[attr-defined]
    return forward


def _family(module: Any, name: str, norms: Norms = Norms(), backbone: str = "Model") -> Family:  # noqa: B008
    """A family by its module in transformers: classes of ours for its classes."""
    layer, inner, outer = (getattr(module, name + kind) for kind in ("DecoderLayer", backbone, "ForCausalLM"))
    theirs = outer.config_class
    config = _configuration(theirs, f"TTC{theirs.__name__}")
    new_layer = type(f"TTC{layer.__name__}", (LayerWithInserted, layer), {"norms": norms, "__module__": __name__})
    ours: dict[type, type] = {theirs: config, layer: new_layer}
    for kind, mixin in ((inner, Backbone), (outer, Generator)):
        split = [*(kind._no_split_modules or []), new_layer.__name__]
        content = {"config_class": config, "ours": ours, "_no_split_modules": split, "__module__": __name__}
        bases: tuple[Any, ...] = (mixin, kind)
        if mixin is Generator:
            content["forward"] = _with_horizon(kind)
            bases = (mixin, kind, GenerationMixin)  # once more: transformers wants it among the bases themselves
        ours[kind] = type(f"TTC{kind.__name__}", bases, content)
        # instances that change their class do not pass the constructor that does this
        _CAN_RECORD_REGISTRY[str(ours[kind])] = ours[kind]._can_record_outputs  # type: ignore[attr-defined]
    globals().update({new.__name__: new for new in ours.values()})
    AutoConfig.register(config.model_type, config)
    AutoModel.register(config, ours[inner])
    AutoModelForCausalLM.register(config, ours[outer])
    extra = {part for part in norms if part is not None}
    return Family(name, theirs, layer, inner, outer, ours, PARTS | extra)


GEMMA = Norms("pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")
FAMILIES = [
    _family(modeling_llama, "Llama"),
    _family(modeling_mistral, "Mistral"),
    _family(modeling_qwen2, "Qwen2"),
    _family(modeling_qwen3, "Qwen3"),
    _family(modeling_gemma3, "Gemma3", GEMMA, "TextModel"),
]


def family_of(model: object) -> Family:
    """The family of a model, ours or the library's, or an error that lists the supported ones."""
    for family in FAMILIES:
        for kind in (family.backbone, family.generator):
            if type(model) in (kind, family.ours[kind]):
                return family
    supported = ", ".join(family.generator.__name__ for family in FAMILIES)
    remedy = f"Supported are {supported} of transformers, and the same without a head."
    if hasattr(model, "peft_config"):
        remedy = "Insert first, and let PEFT wrap the result."
    fail("model", "must be of a supported class, and not wrapped", type(model).__name__, remedy, "unsupported-model")
