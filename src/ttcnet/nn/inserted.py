"""A mixer in the place of a TTC layer; and the inserted layers of a model, of both kinds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import mixers
from .mixers import State
from .options import TTC
from .ttc import TTCLayer


class Inserted(nn.Module):
    """The branch mixer(norm(x)), with as many parameters as a TTC layer.

    Args:
        kind: of mixer, one of `mixers.KINDS`.
        like: the options of that TTC layer, width included.
        causal: tokens see the past alone.
        zero_init: start with all outputs at zero: for pretrained models.
        device: of the parameters; None is torch's default, "meta" takes no memory.
        dtype: of the parameters; None is torch's default.
        options: of the mixer. It has TTC's heads, and TTC's number of parameters, where they do not say otherwise.
    """

    def __init__(
        self,
        kind: str,
        like: dict[str, Any],
        *,
        causal: bool = True,
        zero_init: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        layer = TTCLayer(**like, device="meta")
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        options = {"heads": layer.heads, **options}
        if "inner" not in options:
            target = sum(parameter.numel() for parameter in layer.parameters())
            options = mixers.matched(kind, layer.width, target, causal=causal, **options)
        self.kind, self.zero_init = kind, zero_init
        self.norm = nn.RMSNorm(layer.width, eps=layer.norm.eps, **where)
        self.mixer = mixers.build(kind, layer.width, **{"causal": causal, **options}, **where)
        self.reset_outputs()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self.norm.reset_parameters()
        self.mixer.reset_parameters()
        self.reset_outputs()

    def reset_outputs(self) -> None:
        """Zero the last projections of the mixer, if it starts with an output of zero."""
        if self.zero_init:
            for name, module in self.mixer.named_modules():
                if name.rpartition(".")[2] == "out":
                    assert isinstance(module, nn.Linear)
                    nn.init.zeros_(module.weight)

    def forward(self, x: Tensor, mask: Tensor | None = None, state: State | None = None) -> Tensor:
        """The output that is added to x (batch, length, width). Mask and state are those of `Mixer.forward`."""
        return self.mixer(self.norm(x), mask=mask, state=state)


def inserted_layers(model: nn.Module) -> dict[str, TTCLayer | Inserted]:
    """The inserted layers of a model, or of a part of one, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, TTCLayer | Inserted)}


def inserted_kinds(model: nn.Module) -> set[str]:
    """The kinds of these layers: TTC, and names of mixers."""
    return {TTC if isinstance(layer, TTCLayer) else layer.kind for layer in inserted_layers(model).values()}


def inserted_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of these layers."""
    return [parameter for layer in inserted_layers(model).values() for parameter in layer.parameters()]
