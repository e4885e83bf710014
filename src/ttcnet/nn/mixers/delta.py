"""Gated DeltaNet: a memory that forgets, and replaces the value of a key instead of adding to it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttcnet.lqr.arithmetic import working_dtype

from .base import (
    Memory,
    Mixer,
    State,
    draw_linear,
    draw_step_bias,
    fill,
    rms_norm,
    store,
    unit_length,
    upcast,
)
from .convolution import ShortConvolution
from .scans import delta_scan


class GatedDeltaNet(Mixer):
    """S_t = α_t (I - β_t k_t k_t') S_{t-1} + β_t k_t v_t' and y_t = S_t' q_t; then norm(y) * silu(gate) per head.

    α_t = exp(-A softplus(W_α x_t + bias)) and β_t = sigmoid(W_β x_t) are numbers per head; q and k have length 1.
    `inner` is the width of all values, 3/2 of the width by default; queries and keys are half as wide.

    Args:
        kernel: length of the convolution before the scan.
    """

    def __init__(
        self, width: int, *, heads: int, causal: bool = True, inner: int | None = None, kernel: int = 4
    ) -> None:
        super().__init__(width, heads=heads, causal=causal, inner=inner)
        ways, inner = self.directions, self.inner
        self.key_size = (self.head_size + 1) // 2
        self.parts = [heads * self.key_size, heads * self.key_size, inner]
        self.sizes = [sum(self.parts), inner, heads, heads]  # (queries, keys, values), gate, β, α
        self.project = nn.Linear(width, sum(self.sizes), bias=False)
        self.convolution = ShortConvolution(ways * self.sizes[0], kernel, bias=False)
        self.step_bias = nn.Parameter(torch.empty(ways * heads))
        self.A_log = nn.Parameter(torch.empty(ways * heads))
        self.norm = nn.Parameter(torch.empty(self.head_size))
        self.out = nn.Linear(inner, width, bias=False)
        self.reset_parameters()

    @classmethod
    def default_inner(cls, width: int) -> int:
        return 3 * width // 2

    def reset_parameters(self) -> None:
        draw_linear(self.project)
        self.convolution.reset_parameters()
        draw_step_bias(self.step_bias)
        fill(self.A_log, torch.empty_like(self.A_log).uniform_(1, 16).log())
        nn.init.ones_(self.norm)
        draw_linear(self.out)

    def _new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> Memory:
        memory = torch.zeros(
            batch, self.heads, self.key_size, self.head_size, device=device, dtype=working_dtype(dtype)
        )
        recent = torch.zeros(batch, self.convolution.kernel - 1, self.sizes[0], device=device, dtype=dtype)
        return Memory(memory, recent)

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        assert state is None or isinstance(state, Memory)
        ways, heads = self.directions, self.heads
        u, gate, beta, step = self.project(x).split(self.sizes, -1)
        u = self.convolution(self.both_ways(u), mask, state).unflatten(-1, (ways, -1))
        u, beta, step, bias, A_log = upcast(u, self.both_ways(beta), self.both_ways(step), self.step_bias, self.A_log)
        q, k, v = u.split(self.parts, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).flatten(2, 3) for part in (q, k, v))
        q, k = unit_length(q) * self.key_size**-0.5, unit_length(k)
        log_decay = self.still(-A_log.exp() * F.softplus(step + bias), mask)
        beta = self.still(beta.sigmoid(), mask)
        before = None if state is None else state.memory
        y, memory = delta_scan(q, k, v, log_decay, beta, before, keep=state is not None)
        if state is not None and memory is not None:
            state.memory = store(state.memory, memory)
        y = self.add_ways(y.flatten(2)).unflatten(-1, (heads, -1))
        y = rms_norm(y, self.norm).flatten(2) * F.silu(gate)
        return self.out(y.to(gate.dtype))
