"""Serving with vLLM, which finds `register` through the entry point in pyproject.toml.

vLLM has a back end that serves models of transformers: it takes the decoder as AutoModel makes it, puts its own linear
layers, norms and paged attention in place of the library's, and loads the weights by name. TTC layers work on one
token at a time, so paging does not affect them. The back end needs one thing of them: that they call linear layers, not
to read their weights, which it may pack or quantise, and to read nothing but the weight of a norm.

Importing this module registers the model types ttc_llama and so on with transformers, as `ttcnet.adapter` does.
"""

from __future__ import annotations

from .families import FAMILIES

BACKEND = "vllm.model_executor.models.transformers:TransformersForCausalLM"


def register() -> None:
    """Tell vLLM which of its classes serves our models. Called in each of its processes; imports no model of vLLM."""
    from vllm import ModelRegistry

    for family in FAMILIES:
        ModelRegistry.register_model(family.ours[family.generator].__name__, BACKEND)
