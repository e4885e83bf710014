"""Small base models of every family, and adapters for them."""

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import ttcnet.adapter as adapter
from ttcnet.adapter.enable_freeze import inserted_of

SIZES = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=0.3,  # so that texts are not all alike
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
FAMILIES = {
    "llama": lambda **more: LlamaForCausalLM(LlamaConfig(**SIZES | more)),
    "mistral": lambda **more: MistralForCausalLM(MistralConfig(**SIZES | dict(sliding_window=6) | more)),
    "qwen2": lambda **more: Qwen2ForCausalLM(Qwen2Config(**SIZES | more)),
    "qwen3": lambda **more: Qwen3ForCausalLM(Qwen3Config(**SIZES | dict(head_dim=8) | more)),
    "gemma3": lambda **more: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SIZES
            | dict(head_dim=8, sliding_window=6, query_pre_attn_scalar=8)
            | dict(layer_types=["sliding_attention", "full_attention"] * 2)
            | more
        )
    ),
}
BASELINES = ["mlp", "attention", "retnet", "mamba", "gdn", "mesanet"]


def base(family="llama", **more):
    torch.manual_seed(0)
    return FAMILIES[family](**more).eval()


def config(**changes):
    return adapter.TTCAdapterConfig(**dict(every=2, heads=2, state_size=8, rank=4) | changes)


def awake(family="llama", **changes):
    """A model whose insertions have something to say."""
    return wake(adapter.insert(base(family), config(**changes)))


def wake(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for insertion in inserted_of(model):
            for name, parameter in insertion.named_parameters():
                if name.endswith("out.weight"):
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def tokens(rows=2, length=9):
    return torch.randint(3, 61, (rows, length), generator=torch.Generator().manual_seed(0))
