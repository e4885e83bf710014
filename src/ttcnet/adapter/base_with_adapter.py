"""A base model with the adapter in a folder: inserted layers, LoRA weights of PEFT, or both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import safe_open

from ttcnet.errors import fail
from ttcnet.extras import require
from ttcnet.model_names import ADAPTER, LONGEST, PEFT, WEIGHTS, reason

from .storage import load


def with_adapter(model: Any, folder: str | Path) -> Any:
    """A base model with the adapter in a folder, for use."""
    wrapped = to_train(model, folder)
    return wrapped.get_base_model() if has_lora(folder) else wrapped


def has_lora(folder: str | Path) -> bool:
    """Whether an adapter has LoRA weights."""
    return (Path(folder) / PEFT).is_file()


def to_train(model: Any, folder: str | Path) -> Any:
    """A base model with the adapter in a folder, in PEFT's wrapper if there is LoRA, which is trainable then."""
    if (Path(folder) / ADAPTER).is_file() or not has_lora(folder):
        load(model, folder)
    return _with_peft(model, Path(folder)) if has_lora(folder) else model


def _with_peft(model: Any, folder: Path) -> Any:
    peft = require("peft", "sft", "LoRA")
    rule, remedy = "must hold files that PEFT has written for this model", "Fetch or save it again."
    try:
        wrapped = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
        expected = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
        with safe_open(folder / WEIGHTS, "pt") as file:
            missing = sorted(expected.keys() - set(file.keys()))
    except Exception as error:  # PEFT trusts the files to be its own, and may raise anything
        fail("adapter", rule, f"{str(folder)!r}: {reason(error)}", remedy, "no-model")
    if missing:  # which PEFT leaves as they start
        fail("adapter", rule, f"{str(folder)!r}, which has no {', '.join(missing)[:LONGEST]}", remedy, "no-model")
    return wrapped
