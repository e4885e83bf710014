"""The MLP of today's language models, which looks at one token at a time."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .base import Mixer, State, draw_linear


class MLP(Mixer):
    """SwiGLU: W_out (silu(W_gate x) * W_up x). `inner` is the hidden width, 8/3 of the width rounded up to eights.

    Heads, direction and state mean nothing to it: every token is on its own.
    """

    per_head = False
    remembers = None

    def __init__(self, width: int, *, heads: int, causal: bool = True, inner: int | None = None) -> None:
        super().__init__(width, heads=heads, causal=causal, inner=inner)
        self.project = nn.Linear(width, 2 * self.inner, bias=False)  # gate, up
        self.out = nn.Linear(self.inner, width, bias=False)
        self.reset_parameters()

    @classmethod
    def default_inner(cls, width: int) -> int:
        return -(-width // 3) * 8

    def reset_parameters(self) -> None:
        draw_linear(self.project)
        draw_linear(self.out)

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        gate, up = self.project(x).chunk(2, -1)
        return self.out(F.silu(gate) * up)
