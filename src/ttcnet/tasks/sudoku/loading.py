"""The model and the device that a command names, checked before anything is done."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ttcnet.console import say
from ttcnet.errors import fail
from ttcnet.extras import require
from ttcnet.options import usable

if TYPE_CHECKING:
    from ttcnet.models import TTCNetForCellClassification


def load(folder: Path | None, device: str) -> TTCNetForCellClassification:
    """The model in a folder, or the shipped one."""
    say("Loading the model ...", err=True)
    if folder is not None:
        _check_model(folder)
    require("transformers", "models", "ttcnet sudoku")
    place = usable(device)
    import torch
    from safetensors import SafetensorError
    from torch import nn

    from ttcnet.models import TTCNetForCellClassification

    from .shipped import pretrained

    if folder is None:
        return pretrained(place)
    try:
        model = TTCNetForCellClassification.from_pretrained(folder, dtype=torch.float32)
    except (SafetensorError, RuntimeError) as error:
        rule = "must hold whole weights that fit its config.json"
        fail("model", rule, f"{folder}: {error}", "Train it, or fetch it, again.")
    return nn.Module.to(model, place).eval()


def _check_model(folder: Path) -> None:
    rule, remedy = "must be the folder of a Sudoku model", "Pass the folder that `ttcnet sudoku train` named."
    if (folder / "model" / "config.json").is_file():
        fail("model", rule, f"{folder}, the folder of a run", f"Pass {folder / 'model'}.")
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            fail("model", rule, f"{folder}, which has no {name}", remedy, FileNotFoundError)
    with suppress(ValueError, KeyError, TypeError):
        if json.loads((folder / "config.json").read_text())["architectures"] == ["TTCNetForCellClassification"]:
            return
    fail("model", rule, f"{folder}, whose config.json is of none", remedy)
