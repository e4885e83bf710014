"""The card of a model, and its way to the Hub."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import HfApi

from ttcnet import __version__
from ttcnet.storage.writing import write_text

if TYPE_CHECKING:
    from .modeling import TTCNetPreTrainedModel

HUB_OPTIONS = ("repo_id", "commit_message", "private", "token", "revision", "create_pr")


def write_card(text: str, folder: str | os.PathLike[str]) -> None:
    """Write README.md into the folder, unless it has one."""
    if not (Path(folder) / "README.md").exists():
        write_text(Path(folder) / "README.md", text)


def card(model: TTCNetPreTrainedModel) -> str:
    config, name = model.config, type(model).__name__
    blocks = [" + ".join(spec.layer_names) for spec in config.blocks]
    runs = ", ".join(f"{len(list(run))} x {kind}" for kind, run in groupby(blocks))
    loops, knob = (f", applied {config.loops} times", ", and so is `loops`") if config.loops > 1 else ("", "")
    parameters = f"{sum(parameter.numel() for parameter in model.parameters()):,}"
    tasks = {"TTCNetForCausalLM": "text-generation", "TTCNetForCellClassification": "token-classification"}
    return f"""---
library_name: transformers
pipeline_tag: {tasks.get(name, "feature-extraction")}
tags:
- ttcnet
- test-time-control
---

# A TTC-Net

{parameters} parameters, {config.num_hidden_layers} blocks of width {config.hidden_size} ({runs}){loops}. TTC layers
plan {config.horizon} steps ahead unless a call says otherwise: `horizon` is free to change at test time{knob}.

```python
from ttcnet.models import {name}

model = {name}.from_pretrained("...")
```

Made with ttcnet {__version__}, after "Beyond Test-Time Memory: State-Space Optimal Control for LLM Reasoning".

## Training data, results, limits

To be written by whoever trained it.
"""


def upload(
    folder: str | os.PathLike[str],
    repo_id: str,
    commit_message: str | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
) -> str:
    """Upload a folder. Returns its address."""
    api = HfApi(token=token)
    repository = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    message = commit_message or "Upload TTC-Net"
    done = api.upload_folder(
        repo_id=repository, folder_path=Path(folder), commit_message=message, revision=revision, create_pr=create_pr
    )
    return str(done)
