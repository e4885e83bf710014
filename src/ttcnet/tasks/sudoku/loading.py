"""The model and the device that a command names, checked before anything is done."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttcnet.command_options import usable
from ttcnet.errors import fail
from ttcnet.extras import require
from ttcnet.model_names import LONGEST, reason
from ttcnet.storage.special import check_regular_files
from ttcnet.terminal.console import say

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
    from torch import nn

    from ttcnet.models import TTCNetForCellClassification

    from .shipped import pretrained

    if folder is None:
        return pretrained(place)
    rule, remedy = "must hold whole weights that fit its config.json", "Train it, or fetch it, again."
    try:
        found: Any = TTCNetForCellClassification.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    except Exception as error:  # transformers trusts the files to be its own, and may raise anything
        fail("model", rule, f"{folder}: {reason(error)}", remedy, "no-model")
    model, report = found
    if missing := sorted(report["missing_keys"]):  # which transformers has made up
        fail("model", rule, f"{folder}, which has no {', '.join(missing)[:LONGEST]}", remedy, "no-model")
    if extra := sorted(report["unexpected_keys"]):  # which transformers has left out
        value = f"{folder}, whose config.json has no place for {', '.join(extra)[:LONGEST]}"
        fail("model", rule, value, remedy, "no-model")
    if not _is_sudoku(model):
        value = f"{folder}, whose config.json is for other boards"
        fail("model", rule, value, "Pass the folder that `ttcnet sudoku train` named.", "no-model")
    return nn.Module.to(model, place).eval()


def _is_sudoku(model: TTCNetForCellClassification) -> bool:
    """Whether it reads 81 cells with digits and blanks, and says 9 digits."""
    config = model.config
    return config.vocab_size >= 10 and config.max_position_embeddings >= 81 and config.num_labels == 9


def _check_model(folder: Path) -> None:
    rule, remedy = "must be the folder of a Sudoku model", "Pass the folder that `ttcnet sudoku train` named."
    if (folder / "model" / "config.json").is_file():
        fail("model", rule, f"{folder}, the folder of a run", f"Pass {folder / 'model'}.", "no-model")
    check_regular_files("model", folder)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            fail("model", rule, f"{folder}, which has no {name}", remedy, "not-found")
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        if json.loads((folder / "config.json").read_text())["architectures"] == ["TTCNetForCellClassification"]:
            return
    fail("model", rule, f"{folder}, whose config.json is of none", remedy, "no-model")
