"""Mixers: attention, recurrences and MLPs. They mix the tokens of a block, and are the baselines of TTC.

    mixer = build("gdn", 128, heads=4)                    # one signature for all KINDS; options by name
    y = mixer(x, mask=mask)                               # (batch, length, width) to the same shape
    state = mixer.new_state(batch=2)                      # generation: prompt first, then token by token
    y = mixer(prompt, state=state); y = mixer(token, state=state)

    parameters("gdn", 128, heads=4)                       # how many
    options = matched("gdn", 128, 32_768, heads=4)        # the `inner` that comes closest to a number of parameters
    build("gdn", 128, **options)

All are plain PyTorch, parallel over the tokens in training, and equal to their token-by-token definitions; the scan of
Mamba has kernels for a GPU besides, see `selective.py`. With causal=False they see all tokens; see `Mixer`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from ttcnet.errors import check_integer, fail

from .attention import Attention, KeysAndValues
from .base import Memory, Mixer, State
from .delta import GatedDeltaNet
from .mamba import Mamba
from .mamba2 import Mamba2
from .mesa import MesaNet
from .mlp import MLP
from .retention import RetNet
from .samba import Samba, SambaState

KINDS: dict[str, type[Mixer]] = {
    "attention": Attention,
    "mlp": MLP,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "gdn": GatedDeltaNet,
    "retnet": RetNet,
    "mesanet": MesaNet,
    "samba": Samba,
}


def build(
    kind: str,
    width: int,
    *,
    heads: int,
    causal: bool = True,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Mixer:
    """A mixer by its name in KINDS. Options are those of its class.

    Its parameters are on `device` and of `dtype`, those that torch has by default where these are None.
    """
    with nullcontext() if device is None else torch.device(device):
        mixer = _class(kind)(width, heads=heads, causal=causal, **options)
    return mixer if dtype is None else mixer.to(dtype)


def parameters(kind: str, width: int, *, heads: int, causal: bool = True, **options: Any) -> int:
    """The number of parameters of `build(...)`, without memory for any."""
    mixer = build(kind, width, heads=heads, causal=causal, device="meta", **options)
    return sum(parameter.numel() for parameter in mixer.parameters())


def matched(
    kind: str, width: int, target: int, *, heads: int, causal: bool = True, tolerance: float = 0.02, **options: Any
) -> dict[str, Any]:
    """Options for `build(kind, width, **...)` with `inner` such that it has about `target` parameters.

    Heads whose size is a multiple of 8, or else of 4 or 2, run faster: the roundest size within `tolerance` of the
    target is taken, and the closest of all if there is none. Further than 10 % off is an error.
    """
    check_integer("target", target, 1, "Pass a number of parameters.")
    unit = _class(kind).unit(heads)

    def count(inner: int) -> int:
        return parameters(kind, width, heads=heads, causal=causal, inner=inner, **options)

    def closest(step: int) -> int:
        above = 1  # the count grows with inner: double until it is enough, then halve the interval
        while count(above * step) < target:
            above *= 2
        below = above // 2
        while above - below > 1:
            middle = (above + below) // 2
            above, below = (above, middle) if count(middle * step) < target else (middle, below)
        return step * min((above, below or above), key=lambda factor: abs(count(factor * step) - target))

    for multiple in (8, 4, 2, 1):
        inner = closest(multiple * unit)
        if abs(count(inner) - target) <= tolerance * target:
            break
    if abs(count(inner) - target) > 0.1 * target:
        rule = f"cannot be met within 10 % by {kind} of width {width} with {heads} heads: the closest is {count(inner)}"
        remedy = "Change the number of heads, or another option such as state_size."
        fail("target", rule, target, remedy, "out-of-range")
    return {"heads": heads, "causal": causal, "inner": inner, **options}


def _class(kind: str) -> type[Mixer]:
    if kind not in KINDS:
        fail("kind", f"must be one of {', '.join(KINDS)}", repr(kind), "Pick one of them.", "unknown-name")
    return KINDS[kind]


__all__ = [
    "KINDS",
    "MLP",
    "Attention",
    "GatedDeltaNet",
    "KeysAndValues",
    "Mamba",
    "Mamba2",
    "Memory",
    "MesaNet",
    "Mixer",
    "RetNet",
    "Samba",
    "SambaState",
    "State",
    "build",
    "matched",
    "parameters",
]
