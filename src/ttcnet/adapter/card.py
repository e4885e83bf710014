"""Model cards, for whole models and for adapters alone."""

from __future__ import annotations

from typing import Any

from ttcnet import __version__
from ttcnet.models.pattern import TTC

from .config import TTCAdapterConfig


def whole_card(model: Any) -> str:
    """The card of a model with the inserted layers."""
    use = """from transformers import AutoModelForCausalLM
import ttcnet.adapter

model = AutoModelForCausalLM.from_pretrained("...")"""
    return card(model.config.adapter, model.config.num_hidden_layers, model.config.ttc_base or {}, use)


def adapter_card(config: TTCAdapterConfig, layers: int, base: dict[str, Any]) -> str:
    """The card of the inserted layers alone."""
    use = f"""from transformers import AutoModelForCausalLM
import ttcnet.adapter as adapter

base = AutoModelForCausalLM.from_pretrained("{base.get("name") or "..."}")
model = adapter.load(base, "...")"""
    return card(config, layers, base, use)


def card(config: TTCAdapterConfig, layers: int, base: dict[str, Any], use: str) -> str:
    name = base.get("name")
    of = f" of {name}" if name else ""
    planning = f" They plan {config.horizon} steps ahead unless told otherwise." if config.insert == TTC else ""
    places = ", ".join(str(index) for index in config.places(layers))
    return f"""---
library_name: transformers
pipeline_tag: text-generation
{f"base_model: {name}" if name else "# base_model: unknown"}
tags:
- ttcnet
- test-time-control
---

# A language model that plans

{config.insert} layers between attention and MLP{of}, in decoder layers {places}, counted from 0.{planning}

```python
{use}
```

Made with ttcnet {__version__}, after "Beyond Test-Time Memory: State-Space Optimal Control for LLM Reasoning".

## Training data, results, limits

To be written by whoever trained it.
"""
