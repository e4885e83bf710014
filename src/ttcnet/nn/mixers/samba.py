"""Samba: Mamba for the long run, then attention through a sliding window for the short one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attention import Attention, KeysAndValues
from .base import Memory, Mixer, State, rms_norm
from .mamba import Mamba


@dataclass
class SambaState(State):
    """The states of the two halves."""

    mamba: Memory
    attention: KeysAndValues


class Samba(Mixer):
    """m = Mamba(x), then m + Attention(norm(x + m)) through a window.

    `inner` is the number of channels of Mamba; the heads of the attention together are half as wide, as near as their
    number allows. By default it is the width, so that both are half of their usual size and the pair weighs as much as
    one of the other mixers.

    Args:
        window: how many tokens attention sees, the token itself included.
        rotary: of the attention.
        qk_norm: of the attention.
        state_size: of Mamba.
        kernel: of Mamba.
        rank: of Mamba.
    """

    per_head = False
    remembers = SambaState

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        causal: bool = True,
        inner: int | None = None,
        window: int = 2048,
        rotary: bool | None = None,
        qk_norm: bool = False,
        state_size: int = 16,
        kernel: int = 4,
        rank: int | None = None,
    ) -> None:
        super().__init__(width, heads=heads, causal=causal, inner=inner)
        one, two = self.inner, max(1, round(self.inner / (2 * heads))) * heads
        self.mamba = Mamba(
            width, heads=heads, causal=causal, inner=one, state_size=state_size, kernel=kernel, rank=rank
        )
        self.norm = nn.Parameter(torch.empty(width))
        self.attention = Attention(
            width, heads=heads, causal=causal, inner=two, window=window, rotary=rotary, qk_norm=qk_norm
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.mamba.reset_parameters()
        nn.init.ones_(self.norm)
        self.attention.reset_parameters()

    def _new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> SambaState:
        one, two = self.mamba._new_state(batch, device, dtype), self.attention._new_state(batch, device, dtype)
        return SambaState(one, two)

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        assert state is None or isinstance(state, SambaState)
        m = self.mamba(x, mask=mask, state=state.mamba if state else None)
        y = rms_norm(x + m, self.norm).to(x.dtype)
        return m + self.attention(y, mask=mask, state=state.attention if state else None)
