"""TTC layers, and the baselines of the paper, inside pretrained language models of transformers.

    model = insert(model, TTCAdapterConfig(every=8))     # changed in place; computes the same as before
    freeze_base(model)                                   # train the inserted layers alone; or train_all(model)
    set_horizon(model, 16)                               # plan further; with horizon(model, 16): for a while
    save(model, folder); load(base_model, folder)        # the adapter alone; model.save_pretrained(folder) for all
    disable(model); enable(model); remove(model)         # with disabled(model): for a while

Importing this registers the model types ttc_llama, ttc_mistral, ttc_qwen2, ttc_qwen3 and ttc_gemma3_text with
transformers' Auto classes.
"""

from ttcnet.extras import require

require("transformers", "models", "ttcnet.adapter")

from ttcnet.models.horizon_and_loops import horizon, set_horizon  # noqa: E402

from .config import TTCAdapterConfig  # noqa: E402
from .enable_freeze import (  # noqa: E402
    disable,
    disabled,
    enable,
    freeze_base,
    parameters,
    train_all,
)
from .insert_remove import insert, remove  # noqa: E402
from .storage import load, save  # noqa: E402

__all__ = [
    "TTCAdapterConfig",
    "disable",
    "disabled",
    "enable",
    "freeze_base",
    "horizon",
    "insert",
    "load",
    "parameters",
    "remove",
    "save",
    "set_horizon",
    "train_all",
]
