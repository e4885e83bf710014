"""Models with TTC layers, as other libraries load them: their adapter and their horizon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open

import ttcnet.adapter
from ttcnet.errors import fail
from ttcnet.extras import require
from ttcnet.models.depth import horizon_of, set_horizon
from ttcnet.names import ADAPTER, LONGEST, PEFT, WEIGHTS, reason
from ttcnet.nn import ttc_layers


def with_adapter(model: Any, folder: str | Path) -> Any:
    """A base model with what an adapter's folder holds: inserted layers, what PEFT trained, or both."""
    peft = (Path(folder) / PEFT).is_file()
    if (Path(folder) / ADAPTER).is_file() or not peft:
        ttcnet.adapter.load(model, folder)
    if peft:
        model = _with_peft(model, Path(folder))
    return model


def _with_peft(model: Any, folder: Path) -> Any:
    peft = require("peft", "sft", "LoRA")
    rule, remedy = "must hold what PEFT has written for this model", "Fetch or save it again."
    try:
        wrapped = peft.PeftModel.from_pretrained(model, folder)
        expected = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
        with safe_open(folder / WEIGHTS, "pt") as file:
            missing = sorted(expected.keys() - set(file.keys()))
    except Exception as error:  # PEFT takes what is in the files for what it has written, and raises anything
        fail("adapter", rule, f"{str(folder)!r}: {reason(error)}", remedy, "no-model")
    if missing:  # which PEFT leaves as they start
        fail("adapter", rule, f"{str(folder)!r}, which has no {', '.join(missing)[:LONGEST]}", remedy, "no-model")
    return wrapped.get_base_model()


def look_ahead(model: Any, steps: int | None) -> None:
    """Have TTC layers look `steps` ahead from now on; None leaves them as they are."""
    if steps is None:
        return
    if not ttc_layers(model):
        remedy = "Leave it out, or name an adapter."
        fail("horizon", "needs a model with TTC layers", type(model).__name__, remedy, "no-layers")
    set_horizon(model, steps)


@contextmanager
def horizon(model: Any, steps: int | None) -> Iterator[None]:
    """`look_ahead` for the time of a `with` block."""
    before = horizon_of(model)
    look_ahead(model, steps)
    try:
        yield
    finally:
        look_ahead(model, before)
