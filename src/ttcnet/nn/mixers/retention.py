"""RetNet: linear attention that forgets at a fixed rate, another one for each head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttcnet.lqr.arithmetic import working_dtype

from .base import Memory, Mixer, State, draw_linear, rms_norm, store, upcast
from .rotary import positions, rotate
from .scans import decay_scan


class RetNet(Mixer):
    """S_t = γ S_{t-1} + k_t v_t' and y_t = S_t' q_t, γ = 1 - 2^(-5-h) for head h; then norm(y) * silu(gate) per head.

    q and k are turned by their position (rotary). `inner` is the width of all values, twice the width by default;
    queries and keys are half as wide.
    """

    def __init__(self, width: int, *, heads: int, causal: bool = True, inner: int | None = None) -> None:
        super().__init__(width, heads=heads, causal=causal, inner=inner)
        self.key_size = (self.head_size + 1) // 2
        self.parts = [heads * self.key_size, heads * self.key_size, self.inner]
        self.sizes = [sum(self.parts), self.inner]  # (queries, keys, values), gate
        self.project = nn.Linear(width, sum(self.sizes), bias=False)
        self.norm = nn.Parameter(torch.empty(self.head_size))
        self.out = nn.Linear(self.inner, width, bias=False)
        self.reset_parameters()

    @classmethod
    def default_inner(cls, width: int) -> int:
        return 2 * width

    def reset_parameters(self) -> None:
        draw_linear(self.project)
        nn.init.ones_(self.norm)
        draw_linear(self.out)

    def _new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> Memory:
        shape = (batch, self.heads, 1, self.key_size, self.head_size)
        memory = torch.zeros(shape, device=device, dtype=working_dtype(dtype))
        return Memory(memory, seen=torch.zeros(batch, device=device, dtype=torch.long))

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        assert state is None or isinstance(state, Memory)
        ways, heads, length = self.directions, self.heads, x.shape[1]
        u, gate = self.project(x).split(self.sizes, -1)
        (u,) = upcast(self.both_ways(u).unflatten(-1, (ways, -1)))
        q, k, v = u.split(self.parts, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)) for part in (q, k, v))  # (batch, length, directions, heads, size)
        q, k = self._turn(q, mask, state) * self.key_size**-0.5, self._turn(k, mask, state)
        rate = torch.log1p(-(2.0 ** -(5 + torch.arange(heads, device=x.device, dtype=q.dtype))))
        log_decay = self.still(rate.repeat(ways).expand(x.shape[0], length, -1), mask)
        before = None if state is None else state.memory
        q, k, v = (part.flatten(2, 3) for part in (q, k, v))
        y, memory = decay_scan(q, k, v.unsqueeze(3), log_decay.unsqueeze(3), before, keep=state is not None)
        if state is not None and memory is not None and state.seen is not None:
            state.memory = store(state.memory, memory)
            state.seen = store(state.seen, state.seen + (length if mask is None else mask.sum(1)))
        y = self.add_ways(y.flatten(2)).unflatten(-1, (heads, -1))
        y = rms_norm(y, self.norm).flatten(2) * F.silu(gate)
        return self.out(y.to(gate.dtype))

    def _turn(self, x: Tensor, mask: Tensor | None, state: Memory | None) -> Tensor:
        """Rotary positions, counted in the direction of each scan."""
        seen = None if state is None else state.seen
        if mask is None or self.causal:
            return rotate(x.flatten(2, 3), positions(x.shape[1], mask, seen, x.device)).view(x.shape)
        ahead, back = x.unbind(2)
        one, two = (positions(x.shape[1], way, seen, x.device) for way in (mask, mask.flip(1)))
        return torch.stack([rotate(ahead, one), rotate(back, two)], 2)
