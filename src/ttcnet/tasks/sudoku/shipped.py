"""The model that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ttcnet.extras import require

if TYPE_CHECKING:
    from ttcnet.models import TTCNetForCellClassification

FOLDER = Path(__file__).parent / "model"


def pretrained(device: torch.device | str = "cpu") -> TTCNetForCellClassification:
    """A trained TTC-Net for Sudoku, ready to use: its card, model/README.md beside this file, says how good it is.

    Examples:
        >>> from ttcnet.tasks import sudoku
        >>> model = sudoku.pretrained()
        >>> sudoku.solve(model, ["530070000600195000098000060800060003400803001700020006060000280000419005000080079"])
        ['534678912672195348198342567859761423426853791713924856961537284287419635345286179']
    """
    load_file = require("safetensors.torch", "models", "The Sudoku model").load_file
    require("transformers", "models", "The Sudoku model")
    from ttcnet.models import TTCNetConfig, TTCNetForCellClassification

    with torch.device("meta"):  # no weights are drawn, which would take time and the caller's random numbers
        model = TTCNetForCellClassification(TTCNetConfig.from_pretrained(FOLDER))
    weights = load_file(FOLDER / "model.safetensors")
    model.load_state_dict({name: x.float() for name, x in weights.items()}, assign=True)
    return nn.Module.to(model, device).eval()
